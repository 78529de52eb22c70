"""Usage per hour and per day, derived from runs."""
