-- KEYS: heads, values. ARGV: limit, rows in order.
-- Returns the last row of the page if more follow, or '', and then row, version and value of each.
local now = digits(micros())
local limit = tonumber(ARGV[1])
local page, count = {''}, 0
for i = 2, #ARGV do
  local row = ARGV[i]
  local head = call('HGET', KEYS[1], row)
  if head and (#head == 20 or string.sub(head, 21) > now) then
    if count == limit then
      page[1] = page[#page - 2]
      return page
    end
    page[#page + 1] = row
    page[#page + 1] = string.sub(head, 1, 20)
    page[#page + 1] = call('HGET', KEYS[2], row)
    count = count + 1
  end
end
return page
