"""Why a job waits, when it may start, what would start sooner, and why one failed."""
