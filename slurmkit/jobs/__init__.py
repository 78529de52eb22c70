"""Submitted jobs: handles, states, outcomes, logs, and one shared poller."""
