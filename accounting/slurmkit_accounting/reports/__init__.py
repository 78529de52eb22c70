"""Reports: questions to the books, each answered by a `Report(meta, rows)`."""
