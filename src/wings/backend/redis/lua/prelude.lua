local call = redis.call
-- Microseconds of the server's clock, as a text of twenty digits. Conversions of numbers are slow.
local function clock()
  local time = call('TIME')
  return '0000' .. time[1] .. string.sub('00000' .. time[2], -6)
end
