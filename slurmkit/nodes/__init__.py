"""Nodes now: their state, what is used of them, and by whom."""
