-- KEYS: the index, what is known of the server, the presences, then NAME and companion of each claim.
-- ARGV: channel prefix, start-up wait in ms ('' is the claim's TTL, '0' is none), '1' if the server's
--       configuration says that it fsyncs every write; then candidate, nonce, TTL in ms, note and wait of
--       each claim. A wait is '' (as required), 'never' (the lease grants no right), 'ephemeral' (nor is its
--       record needed after its end) or 'MS REASON' (at least).
-- Answers {clock, item...}; an item is a lease, or corrupt, or of a grant a line each of held, token,
-- origin, before and start-up wait, and beside it the checkpoint.

local PREFIX, WINDOW, FSYNCS = ARGV[1], ARGV[2], ARGV[3] == '1'

local replication = info('replication')
local refusal = refuse_replica(replication)
if refusal then return refusal end

-- Whether the append-only file is written. One that was switched on a moment ago begins with a
-- rewrite, and holds nothing before that is done.
local function writes_log()
  local persistence = info('persistence')
  local rewrites = fact(persistence, 'aof_rewrite_in_progress') == '1'
    or fact(persistence, 'aof_rewrite_scheduled') == '1'
  local first = rewrites and fact(persistence, 'aof_last_rewrite_time_sec') == '-1'
  return fact(persistence, 'aof_enabled') == '1' and not first
    and fact(persistence, 'aof_last_bgrewrite_status') == 'ok'
end

-- What tenure:server says: the run and the replication id that were observed last, since when the
-- server has lost nothing, whether every observation of this run found it durable, and whether the run
-- before it was durable. Anything else that is stored there is not relied on.
local function observed_before()
  local fields = { 'run', 'replid', 'since', 'durable', 'follows_durable' }
  for _, field in ipairs(fields) do
    local length = redis.pcall('HSTRLEN', KEYS[2], field)
    if type(length) ~= 'number' or length == 0 or length > 40 then return {} end
  end
  local raw = redis.call('HMGET', KEYS[2], unpack(fields))
  local since = number(raw[3])
  if not since or since > now then return {} end
  return { run = raw[1], replid = raw[2], since = since, durable = raw[4], follows = raw[5] }
end

-- The server: `since` is the latest moment at which it may have lost a lease (its start, or its
-- promotion), `durable` says whether it and the run before it fsynced every write. Asked for once, and
-- only when a lease is granted.
--
-- The replication id of a primary changes when it is promoted. It also changes an hour after its last
-- replica left, which is taken for a promotion: that costs one wait.
local known
local function server()
  if known then return known end
  known = { since = 0, durable = true }
  local process = info('server')
  local run, age = fact(process, 'run_id'), tonumber(fact(process, 'uptime_in_seconds'))
  if run == '' or not age then return known end -- this user may not ask
  local replid = fact(replication, 'master_replid')
  local promoted = not string.find(fact(replication, 'master_replid2'), '^0+$')
  local durable = FSYNCS and not promoted and writes_log()
  local last = observed_before()
  local since, follows
  if last.run == run and last.replid == replid then
    since, follows, durable = last.since, last.follows, durable and last.durable == '1'
  elseif promoted or last.run == run then
    since, follows, durable, promoted = now, '0', false, true
  else
    -- Both ends of an uptime are whole seconds.
    since, follows = math.min(now, now - age * 1000 + 1000), last.durable or '1'
  end
  local is_durable = durable and '1' or '0'
  if last.run ~= run or last.replid ~= replid or last.durable ~= is_durable then
    redis.pcall('HSET', KEYS[2], 'run', run, 'replid', replid, 'since', text(since),
      'durable', is_durable, 'follows_durable', follows)
  end
  known = { since = since, durable = durable and follows == '1', promoted = promoted }
  return known
end

-- The later of two ends of a wait.
local function later(wait, at, reason)
  if at <= math.max(wait.at, now) then return wait end
  return { at = at, length = at - now, reason = reason }
end

-- The end of the wait that a claim asks for.
local function asked_wait(wait, asked)
  local length, reason = string.match(asked, '^(%d+) (%l+)$')
  return length and later(wait, now + tonumber(length), reason) or wait
end

-- The start-up wait of a term that is granted now, after `last`. A durable server has lost nothing,
-- but the holder of a term that was not released may have renewed while durability was off.
local function required_wait(last, ttl)
  local wait = later(NO_WAIT, last.wait.at, last.wait.reason)
  if last.term and now < last.ends then
    -- The visible key was deleted before its time, and its holder does not know it.
    wait = later(wait, last.ends, 'deleted')
  end
  if WINDOW == '0' then return wait end
  local server, longest = server(), ttl
  if last.term then longest = math.max(ttl, last.ttl) end
  if not server.durable then
    local window = WINDOW == '' and longest or tonumber(WINDOW)
    return later(wait, server.since + window, server.promoted and 'promoted' or 'restarted')
  elseif last.term then
    return later(wait, server.since + last.ttl, 'unreleased')
  end
  return wait
end

local function recorded(wait)
  return wait.at > now and text(wait.at) .. ' ' .. text(wait.length) .. ' ' .. wait.reason or ''
end

local function held(record, before, wait)
  local lines = { 'held', text(record.token), text(record.origin), before, startup_wait(wait) }
  return { table.concat(lines, '\n'), record.checkpoint }
end

local function grant(found, candidate, nonce, ttl, note, asked)
  local last = found.record or { token = 0, wait = NO_WAIT, checkpoint = false, before = '' }
  local token = mint(last.token)
  if not token then return corrupt(OUT_OF_TOKENS) end
  local origin, before = last.origin or token, ending(last)
  -- Where a term has vanished the record begins anew, so that waiters see it and wait.
  if last.term and now < last.ends then origin, before = token, '' end
  local ephemeral = asked == 'ephemeral'
  local waits = asked ~= 'never' and not ephemeral
  local wait = waits and asked_wait(required_wait(last, ttl), asked) or NO_WAIT
  local ends = ends_after(ttl)
  -- What a renewal reads and writes comes first: the server searches a small hash from its front.
  redis.call('HSET', found.key,
    'v', FORMAT, 'candidate', candidate, 'nonce', nonce, 'token', text(token), 'until', text(ends),
    'ttl', text(ttl), 'origin', text(origin), 'leads_from', ephemeral and NEVER or recorded(wait),
    'since', text(now), 'saved', '', 'before', before, 'next', '', 'note', note)
  redis.call('SET', found.name, candidate, 'PXAT', text(ends))
  keep(found.key, last.checkpoint, ends, ephemeral)
  -- A hint: that nobody may be told is no reason not to grant. It names no holder that does not lead.
  local holder = wait.at > now and '' or ' ' .. candidate
  redis.pcall('PUBLISH', PREFIX .. found.name, 'granted ' .. text(token) .. holder)
  local granted = { token = token, origin = origin, checkpoint = last.checkpoint }
  return held(granted, before, wait), ends, ephemeral
end

-- The answer, and of what is held also when it ends and whether it is ephemeral.
local function claim(name, key, candidate, nonce, ttl, note, asked)
  local found, why = look(name, key)
  if not found then return corrupt(why) end
  local record = found.record
  if found.live and record.candidate == candidate and record.nonce == nonce then
    -- The reply to an earlier try was lost, or the holder asks for a longer wait or changes its note:
    -- the same answer again, extended.
    local ends, wait = ends_after(ttl), asked_wait(record.wait, asked)
    local from = record.ephemeral and NEVER or recorded(wait)
    redis.call('HSET', key, 'ttl', text(ttl), 'until', text(ends), 'leads_from', from, 'note', note)
    redis.call('PEXPIREAT', name, text(ends))
    keep(key, record.checkpoint, ends, record.ephemeral)
    return held(record, record.before, wait), ends, record.ephemeral
  end
  if found.live or (found.visible and not found.ours) then return lease('taken', found) end
  return grant(found, candidate, nonce, ttl, note, asked)
end

local answers, held_names, presences = { text(now_micros) }, {}, {}
for i = 1, (#KEYS - 3) / 2 do
  local a = 5 * i - 1
  local name, ttl = KEYS[2 * i + 2], tonumber(ARGV[a + 2])
  local answer, ends, ephemeral =
    claim(name, KEYS[2 * i + 3], ARGV[a], ARGV[a + 1], ttl, ARGV[a + 3], ARGV[a + 4])
  if ephemeral then
    presences[#presences + 1] = text(ends)
    presences[#presences + 1] = name
  elseif ends then
    held_names[#held_names + 1] = name
  end
  answers[i + 1] = answer
end
if #held_names > 0 then index(KEYS[1], held_names, 1, 1) end
if #presences > 0 then
  trim(KEYS[3])
  announce(KEYS[3], presences)
end
return answers
