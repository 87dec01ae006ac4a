-- KEYS: heads, values. ARGV: row. Returns {} if there is no record, or {version, value}.
local head = call('HGET', KEYS[1], ARGV[1])
if not head then return {} end
if #head > 20 and string.sub(head, 21) <= digits(micros()) then return {} end
return {string.sub(head, 1, 20), call('HGET', KEYS[2], ARGV[1])}
