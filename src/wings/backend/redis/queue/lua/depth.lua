-- ARGV: part. Returns the numbers of visible, delayed and delivered messages.
tell()
local p, later = KEYS[1] .. ARGV[1] .. ':', '(' .. text(now)
local delayed, in_flight = call('ZCOUNT', p .. 'l', later, '+inf'), call('ZCOUNT', p .. 'h', later, '+inf')
-- Ids without a message, which an operator deleted, are in flight until they are set aside.
return { math.max(0, call('HLEN', p .. 'm') - delayed - in_flight), delayed, in_flight }
