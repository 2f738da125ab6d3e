-- words.lua ROUNDS: coroutines, tables with many keys, strings, a child behind a pipe.
local function chance()
  local x = 12345
  return coroutine.wrap(function()
    while true do
      x = (x * 1103515 + 12345) % 2147483648
      coroutine.yield(math.floor(x / 256))
    end
  end)
end
local numbers, counts = chance(), {}
local child = assert(io.popen("sort -n > sorted.txt", "w"))
for round = 1, tonumber(arg[1]) do
  local letters = {}
  for i = 1, 2000 do letters[i] = string.char(97 + numbers() % 26) end
  local text = table.concat(letters)
  for word in text:gmatch("[aeiou][^aeiou]") do counts[word] = (counts[word] or 0) + 1 end
  local keys = {}
  for k in pairs(counts) do keys[#keys + 1] = k end
  table.sort(keys, function(a, b) if counts[a] ~= counts[b] then return counts[a] > counts[b] end return a < b end)
  child:write(string.format("%d %d %s\n", counts[keys[1]] % 1000, round, keys[1]))
  if round % 200 == 0 then print(round, keys[1], counts[keys[1]], #keys) io.flush() end
end
child:close()
