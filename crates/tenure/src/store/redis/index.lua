-- KEYS: the index. ARGV: from where, to where, how many at most. Answers {last, name...}: `last` is
-- where the next page begins ('' if this was all), and what is too long for a name is left out, so
-- that nobody can make us read it.

local found = read('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', '0', ARGV[3])
if not found then return { 'corrupt' } end
local answers = { #found == tonumber(ARGV[3]) and 'more' or 'all' }
for _, name in ipairs(found) do
  if #name <= 320 then answers[#answers + 1] = name end
end
return answers
