-- KEYS: lease. ARGV: token.
if call('HGET', KEYS[1], 'token') == ARGV[1] and call('HEXISTS', KEYS[1], 'holder') == 1 then
  -- Removes nothing: a server without free memory refuses scripts that begin by adding.
  call('HDEL', KEYS[1], '')
  call('HSET', KEYS[1], 'asked', '1')
end
return 1
