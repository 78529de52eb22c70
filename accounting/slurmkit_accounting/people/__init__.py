"""Who people are over time: LDAP, PIs and overrides."""
