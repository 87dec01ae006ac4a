-- KEYS: heads, values, index, ends, meta of a partition.
-- ARGV, for each write:
--   'p', row, required version, fence, life in microseconds, sequence of the row, value
--   'd', row, required version, fence
--   'c', row, required version
--   'a', name, required last number, value
-- A required version is '' for any, or '-' for none. A head is the version, and the end if there is one.
-- Returns {'ok', ...} with the result of each write, or {reason, index, detail}.
local heads, values, index, ends, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local time = micros()
local now = digits(time)
local ZERO, LAST = '00000000000000000000', '09223372036854775807'

local function is_over(head)
  return #head > 20 and string.sub(head, 21) <= now
end

local function remove(row)
  call('HDEL', heads, row)
  call('HDEL', values, row)
  call('ZREM', index, row)
  call('ZREM', ends, row)
end

-- All writes are checked before the first one, so that a refusal leaves nothing to undo.
local lasts, expired = {}, {}

-- Looks for rows that puts left before the first append: returns one, or collects the expired ones.
local function look_for_rows(name)
  local from, to = '[' .. name .. ZERO, '[' .. name .. '99999999999999999999'
  while true do
    local rows = call('ZRANGEBYLEX', index, from, to, 'LIMIT', 0, 1000)
    for i = 1, #rows do
      local row = rows[i]
      if #row == #name + 20 and string.find(string.sub(row, -20), '^%d+$') then
        local head = call('HGET', heads, row)
        if head and not is_over(head) then return row end
        expired[#expired + 1] = row
      end
    end
    if #rows < 1000 then return nil end
    from = '(' .. rows[#rows]
  end
end

local function check(row, required, fence, sequence)
  if fence ~= '' then
    local highest = call('HGET', meta, 'f' .. row)
    if highest and fence < highest then return 'fenced', highest end
  end
  if required == '' and sequence == '' then return nil end
  local head = call('HGET', heads, row)
  local version = head and not is_over(head) and string.sub(head, 1, 20)
  if required == '-' and version or required ~= '' and required ~= '-' and required ~= version then
    return 'conflict', version or ''
  end
  if sequence ~= '' and not version and call('HEXISTS', meta, 's' .. sequence) == 1 then return 'put', '' end
end

local function check_append(name, required)
  local before = lasts[name] or call('HGET', meta, 's' .. name) or ZERO
  if required ~= '' and required ~= before then
    if before == ZERO then return 'conflict', '' end
    return 'conflict', before
  end
  if before >= LAST then return 'full', '' end
  lasts[name] = inc(before)
  if before == ZERO then
    local row = look_for_rows(name)
    if row then return 'first', row end
  end
end

local writes, i, adds, deletes = 0, 1, false, false
while i <= #ARGV do
  local kind, reason, detail = ARGV[i], nil, nil
  if kind == 'p' then
    reason, detail = check(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 5])
    i, adds = i + 7, true
  elseif kind == 'd' then
    reason, detail = check(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], '')
    i, deletes = i + 4, true
  elseif kind == 'c' then
    reason, detail = check(ARGV[i + 1], ARGV[i + 2], '', '')
    i = i + 3
  else
    reason, detail = check_append(ARGV[i + 1], ARGV[i + 2])
    i, adds = i + 4, true
  end
  if reason then return {reason, writes, detail} end
  writes = writes + 1
end

for n = 1, #expired do remove(expired[n]) end
local version, has_put = call('HGET', meta, 'v') or ZERO, false

local function put(row, life, value)
  local head = call('HGET', heads, row)
  -- Above all versions that puts gave in this partition, also to records that are gone.
  version = larger(inc(version), now)
  if head then version = larger(version, inc(string.sub(head, 1, 20))) end
  has_put = true
  local end_of_life = ''
  if life ~= '' then
    end_of_life = digits(time + tonumber(life))
    call('ZADD', ends, end_of_life, row)
  elseif head and #head > 20 then
    call('ZREM', ends, row)
  end
  call('HSET', heads, row, version .. end_of_life)
  call('HSET', values, row, value)
  if not head then call('ZADD', index, 0, row) end
  return version
end

local function delete(row)
  local head = call('HGET', heads, row)
  if not head then return '0' end
  -- The version of an appended row is its number.
  version = larger(version, string.sub(head, 1, 20))
  has_put = true
  remove(row)
  if is_over(head) then return '0' end
  return '1'
end

local numbers = {}
local function append(name, value)
  local number = inc(numbers[name] or call('HGET', meta, 's' .. name) or ZERO)
  numbers[name] = number
  local row = name .. number
  call('HSET', heads, row, number)
  call('HSET', values, row, value)
  call('ZADD', index, 0, row)
  return number
end

-- A server without free memory refuses scripts that begin by adding, as a delete with a fence may. This removes nothing.
if deletes and not adds then call('HDEL', meta, '') end
local results = {'ok'}
i = 1
while i <= #ARGV do
  local kind, row, result = ARGV[i], ARGV[i + 1], ''
  if kind == 'p' or kind == 'd' then
    if ARGV[i + 3] ~= '' then call('HSET', meta, 'f' .. row, ARGV[i + 3]) end
  end
  if kind == 'p' then
    result = put(row, ARGV[i + 4], ARGV[i + 6])
    i = i + 7
  elseif kind == 'd' then
    result = delete(row)
    i = i + 4
  elseif kind == 'c' then
    i = i + 3
  else
    result = append(row, ARGV[i + 3])
    i = i + 4
  end
  results[#results + 1] = result
end
if has_put then call('HSET', meta, 'v', version) end
for name, last in pairs(lasts) do call('HSET', meta, 's' .. name, last) end

-- Deletes some expired records: twice as many as were written.
local over = call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 2 * writes)
for n = 1, #over do remove(over[n]) end

-- A partition whose records all end is deleted by the server, but for its fences and versions.
local mortal = call('ZCARD', ends)
if mortal > 0 and mortal == call('HLEN', heads) then
  local last = call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2]
  local at = string.format('%.0f', math.floor(tonumber(last) / 1000) + 1000)
  for n = 1, 4 do call('PEXPIREAT', KEYS[n], at) end
  call('HSET', meta, 'x', '1')
elseif call('HDEL', meta, 'x') == 1 then
  for n = 1, 4 do call('PERSIST', KEYS[n]) end
end
return results
