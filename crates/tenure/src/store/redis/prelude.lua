-- What every script shares: the server's clock, reading what lies under a name, and showing it.
--
-- A lease is two keys: NAME, a string that everybody knows how to read, and its companion
-- tenure:{NAME}, a hash with the rest. Scripts touch the keys they are given and no others. One
-- item that cannot be read is answered with corrupt(why) and left alone; it never spoils the
-- items beside it, so reads are checked before anything is written. Numbers leave a script as
-- text(n) and by no other way, to a command or to us: Lua's own conversions round tokens, and are
-- slow.

-- Redis 6 with lua-replicate-commands off would refuse to write after TIME.
if redis.replicate_commands then redis.replicate_commands() end

local TOKEN_END = 9007199254740992 -- 2^53
local HOUR = 3600000
local DAY = 24 * HOUR
-- A TTL is at most a day. No end lies further ahead of the server's clock than this: a day more, for a
-- clock that was set.
local TTL_MAX = DAY
local AHEAD_MAX = TTL_MAX + DAY
local FORMAT = '2'
local FIELDS = {
  'v', 'origin', 'token', 'leads_from', 'candidate', 'nonce', 'ttl', 'until', 'since', 'saved',
  'before', 'next', 'note', 'checkpoint'
}
local LIMITS = { 8, 16, 16, 48, 100, 32, 16, 16, 16, 20, 25, 100, 512, 4096 }

-- The items of a batch say mostly the same in most of their fields: what was worked out for one
-- does for all.
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

-- When a lease granted now runs out. Rounded up: a holder counts its TTL to the microsecond, and
-- must not be let down by a server that counts milliseconds.
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

-- A time that a script may have written, in milliseconds on the server's clock, or false.
local time = once(function(digits)
  local value = number(digits)
  return value and value <= now + AHEAD_MAX and value
end)

-- A TTL, or the length of a wait.
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

-- UTF-8 without control characters, as Note::new takes it.
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

-- What a command says, or nil if the key is of another type. Any other error ends the script with
-- its own code.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then return nil end
    return redis.call(...)
  end
  return reply
end

-- When a key expires: the earliest and the latest millisecond it can be. -1: never. -2: there is no
-- such key.
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
  -- Both ends rounded outwards: a pause of the server between the three must not look like a
  -- stranger.
  local earliest = math.floor((tonumber(from[1]) * 1000000 + tonumber(from[2])) / 1000) + left - 1
  local latest = math.floor((tonumber(to[1]) * 1000000 + tonumber(to[2])) / 1000) + left + 1
  return earliest, latest
end

local function wrong(field, what)
  return 'the field ' .. field .. ' of its companion key is ' .. what
end

-- The fields of a companion; false if there is none; nil and why if somebody else made it. Nothing
-- large is read: a hash in its compact encoding holds nothing large, of any other every field is
-- measured first.
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
  local raw = read('HMGET', key, unpack(FIELDS))
  if not raw then return nil, 'its companion key is not a hash' end
  local found, missing = false, nil
  for i = 1, #FIELDS do
    local value = raw[i]
    if value then
      found = true
      if #value > LIMITS[i] then return nil, wrong(FIELDS[i], 'too long') end
    elseif i < #FIELDS then
      missing = missing or FIELDS[i]
    end
  end
  -- Where we may not ask for the encoding, this is how a companion that is not there looks.
  if not found and redis.call('EXISTS', key) == 0 then return false end
  if missing then return nil, wrong(missing, 'missing') end
  return raw
end

local is_ending = once(function(before)
  local kind, which = string.match(before, '^(%l+) (%d+)$')
  return before == ''
    or ((kind == 'released' or kind == 'expired') and is_token(number(which)))
end)

-- The end of a start-up wait, as a record keeps it: 'AT LENGTH REASON' in milliseconds on the
-- server's clock, or ''. The length bounds what is left of it after the clock was set back.
local NO_WAIT = { at = 0, length = 0, reason = '' }
-- What the record of an ephemeral lease says instead. Such a lease grants no right (presence, membership,
-- a request), and its record is of use to no candidate after its end.
local NEVER = 'never'
local leads_from = once(function(digits)
  if digits == '' or digits == NEVER then return NO_WAIT end
  local at, long, reason = string.match(digits, '^(%d+) (%d+) (%l+)$')
  at, long = at and time(at), long and number(long)
  return at and long and long <= AHEAD_MAX and { at = at, length = long, reason = reason }
end)

-- The companion as a table; false and nil as above.
local function companion(key)
  local raw, why = fields(key)
  if not raw then return raw, why end
  if raw[1] ~= FORMAT then return nil, 'its companion key has a format this version does not know' end
  local record = {
    origin = number(raw[2]), token = number(raw[3]), wait = leads_from(raw[4]),
    candidate = raw[5], nonce = raw[6],
    ttl = length(raw[7]), ends = time(raw[8]), since = number(raw[9]),
    saved = raw[10], before = raw[11], next = raw[12], note = raw[13], checkpoint = raw[14],
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
      and is_note(record.note)) then
    return nil, 'its companion key is not as we write it'
  end
  record.term = record.candidate ~= ''
  return record
end

-- The server's clock was set back if a term ends later than one granted now would, or a wait later than
-- its whole length from now. The time that has passed since is not known, but no holder believes in its
-- term for longer than its TTL after its last renewal, and that is not later than now. So the term ends
-- one TTL from now, and the wait ends one length from now. Whichever script sees it first records that,
-- so that the time is counted once and the key expires in time. Nothing depends on the record being
-- written: a server that refuses writes for now is asked again.
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

-- What lies under a name; nil and why if it is not ours to touch.
--   visible  the visible key is there, whoever set it
--   ours     it is the one that belongs to the companion's term: same value, and expiring when we
--            made it expire
--   live     and that term has not run out
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

-- Whether the caller's hold is the live term.
local function holds(found, candidate, nonce, token)
  local record = found.record
  return found.live and record.candidate == candidate and record.nonce == nonce
    and text(record.token) == token
end

-- The same without reading the rest: when the live term that the caller holds runs out and whether it is
-- ephemeral, or nil.
-- Whoever gets nil looks, and learns why. Nothing is measured before it is read: under a key that shows
-- our own id it is ours, and garbage among it is read this once.
local function held_until(name, key, candidate, nonce, token)
  if redis.pcall('GETRANGE', name, '0', '256') ~= candidate then return nil end
  local raw = read('HMGET', key, 'v', 'candidate', 'nonce', 'token', 'until', 'leads_from')
  if not raw or raw[1] ~= FORMAT or raw[2] ~= candidate or raw[3] ~= nonce or raw[4] ~= token then
    return nil
  end
  local ends = raw[5] and time(raw[5])
  if not ends or ends <= now then return nil end
  local earliest, latest = expiry(name)
  if earliest <= ends and ends <= latest then return ends, raw[6] == NEVER end
  return nil
end

-- How the last term of a free lease ended.
local function ending(record)
  if not record.term then return record.before end
  if now >= record.ends then return 'expired ' .. text(record.token) end
  return '' -- somebody deleted the visible key before its time
end

-- What is left of a start-up wait, as Rust reads it: 'MICROSECONDS REASON', or ''.
local function startup_wait(wait)
  local left = math.min(wait.at * 1000 - now_micros, wait.length * 1000)
  return left > 0 and text(left) .. ' ' .. wait.reason or ''
end

-- A lease as Rust reads it: a line each of tag, kind, nonce, token, ttl, left, since, note, next,
-- origin, before, start-up wait and id, and beside it the checkpoint. A stranger's id may be anything, so it comes
-- last; of the others none can hold the end of a line.
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
  return { table.concat(lines, '\n'), record.checkpoint }
end

local function corrupt(why)
  return { 'corrupt\n' .. why }
end

-- The next token, or nil when they have run out.
local function mint(last)
  local token = math.max(last + 1, now_micros)
  return token < TOKEN_END and token or nil
end

-- A companion with a checkpoint stays for ever; another is forgotten a day after its lease has run
-- out, at a full hour: so that most renewals need not say it again. That of an ephemeral lease is forgotten
-- after an hour, with its checkpoint. The next token of that name is the server's clock, which is greater
-- than the last one unless the clock was set back, and no right was ever granted by it.
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

-- Puts names into the index: every `step`th. Says how many were not in it, or an error.
local function index(key, names, from, step)
  local members = {}
  for i = from, #names, step do
    members[#members + 1] = '0'
    members[#members + 1] = names[i]
  end
  -- For looking only, so a broken index stands in nobody's way.
  return redis.pcall('ZADD', key, unpack(members))
end

-- Ephemeral leases are not in the index but in the set of presences, each with the time at which its term
-- ends. Reading those that are alive costs the same however many have ended.
local function announce(key, ends_and_names)
  -- For observers only, like the index.
  redis.pcall('ZADD', key, unpack(ends_and_names))
  redis.pcall('PEXPIREAT', key, text(now + TTL_MAX + HOUR))
end

-- Removes some of those that have ended. Every claim of one removes up to this many, so they cannot pile up.
local TRIM = '100'
local function trim(key)
  local ended = redis.pcall('ZRANGEBYSCORE', key, '-inf', '(' .. text(now), 'LIMIT', '0', TRIM)
  if type(ended) == 'table' and #ended > 0 then redis.pcall('ZREM', key, unpack(ended)) end
end

-- One section of INFO; '' where this user may not ask.
local function info(section)
  local reply = redis.pcall('INFO', section)
  return type(reply) == 'string' and reply or ''
end

local function fact(section, name)
  return string.match(section, '\n' .. name .. ':([^\r\n]*)') or ''
end

-- A replica holds a copy: what is written to it, where it takes writes at all, is lost with the next
-- synchronisation, and its primary grants the same lease to another candidate. The error, or nil.
local function refuse_replica(replication)
  local role = fact(replication, 'role')
  if role == '' or role == 'master' then return nil end
  return redis.error_reply('READONLY this server is a replica of '
    .. fact(replication, 'master_host') .. ':' .. fact(replication, 'master_port'))
end

local OUT_OF_TOKENS = 'its token has reached 2^53 - 1 and cannot grow'
