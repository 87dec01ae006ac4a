-- Puts without a fence, a life or a sequence: the short way of `write.lua`, which describes the keys.
-- KEYS: root of a partition. ARGV: number of puts; of each: row, required version, value.
-- Returns of each put {'ok', version}, or {'conflict', 0, version or ''}.
local root, rows, writes, now = KEYS[1], KEYS[1] .. 'rows', tonumber(ARGV[1]), clock()
local fields = {'l', 'h' .. ARGV[2]}
for n = 2, writes do fields[n + 1] = 'h' .. ARGV[3 * n - 1] end
local found = call('HMGET', rows, unpack(fields))
local version, flag = last_version(root, found[1])

local heads, answers, sets, entries, immortal = {}, {}
for n = 1, writes do
  local row, required, value = ARGV[3 * n - 1], ARGV[3 * n], ARGV[3 * n + 1]
  local head = heads[row] or found[n + 1]
  local known = head and (#head == 20 or string.sub(head, 21) > now) and string.sub(head, 1, 20)
  if required == '' or required == known or required == '-' and not known then
    -- Above all versions that puts gave in this partition, also to records that are gone.
    version = version < now and now or inc(version)
    if head and version <= string.sub(head, 1, 20) then version = inc(string.sub(head, 1, 20)) end
    if sets then
      local at = #sets
      sets[at + 1], sets[at + 2], sets[at + 3], sets[at + 4] = fields[n + 1], version, 'v' .. row, value
    else
      sets = {'l', '', fields[n + 1], version, 'v' .. row, value}
    end
    if not head then
      entries = entries or {}
      entries[#entries + 1], entries[#entries + 2] = 0, row
    elseif #head > 20 then
      immortal = immortal or {}
      immortal[#immortal + 1] = row
    end
    heads[row] = version
    answers[n] = {'ok', version}
  else
    answers[n] = {'conflict', 0, known or ''}
  end
end
if sets then
  sets[2] = version .. flag
  -- The rows come last: they were read, so a key of another type makes no command fail behind a change of theirs.
  if entries then call('ZADD', root .. 'index', unpack(entries)) end
  if immortal then call('ZREM', root .. 'ends', unpack(immortal)) end
  call('HSET', rows, unpack(sets))
end
if flag == '' then return answers end
