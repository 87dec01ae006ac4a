-- KEYS: lease. ARGV: holder, token.
-- Returns 1, or 0 if the holder does not hold the lease. The token stays, so that later ones are above it.
local lease = call('HMGET', KEYS[1], 'holder', 'token', 'ends')
if lease[1] ~= ARGV[1] or lease[2] ~= ARGV[2] or micros() >= tonumber(lease[3]) then return 0 end
call('HDEL', KEYS[1], 'holder', 'ends', 'term', 'asked')
return 1
