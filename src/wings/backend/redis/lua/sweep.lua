-- The end of scripts that write, in a partition whose records may have ends.
-- Deletes some expired records: twice as many as were written.
local index, ends = root .. 'index', root .. 'ends'
local over = call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 2 * writes)
if #over > 0 then
  for from = 1, #over, 500 do
    local some, gone = {unpack(over, from, math.min(from + 499, #over))}, {}
    for n = 1, #some do gone[2 * n - 1], gone[2 * n] = 'h' .. some[n], 'v' .. some[n] end
    call('HDEL', rows, unpack(gone))
    call('ZREM', index, unpack(some))
    call('ZREM', ends, unpack(some))
  end
end

-- A partition whose records all end is deleted by the server, but for its fences and versions.
local mortal, before, keys = call('ZCARD', ends), flag, {rows, index, ends}
flag = mortal == 0 and '' or '1'
if mortal > 0 and mortal == call('ZCARD', index) then
  local last = call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2]
  local at = string.format('%.0f', math.floor(tonumber(last) / 1000) + 1000)
  call('HSET', root .. 'meta', 'v', version)
  for n = 1, 3 do call('PEXPIREAT', keys[n], at) end
  flag = '2'
elseif before == '2' then
  for n = 1, 3 do call('PERSIST', keys[n]) end
end
if flag ~= before then call('HSET', rows, 'l', version .. flag) end
return answers
