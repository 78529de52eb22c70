"""Reports: questions to the ledger, each answered by a `Report(meta, rows)`."""
