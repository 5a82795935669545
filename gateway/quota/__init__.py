"""The stores of quotas and of the ledger, and what the journey of a request asks of them."""
