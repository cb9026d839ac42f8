-- KEYS: the index, what is known of the server, then NAME and companion of each claim.
-- ARGV: channel prefix, quarantine in ms ('' is three TTLs), '1' if the server fsyncs every write;
--       then candidate, nonce, TTL in ms and note of each claim.
-- Answers {clock, item...}; an item is a lease, or corrupt, or of a grant a line each of held, token,
-- origin, before and quarantine, and beside it the checkpoint.

local PREFIX, WINDOW, DURABLE = ARGV[1], ARGV[2], ARGV[3] == '1'

-- A replica that was made the primary may lack what the old one had acknowledged, whatever it fsyncs
-- itself.
local function was_promoted()
  local info = redis.pcall('INFO', 'replication')
  return type(info) ~= 'string' or not string.find(info, 'master_replid2:0000000000', 1, true)
end

-- What a process of this server, the same or another, has left word of. Whatever else lies there is
-- nothing to rely on.
local function word()
  for _, field in ipairs({ 'life', 'durable', 'chain', 'whole' }) do
    local length = redis.pcall('HSTRLEN', KEYS[2], field)
    if type(length) ~= 'number' or length == 0 or length > 40 then return {} end
  end
  local left = redis.call('HMGET', KEYS[2], 'life', 'durable', 'chain', 'whole')
  local whole = number(left[4])
  if not whole or string.find(left[3], '[^0-9a-f]') then return {} end
  return { life = left[1], durable = left[2], chain = left[3], whole = whole }
end

-- What this server remembers without a gap: `chain` names the server process with which that memory
-- began, and `whole` is when. A process that follows another goes on with its memory only if both
-- fsynced every write, which the first has left word of; else it may have lost what was granted.
-- Asked for once, and only when something is granted.
local facts
local function memory()
  if facts then return facts end
  facts = { chain = '', whole = 0 }
  local info = redis.pcall('INFO', 'server')
  local life = type(info) == 'string' and string.match(info, 'run_id:(%x+)')
  local age = life and tonumber(string.match(info, 'uptime_in_seconds:(%d+)') or '')
  if not age then return facts end -- we may not ask
  local durable = DURABLE and not was_promoted()
  local last = word()
  if last.whole and (last.life == life or (durable and last.durable == '1')) then
    facts.chain, facts.whole = last.chain, last.whole
  else
    -- Not the age of a replica that was promoted: what it knew before was another's.
    local promoted = last.life and was_promoted()
    facts.chain, facts.whole = string.sub(life, 1, 40), promoted and now or now - age * 1000
  end
  durable = durable and '1' or '0'
  if last.life ~= life or last.durable ~= durable then
    redis.pcall('HSET', KEYS[2], 'life', life, 'durable', durable, 'chain', facts.chain,
      'whole', text(facts.whole))
  end
  return facts
end

-- How long a newcomer holds without leading: a server whose memory is young may have lost what was
-- granted before, and a visible key deleted before its time leaves a holder who does not know it.
local function quarantine(quiet, ttl)
  local window = WINDOW == '' and 3 * ttl or tonumber(WINDOW)
  return text(math.max(quiet - now, memory().whole + window - now, 0))
end

local function held(record, before, quiet, ttl)
  local lines = {
    'held', text(record.token), text(record.origin), before, quarantine(quiet, ttl)
  }
  return { table.concat(lines, '\n'), record.checkpoint }, true
end

local function grant(found, candidate, nonce, ttl, note)
  local chain = memory().chain
  local last = found.record
    or { token = 0, quiet = 0, checkpoint = false, chain = chain, before = '' }
  local token = mint(last.token)
  if not token then return corrupt(OUT_OF_TOKENS) end
  local origin, before, quiet = last.origin or token, ending(last), last.quiet
  local vanished = last.term and now < last.ends
  if vanished then quiet = math.max(quiet, last.ends) end
  -- Where the chain is broken the record begins anew, so that waiters see it and hold back.
  if vanished or last.chain ~= chain then origin, before = token, '' end
  local ends = ends_after(ttl)
  -- What a renewal reads and writes comes first: the server searches a small hash from its front.
  redis.call('HSET', found.key,
    'v', '1', 'candidate', candidate, 'nonce', nonce, 'token', text(token), 'until', text(ends),
    'ttl', text(ttl), 'origin', text(origin), 'chain', chain, 'quiet', text(quiet),
    'since', text(now), 'saved', '', 'before', before, 'next', '', 'note', note)
  redis.call('SET', found.name, candidate, 'PXAT', text(ends))
  keep(found.key, last.checkpoint, ends)
  -- A hint: that nobody may be told is no reason not to grant.
  redis.pcall('PUBLISH', PREFIX .. found.name, 'granted ' .. text(token) .. ' ' .. candidate)
  return held({ token = token, origin = origin, checkpoint = last.checkpoint }, before, quiet, ttl)
end

local function claim(name, key, candidate, nonce, ttl, note)
  local found, why = look(name, key)
  if not found then return corrupt(why) end
  local record = found.record
  if found.live and record.candidate == candidate and record.nonce == nonce then
    -- The reply to an earlier try was lost: the same answer again, extended.
    local ends = ends_after(ttl)
    redis.call('HSET', key, 'ttl', text(ttl), 'until', text(ends))
    redis.call('PEXPIREAT', name, text(ends))
    keep(key, record.checkpoint, ends)
    return held(record, record.before, record.quiet, ttl)
  end
  if found.live or (found.visible and not found.ours) then return lease('taken', found) end
  return grant(found, candidate, nonce, ttl, note)
end

local answers, held_names = { text(now_micros) }, {}
for i = 1, #KEYS / 2 - 1 do
  local a = 4 * i
  local name, ttl = KEYS[2 * i + 1], tonumber(ARGV[a + 2])
  local answer, is_held = claim(name, KEYS[2 * i + 2], ARGV[a], ARGV[a + 1], ttl, ARGV[a + 3])
  if is_held then held_names[#held_names + 1] = name end
  answers[i + 1] = answer
end
if #held_names > 0 then index(KEYS[1], held_names, 1, 1) end
return answers
