"""The ledger's service: it keeps the ledger up to date and answers queries of its users."""
