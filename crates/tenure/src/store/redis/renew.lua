-- KEYS: the index, then NAME and companion of each hold. ARGV: TTL in ms; then candidate, nonce and
-- token of each.

local ttl = tonumber(ARGV[1])
local ends = ends_after(ttl)
local answers, indexed = { text(now_micros) }, {}
for i = 1, (#KEYS - 1) / 2 do
  local a, name, key = 3 * i - 1, KEYS[2 * i], KEYS[2 * i + 1]
  local found, why = look(name, key)
  if not found then
    answers[i + 1] = { 'corrupt', why }
  elseif holds(found, ARGV[a], ARGV[a + 1], ARGV[a + 2]) then
    redis.call('HSET', key, 'ttl', text(ttl), 'until', text(ends))
    redis.call('PEXPIREAT', name, text(ends))
    keep(key, found.record.checkpoint, ends)
    indexed[#indexed + 1] = '0'
    indexed[#indexed + 1] = name
    answers[i + 1] = { 'held' }
  else
    answers[i + 1] = lease('taken', found)
  end
end
-- Again, so that an index that was lost is whole after one round of renewals.
if #indexed > 0 then redis.pcall('ZADD', KEYS[1], unpack(indexed)) end
return answers
