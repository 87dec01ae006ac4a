-- ARGV: part, most messages, visibility (us), `1` if the receiver waits, most bytes.
-- Returns of each message: `id delivery deliveries attempts expiries flags`, the message, its errors and reason as
-- flagged. Without a message: the time until the next may be visible (us), or nothing if there is none.
local p, most = KEYS[1] .. ARGV[1] .. ':', tonumber(ARGV[2])

-- Makes messages visible whose time is over: not all of many, but as many as are asked for.
for _, set in ipairs({ p .. 'h', p .. 'l' }) do
  local due = call('ZRANGEBYSCORE', set, '-inf', text(now), 'LIMIT', 0, math.max(most, 100))
  if #due > 0 then
    -- Removed first: a server without free memory refuses scripts that begin by adding.
    each('ZREM', set, due)
    each('ZADD', p .. 'b', scored(due))
  end
end

local back = call('ZRANGE', p .. 'b', 0, most - 1)
local fresh = call('LRANGE', p .. 'f', 0, most - 1)
local taken, returned, bytes = {}, {}, 0
local are_large = most > 1 and call('EXISTS', p .. 'z') == 1
while #taken < most do
  local one, other = back[#returned + 1], fresh[#taken - #returned + 1]
  if not one and not other then break end
  local is_back = one and (not other or tonumber(one) < tonumber(other))
  local id = is_back and one or other
  if are_large then
    bytes = bytes + call('HSTRLEN', p .. 'm', id)
    if bytes > tonumber(ARGV[5]) and #taken > 0 then break end
  end
  taken[#taken + 1] = id
  if is_back then returned[#returned + 1] = id end
end

if #taken == 0 then
  local next = FOREVER
  for _, set in ipairs({ p .. 'h', p .. 'l' }) do
    local first = call('ZRANGE', set, 0, 0, 'WITHSCORES')
    if first[2] then next = math.min(next, tonumber(first[2])) end
  end
  if are_large and call('HLEN', p .. 'm') == 0 then call('DEL', p .. 'z') end
  if ARGV[4] == '1' and next > tonumber(call('GET', p .. 'w') or 0) then
    call('SET', p .. 'w', text(next))
  end
  return next < FOREVER and { text(next - now) } or {}
end

if #taken > #returned then call('LTRIM', p .. 'f', #taken - #returned, -1) end
local before = {}
if #returned > 0 then
  call('ZREM', p .. 'b', unpack(returned))
  for i, state in ipairs(call('HMGET', p .. 's', unpack(returned))) do before[returned[i]] = state end
end
local messages = call('HMGET', p .. 'm', unpack(taken))
local states, found = {}, {}
for i, id in ipairs(taken) do
  local message, delivery, ended, earlier, deliveries, attempts, expiries, flags, group = messages[i], now
  -- A program that deletes keys may leave an id without its message.
  if not message then break end
  if before[id] then
    ended, earlier, deliveries, attempts, expiries, flags, group = parse(before[id])
    delivery = math.max(now, earlier + 1)
    -- The delivery did not end, so it expired.
    if ended == '' then attempts, expiries = attempts + 1, expiries + 1 end
  else
    deliveries, attempts, expiries, flags = 0, 0, 0, '0'
    group = string.sub(message, 3, 2 + struct.unpack('>I2', message))
  end
  local counts = table.concat({ text(delivery), deliveries + 1, attempts, expiries, flags }, ' ')
  states[2 * i - 1], states[2 * i] = id, counts .. ' ' .. group
  found[#found + 1], found[#found + 2] = id .. ' ' .. counts, message
  if flags == '1' or flags == '3' then found[#found + 1] = call('HGET', p .. 'e', id) end
  if flags == '2' or flags == '3' then found[#found + 1] = call('HGET', p .. 'r', id) end
end
each('HSET', p .. 's', states)
each('ZADD', p .. 'h', scored(taken, text(math.min(now + ARGV[3], FOREVER))))
return found
