"""Why a job waits or failed, and what would start sooner."""
