"""The queue as typed rows: read, ordered, and shown in cells."""
