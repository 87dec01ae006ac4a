-- KEYS: lease. ARGV: holder, term in microseconds, term as it was given.
-- Returns {1, token}, or {0, holder, token, term, microseconds left}.
local now = micros()
local lease = call('HMGET', KEYS[1], 'holder', 'token', 'ends', 'term')
if lease[1] and lease[1] ~= ARGV[1] and now < tonumber(lease[3]) then
  return {0, lease[1], lease[2], lease[4], digits(tonumber(lease[3]) - now)}
end
local token = digits(now)
if lease[2] then token = larger(token, inc(lease[2])) end
call('HSET', KEYS[1], 'holder', ARGV[1], 'token', token, 'ends', digits(now + tonumber(ARGV[2])), 'term', ARGV[3])
call('HDEL', KEYS[1], 'asked')
return {1, token}
