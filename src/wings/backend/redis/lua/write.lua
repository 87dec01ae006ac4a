-- KEYS: root of a partition. ARGV: number of jobs, the number of arguments of each, and the writes of each:
--   'p', row, required version, fence, life in microseconds, sequence of the row, value
--   'd', row, required version, fence
--   'c', row, required version
--   'a', name, required last number, value
-- A job is made as a whole or refused as a whole. A required version is '' for any, or '-' for none.
-- Returns of each job {'ok', ...} with the result of each write, or {reason, index, detail}.
--
-- Keys: ROOT and
--   rows   hash  `h` and row -> head, which is the version, and the end if there is one; `v` and row -> value;
--                `l` -> last version of a put, and a flag: 1 if a record may have an end, 2 if the keys have one, too
--   index  zset  rows;  ends  zset  rows whose records have an end, by it
--   meta   hash  `f` and row -> highest fence; `s` and name -> last number; `v` -> last version, if the keys have an end
--
-- Few commands do all: each costs about as much as the work of a job here.
local root, rows, index, ends, meta = KEYS[1], KEYS[1] .. 'rows', KEYS[1] .. 'index', KEYS[1] .. 'ends', KEYS[1] .. 'meta'
local now = clock()
local ZERO, LAST = '00000000000000000000', '09223372036854775807'
local jobs = tonumber(ARGV[1])
local WIDTH = {p = 7, d = 4, c = 3, a = 4}

-- The state before the call, and as the jobs leave it: `heads[row]` is false if there is no record.
local before, heads, values, changed = {}, {}, {}, {}
local notes = {}

local writes, adds, deletes = 0, false, false
local version, flag, stored
do
  local fields, named, i = {'l'}, {}, 2 + jobs
  while i <= #ARGV do
    local kind, row = ARGV[i], ARGV[i + 1]
    if kind == 'a' then
      named[#named + 1] = 's' .. row
    else
      fields[#fields + 1] = 'h' .. row
      if kind ~= 'c' and ARGV[i + 3] ~= '' then named[#named + 1] = 'f' .. row end
      if kind == 'p' and ARGV[i + 5] ~= '' then named[#named + 1] = 's' .. ARGV[i + 5] end
    end
    adds, deletes = adds or kind == 'p' or kind == 'a', deletes or kind == 'd'
    i, writes = i + WIDTH[kind], writes + 1
  end
  for from = 1, #fields, 1000 do
    local found = call('HMGET', rows, unpack(fields, from, math.min(from + 999, #fields)))
    for n = 1, #found do before[fields[from + n - 1]] = found[n] end
  end
  stored = before.l
  for from = 1, #named, 1000 do
    local found = call('HMGET', meta, unpack(named, from, math.min(from + 999, #named)))
    for n = 1, #found do notes[named[from + n - 1]] = found[n] end
  end
  version, flag = last_version(root, stored)
end

local function head_of(row)
  local head = heads[row]
  if head == nil then
    head = before['h' .. row]
    if head == nil then
      head = call('HGET', rows, 'h' .. row)
      before['h' .. row] = head
    end
    heads[row] = head
  end
  return head
end

local function is_over(head)
  return #head > 20 and string.sub(head, 21) <= now
end

local function change(row, head, value)
  if not values[row] then changed[#changed + 1] = row end
  heads[row], values[row] = head, value
end

-- Looks for rows that puts left before the first append: returns one, or collects the expired ones.
local function look_for_rows(name, expired)
  local function judge(row)
    if #row == #name + 20 and string.sub(row, 1, #name) == name and string.find(string.sub(row, -20), '^%d+$') then
      local head = head_of(row)
      if head and not is_over(head) then return row end
      if head then expired[#expired + 1] = row end
    end
  end
  for n = 1, #changed do
    if judge(changed[n]) then return changed[n] end
  end
  local from, to = '[' .. name .. ZERO, '[' .. name .. '99999999999999999999'
  while true do
    local some = call('ZRANGEBYLEX', index, from, to, 'LIMIT', 0, 1000)
    for n = 1, #some do
      if judge(some[n]) then return some[n] end
    end
    if #some < 1000 then return nil end
    from = '(' .. some[#some]
  end
end

local function check(row, required, fence, sequence)
  if fence ~= '' then
    local highest = notes['f' .. row]
    if highest and fence < highest then return 'fenced', highest end
  end
  if required == '' and sequence == '' then return nil end
  local head = head_of(row)
  local known = head and not is_over(head) and string.sub(head, 1, 20)
  if required == '-' and known or required ~= '' and required ~= '-' and required ~= known then
    return 'conflict', known or ''
  end
  if sequence ~= '' and not known and notes['s' .. sequence] then return 'put', '' end
end

local function check_append(name, required, lasts, expired)
  local last = lasts[name] or notes['s' .. name] or ZERO
  if required ~= '' and required ~= last then
    if last == ZERO then return 'conflict', '' end
    return 'conflict', last
  end
  if last >= LAST then return 'full', '' end
  lasts[name] = inc(last)
  if last == ZERO then
    local row = look_for_rows(name, expired)
    if row then return 'first', row end
  end
end

-- All writes of a job are checked before the first one, so that a refusal leaves nothing to undo.
local function refusal(first, last)
  local lasts, expired, writes, i = {}, {}, 0, first
  while i <= last do
    local kind, reason, detail = ARGV[i], nil, nil
    if kind == 'p' then
      reason, detail = check(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 5])
    elseif kind == 'd' then
      reason, detail = check(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], '')
    elseif kind == 'c' then
      reason, detail = check(ARGV[i + 1], ARGV[i + 2], '', '')
    else
      reason, detail = check_append(ARGV[i + 1], ARGV[i + 2], lasts, expired)
    end
    if reason then return {reason, writes, detail} end
    i, writes = i + WIDTH[kind], writes + 1
  end
  for n = 1, #expired do change(expired[n], false, '') end
end

local meta_sets = {}
local function note(field, value)
  notes[field] = value
  meta_sets[field] = value
end

local is_mortal = false
local function put(row, life, value)
  local head = head_of(row)
  -- Above all versions that puts gave in this partition, also to records that are gone.
  version = version < now and now or inc(version)
  if head then version = larger(version, inc(string.sub(head, 1, 20))) end
  change(row, version, value)
  if life ~= '' then
    heads[row] = version .. digits(tonumber(now) + tonumber(life))
    is_mortal = true
  end
  return version
end

local function delete(row)
  local head = head_of(row)
  if not head then return '0' end
  -- The version of an appended row is its number.
  version = larger(version, string.sub(head, 1, 20))
  change(row, false, '')
  if is_over(head) then return '0' end
  return '1'
end

local function append(name, value)
  local number = inc(notes['s' .. name] or ZERO)
  note('s' .. name, number)
  -- Rows above the last number do not exist; the first append has looked for them.
  change(name .. number, number, value)
  return number
end

local function apply(first, last)
  local results, i = {'ok'}, first
  while i <= last do
    local kind, row, result = ARGV[i], ARGV[i + 1], ''
    if (kind == 'p' or kind == 'd') and ARGV[i + 3] ~= '' then note('f' .. row, ARGV[i + 3]) end
    if kind == 'p' then
      result = put(row, ARGV[i + 4], ARGV[i + 6])
    elseif kind == 'd' then
      result = delete(row)
    elseif kind == 'a' then
      result = append(row, ARGV[i + 3])
    end
    results[#results + 1] = result
    i = i + WIDTH[kind]
  end
  return results
end

local answers, first = {}, 2 + jobs
for job = 1, jobs do
  local last = first + tonumber(ARGV[1 + job]) - 1
  answers[job] = refusal(first, last) or apply(first, last)
  first = last + 1
end

local function each(command, key, list)
  for from = 1, #list, 1000 do call(command, key, unpack(list, from, math.min(from + 999, #list))) end
end

-- Removed first: a server without free memory refuses scripts that begin by adding. The rows come last: they were read,
-- so a key of another type makes no command fail behind a change of theirs.
local gone, fields, immortal, entries, lives = {}, {}, {}, {}, {}
for n = 1, #changed do
  local row = changed[n]
  local head = before['h' .. row]
  if not heads[row] then
    if head then gone[#gone + 1], fields[#fields + 1], fields[#fields + 2] = row, 'h' .. row, 'v' .. row end
  else
    if not head then entries[#entries + 1], entries[#entries + 2] = 0, row end
    if #heads[row] > 20 then
      lives[#lives + 1], lives[#lives + 2] = string.sub(heads[row], 21), row
    elseif head and #head > 20 then
      immortal[#immortal + 1] = row
    end
  end
end
-- A delete with a token may have nothing to remove, but the token to add. This removes nothing.
if deletes and not adds then call('HDEL', meta, '') end
each('ZREM', index, gone)
if flag ~= '' then
  each('ZREM', ends, gone)
  each('ZREM', ends, immortal)
end
each('ZADD', index, entries)
each('ZADD', ends, lives)
local noted = {}
for field, value in pairs(meta_sets) do noted[#noted + 1], noted[#noted + 2] = field, value end
each('HSET', meta, noted)
each('HDEL', rows, fields)

local sets, bytes = {}, 0
if is_mortal and flag == '' then flag = '1' end
if version ~= ZERO and version .. flag ~= stored then sets[1], sets[2] = 'l', version .. flag end
for n = 1, #changed do
  local row = changed[n]
  local head, value = heads[row], values[row]
  if head then
    local at = #sets
    sets[at + 1], sets[at + 2], sets[at + 3], sets[at + 4] = 'h' .. row, head, 'v' .. row, value
    bytes = bytes + #value
    -- The arguments are copied: not all of a large batch at once.
    if bytes > 1048576 or #sets > 990 then
      call('HSET', rows, unpack(sets))
      sets, bytes = {}, 0
    end
  end
end
if #sets > 0 then call('HSET', rows, unpack(sets)) end
if flag == '' then return answers end

