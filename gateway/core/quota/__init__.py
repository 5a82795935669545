"""What tenants may use: bounds over time, the books that hold them, and what callers are told of them."""
