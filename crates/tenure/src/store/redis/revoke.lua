-- Revokes a lease.
-- KEYS: NAME and companion.
-- ARGV: channel prefix, 'now' or 'in time'.
-- Returns {clock, item}. The item is a lease, or corrupt.

local function revoke()
  local found, why = look(KEYS[1], KEYS[2])
  if not found then return corrupt(why) end
  local record = found.record
  if not record then return lease('none', found) end
  local token = mint(record.token)
  if not token then return corrupt(OUT_OF_TOKENS) end
  local history = record.history
  if record.term then
    history = remember_term(record, now < record.ends and 'revoked' or 'expired')
  end
  if record.term and now < record.ends and ARGV[2] ~= 'now' then
    -- The visible key stays until it expires. Without the nonce, no candidate can renew it.
    write(KEYS[2], history, record.history, 'token', text(token), 'nonce', '')
  elseif record.term then
    write(KEYS[2], history, record.history, 'token', text(token),
      'candidate', '', 'nonce', '', 'ttl', '0', 'until', '0', 'since', '0', 'saved', '',
      'before', 'expired ' .. text(record.token), 'note', '')
    if found.ours then redis.call('DEL', KEYS[1]) end
  else
    redis.call('HSET', KEYS[2], 'token', text(token))
  end
  if ARGV[2] == 'now' then
    -- The operator has confirmed that no earlier holder is working.
    redis.call('HSET', KEYS[2], 'leads_from', '')
  end
  redis.pcall('PUBLISH', ARGV[1] .. KEYS[1], 'look')
  return lease('lease', look(KEYS[1], KEYS[2]))
end

return { text(now_micros), revoke() }
