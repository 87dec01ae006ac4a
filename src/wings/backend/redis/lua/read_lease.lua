-- KEYS: lease. Returns {} if it is free, or {holder, token, term, microseconds left}.
local now = micros()
local lease = call('HMGET', KEYS[1], 'holder', 'token', 'term', 'ends')
if not lease[1] or now >= tonumber(lease[4]) then return {} end
return {lease[1], lease[2], lease[3], digits(tonumber(lease[4]) - now)}
