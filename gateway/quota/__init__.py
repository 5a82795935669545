"""Where books are kept: in Redis for all gateways together, or in the memory of one."""
