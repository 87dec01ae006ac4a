-- ARGV: part, most bytes, ids. Returns of each message that is there: `id hidden deliveries attempts expiries flags`, the
-- message, its errors and reason as flagged.
tell()
local p, bytes, found = KEYS[1] .. ARGV[1] .. ':', 0, {}
for i = 3, #ARGV do
  local id = ARGV[i]
  bytes = bytes + call('HSTRLEN', p .. 'm', id)
  if bytes > tonumber(ARGV[2]) and #found > 0 then break end
  local message = call('HGET', p .. 'm', id)
  if message then
    local state, deliveries, attempts, expiries, flags, _ = call('HGET', p .. 's', id), 0, 0, 0, '0'
    if state then _, _, deliveries, attempts, expiries, flags = parse(state) end
    local at = tonumber(call('ZSCORE', p .. 'h', id) or call('ZSCORE', p .. 'l', id) or 0)
    found[#found + 1] = table.concat({ id, at > now and 1 or 0, deliveries, attempts, expiries, flags }, ' ')
    found[#found + 1] = message
    if flags == '1' or flags == '3' then found[#found + 1] = call('HGET', p .. 'e', id) end
    if flags == '2' or flags == '3' then found[#found + 1] = call('HGET', p .. 'r', id) end
  end
end
return found
