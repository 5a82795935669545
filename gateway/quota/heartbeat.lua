-- Tells that a gateway lives, and forgets those that have not for a while.
-- KEYS: gateways. ARGV: gateway_id, the time in ms after which one is dead. Answer: how many live.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
return redis.call('ZCARD', KEYS[1])
