"""Interactive work in a job: notebook servers and tunnels."""
