-- KEYS: NAME and companion of each hold. ARGV: channel prefix; then candidate, nonce, token and
-- next of each.

local answers = { text(now_micros) }
for i = 1, #KEYS / 2 do
  local a, name, key = 4 * i - 2, KEYS[2 * i - 1], KEYS[2 * i]
  local found, why = look(name, key)
  if not found then
    answers[i + 1] = { 'corrupt', why }
  else
    if holds(found, ARGV[a], ARGV[a + 1], ARGV[a + 2]) then
      -- The companion first: should the server refuse to write (no memory), the lease is still
      -- whole.
      redis.call('HSET', key,
        'candidate', '', 'nonce', '', 'ttl', '0', 'until', '0', 'since', '0', 'saved', '',
        'before', 'released ' .. text(found.record.token), 'next', ARGV[a + 3], 'note', '')
      redis.call('DEL', name)
      keep(key, found.record.checkpoint, now)
      redis.pcall('PUBLISH', ARGV[1] .. name, 'freed ' .. ARGV[a + 3])
    end
    answers[i + 1] = { 'done' }
  end
end
return answers
