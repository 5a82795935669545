"""Where tenants, keys and blocks are found: in the file, in Redis, in tokens; and what of them is remembered."""
