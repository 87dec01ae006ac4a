-- KEYS: root of a partition. ARGV: limit, rows in order.
-- Returns the last row of the page if more follow, or '', and then row, version and value of each.
local now = clock()
local limit = tonumber(ARGV[1])
local rows, page, count = KEYS[1] .. 'rows', {''}, 0
for i = 2, #ARGV do
  local row = ARGV[i]
  local record = call('HMGET', rows, 'h' .. row, 'v' .. row)
  local head = record[1]
  if head and (#head == 20 or string.sub(head, 21) > now) then
    if count == limit then
      page[1] = page[#page - 2]
      return page
    end
    page[#page + 1] = row
    page[#page + 1] = string.sub(head, 1, 20)
    page[#page + 1] = record[2]
    count = count + 1
  end
end
return page
