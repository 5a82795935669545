-- Holds each request's place under all its bounds or under none; for one without an id it only looks.
-- KEYS: books, leases, held, settled. ARGV: a time in tests or "", remember_ms, then for each request: bounds, id, units,
-- lease_ms, "1" for shadow.
-- Answer, for each: granted, place of the bound that failed or 0, wait in ms, then used and reset in ms of each bound.
local FIELDS = 5
now = clock(ARGV[1])

local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, EXPIRED_A_CALL)
if #expired > 0 then
    for i, raw in ipairs(redis.call('HMGET', KEYS[3], unpack(expired))) do
        if raw then
            local lease = cmsgpack.unpack(raw)
            local bounds, size = load_books(lease[3])
            for place = 1, size do
                let_go(bounds[place], lease[1])
                changed[bounds[place]] = true
            end
        end
    end
    redis.call('ZREM', KEYS[2], unpack(expired))
    redis.call('HDEL', KEYS[3], unpack(expired))
end

local function wait_of(name, most)
    local kind = kinds[name]
    if kind == PAR then
        return HELD_WAIT_MS
    end
    if kind == TPD or kind == TPMO then
        if spent[name] < most then
            return HELD_WAIT_MS
        end
        local _, period_end = period(kind, now)
        return period_end - now
    end
    local left, wait = held[name] + spent[name], 0
    local text = joined(name)
    for place = 1, #text / ENTRY do
        local amount, stamp = entry_of(text, place)
        left = left - amount
        wait = stamp + MINUTE_MS - now
        if left < most then
            return wait
        end
    end
    return max(HELD_WAIT_MS, wait)
end

local function reset_of(name)
    local kind = kinds[name]
    if held[name] + spent[name] == 0 then
        return 0
    end
    if kind == PAR then
        return HELD_WAIT_MS
    end
    if kind == TPD or kind == TPMO then
        local _, period_end = period(kind, now)
        return period_end - now
    end
    if held[name] > 0 then
        return MINUTE_MS
    end
    return stamps[name] + MINUTE_MS - now
end

-- Asked twice with one id it is held once, and not at all where it has been settled: a call may come late.
local ids, is_leased = {}, {}
for first = 3, #ARGV, FIELDS do
    ids[#ids + 1] = ARGV[first + 1]
end
for i, expiry in ipairs(redis.call('ZMSCORE', KEYS[2], unpack(ids))) do
    is_leased[ids[i]] = expiry
end
for i, at in ipairs(redis.call('ZMSCORE', KEYS[4], unpack(ids))) do
    is_leased[ids[i]] = is_leased[ids[i]] or at and tonumber(at) > now - tonumber(ARGV[2])
end

local expiries, leases = {}, {}
local answers = {}
for first = 3, #ARGV, FIELDS do
    local bounds, size = load_books(ARGV[first])
    local id, units = ARGV[first + 1], tonumber(ARGV[first + 2])
    local failed, wait = 0, 0
    for i = 1, size do
        local name, most = bounds[i], bounds[2 * size + i]
        if held[name] + spent[name] >= most then
            local this = wait_of(name, most)
            if this > wait then
                failed, wait = i, this
            end
        end
    end
    local granted = failed == 0 or ARGV[first + 4] == '1'
    if granted and id ~= '' and not is_leased[id] then
        for i = 1, size do
            local name = bounds[i]
            if kinds[name] == RPM then
                add(name, 1, now)
            else
                held[name] = held[name] + (kinds[name] == PAR and 1 or units)
            end
            changed[name] = true
        end
        is_leased[id] = true
        expiries[#expiries + 1] = now + tonumber(ARGV[first + 3])
        expiries[#expiries + 1] = id
        leases[#leases + 1] = id
        leases[#leases + 1] = cmsgpack.pack({ units, now, ARGV[first] })
    end
    local answer = { granted and 1 or 0, failed, wait }
    for i = 1, size do
        local name = bounds[i]
        answer[2 * i + 2] = held[name] + spent[name]
        answer[2 * i + 3] = reset_of(name)
    end
    answers[#answers + 1] = answer
end
if #leases > 0 then
    redis.call('ZADD', KEYS[2], unpack(expiries))
    redis.call('HSET', KEYS[3], unpack(leases))
end
store_books()
return answers
