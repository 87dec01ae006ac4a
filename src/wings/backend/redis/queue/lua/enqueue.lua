-- Returns what is to be added to a part of a queue.
local function adding(root, part)
  local last = tonumber(call('GET', root .. 'n') or 0)
  return { root = root, p = root .. part .. ':', last = last, messages = {}, fresh = {}, soonest = FOREVER }
end

-- Adds a message, unless its de-duplication id is known, and returns its id.
local function enqueue(to, window, message, delay, deduplication)
  local p, number, messages = to.p, to.last + 1, to.messages
  if number < now then number = now end
  local id = text(number)
  if deduplication ~= '' then
    local known = p .. 'k:' .. deduplication
    if not call('SET', known, id, 'PX', window, 'NX') then return call('GET', known) end
  end
  to.last, messages[#messages + 1], messages[#messages + 2] = number, id, message
  if #message > LARGE then to.is_large = true end
  local at = delay == '0' and now or math.min(now + delay, FOREVER)
  local group = group_of(message)
  if group ~= '' then
    local tail = call('HGET', p .. 't', group)
    call('HSET', p .. 't', group, id)
    if tail then
      call('HSET', p .. 'n', tail, at > now and id .. ' ' .. text(at) or id)
      return id
    end
  end
  if at > now then call('ZADD', p .. 'l', text(at), id) else to.fresh[#to.fresh + 1] = id end
  if at < to.soonest then to.soonest = at end
  return id
end

-- Writes what was added.
local function flush(to)
  if #to.messages == 0 then return end
  each('HSET', to.p .. 'm', to.messages)
  each('RPUSH', to.p .. 'f', to.fresh)
  call('SET', to.root .. 'n', text(to.last))
  if to.is_large then call('SET', to.p .. 'z', 1) end
  wake(to.p, to.soonest)
end
