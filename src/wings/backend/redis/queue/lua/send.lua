-- ARGV: part, de-duplication window (ms), number of messages; of each: the message, its delay (us), its de-duplication id.
-- Returns the ids.
tell()
local to, ids = adding(KEYS[1], ARGV[1]), {}
for i = 4, #ARGV, 3 do
  ids[#ids + 1] = enqueue(to, ARGV[i], ARGV[i + 1], ARGV[i + 2])
end
flush(to, ARGV[2])
return ids
