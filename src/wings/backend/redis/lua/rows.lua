-- Shared by the scripts that write records.
-- Returns the last version of a put in a partition, and its flag (`write.lua`).
local function last_version(root, last)
  if last then return string.sub(last, 1, 20), string.sub(last, 21) end
  -- The rows were deleted when all had ended, or there were none.
  return call('HGET', root .. 'meta', 'v') or '00000000000000000000', ''
end
