"""Web pages for PIs and their people: one more listener of the ledger's service."""
