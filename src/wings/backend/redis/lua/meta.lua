-- KEYS: meta. ARGV: form, identity for a new data set, or '' to read only.
-- Raises an older form to this one, and returns the form and the identity.
if ARGV[2] == '' then
  return call('HMGET', KEYS[1], 'form', 'identity')
elseif call('EXISTS', KEYS[1]) == 0 then
  call('HSET', KEYS[1], 'form', ARGV[1], 'identity', ARGV[2])
elseif (tonumber(call('HGET', KEYS[1], 'form')) or math.huge) < tonumber(ARGV[1]) then
  call('HSET', KEYS[1], 'form', ARGV[1])
end
return call('HMGET', KEYS[1], 'form', 'identity')
