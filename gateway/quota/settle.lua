-- Releases what was held for each request and books what it used, once.
-- KEYS: books, leases, held, settled, ledger. ARGV: a time in tests or "", remember_ms, then for each request: bounds, id,
-- part, units, "1" if it counts as a request, age_ms, the ledger's entry packed or "".
-- Answer, for each: 1, or 0 where it was settled before and nothing changed.
local FIELDS = 7
now = clock(ARGV[1])
local forgotten = now - tonumber(ARGV[2])

-- What is known of them, read at once: the marks of those settled before, and the leases.
local asked, ids = {}, {}
for first = 3, #ARGV, FIELDS do
    local id, part = ARGV[first + 1], ARGV[first + 2]
    ids[#ids + 1] = id
    asked[#asked + 1] = id
    asked[#asked + 1] = id .. '~'
    if part ~= '' then
        asked[#asked + 1] = id .. '/' .. part
        asked[#asked + 1] = id .. '~r'
    end
end
local is_marked, marks = {}, {}
for i, at in ipairs(redis.call('ZMSCORE', KEYS[4], unpack(asked))) do
    is_marked[asked[i]] = at and tonumber(at) > forgotten
end
local leases, released = {}, {}
for i, raw in ipairs(redis.call('HMGET', KEYS[3], unpack(ids))) do
    leases[ids[i]] = raw
end

local function mark(name)
    is_marked[name] = true
    marks[#marks + 1] = now
    marks[#marks + 1] = name
end

-- Whether it counts as a request; nil where it was settled before.
local function mark_settled(id, part, is_request)
    if part == '' then
        if is_marked[id] or is_marked[id .. '~'] then
            return nil
        end
        mark(id)
        return is_request
    end
    local name = id .. '/' .. part
    if is_marked[id] or is_marked[name] then
        return nil
    end
    mark(name)
    mark(id .. '~')
    if not is_request or is_marked[id .. '~r'] then
        return false
    end
    mark(id .. '~r')
    return true
end

-- Names of the bounds under which the admission no longer counts.
local function release(id)
    local too_late = {}
    local raw = leases[id]
    if raw then
        leases[id] = nil
        released[#released + 1] = id
        local lease = cmsgpack.unpack(raw)
        local bounds, size = load_books(lease[3])
        for i = 1, size do
            local name = bounds[i]
            let_go(name, lease[1])
            if kinds[name] == RPM and not take_back(name, lease[2]) then
                too_late[name] = true
            end
            changed[name] = true
        end
    end
    return too_late
end

local answers = {}
for first = 3, #ARGV, FIELDS do
    local id = ARGV[first + 1]
    local is_request = mark_settled(id, ARGV[first + 2], ARGV[first + 4] == '1')
    answers[#answers + 1] = is_request == nil and 0 or 1
    if is_request ~= nil then
        local too_late = release(id)
        local units, at = tonumber(ARGV[first + 3]), now - tonumber(ARGV[first + 5])
        local bounds, size = load_books(ARGV[first])
        for i = 1, size do
            local name, kind = bounds[i], kinds[bounds[i]]
            if kind == RPM then
                if is_request and not too_late[name] then
                    add(name, 1, at)
                end
            elseif kind ~= PAR then
                add(name, units, at)
            end
            changed[name] = true
        end
        if ARGV[first + 6] ~= '' then
            local record = cmsgpack.unpack(ARGV[first + 6])
            record[#record + 1] = 'finished_ms'
            record[#record + 1] = string.format('%.0f', at)
            redis.call('XADD', KEYS[5], '*', unpack(record))
        end
    end
end

if #marks > 0 then
    redis.call('ZADD', KEYS[4], unpack(marks))
    local old = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', forgotten, 'LIMIT', 0, EXPIRED_A_CALL + #answers)
    if #old > 0 then
        redis.call('ZREM', KEYS[4], unpack(old))
    end
    redis.call('PEXPIRE', KEYS[4], 2 * ARGV[2])
end
if #released > 0 then
    redis.call('ZREM', KEYS[2], unpack(released))
    redis.call('HDEL', KEYS[3], unpack(released))
end
if next(changed) then
    store_books()
    redis.call('EXPIRE', KEYS[1], BOOKS_KEPT_S)
end
return answers
