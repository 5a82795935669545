-- What reserve.lua and settle.lua share, put before each when it is loaded. The arithmetic is that of
-- gateway/core/quota/books.py, to the last unit.
--
-- The books are a hash, a bound's name to a row of big-endian doubles: what is held, the sum of the entries, the stamp of
-- the oldest, amount and stamp of the newest, then amounts and stamps of the older ones, oldest first. No entries: zeros.
-- Nearly every call reads and writes the first five only; reading all entries would cost more than all the rest.
-- A lease is the packed array {units, time of admission, bounds}. Bounds come packed, {name, ..., kind, ..., most, ...}.
-- Calls of one tenant that come together are one call of a script, done one after the other: what is read and written
-- once for all of them is most of the cost. A time is given only by tests, which compare this with the other implementation at times of their choice; gateways
-- never give one, so that all of them go by the clock of this server.
local RPM, TPM, PAR, TPD, TPMO = 1, 2, 3, 4, 5
local MINUTE_MS, SLOT_MS, DAY_MS = 60000, 1000, 86400000
local HELD_WAIT_MS, EXPIRED_A_CALL = 1000, 20
-- The longest that an entry counts, a month, and then some.
local BOOKS_KEPT_S = 40 * 86400
local floor, max = math.floor, math.max

local function clock(given)
    if given ~= '' then
        return tonumber(given)
    end
    local time = redis.call('TIME')
    return time[1] * 1000 + floor(time[2] / 1000)
end

-- The number of the month of a day since 1970, and the first day of the next. Years begin in March here, so that the
-- day that some have more is their last.
local function month_of(day)
    local days = day + 719468
    local era = floor(days / 146097)
    local of_era = days - era * 146097
    local year = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
    local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
    local month = floor((5 * of_year + 2) / 153)
    local first = floor((153 * month + 2) / 5)
    local length = floor((153 * (month + 1) + 2) / 5) - first
    year = year + era * 400 + (month >= 10 and 1 or 0)
    if month == 11 then
        length = (year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)) and 29 or 28
    end
    return year * 12 + (month < 10 and month + 3 or month - 9), day - (of_year - first) + length
end

local function period(kind, at)
    local day = floor(at / DAY_MS)
    if kind == TPD then
        return day, (day + 1) * DAY_MS
    end
    local number, next_first = month_of(day)
    return number, next_first * DAY_MS
end

local HEAD, ENTRY = 40, 16

local function slot_of(stamp)
    return floor(stamp / SLOT_MS)
end

local function entry_of(text, place)
    return struct.unpack('>dd', text, (place - 1) * ENTRY + 1)
end

local now
-- By a bound's name, as described above.
local kinds, held, spent, oldest, amounts, stamps, older, changed = {}, {}, {}, {}, {}, {}, {}, {}

-- All entries as one text.
local function joined(name)
    if stamps[name] == 0 then
        return ''
    end
    return older[name] .. struct.pack('>dd', amounts[name], stamps[name])
end

-- The other way round.
local function split(name, text)
    local size = #text / ENTRY
    if size == 0 then
        spent[name], oldest[name], amounts[name], stamps[name], older[name] = 0, 0, 0, 0, ''
        return
    end
    amounts[name], stamps[name] = entry_of(text, size)
    older[name] = string.sub(text, 1, (size - 1) * ENTRY)
    local _, first = entry_of(text, 1)
    oldest[name] = first
end

-- Drops the first entries, those that no longer count.
local function prune(name)
    local kind = kinds[name]
    if stamps[name] == 0 then
        return
    end
    if kind == TPD or kind == TPMO then
        if stamps[name] ~= period(kind, now) then
            split(name, '')
        end
        return
    end
    if stamps[name] + MINUTE_MS <= now then
        split(name, '')
    elseif oldest[name] + MINUTE_MS <= now then
        local text, gone = older[name], 0
        while gone < #text / ENTRY do
            local amount, stamp = entry_of(text, gone + 1)
            if stamp + MINUTE_MS > now then
                break
            end
            spent[name] = spent[name] - amount
            gone = gone + 1
        end
        split(name, string.sub(joined(name), gone * ENTRY + 1))
    end
end

local unpacked = {}

-- The bounds that were packed, their books loaded, all that are missing at once; and how many there are.
local function load_books(packed)
    local bounds = unpacked[packed]
    if bounds then
        return bounds, #bounds / 3
    end
    bounds = cmsgpack.unpack(packed)
    unpacked[packed] = bounds
    local size = #bounds / 3
    local names = {}
    for i = 1, size do
        local name = bounds[i]
        if not held[name] then
            names[#names + 1] = name
            kinds[name] = bounds[size + i]
        end
    end
    if #names > 0 then
        local found = redis.call('HMGET', KEYS[1], unpack(names))
        for i, name in ipairs(names) do
            local text = found[i]
            if text then
                held[name], spent[name], oldest[name], amounts[name], stamps[name] = struct.unpack('>ddddd', text)
                older[name] = string.sub(text, HEAD + 1)
                prune(name)
            else
                held[name] = 0
                split(name, '')
            end
        end
    end
    return bounds, size
end

local function store_books()
    local kept, gone = {}, {}
    for name in pairs(changed) do
        if held[name] == 0 and spent[name] == 0 then
            gone[#gone + 1] = name
        else
            kept[#kept + 1] = name
            kept[#kept + 1] = struct.pack('>ddddd', held[name], spent[name], oldest[name], amounts[name], stamps[name])
                .. older[name]
        end
    end
    if #kept > 0 then
        redis.call('HSET', KEYS[1], unpack(kept))
    end
    if #gone > 0 then
        redis.call('HDEL', KEYS[1], unpack(gone))
    end
end

local function let_go(name, units)
    local kind = kinds[name]
    if kind ~= RPM then
        held[name] = max(0, held[name] - (kind == PAR and 1 or units))
    end
end

-- Place of the first entry that is not of an earlier second.
local function find(text, slot)
    local low, high = 1, #text / ENTRY + 1
    while low < high do
        local middle = floor((low + high) / 2)
        local _, stamp = entry_of(text, middle)
        if slot_of(stamp) < slot then
            low = middle + 1
        else
            high = middle
        end
    end
    return low
end

-- Adds to the entry of the second of `at`, which is made where there is none; an entry without an amount goes. False
-- where `amount` is negative and there is no entry.
local function change_older(name, amount, at)
    local text, slot = joined(name), slot_of(at)
    local place = find(text, slot)
    local before, after = string.sub(text, 1, (place - 1) * ENTRY), string.sub(text, (place - 1) * ENTRY + 1)
    if after ~= '' then
        local there, stamp = entry_of(after, 1)
        if slot_of(stamp) == slot then
            amount, at, after = there + amount, amount > 0 and max(stamp, at) or stamp, string.sub(after, ENTRY + 1)
        end
    end
    if amount < 0 then
        return false
    end
    local sum = spent[name]
    split(name, before .. (amount > 0 and struct.pack('>dd', amount, at) or '') .. after)
    spent[name] = sum
    return true
end

local function add(name, amount, at)
    if amount == 0 then
        return
    end
    local kind, newest = kinds[name], stamps[name]
    if kind == TPD or kind == TPMO then
        local number = period(kind, at)
        if number ~= period(kind, now) then
            return
        end
        oldest[name], amounts[name], stamps[name] = number, amounts[name] + amount, number
    elseif at + MINUTE_MS <= now then
        return
    elseif slot_of(newest) == slot_of(at) then
        amounts[name] = amounts[name] + amount
        stamps[name] = max(newest, at)
        if older[name] == '' then
            oldest[name] = stamps[name]
        end
    elseif newest < at then
        older[name] = joined(name)
        oldest[name] = newest == 0 and at or oldest[name]
        amounts[name], stamps[name] = amount, at
    else
        change_older(name, amount, at)
    end
    spent[name] = spent[name] + amount
end

-- Takes one from the second of that time; false where it no longer counts.
local function take_back(name, admitted)
    if slot_of(stamps[name]) == slot_of(admitted) and amounts[name] > 1 then
        amounts[name] = amounts[name] - 1
    elseif not change_older(name, -1, admitted) then
        return false
    end
    spent[name] = max(0, spent[name] - 1)
    return true
end
