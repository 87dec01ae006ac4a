-- ARGV: part, most bytes, number of receives; of each: most messages, visibility (us), `1` if the receiver waits.
-- Returns of each receive its messages: `id delivery deliveries attempts expiries flags`, the message, its errors and
-- reason as flagged; of a damaged one `!id` and an empty text. Without a message: the time until the next may be visible
-- (us), or nothing if there is none; or nil if the receive is to be repeated, since the bytes of others left no room.
tell()
local p, most_bytes, receives = KEYS[1] .. ARGV[1] .. ':', tonumber(ARGV[2]), tonumber(ARGV[3])
local most = 0
for i = 1, receives do most = most + tonumber(ARGV[1 + 3 * i]) end

-- Makes messages visible whose time is over: not all of many, but as many as are asked for.
local function show_due(set)
  local due = call('ZRANGEBYSCORE', set, '-inf', text(now), 'LIMIT', 0, math.max(most, 100))
  if #due > 0 then
    call('ZREM', set, '')
    each('ZADD', p .. 'b', scored(due))
    each('ZREM', set, due)
  end
end
show_due(p .. 'h')
show_due(p .. 'l')

local are_large, is_cut = most > 1 and call('EXISTS', p .. 'z') == 1, false
local back = call('ZRANGE', p .. 'b', 0, most - 1)
local taken, returned = {}, {}
if #back == 0 and not are_large then
  taken = call('LRANGE', p .. 'f', 0, most - 1)
else
  local fresh, bytes = call('LRANGE', p .. 'f', 0, most - 1), 0
  while #taken < most do
    local one, other = back[#returned + 1], fresh[#taken - #returned + 1]
    if not one and not other then break end
    local is_back = one and (not other or number_of(one) < number_of(other))
    local id = is_back and one or other
    if are_large then
      bytes = bytes + call('HSTRLEN', p .. 'm', id)
      is_cut = bytes > most_bytes and #taken > 0
      if is_cut then break end
    end
    taken[#taken + 1] = id
    if is_back then returned[#returned + 1] = id end
  end
end

local messages, before = {}, {}
for from = 1, #taken, 1000 do
  local some = call('HMGET', p .. 'm', unpack(taken, from, math.min(from + 999, #taken)))
  for i = 1, #some do messages[from + i - 1] = some[i] end
end
for from = 1, #returned, 1000 do
  local some = call('HMGET', p .. 's', unpack(returned, from, math.min(from + 999, #returned)))
  for i = 1, #some do before[returned[from + i - 1]] = some[i] end
end

local answers, states, hidden, at, lacks, waits = {}, {}, {}, 1, false, false
local first = now_text .. FIRST
for receive = 1, receives do
  local found, last = {}, math.min(at + tonumber(ARGV[1 + 3 * receive]) - 1, #taken)
  local until_then = text(math.min(now + ARGV[2 + 3 * receive], FOREVER))
  for i = at, last do
    local id, message = taken[i], messages[i]
    local state, counts, flags, group = before[id], first, '0', nil
    if message and state then
      local ended, earlier, deliveries, attempts, expiries
      ended, earlier, deliveries, attempts, expiries, flags, group = parse(state)
      if ended then
        -- The delivery did not end, so it expired.
        if ended == '' then attempts, expiries = attempts + 1, expired(expiries) end
        local delivery = text(math.max(now, earlier + 1))
        counts = table.concat({ delivery, deliveries + 1, attempts, expiries, flags .. ' ' }, ' ')
      end
    elseif message then
      group = group_of(message)
    end
    hidden[#hidden + 1], hidden[#hidden + 2] = until_then, id
    if not group then
      -- Hidden like the others until the receiver has it set aside.
      found[#found + 1], found[#found + 2] = '!' .. id, ''
    else
      states[#states + 1], states[#states + 2] = id, group == '' and counts or counts .. group
      found[#found + 1], found[#found + 2] = id .. ' ' .. counts, message
      if flags == '1' or flags == '3' then found[#found + 1] = call('HGET', p .. 'e', id) end
      if flags == '2' or flags == '3' then found[#found + 1] = call('HGET', p .. 'r', id) end
    end
  end
  answers[receive], at = found, math.max(at, last + 1)
  if #found == 0 then
    if is_cut then answers[receive] = false end
    lacks, waits = true, waits or ARGV[3 + 3 * receive] == '1'
  end
end
if #taken > 0 then
  call('HDEL', p .. 's', '')
  each('HSET', p .. 's', states)
  each('ZADD', p .. 'h', hidden)
  if #taken > #returned then call('LTRIM', p .. 'f', #taken - #returned, -1) end
  each('ZREM', p .. 'b', returned)
end
if not lacks or is_cut then return answers end

local next = FOREVER
for _, set in ipairs({ p .. 'h', p .. 'l' }) do
  local soonest = call('ZRANGE', set, 0, 0, 'WITHSCORES')
  if soonest[2] then next = math.min(next, tonumber(soonest[2])) end
end
if are_large and call('HLEN', p .. 'm') == 0 then call('DEL', p .. 'z') end
if waits and next > (tonumber(call('GET', p .. 'w') or 0) or 0) then call('SET', p .. 'w', text(next)) end
for receive = 1, receives do
  if #answers[receive] == 0 and next < FOREVER then answers[receive] = { text(next - now) } end
end
return answers
