-- Microseconds of the server's clock, as a number: exact until the year 2255.
local function micros()
  local time = call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end
-- Twenty digits of a number below 2^53.
local function digits(number)
  return string.format('%020.0f', number)
end
-- The next of a number of twenty digits, which may be above 2^53.
local function inc(text)
  local low = tonumber(string.sub(text, 11)) + 1
  if low < 10000000000 then
    return string.sub(text, 1, 10) .. string.sub('000000000' .. low, -10)
  end
  return string.sub('000000000' .. tonumber(string.sub(text, 1, 10)) + 1, -10) .. '0000000000'
end
-- The larger of two numbers of twenty digits.
local function larger(one, other)
  if one < other then return other end
  return one
end
