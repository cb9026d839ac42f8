-- Lists one page of names.
-- KEYS: the index, the presences.
-- ARGV: the largest number of names of the index; '=PREFIX' of the presences to list on the first
--       page, '' on later pages; then 'list' or 'remove', lower and upper bound of each range of
--       the index, in order.
-- Returns {state, name...}. `state` is 'more' if another page follows after the last name, else
-- 'all'. An entry that is too long for a name is left out, so that a client does not read foreign
-- data.

-- How many names one call removes without listing them. The number is small, so that a call that
-- removes names costs little more than one that only lists.
local REMOVED = '30'

local answers = { 'all' }
if ARGV[2] ~= '' then
  local prefix = string.sub(ARGV[2], 2)
  local alive = read('ZRANGEBYSCORE', KEYS[2], '(' .. text(now), '+inf')
  if not alive then return { 'corrupt', KEYS[2] } end
  for _, name in ipairs(alive) do
    if #name <= 320 and string.sub(name, 1, #prefix) == prefix then answers[#answers + 1] = name end
  end
end
local left = tonumber(ARGV[1])
for i = 3, #ARGV, 3 do
  local removes = ARGV[i] == 'remove'
  local limit = removes and REMOVED or text(left)
  local found = read('ZRANGEBYLEX', KEYS[1], ARGV[i + 1], ARGV[i + 2], 'LIMIT', '0', limit)
  if not found then return { 'corrupt', KEYS[1] } end
  if removes then
    if #found > 0 then redis.pcall('ZREM', KEYS[1], unpack(found)) end
  else
    for _, name in ipairs(found) do
      if #name <= 320 then answers[#answers + 1] = name end
    end
    left = left - #found
    if left == 0 then
      answers[1] = 'more'
      break
    end
  end
end
return answers
