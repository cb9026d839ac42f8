-- KEYS: NAME and companion. ARGV: channel prefix, 'now' or 'in time'.

local function revoke()
  local found, why = look(KEYS[1], KEYS[2])
  if not found then return corrupt(why) end
  local record = found.record
  if not record then return lease('none', found) end
  local token = mint(record.token)
  if not token then return corrupt(OUT_OF_TOKENS) end
  if record.term and now < record.ends and ARGV[2] ~= 'now' then
    -- The visible key stays until its time has run out, and nobody has the nonce to renew it.
    redis.call('HSET', KEYS[2], 'token', text(token), 'nonce', '')
  elseif record.term then
    redis.call('HSET', KEYS[2], 'token', text(token),
      'candidate', '', 'nonce', '', 'ttl', '0', 'until', '0', 'since', '0', 'saved', '',
      'before', 'expired ' .. text(record.token), 'note', '')
    if found.ours then redis.call('DEL', KEYS[1]) end
  else
    redis.call('HSET', KEYS[2], 'token', text(token))
  end
  if ARGV[2] == 'now' then
    -- The operator vouches for it that no earlier holder is at work.
    redis.call('HSET', KEYS[2], 'leads_from', '')
  end
  redis.pcall('PUBLISH', ARGV[1] .. KEYS[1], 'look')
  return lease('lease', look(KEYS[1], KEYS[2]))
end

return { text(now_micros), revoke() }
