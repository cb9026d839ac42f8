-- KEYS: the index, the presences. ARGV: how many names of the index at most; on the first page '=PREFIX' of the presences to
-- list, later ''; then 'list' or 'remove', from where and to where, of each range of the index, in their order. Answers
-- {state, name...}: `state` is 'more' if the next page begins after the last name, else 'all'. What is too long for a name is
-- left out, so that foreign data cannot make a store read it.

-- How many names one script removes unread: few, so that it costs little more than a list without them.
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
