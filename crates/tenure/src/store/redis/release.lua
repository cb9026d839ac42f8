-- KEYS: the presences, then NAME and companion of each hold. ARGV: channel prefix; then candidate, nonce, token and
-- next of each. Answers {clock, item...}; an item is 1 for what is not the caller's any more, or
-- corrupt.

local answers = { text(now_micros) }
for i = 1, (#KEYS - 1) / 2 do
  local a, name, key = 4 * i - 2, KEYS[2 * i], KEYS[2 * i + 1]
  answers[i + 1] = 1
  local ends, ephemeral = held_until(name, key, ARGV[a], ARGV[a + 1], ARGV[a + 2])
  if ends then
    -- The companion first: should the server refuse to write (no memory), the lease is still
    -- whole. It is forgotten when it would have been.
    redis.call('HSET', key,
      'candidate', '', 'nonce', '', 'ttl', '0', 'until', '0', 'since', '0', 'saved', '',
      'before', 'released ' .. ARGV[a + 2], 'next', ARGV[a + 3], 'note', '')
    redis.call('DEL', name)
    if ephemeral then redis.pcall('ZREM', KEYS[1], name) end
    redis.pcall('PUBLISH', ARGV[1] .. name, 'freed ' .. ARGV[a + 3])
  else
    local found, why = look(name, key)
    if not found then answers[i + 1] = corrupt(why) end
  end
end
return answers
