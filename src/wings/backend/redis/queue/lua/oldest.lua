-- ARGV: part, most messages, offset in the hidden messages, page size.
-- Returns the offset of the next page, or `end` after the last one, and ids among which are the oldest of those that do
-- not wait behind another of their group.
local p, most, from, size = KEYS[1] .. ARGV[1] .. ':', tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local found, is_last = { '' }, true
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
found[1] = is_last and 'end' or text(from + size)
return found
