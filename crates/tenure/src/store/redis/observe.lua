-- Reads leases.
-- KEYS: the index, the presences, then NAME and companion of each lease.
-- Returns {clock, item...}. An item is a lease, or corrupt.

local answers, gone = { text(now_micros) }, {}
for i = 1, #KEYS / 2 - 1 do
  local name = KEYS[2 * i + 1]
  local found, why = look(name, KEYS[2 * i + 2])
  if found and not found.visible and not found.record then gone[#gone + 1] = name end
  answers[i + 1] = found and lease('lease', found) or corrupt(why)
end
-- Names without a key and a record leave both sets, so that the next observer does not read them.
if #gone > 0 then
  redis.pcall('ZREM', KEYS[1], unpack(gone))
  redis.pcall('ZREM', KEYS[2], unpack(gone))
end
return answers
