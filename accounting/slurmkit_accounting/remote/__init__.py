"""Read a site's ledger through its service."""
