"""The ledger's service: it keeps the books up to date and answers who may ask."""
