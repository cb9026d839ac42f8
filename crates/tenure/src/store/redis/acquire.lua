-- Grants the claimed leases that are free.
-- KEYS: the index, the record of the server (tenure:server), the presences, then NAME and companion
--       of each claim.
-- ARGV: channel prefix, start-up wait in ms ('' is the claim's TTL, '0' is none), '1' if the
--       server's configuration says that it fsyncs every write; then candidate, nonce, TTL in ms,
--       note and options of each claim. The options are '' (the wait is as required), 'never' (the
--       lease grants no right), 'ephemeral' (it grants no right, and its record is not needed after
--       its end) or 'MS REASON' (the least wait), each after 'history ' if the record keeps a history.
-- Returns {clock, item...}. An item is a lease, or corrupt, or a grant: the lines held, token,
-- origin, before and start-up wait, and then the checkpoint.

local PREFIX, WINDOW, FSYNCS = ARGV[1], ARGV[2], ARGV[3] == '1'

local replication = info('replication')
local refusal = refuse_replica(replication)
if refusal then return refusal end

-- Whether the server writes an append-only file. A file that was just switched on begins with a
-- rewrite, and contains nothing until that rewrite is done.
local function writes_log()
  local persistence = info('persistence')
  local rewrites = fact(persistence, 'aof_rewrite_in_progress') == '1'
    or fact(persistence, 'aof_rewrite_scheduled') == '1'
  local first = rewrites and fact(persistence, 'aof_last_rewrite_time_sec') == '-1'
  return fact(persistence, 'aof_enabled') == '1' and not first
    and fact(persistence, 'aof_last_bgrewrite_status') == 'ok'
end

-- The record of the server in tenure:server: the run and the replication id that were observed
-- last, since when the server has lost nothing, whether every observation of this run found it
-- durable, and whether the run before it was durable. An empty table if the key holds anything
-- else.
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

-- The state of the server: `since` is the latest moment at which it may have lost a lease (its
-- start, or its promotion), `durable` says whether it and the run before it fsynced every write.
-- The script reads it once, and only if it grants a lease.
--
-- The replication id of a primary changes when it is promoted. It also changes an hour after its
-- last replica disconnected. The script cannot tell the two apart and treats both as a promotion,
-- which costs one wait.
local known
local function server()
  if known then return known end
  known = { since = 0, durable = true }
  local process = info('server')
  local run, age = fact(process, 'run_id'), tonumber(fact(process, 'uptime_in_seconds'))
  if run == '' or not age then return known end -- this user may not call INFO
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
    -- Redis computes its uptime from two times in whole seconds.
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

-- The later of the end of `wait` and the end `at`.
local function later(wait, at, reason)
  if at <= math.max(wait.at, now) then return wait end
  return { at = at, length = at - now, reason = reason }
end

-- The options of a claim. `waits`: the lease grants a right, so its holder may have to wait.
local options = once(function(words)
  local history, rest = string.match(words, '^(history )(.*)$')
  rest = rest or words
  local length, reason = string.match(rest, '^(%d+) (%l+)$')
  return {
    keeps = history ~= nil, waits = rest ~= 'never' and rest ~= 'ephemeral',
    ephemeral = rest == 'ephemeral', length = length and tonumber(length), reason = reason
  }
end)

-- `wait`, or the wait that the claim requests if that ends later.
local function asked_wait(wait, asked)
  return asked.length and later(wait, now + asked.length, asked.reason) or wait
end

-- The start-up wait of a term that is granted now, after the record `last`. A durable server has
-- lost nothing, but the holder of a term that was not released may have renewed while durability
-- was off.
local function required_wait(last, ttl)
  local wait = later(NO_WAIT, last.wait.at, last.wait.reason)
  if last.term and now < last.ends then
    -- The visible key was deleted before it expired, and the holder does not know it.
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

-- The history of a record whose next term is granted now.
local function granted_history(last, keeps)
  if not keeps then return '' end
  if last.history == '' or (last.term and now < last.ends) then return HISTORY end
  return last.term and remember_term(last, 'expired') or last.history
end

local function grant(found, candidate, nonce, ttl, note, asked)
  local last = found.record
    or { token = 0, wait = NO_WAIT, checkpoint = false, before = '', history = '' }
  local token = mint(last.token)
  if not token then return corrupt(OUT_OF_TOKENS) end
  local origin, before = last.origin or token, ending(last)
  -- If the visible key was deleted early, the record starts a new origin: waiters notice it and
  -- wait.
  if last.term and now < last.ends then origin, before = token, '' end
  local wait = asked.waits and asked_wait(required_wait(last, ttl), asked) or NO_WAIT
  local ends, ephemeral = ends_after(ttl), asked.ephemeral
  -- The fields that a renewal reads and writes come first: Redis searches a small hash from the
  -- start.
  write(found.key, granted_history(last, asked.keeps), last.history,
    'v', FORMAT, 'candidate', candidate, 'nonce', nonce, 'token', text(token), 'until', text(ends),
    'ttl', text(ttl), 'origin', text(origin), 'leads_from', ephemeral and NEVER or recorded(wait),
    'since', text(now), 'saved', '', 'before', before, 'next', '', 'note', note)
  redis.call('SET', found.name, candidate, 'PXAT', text(ends))
  keep(found.key, last.checkpoint, ends, ephemeral)
  -- The notification is a hint: if this user may not publish, the lease is granted all the same. It
  -- does not name a holder that still waits.
  local holder = wait.at > now and '' or ' ' .. candidate
  redis.pcall('PUBLISH', PREFIX .. found.name, 'granted ' .. text(token) .. holder)
  local granted = { token = token, origin = origin, checkpoint = last.checkpoint }
  return held(granted, before, wait), ends, ephemeral
end

-- The answer to one claim. For a grant also the end of the term, and whether the lease is
-- ephemeral.
local function claim(name, key, candidate, nonce, ttl, note, asked)
  local found, why = look(name, key)
  if not found then return corrupt(why) end
  local record = found.record
  if found.live and record.candidate == candidate and record.nonce == nonce then
    -- The reply to an earlier attempt was lost, or the holder requests another wait or changes its
    -- note: the script repeats the answer and extends the lease. As with a grant, the claim decides
    -- whether the lease is ephemeral.
    local wait = asked.waits and asked_wait(record.wait, asked) or NO_WAIT
    local ends, ephemeral = ends_after(ttl), asked.ephemeral
    local from = ephemeral and NEVER or recorded(wait)
    redis.call('HSET', key, 'ttl', text(ttl), 'until', text(ends), 'leads_from', from, 'note', note)
    redis.call('PEXPIREAT', name, text(ends))
    keep(key, record.checkpoint, ends, ephemeral)
    return held(record, record.before, wait), ends, ephemeral
  end
  if found.live or (found.visible and not found.ours) then return lease('taken', found) end
  return grant(found, candidate, nonce, ttl, note, asked)
end

local answers, held_names, presences = { text(now_micros) }, {}, {}
for i = 1, (#KEYS - 3) / 2 do
  local a = 5 * i - 1
  local name, ttl = KEYS[2 * i + 2], tonumber(ARGV[a + 2])
  local answer, ends, ephemeral =
    claim(name, KEYS[2 * i + 3], ARGV[a], ARGV[a + 1], ttl, ARGV[a + 3], options(ARGV[a + 4]))
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
