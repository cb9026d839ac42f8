-- KEYS: NAME and companion of each lease.

local answers = { text(now_micros) }
for i = 1, #KEYS / 2 do
  local found, why = look(KEYS[2 * i - 1], KEYS[2 * i])
  answers[i + 1] = found and lease('lease', found) or corrupt(why)
end
return answers
