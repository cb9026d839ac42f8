-- Releases leases.
-- KEYS: the presences, then NAME and companion of each hold.
-- ARGV: channel prefix; then candidate, nonce, token and next of each hold.
-- Returns {clock, item...}. An item is 1 if the caller does not hold the lease any more, or
-- corrupt.

local answers = { text(now_micros) }
for i = 1, (#KEYS - 1) / 2 do
  local a, name, key = 4 * i - 2, KEYS[2 * i], KEYS[2 * i + 1]
  answers[i + 1] = 1
  local ends, ephemeral, raw =
    held_until(name, key, ARGV[a], ARGV[a + 1], ARGV[a + 2], 'history')
  if ends then
    local history = raw[7] or ''
    if history ~= '' then
      local since = redis.call('HMGET', key, 'since')[1] or ''
      history = remember(history, ARGV[a + 2], ARGV[a], ARGV[a + 1], since, 'released')
    end
    -- The companion is written first: if the server refuses the write (out of memory), the lease is
    -- unchanged. The server deletes the companion when it would have done so without the release.
    write(key, history, raw[7] or '',
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
