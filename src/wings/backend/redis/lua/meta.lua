-- KEYS: meta. ARGV: form, identity for a new data set.
-- Returns the form and the identity.
if call('EXISTS', KEYS[1]) == 0 then
  call('HSET', KEYS[1], 'form', ARGV[1], 'identity', ARGV[2])
end
return call('HMGET', KEYS[1], 'form', 'identity')
