-- The functions that all scripts share: the server's clock, reading the keys of a lease, and
-- encoding the lease for the client.
--
-- A lease is two keys: NAME, a string that any Redis client can read, and its companion
-- tenure:{NAME}, a hash with the other fields. A script accesses only the keys in KEYS. An item
-- that cannot be read gets the answer corrupt(why) and stays unchanged. It does not affect the
-- other items of the batch, so a script checks what it reads before it writes anything. A script
-- passes numbers to commands and to the client only as text(n): Lua's own conversions round tokens,
-- and are slow.

-- Without this call, Redis 6 with lua-replicate-commands off refuses writes after TIME.
if redis.replicate_commands then redis.replicate_commands() end

local TOKEN_END = 9007199254740992 -- 2^53
local HOUR = 3600000
local DAY = 24 * HOUR
-- A TTL is at most a day. AHEAD_MAX is the furthest that an end may lie ahead of the server's
-- clock: one day more, for a clock that was set back.
local TTL_MAX = DAY
local AHEAD_MAX = TTL_MAX + DAY
local FORMAT = '2'
local FIELDS = {
  'v', 'origin', 'token', 'leads_from', 'candidate', 'nonce', 'ttl', 'until', 'since', 'saved',
  'before', 'next', 'note', 'checkpoint', 'history'
}
-- The last fields, which a companion need not have.
local OPTIONAL = 2
local LIMITS = { 8, 16, 16, 48, 100, 32, 16, 16, 16, 20, 25, 100, 512, 4096, 8192 }

-- Caches the results of `work`. Most fields have the same value in most items of a batch, so each
-- value is parsed once.
local function once(work)
  local known = {}
  return function(about)
    local answer = known[about]
    if answer == nil then
      answer = work(about) or false
      known[about] = answer
    end
    return answer
  end
end

local clock = redis.call('TIME')
local now_micros = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local now = math.floor(now_micros / 1000)

-- When a lease that is granted now expires. Rounded up: a holder counts its TTL in microseconds,
-- and the server, which counts milliseconds, must not expire the lease earlier.
local function ends_after(ttl)
  return math.ceil(now_micros / 1000) + ttl
end

local text = once(function(number)
  return string.format('%.0f', number)
end)

-- A canonical decimal below 2^53, or false.
local number = once(function(digits)
  if #digits > 16 or not string.find(digits, '^%d+$') or string.find(digits, '^0%d') then
    return false
  end
  local value = tonumber(digits)
  return value < TOKEN_END and value
end)

-- A time in milliseconds on the server's clock, or false if no script can have written it.
local time = once(function(digits)
  local value = number(digits)
  return value and value <= now + AHEAD_MAX and value
end)

-- A TTL in milliseconds, or false.
local length = once(function(digits)
  local value = number(digits)
  return value and value <= TTL_MAX and value
end)

local function is_token(value)
  return value and value > 0
end

local is_id = once(function(id)
  return id == '' or string.find(id, '^[%w%._:/%-]+$') ~= nil
end)

-- Whether a note is UTF-8 without control characters: what Note::new accepts.
local is_note = once(function(note)
  if not string.find(note, '[^\32-\126]') then return true end
  local at = 1
  while at <= #note do
    local a, b = string.byte(note, at, at + 1)
    b = b or 0
    local more
    if a < 128 then
      if a < 32 or a == 127 then return false end
      more = 0
    elseif a >= 194 and a <= 223 then
      if a == 194 and b < 160 then return false end -- U+0080 to U+009F
      more = 1
    elseif a >= 224 and a <= 239 then
      if (a == 224 and b < 160) or (a == 237 and b > 159) then return false end
      more = 2
    elseif a >= 240 and a <= 244 then
      if (a == 240 and b < 144) or (a == 244 and b > 143) then return false end
      more = 3
    else
      return false
    end
    for offset = 1, more do
      local c = string.byte(note, at + offset)
      if not c or c < 128 or c > 191 then return false end
    end
    at = at + more + 1
  end
  return true
end)

-- The reply to a command, or nil if the key has another type. Any other error ends the script with
-- its own code.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then return nil end
    return redis.call(...)
  end
  return reply
end

-- When a key expires: the earliest and the latest possible millisecond. -1: it does not expire. -2:
-- the key does not exist.
local has_expiretime = true
local function expiry(key)
  if has_expiretime then
    local at = redis.pcall('PEXPIRETIME', key)
    if type(at) == 'number' then return at, at end
    has_expiretime = false -- before Redis 7
  end
  local from = redis.call('TIME')
  local left = redis.call('PTTL', key)
  if left < 0 then return left, left end
  local to = redis.call('TIME')
  -- Both ends are rounded outwards. If the server pauses between the three commands, the key must
  -- not look like a foreign one.
  local earliest = math.floor((tonumber(from[1]) * 1000000 + tonumber(from[2])) / 1000) + left - 1
  local latest = math.floor((tonumber(to[1]) * 1000000 + tonumber(to[2])) / 1000) + left + 1
  return earliest, latest
end

local function wrong(field, what)
  return 'the field ' .. field .. ' of its companion key is ' .. what
end

-- The fields of a companion; false if the key does not exist; nil and the reason if it is not a
-- record of Tenure. No large value is read: a hash in compact encoding has none, and for any other
-- encoding the length of each field is checked first.
local function fields(key)
  local encoding = redis.pcall('OBJECT', 'ENCODING', key)
  if encoding == false then return false end
  if encoding ~= 'listpack' and encoding ~= 'ziplist' then
    for i, field in ipairs(FIELDS) do
      local length = read('HSTRLEN', key, field)
      if not length then return nil, 'its companion key is not a hash' end
      if length > LIMITS[i] then return nil, wrong(field, 'too long') end
    end
  end
  -- The names are repeated here because unpack is slow.
  local raw = read('HMGET', key, 'v', 'origin', 'token', 'leads_from', 'candidate', 'nonce', 'ttl',
    'until', 'since', 'saved', 'before', 'next', 'note', 'checkpoint', 'history')
  if not raw then return nil, 'its companion key is not a hash' end
  local limits, found, missing = LIMITS, false, nil
  for i = 1, #raw do
    local value = raw[i]
    if value then
      found = true
      if #value > limits[i] then return nil, wrong(FIELDS[i], 'too long') end
    elseif i <= #FIELDS - OPTIONAL then
      missing = missing or FIELDS[i]
    end
  end
  -- If this user may not call OBJECT ENCODING, a companion that does not exist is found only here.
  if not found and redis.call('EXISTS', key) == 0 then return false end
  if missing then return nil, wrong(missing, 'missing') end
  return raw
end

local is_ending = once(function(before)
  local kind, which = string.match(before, '^(%l+) (%d+)$')
  return before == ''
    or ((kind == 'released' or kind == 'expired') and is_token(number(which)))
end)

-- The end of a start-up wait, as the record stores it: 'AT LENGTH REASON' in milliseconds on the
-- server's clock, or ''. The length limits the remaining wait after the clock was set back.
local NO_WAIT = { at = 0, length = 0, reason = '' }
-- The value in the record of an ephemeral lease. Such a lease grants no right (presence,
-- membership, a request), and no candidate needs its record after its end.
local NEVER = 'never'
local leads_from = once(function(digits)
  if digits == '' or digits == NEVER then return NO_WAIT end
  local at, long, reason = string.match(digits, '^(%d+) (%d+) (%l+)$')
  at, long = at and time(at), long and number(long)
  return at and long and long <= AHEAD_MAX and { at = at, length = long, reason = reason }
end)

-- The terms that ended, as the record of an election keeps them: HISTORY, then a line for each, the
-- oldest first: 'TOKEN CANDIDATE FROM TO OUTCOME', the times in milliseconds. '' in a record that keeps
-- none.
local HISTORY = 'terms'
local HISTORY_TERMS = 32
local OUTCOMES = { released = true, expired = true, died = true, revoked = true }
local is_history = once(function(history)
  if history == '' or history == HISTORY then return true end
  if string.sub(history, 1, #HISTORY + 1) ~= HISTORY .. '\n' then return false end
  local lines = 0
  for line in string.gmatch(string.sub(history, #HISTORY + 2) .. '\n', '([^\n]*)\n') do
    local token, id, from, to, outcome = string.match(line, '^(%d+) (%S+) (%d+) (%d+) (%l+)$')
    if not (token and is_token(number(token)) and #id <= 100 and is_id(id)
        and number(from) and number(to) and OUTCOMES[outcome]) then
      return false
    end
    lines = lines + 1
  end
  return lines <= HISTORY_TERMS
end)

-- `history` with one more term. A revoked term, which has no nonce, is in it since its revocation.
local function remember(history, token, candidate, nonce, since, outcome)
  if history == '' or nonce == '' then return history end
  local _, lines = string.gsub(history, '\n', '')
  if lines >= HISTORY_TERMS then
    -- Without the oldest term.
    history = HISTORY .. string.sub(history, string.find(history, '\n', #HISTORY + 2, true), -1)
  end
  local term = { token, candidate, since, text(now), outcome }
  return history .. '\n' .. table.concat(term, ' ')
end

-- The same for the term of a record.
local function remember_term(record, outcome)
  return remember(record.history, text(record.token), record.candidate, record.nonce,
    text(record.since), outcome)
end

-- Writes fields of a companion, and the history if it has changed, in one command: a
-- server that refuses a write refuses all of it.
local function write(key, history, before, ...)
  if history == before then return redis.call('HSET', key, ...) end
  local fields = { ... }
  fields[#fields + 1], fields[#fields + 2] = 'history', history
  return redis.call('HSET', key, unpack(fields))
end

-- The companion as a table; false if it does not exist; nil and the reason if it is not a record.
local function companion(key)
  local raw, why = fields(key)
  if not raw then return raw, why end
  if raw[1] ~= FORMAT then return nil, 'its companion key has a format this version does not know' end
  local record = {
    origin = number(raw[2]), token = number(raw[3]), wait = leads_from(raw[4]),
    candidate = raw[5], nonce = raw[6],
    ttl = length(raw[7]), ends = time(raw[8]), since = number(raw[9]),
    saved = raw[10], before = raw[11], next = raw[12], note = raw[13], checkpoint = raw[14],
    history = raw[15] or '',
    ephemeral = raw[4] == NEVER
  }
  local saved = record.saved == ''
    or (string.find(record.saved, '^%d+$') and not string.find(record.saved, '^0%d'))
  local nonce = record.nonce == ''
    or (#record.nonce == 32 and not string.find(record.nonce, '[^0-9a-f]'))
  if not (is_token(record.origin) and is_token(record.token)) then
    return nil, 'its companion key holds no token below 2^53'
  end
  if not (record.wait and record.ttl and record.ends and record.since
      and is_ending(record.before) and saved and nonce
      and is_id(record.candidate) and is_id(record.next)
      and is_note(record.note) and is_history(record.history)) then
    return nil, 'its companion key is not as we write it'
  end
  record.term = record.candidate ~= ''
  return record
end

-- Corrects a record after the server's clock was set back. The clock was set back if a term ends
-- later than a term of the same TTL that is granted now, or a wait ends later than its whole length
-- from now. The time that has passed since then is not known. But no holder relies on its term for
-- longer than its TTL after its last renewal, and that renewal is not later than now. So the term
-- ends one TTL from now, and the wait ends one length from now. The first script that notices
-- writes the new times, so that the time is counted once and the key expires in time. The
-- correction does not depend on that write: if the server refuses writes at this moment, the next
-- script tries again.
local function correct_times(name, key, record, ours)
  local ends, wait = math.min(record.ends, ends_after(record.ttl)), record.wait
  if record.term and ends < record.ends then
    record.ends = ends
    local written = redis.pcall('HSET', key, 'until', text(ends))
    if ours and type(written) == 'number' then redis.pcall('PEXPIREAT', name, text(ends)) end
  end
  if wait.at > ends_after(wait.length) then
    record.wait = { at = ends_after(wait.length), length = wait.length, reason = wait.reason }
    local words = text(record.wait.at) .. ' ' .. text(wait.length) .. ' ' .. wait.reason
    redis.pcall('HSET', key, 'leads_from', words)
  end
end

-- Reads the two keys of a name; nil and the reason if one of them is not a valid part of a lease.
--   visible  the visible key exists, no matter which client set it
--   ours     the visible key belongs to the companion's term: it has the same value, and it expires
--            when a script made it expire
--   live     the visible key is ours and its term has not expired
local function look(name, key)
  local earliest, latest = expiry(name)
  local visible = earliest ~= -2
  local value = not visible and '' or read('GETRANGE', name, '0', '256')
  if not value then return nil, 'its key is not a string' end
  local record, why = companion(key)
  if record == nil then return nil, why end
  local ours = visible and record and record.term and value == record.candidate
    and earliest <= record.ends and record.ends <= latest
  if record then correct_times(name, key, record, ours) end
  return {
    name = name, key = key, value = value, record = record, earliest = earliest,
    visible = visible, ours = ours, live = ours and now < record.ends
  }
end

-- Whether the caller holds the live term.
local function holds(found, candidate, nonce, token)
  local record = found.record
  return found.live and record.candidate == candidate and record.nonce == nonce
    and text(record.token) == token
end

-- The same without reading the other fields: the end of the live term that the caller holds,
-- whether it is ephemeral, and the fields in `...` as the 7th and later of a list; or nil. After nil
-- the caller uses look() to find the reason. The length of a field is not checked before it is read:
-- the visible key has the caller's id, so the companion is most likely its record, and foreign data
-- in it is read only this once.
local function held_until(name, key, candidate, nonce, token, ...)
  if redis.pcall('GETRANGE', name, '0', '256') ~= candidate then return nil end
  local raw = read('HMGET', key, 'v', 'candidate', 'nonce', 'token', 'until', 'leads_from', ...)
  if not raw or raw[1] ~= FORMAT or raw[2] ~= candidate or raw[3] ~= nonce or raw[4] ~= token then
    return nil
  end
  local ends = raw[5] and time(raw[5])
  if not ends or ends <= now then return nil end
  local earliest, latest = expiry(name)
  if earliest <= ends and ends <= latest then return ends, raw[6] == NEVER, raw end
  return nil
end

-- How the last term of a free lease ended.
local function ending(record)
  if not record.term then return record.before end
  if now >= record.ends then return 'expired ' .. text(record.token) end
  return '' -- the visible key was deleted before it expired
end

-- The rest of a start-up wait, as the client parses it: 'MICROSECONDS REASON', or ''.
local function startup_wait(wait)
  local left = math.min(wait.at * 1000 - now_micros, wait.length * 1000)
  return left > 0 and text(left) .. ' ' .. wait.reason or ''
end

-- A lease as the client parses it: the lines tag, kind, nonce, token, ttl, left, since, note, next,
-- origin, before, start-up wait and id, and then the checkpoint. The value of a foreign key can
-- contain any byte, so the id is the last line; no other line can contain a line end.
local function lease(tag, found)
  local record = found.record
  local token = record and text(record.token) or ''
  if found.visible and not found.ours then
    local left = found.earliest == -1 and DAY or math.max(found.earliest - now, 0)
    left = text(left * 1000)
    local lines = { tag, 'stranger', '', token, left, left, '', '', '', '', '', '', found.value }
    return { table.concat(lines, '\n'), false }
  end
  if not record then return { tag .. '\nnone' } end
  local origin = text(record.origin)
  local lines
  if found.live then
    local left = math.min(record.ends * 1000 - now_micros, record.ttl * 1000)
    lines = {
      tag, 'held', record.nonce, token, text(record.ttl * 1000), text(left), text(record.since),
      record.note, record.next, origin, record.before, startup_wait(record.wait), record.candidate
    }
  else
    lines = {
      tag, 'free', '', token, '0', '0', '', '', record.next, origin, ending(record), '', ''
    }
  end
  -- Most leases keep no history, and a batch has a thousand answers.
  if record.history == '' then return { table.concat(lines, '\n'), record.checkpoint } end
  return { table.concat(lines, '\n'), record.checkpoint, record.history }
end

local function corrupt(why)
  return { 'corrupt\n' .. why }
end

-- The next token, or nil if there is none below 2^53.
local function mint(last)
  local token = math.max(last + 1, now_micros)
  return token < TOKEN_END and token or nil
end

-- When the server deletes a companion. A companion with a checkpoint is kept. Any other is deleted
-- a day after its lease ended, rounded up to a full hour, so that most renewals do not have to set
-- it again. The companion of an ephemeral lease is deleted after an hour, with its checkpoint. The
-- next token of that name is then the server's clock. It is greater than the last token unless the
-- clock was set back, and a token of an ephemeral lease never granted a right.
local function forgotten_at(ends, ephemeral)
  return math.ceil(ends / HOUR) * HOUR + (ephemeral and HOUR or DAY)
end

local function keep(key, checkpoint, ends, ephemeral)
  if checkpoint and not ephemeral then
    redis.call('PERSIST', key)
  else
    redis.call('PEXPIREAT', key, text(forgotten_at(ends, ephemeral)))
  end
end

-- Adds every `step`th name to the index. Returns how many were not in it, or an error.
local function index(key, names, from, step)
  local members = {}
  for i = from, #names, step do
    members[#members + 1] = '0'
    members[#members + 1] = names[i]
  end
  -- Only observers read the index, so an error here does not fail the call.
  return redis.pcall('ZADD', key, unpack(members))
end

-- Adds ephemeral leases to the set of presences, each with the end of its term as score. They are
-- not in the index. The cost of reading the live ones does not depend on how many have ended.
local function announce(key, ends_and_names)
  -- Only observers read this set, as with the index.
  redis.pcall('ZADD', key, unpack(ends_and_names))
  redis.pcall('PEXPIREAT', key, text(now + TTL_MAX + HOUR))
end

-- Removes presences that have ended. Each batch of claims with an ephemeral lease removes up to
-- this many, so they do not accumulate.
local TRIM = '100'
local function trim(key)
  local ended = redis.pcall('ZRANGEBYSCORE', key, '-inf', '(' .. text(now), 'LIMIT', '0', TRIM)
  if type(ended) == 'table' and #ended > 0 then redis.pcall('ZREM', key, unpack(ended)) end
end

-- One section of INFO; '' if this user may not call it.
local function info(section)
  local reply = redis.pcall('INFO', section)
  return type(reply) == 'string' and reply or ''
end

local function fact(section, name)
  return string.match(section, '\n' .. name .. ':([^\r\n]*)') or ''
end

-- The error if this server is a replica, or nil. A writable replica loses its writes at the next
-- synchronisation, and its primary grants the same lease to another candidate.
local function refuse_replica(replication)
  local role = fact(replication, 'role')
  if role == '' or role == 'master' then return nil end
  return redis.error_reply('READONLY this server is a replica of '
    .. fact(replication, 'master_host') .. ':' .. fact(replication, 'master_port'))
end

local OUT_OF_TOKENS = 'its token has reached 2^53 - 1 and cannot grow'
