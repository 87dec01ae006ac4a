-- ARGV: part, most bytes, most messages, ids in order. Returns the oldest of these messages and of those that wait behind
-- them in their groups: `id hidden deliveries attempts expiries flags`, the message, its errors and reason as flagged.
tell()
local p, bytes, found = KEYS[1] .. ARGV[1] .. ':', 0, {}

-- A heap of ids, the least first: so are ids in order.
local heap = {}
for i = 4, #ARGV do heap[i - 3] = tonumber(ARGV[i]) end

-- Replaces the least id by another one, or by none.
local function replace(with)
  local last = #heap
  if not with then
    with, heap[last] = heap[last], nil
    last = last - 1
    if last == 0 then return end
  end
  local at = 1
  while 2 * at <= last do
    local child = 2 * at
    if child < last and heap[child + 1] < heap[child] then child = child + 1 end
    if with <= heap[child] then break end
    heap[at] = heap[child]
    at = child
  end
  heap[at] = with
end

for _ = 1, tonumber(ARGV[3]) do
  if #heap == 0 then break end
  local id = text(heap[1])
  local link = string.match(call('HGET', p .. 'n', id) or '', '^%d+')
  replace(link and link ~= id and number_of(link) > 0 and number_of(link) or nil)
  bytes = bytes + call('HSTRLEN', p .. 'm', id)
  if bytes > tonumber(ARGV[2]) and #found > 0 then break end
  local message, state = call('HGET', p .. 'm', id), call('HGET', p .. 's', id)
  local deliveries, attempts, expiries, flags, _ = 0, 0, 0, '0'
  if state then _, _, deliveries, attempts, expiries, flags = parse(state) end
  -- A message that is damaged is set aside by the receive that finds it.
  if message and flags then
    local at = tonumber(call('ZSCORE', p .. 'h', id) or call('ZSCORE', p .. 'l', id) or 0)
    found[#found + 1] = table.concat({ id, at > now and 1 or 0, deliveries, attempts, expiries, flags }, ' ')
    found[#found + 1] = message
    if flags == '1' or flags == '3' then found[#found + 1] = call('HGET', p .. 'e', id) end
    if flags == '2' or flags == '3' then found[#found + 1] = call('HGET', p .. 'r', id) end
  end
end
return found
