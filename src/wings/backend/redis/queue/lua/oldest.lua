-- ARGV: part, most messages, offset in the hidden messages, page size, cursor in the groups.
-- Returns the offset and the cursor of the next page, `end` after the last one, and ids among which are the oldest.
local p, most, from, size = KEYS[1] .. ARGV[1] .. ':', tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local found, is_last = { '', '' }, true
local function add(ids)
  for _, id in ipairs(ids) do found[#found + 1] = id end
end
if from == 0 then
  add(call('LRANGE', p .. 'f', 0, most - 1))
  add(call('ZRANGE', p .. 'b', 0, most - 1))
end
for _, set in ipairs({ p .. 'h', p .. 'l' }) do
  local page = call('ZRANGE', set, from, from + size - 1)
  add(page)
  if #page == size then is_last = false end
end
local cursor = ARGV[5]
if cursor ~= '' then
  local page = call('HSCAN', p .. 'n', cursor, 'COUNT', size)
  for i = 2, #page[2], 2 do found[#found + 1] = string.match(page[2][i], '^%d+') end
  cursor = page[1] == '0' and '' or page[1]
end
found[1], found[2] = text(from + size), is_last and cursor == '' and 'end' or cursor
return found
