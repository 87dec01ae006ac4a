-- KEYS: lease. ARGV: token.
if call('HGET', KEYS[1], 'token') == ARGV[1] and call('HEXISTS', KEYS[1], 'holder') == 1 then
  call('HSET', KEYS[1], 'asked', '1')
end
return 1
