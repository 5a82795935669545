"""Where books are kept, for all gateways together or for one, and what becomes of settlements while they are away."""
