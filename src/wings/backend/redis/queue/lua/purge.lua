-- ARGV: part. Deletes all messages of the part, and returns their number. De-duplication ids stay.
local p = KEYS[1] .. ARGV[1] .. ':'
local number = call('HLEN', p .. 'm')
for key in string.gmatch('mfbhlsertnz', '.') do call('UNLINK', p .. key) end
return number
