-- KEYS: the index, then NAME and companion of each claim.
-- ARGV: channel prefix, quarantine in ms ('' is three TTLs), '1' if the server fsyncs every write;
-- then candidate, nonce, TTL in ms and note of each claim. Answers {clock, item...}; an item is
-- {'held', token, origin, before, quarantine, checkpoint}, a lease, or corrupt.

local PREFIX, WINDOW, DURABLE = ARGV[1], ARGV[2], ARGV[3] == '1'

-- A replica that was made the primary may lack what the old one had acknowledged, whatever it
-- fsyncs itself.
local function was_promoted()
  local info = redis.pcall('INFO', 'replication')
  return type(info) ~= 'string' or not string.find(info, 'master_replid2:0000000000', 1, true)
end

-- The life of this server process, asked for once and only when something is granted.
local facts
local function server()
  if facts then return facts end
  facts = { life = '', age = nil, durable = DURABLE and not was_promoted() }
  local info = redis.pcall('INFO', 'server')
  if type(info) == 'string' then
    facts.life = string.sub(string.match(info, 'run_id:(%x+)') or '', 1, 40)
    facts.age = tonumber(string.match(info, 'uptime_in_seconds:(%d+)') or '')
  end
  return facts
end

-- How long a newcomer holds without leading: a young server may have lost what an older one had
-- granted, and a visible key deleted before its time leaves a holder who does not know it yet.
local function quarantine(quiet, ttl)
  local wait, process = math.max(quiet - now, 0), server()
  if process.age and not process.durable then
    local window = WINDOW == '' and 3 * ttl or tonumber(WINDOW)
    wait = math.max(wait, window - process.age * 1000)
  end
  return text(wait)
end

local function held(record, before, quiet, ttl)
  local token, origin = text(record.token), text(record.origin)
  return { 'held', token, origin, before, quarantine(quiet, ttl), record.checkpoint }
end

local function grant(found, candidate, nonce, ttl, note)
  local life = server().life
  local last = found.record
    or { token = 0, quiet = 0, checkpoint = false, life = life, before = '' }
  local token = mint(last.token)
  if not token then return { 'corrupt', OUT_OF_TOKENS } end
  local origin, before, quiet = last.origin or token, ending(last), last.quiet
  local vanished = last.term and now < last.ends
  if vanished then quiet = math.max(quiet, last.ends) end
  -- Where the chain is broken the record begins anew, so that waiters see it and hold back.
  if vanished or (last.life ~= life and not server().durable) then origin, before = token, '' end
  local ends = now + ttl
  redis.call('HSET', found.key,
    'v', '1', 'origin', text(origin), 'token', text(token), 'life', life, 'quiet', text(quiet),
    'candidate', candidate, 'nonce', nonce, 'ttl', text(ttl), 'until', text(ends),
    'since', text(now), 'saved', '', 'before', before, 'next', '', 'note', note)
  -- PX first, so that the key ends by itself even if we may not do the next step; then to the very
  -- millisecond.
  redis.call('SET', found.name, candidate, 'PX', text(ttl))
  redis.call('PEXPIREAT', found.name, text(ends))
  keep(found.key, last.checkpoint, ends)
  -- A hint: that nobody may be told is no reason not to grant.
  redis.pcall('PUBLISH', PREFIX .. found.name, 'granted ' .. text(token))
  return held({ token = token, origin = origin, checkpoint = last.checkpoint }, before, quiet, ttl)
end

local function claim(name, key, candidate, nonce, ttl, note)
  local found, why = look(name, key)
  if not found then return { 'corrupt', why } end
  local record = found.record
  if found.live and record.candidate == candidate and record.nonce == nonce then
    -- The reply to an earlier try was lost: the same answer again, extended.
    local ends = now + ttl
    redis.call('HSET', key, 'ttl', text(ttl), 'until', text(ends))
    redis.call('PEXPIREAT', name, text(ends))
    keep(key, record.checkpoint, ends)
    return held(record, record.before, record.quiet, ttl)
  end
  if found.live or (found.visible and not found.ours) then return lease('taken', found) end
  return grant(found, candidate, nonce, ttl, note)
end

local answers, indexed = { text(now_micros) }, {}
for i = 1, (#KEYS - 1) / 2 do
  local a = 4 * i
  local name, ttl = KEYS[2 * i], tonumber(ARGV[a + 2])
  local answer = claim(name, KEYS[2 * i + 1], ARGV[a], ARGV[a + 1], ttl, ARGV[a + 3])
  if answer[1] == 'held' then
    indexed[#indexed + 1] = '0'
    indexed[#indexed + 1] = name
  end
  answers[#answers + 1] = answer
end
-- For looking only, so a broken index stands in nobody's way.
if #indexed > 0 then redis.pcall('ZADD', KEYS[1], unpack(indexed)) end
return answers
