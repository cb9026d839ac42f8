-- Saves a checkpoint.
-- KEYS: NAME and companion.
-- ARGV: candidate, nonce, token, number, checkpoint.
-- Returns {clock, item}. The item is 1 if the checkpoint is saved, or a lease, or corrupt, or the
-- line older and the number of the last save.

-- The number of a save can be any u64, which a Lua number cannot represent. So decimals are
-- compared.
local function older(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local function save()
  local found, why = look(KEYS[1], KEYS[2])
  if not found then return corrupt(why) end
  if not holds(found, ARGV[1], ARGV[2], ARGV[3]) then return lease('taken', found) end
  local saved = found.record.saved
  if saved ~= '' and older(ARGV[4], saved) then return { 'older\n' .. saved } end
  if saved ~= ARGV[4] then
    redis.call('HSET', KEYS[2], 'saved', ARGV[4], 'checkpoint', ARGV[5])
    if not found.record.ephemeral then redis.call('PERSIST', KEYS[2]) end
  end
  return 1
end

return { text(now_micros), save() }
