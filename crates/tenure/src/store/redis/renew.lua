-- Renews leases.
-- KEYS: the index, the presences, then NAME and companion of each hold.
-- ARGV: TTL in ms; then candidate, nonce and token of each hold.
-- Returns {clock, item...}. An item is 1 if the lease was renewed, or a lease, or corrupt.

local refusal = refuse_replica(info('replication'))
if refusal then return refusal end

local ttl = ARGV[1]
local ends = ends_after(tonumber(ttl))
local ends_text = text(ends)
local answers, names, presences = { text(now_micros) }, {}, {}
for i = 1, #KEYS / 2 - 1 do
  local a, name, key = 3 * i - 1, KEYS[2 * i + 1], KEYS[2 * i + 2]
  local before, ephemeral = held_until(name, key, ARGV[a], ARGV[a + 1], ARGV[a + 2])
  if before then
    redis.call('HSET', key, 'ttl', ttl, 'until', ends_text)
    redis.call('PEXPIREAT', name, ends_text)
    if forgotten_at(before) ~= forgotten_at(ends) then
      keep(key, redis.call('HMGET', key, 'checkpoint')[1], ends, ephemeral)
    end
    if ephemeral then
      presences[#presences + 1] = ends_text
      presences[#presences + 1] = name
    else
      names[#names + 1] = name
    end
    answers[i + 1] = 1
  else
    local found, why = look(name, key)
    answers[i + 1] = found and lease('taken', found) or corrupt(why)
  end
end
-- A renewal adds its names to the index again, so that a lost index is complete after one round of
-- renewals. Of 100 names or more it adds one in 17, other ones each time, and adds all if one of
-- them was missing. 17 is a prime, so that names in a repeating order are not skipped together.
if #names > 0 then
  local step = #names < 100 and 1 or 17
  local missing = index(KEYS[1], names, now_micros % step + 1, step)
  if step > 1 and missing ~= 0 then index(KEYS[1], names, 1, 1) end
end
if #presences > 0 then announce(KEYS[2], presences) end
return answers
