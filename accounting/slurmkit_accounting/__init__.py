"""The ledger: sacct in, people from LDAP, GPU-hours out."""
