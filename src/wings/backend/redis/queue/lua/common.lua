-- Shared by the scripts of a queue. KEYS[1] is the queue's root; part `q` holds its messages, part `d` its dead
-- letters. Keys of a part:
--   m  hash   id -> group length (2 bytes), group, headers, body
--   f  list   ids of visible messages that were never hidden, oldest first
--   b  zset   ids of other visible messages, by id
--   h  zset   ids of hidden messages that were delivered, by the time of their return
--   l  zset   ids of delayed messages that were never delivered, by the end of the delay
--   s  hash   id -> delivery, deliveries, attempts, expiries, flags, group; from the first delivery on.
--             A delivery below zero has ended; flags: 1 has errors, 2 has a reason; expiries: below 65536 those
--             without a settlement, above that twice the crashes, plus 1 while the handling has begun
--   e  hash   id -> errors;  r  hash   id -> reason
--   t  hash   group -> its last message;  n  hash   id -> next message of its group, and the end of its delay
--   z  string set once a message of more than 16 KiB was sent, until the queue is found empty
--   w  string latest time before which a waiting receiver looks again by itself; also the channel that wakes it
--   a  hash   id -> what is left of a message that could not be read
-- Beside them: `ROOTn`, the last id, and `ROOTPART:k:ID`, the message of a de-duplication id.
--
-- An operator may have damaged any value, and a command fails on a key of another type. So scripts read and compute
-- before they write, and add an id where it goes before they remove it from where it was: no failure leaves a message
-- nowhere.
-- A server without free memory refuses scripts that begin by adding: these begin with a removal of nothing.
--
-- Numbers are ids and times in microseconds, exact in a double until the year 2255. `..` would round them.
local FOREVER = 9007199254740991
-- Size from which a receive adds up the sizes of its messages. 1,000 smaller ones are at most 16 MiB.
local LARGE = 16384
local now, now_text

-- Reads the clock. The conversion of numbers into texts is slow, and most of them are the time.
local function tell()
  now_text = string.sub(clock(), 5)
  now = tonumber(now_text)
end

local function text(number)
  if number == now then return now_text end
  return string.format('%.0f', number)
end

-- Runs a command on many values, at most 1,000 at once: Lua's stack is limited.
local function each(command, key, values)
  local number = #values
  if number > 0 and number <= 1000 then return call(command, key, unpack(values)) end
  for i = 1, number, 1000 do call(command, key, unpack(values, i, math.min(i + 999, number))) end
end

-- Returns the number of an id, or 0 for a text that is none.
local function number_of(id)
  return #id <= 16 and string.find(id, '^%d+$') and tonumber(id) or 0
end

-- Returns these ids as pairs of score and member, with the id as the score.
local function scored(ids)
  local pairs = {}
  for i, id in ipairs(ids) do pairs[2 * i - 1], pairs[2 * i] = number_of(id) == 0 and '0' or id, id end
  return pairs
end

-- Returns the parts of a state, or nil if it is damaged.
local function parse(state) return string.match(state, '^(%-?)(%d+) (%d+) (%d+) (%d+) ([0-3]) (.*)$') end

-- Returns the expiries with or without the mark of a delivery whose handling has begun.
local function marked(expiries, begun)
  local crashes = math.floor(expiries / 65536)
  return expiries + (crashes % 2 == 1 and (begun and 0 or -65536) or (begun and 65536 or 0))
end

-- Returns the expiries after the delivery has expired.
local function expired(expiries)
  local crashes = math.floor(expiries / 65536)
  return math.min(crashes + crashes % 2, 32766) * 65536 + math.min(expiries % 65536 + 1, 65535)
end

-- Returns the number of expired deliveries of which nothing tells that they were tried.
local function untried(expiries)
  local crashes = math.floor(expiries / 131072)
  return math.max(0, expiries % 65536 - (crashes > 0 and crashes + 1 or 0))
end

-- State of a message in its first delivery, without a group: the most frequent one.
local FIRST = ' 1 0 0 0 '

-- Returns the group of a message, or nil if the message is cut short.
local function group_of(message)
  local high, low = string.byte(message, 1, 2)
  if high == 0 and low == 0 then return '' end
  local last = low and 2 + 256 * high + low
  if last and last <= #message then return string.sub(message, 3, last) end
end

-- Wakes the waiting receivers that would look again later than this time. A publish that is refused, since the user has
-- lost the right to the channel, is no failure of what the script has done.
local function wake(p, at)
  local waiting = call('GET', p .. 'w')
  if waiting and at < (tonumber(waiting) or FOREVER) then
    call('DEL', p .. 'w')
    redis.pcall('PUBLISH', p .. 'w', '')
  end
end
