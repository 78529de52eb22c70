"""Ways of talking to slurmctld about jobs, each a plugin of the kind `backends`."""
