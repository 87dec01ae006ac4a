-- KEYS: root of a partition. ARGV: command, first bound, second bound, limit, bytes, rows to look at.
-- Returns the last row that was looked at if more follow, or '', and then row, version and value of each.
local now = clock()
local limit, bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local found = call(ARGV[1], KEYS[1] .. 'index', ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[6])
local rows, page, count = KEYS[1] .. 'rows', {''}, 0
for i = 1, #found do
  local row = found[i]
  local record = call('HMGET', rows, 'h' .. row, 'v' .. row)
  local head = record[1]
  if head and (#head == 20 or string.sub(head, 21) > now) then
    page[#page + 1] = row
    page[#page + 1] = string.sub(head, 1, 20)
    page[#page + 1] = record[2]
    count, bytes = count + 1, bytes - #record[2]
  end
  if i < #found and (count == limit or bytes <= 0) or i == #found and i == tonumber(ARGV[6]) then
    page[1] = row
    return page
  end
end
return page
