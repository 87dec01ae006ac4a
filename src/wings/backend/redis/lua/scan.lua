-- KEYS: heads, values, index. ARGV: command, first bound, second bound, limit, bytes, rows to look at.
-- Returns the last row that was looked at if more follow, or '', and then row, version and value of each.
local now = digits(micros())
local limit, bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local rows = call(ARGV[1], KEYS[3], ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[6])
local page, count = {''}, 0
for i = 1, #rows do
  local row = rows[i]
  local head = call('HGET', KEYS[1], row)
  if head and (#head == 20 or string.sub(head, 21) > now) then
    local value = call('HGET', KEYS[2], row)
    page[#page + 1] = row
    page[#page + 1] = string.sub(head, 1, 20)
    page[#page + 1] = value
    count, bytes = count + 1, bytes - #value
  end
  if i < #rows and (count == limit or bytes <= 0) or i == #rows and i == tonumber(ARGV[6]) then
    page[1] = row
    return page
  end
end
return page
