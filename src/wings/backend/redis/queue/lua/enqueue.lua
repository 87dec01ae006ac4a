-- Returns what is to be added to a part of a queue.
local function adding(root, part)
  local last = tonumber(call('GET', root .. 'n') or 0) or 0
  return {
    root = root, p = root .. part .. ':', last = last, soonest = FOREVER,
    messages = {}, fresh = {}, later = {}, links = {}, tails = {}, known = {},
  }
end

-- Adds a message, unless its de-duplication id is known, and returns its id. No message is written here.
local function enqueue(to, message, delay, deduplication)
  local p, number, messages = to.p, to.last + 1, to.messages
  if number < now then number = now end
  local id = text(number)
  if deduplication ~= '' then
    local key = p .. 'k:' .. deduplication
    if to.known[key] then return to.known[key] end
    local known = call('GET', key)
    if known then
      -- Written again: `WAIT` waits for writes of its own connection, and an earlier one may have sent the message.
      call('SET', key, known, 'KEEPTTL')
      return known
    end
    to.known[key] = id
  end
  to.last, messages[#messages + 1], messages[#messages + 2] = number, id, message
  if #message > LARGE then to.is_large = true end
  local at = delay == '0' and now or math.min(now + delay, FOREVER)
  local group = group_of(message)
  if group ~= '' then
    local tail = to.tails[group]
    if not tail then
      tail = call('HGET', p .. 't', group)
      -- Behind a message that was deleted by hand nothing would ever be shown.
      if tail and call('HEXISTS', p .. 'm', tail) == 0 then tail = nil end
    end
    to.tails[group] = id
    if tail then
      local links = to.links
      links[#links + 1], links[#links + 2] = tail, at > now and id .. ' ' .. text(at) or id
      return id
    end
  end
  local later = to.later
  if at > now then later[#later + 1], later[#later + 2] = text(at), id else to.fresh[#to.fresh + 1] = id end
  if at < to.soonest then to.soonest = at end
  return id
end

-- Writes what was added. De-duplication ids are remembered for the window, in milliseconds: they come last, so that a
-- send that is repeated after a failure is no duplicate of nothing.
local function flush(to, window)
  if #to.messages == 0 then return end
  local p, tails = to.p, {}
  each('RPUSH', p .. 'f', to.fresh)
  each('ZADD', p .. 'l', to.later)
  each('HSET', p .. 'n', to.links)
  each('HSET', p .. 'm', to.messages)
  for group, id in pairs(to.tails) do tails[#tails + 1], tails[#tails + 2] = group, id end
  each('HSET', p .. 't', tails)
  call('SET', to.root .. 'n', text(to.last))
  if to.is_large then call('SET', p .. 'z', 1) end
  for key, id in pairs(to.known) do call('SET', key, id, 'PX', window) end
  wake(p, to.soonest)
end
