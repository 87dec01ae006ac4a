-- KEYS: lease. ARGV: holder, token, term in microseconds, term as it was given.
-- Returns {1, 1 if the holder was asked to release}, or {0} if it does not hold the lease.
local now = micros()
local lease = call('HMGET', KEYS[1], 'holder', 'token', 'ends', 'asked')
if lease[1] ~= ARGV[1] or lease[2] ~= ARGV[2] or now >= tonumber(lease[3]) then return {0} end
-- Removes nothing: a server without free memory refuses scripts that begin by adding.
call('HDEL', KEYS[1], '')
call('HSET', KEYS[1], 'ends', digits(now + tonumber(ARGV[3])), 'term', ARGV[4])
return {1, lease[4] and 1 or 0}
