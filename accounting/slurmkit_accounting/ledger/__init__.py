"""The ledger's database: where it is, its schema, locks and bulk writes."""
