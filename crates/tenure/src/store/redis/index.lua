-- KEYS: the index, the presences. ARGV: from where, to where ('' and '': no name of the index), how many at most, and on
-- the first page '=PREFIX' of the presences to list, later ''. Answers {state, name...}: `state` is 'more' if the next page
-- begins after the last name, else 'all'. What is too long for a name is left out, so that nobody can make us read it.

local answers = { 'all' }
if ARGV[4] ~= '' then
  local prefix = string.sub(ARGV[4], 2)
  local alive = read('ZRANGEBYSCORE', KEYS[2], '(' .. text(now), '+inf')
  if not alive then return { 'corrupt', KEYS[2] } end
  for _, name in ipairs(alive) do
    if #name <= 320 and string.sub(name, 1, #prefix) == prefix then answers[#answers + 1] = name end
  end
end
if ARGV[1] ~= '' then
  local found = read('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', '0', ARGV[3])
  if not found then return { 'corrupt', KEYS[1] } end
  if #found == tonumber(ARGV[3]) then answers[1] = 'more' end
  for _, name in ipairs(found) do
    if #name <= 320 then answers[#answers + 1] = name end
  end
end
return answers
