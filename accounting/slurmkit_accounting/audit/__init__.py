"""Check, copy and describe a ledger."""
