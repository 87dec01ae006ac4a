-- ARGV: part, de-duplication window (ms), number of settlements, their ids; of each settlement: how, the delivery, and
--   c (complete)
--   x (extend), b (extend, handling has begun), u (extend, it has not), r (release): time (us)
--   a (abandon): time (us), error
--   d (dead-letter): reason, error
--   f (forward): number of messages; of each: place of its root in KEYS, part, message, delay (us), de-duplication id
--   q (set aside what cannot be read); the delivery is 0
-- Returns a text with `1` or `0` of each settlement: made, or refused since its receipt is stale or nothing is left.
-- Most calls complete, and need no time: `now` is nil until it is needed.
local root, part, window, number = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local p, next_argument = root .. part .. ':', 3 + number

local function argument()
  next_argument = next_argument + 1
  return ARGV[next_argument]
end

local states = {}
for i = 4, 3 + number, 1000 do
  local last = math.min(i + 999, 3 + number)
  for at, state in ipairs(call('HMGET', p .. 's', unpack(ARGV, i, last))) do states[ARGV[i + at - 1]] = state end
end

-- What is settled leaves its place at the end: `followed` has the ids and groups of messages whose next is to be shown.
local soonest, completed, followed, targets = FOREVER, {}, {}, {}

local function remove(ids)
  if #ids == 0 then return end
  each('HDEL', p .. 'm', ids)
  each('HDEL', p .. 's', ids)
  local removed = 0
  for i = 1, #ids, 1000 do removed = removed + call('ZREM', p .. 'h', unpack(ids, i, math.min(i + 999, #ids))) end
  -- A late settlement may find them visible again.
  if removed < #ids then each('ZREM', p .. 'b', ids) end
end

local answers, advance = {}, nil

-- Returns the function that makes any settlement. Most calls need none of it, and a function costs time to make.
local function any()
  call('HDEL', p .. 's', '')

  -- Shows a message at a time; 0 is at once. A delivered one leaves its place then.
  local function show(id, at, is_delivered)
    if not (at > 0 and at > now) then
      call('ZADD', p .. 'b', id, id)
      if is_delivered then call('ZREM', p .. 'h', id) end
    elseif not is_delivered then
      call('ZADD', p .. 'l', text(at), id)
    elseif call('ZADD', p .. 'h', text(at), id) == 1 then
      -- It was visible again: the settlement is late.
      call('ZREM', p .. 'b', id)
    end
    soonest = math.min(soonest, at)
  end

  -- Returns the next message of a group whose link is damaged: the first of those that wait.
  local function search(id, group)
    local last = group and call('HGET', p .. 't', group)
    if not last or last == id then return nil end
    local first = last
    for _, other in ipairs(call('HKEYS', p .. 'n')) do
      local number = number_of(other)
      if number > number_of(id) and number < number_of(first) then
        if group_of(call('HGET', p .. 'm', other) or '') == group then first = other end
      end
    end
    return first
  end

  -- Returns `true` if the message is visible, hidden or delayed: it does not wait behind another.
  local function is_placed(id)
    for place in string.gmatch('bhl', '.') do
      if call('ZSCORE', p .. place, id) then return true end
    end
    return call('LPOS', p .. 'f', id) and true or false
  end

  -- Shows the next message of a group, and forgets the link. The group of a damaged message may be nil.
  function advance(id, group)
    local link = call('HGET', p .. 'n', id)
    local next, due = string.match(link or '', '^(%d+) ?(%d*)$')
    if not next or number_of(next) == 0 then
      next, due = search(id, group), ''
      -- Behind a message that was deleted by hand a group begins anew.
      if next and is_placed(next) then next, group = nil, nil end
    end
    if next then
      if due ~= '' and not now then tell() end
      show(next, due == '' and 0 or tonumber(due))
    elseif group then
      call('HDEL', p .. 't', group)
    end
    if link then call('HDEL', p .. 'n', id) end
  end

  local function leave(id, group)
    states[id], completed[#completed + 1] = nil, id
    if group ~= '' then followed[#followed + 1] = { id, group } end
  end

  local function remove_notes(id, flags)
    if flags ~= '0' then
      call('HDEL', p .. 'e', id)
      call('HDEL', p .. 'r', id)
    end
  end

  -- Adds the error of an attempt: the first and the latest ten are kept. Returns the errors.
  local function with_error(id, flags, error)
    local errors = (flags == '1' or flags == '3') and call('HGET', p .. 'e', id) or ''
    local starts, at = {}, 1
    while at <= #errors do
      local _, head, length = string.find(errors, '^%d+ %d+ [%a_]+ (%d+):', at)
      if not head then break end
      starts[#starts + 1] = at
      at = head + length + 1
    end
    if #starts > 10 then errors = string.sub(errors, 1, starts[2] - 1) .. string.sub(errors, starts[3]) end
    return errors .. error
  end

  local function flagged(flags, flag)
    if flags == '3' or flags == '0' or flags == flag then return flags == '0' and flag or flags end
    return '3'
  end

  local function dead_letter(id, reason, error, delivery, deliveries, attempts, expiries, flags, group)
    local d, message, pending = root .. 'd:', call('HGET', p .. 'm', id), targets[root .. 'd']
    -- What was forwarded to the dead letters before is written first, as one of its group may be the last.
    if pending then
      flush(pending, window)
      targets[root .. 'd'] = nil
    end
    leave(id, group)
    -- It was deleted by hand.
    if not message then return remove_notes(id, flags) end
    local errors = error ~= '' and with_error(id, flags, error) or call('HGET', p .. 'e', id)
    local tail = group ~= '' and call('HGET', d .. 't', group)
    -- Behind a message that was deleted by hand nothing would ever be shown.
    if tail and tail ~= id and call('HEXISTS', d .. 'm', tail) == 1 then
      call('HSET', d .. 'n', tail, id)
    else
      call('ZADD', d .. 'b', id, id)
      wake(d, 0)
    end
    call('HSET', d .. 'm', id, message)
    if group ~= '' then call('HSET', d .. 't', group, id) end
    if #message > LARGE then call('SET', d .. 'z', 1) end
    call('HSET', d .. 'r', id, reason)
    if errors then call('HSET', d .. 'e', id, errors) end
    local number = marked(expiries, false)
    local counts = table.concat({ '-' .. delivery, deliveries, attempts, number, errors and '3' or '2', group }, ' ')
    call('HSET', d .. 's', id, counts)
    remove_notes(id, flags)
  end

  -- Keeps what is left of a message that cannot be read in a hash of its own. Returns `0` if nothing is left: another
  -- receiver has set it aside, or the queue was purged.
  local function set_aside(id, state)
    local message = call('HGET', p .. 'm', id)
    if not message and not state and not call('ZSCORE', p .. 'h', id) then return '0' end
    local group = state and select(7, parse(state)) or message and group_of(message) or nil
    if message then call('HSET', p .. 'a', id, message) else call('HSETNX', p .. 'a', id, '') end
    remove_notes(id, '3')
    states[id], completed[#completed + 1] = nil, id
    -- The group may be what is damaged: one without a name is none that can be trusted.
    followed[#followed + 1] = { id, group ~= '' and group or nil }
    return '1'
  end

  local function forward(is_valid)
    for _ = 1, tonumber(argument()) do
      local to, of = KEYS[tonumber(argument())], argument()
      local message, delay, deduplication = argument(), argument(), argument()
      if is_valid then
        local target = targets[to .. of]
        -- Both parts of a queue have one numbering, so what was added to the other is written first.
        local other = targets[to .. (of == 'q' and 'd' or 'q')]
        if other then
          flush(other, window)
          targets[to .. (of == 'q' and 'd' or 'q')] = nil
        end
        if not target then
          target = adding(to, of)
          targets[to .. of] = target
        end
        enqueue(target, message, delay, deduplication)
      end
    end
  end

  return function(i, id, how, receipt, state)
    if how ~= 'c' and not now then tell() end
    local ended, delivery, deliveries, attempts, expiries, flags, group
    if state then ended, delivery, deliveries, attempts, expiries, flags, group = parse(state) end
    local is_valid = ended == '' and delivery == receipt
    answers[i] = is_valid and '1' or '0'
    if how == 'c' or how == 'f' then
      if is_valid then
        leave(id, group)
        remove_notes(id, flags)
      end
      if how == 'f' then forward(is_valid) end
    elseif how == 'q' then
      answers[i] = set_aside(id, state)
    elseif how == 'd' then
      local reason, error = argument(), argument()
      if is_valid then
        dead_letter(id, reason, error, delivery, deliveries, attempts, expiries, flags, group)
      end
    else
      local after, error = tonumber(argument()), how == 'a' and argument() or ''
      if is_valid then
        if error ~= '' then
          call('HSET', p .. 'e', id, with_error(id, flags, error))
          flags = flagged(flags, '1')
        end
        if how ~= 'x' then
          local ends = how == 'a' or how == 'r'
          if how == 'a' then
            attempts, expiries = 1 + math.max(0, attempts - untried(expiries)), 0
          else
            expiries = marked(expiries, how == 'b')
          end
          local number = ends and '-' .. delivery or delivery
          states[id] = table.concat({ number, deliveries, attempts, expiries, flags, group }, ' ')
          call('HSET', p .. 's', id, states[id])
        end
        show(id, after == 0 and 0 or math.min(now + after, FOREVER), true)
      end
    end
  end
end

local settle
for i = 1, number do
  local id, how, receipt = ARGV[3 + i], argument(), argument()
  local state = states[id]
  if how == 'c' and state == receipt .. FIRST then
    answers[i], states[id], completed[#completed + 1] = '1', nil, id
  else
    settle = settle or any()
    settle(i, id, how, receipt, state)
  end
end
for _, target in pairs(targets) do flush(target, window) end
for i = 1, #followed do advance(followed[i][1], followed[i][2]) end
remove(completed)
if soonest < FOREVER then wake(p, soonest) end
return table.concat(answers)
