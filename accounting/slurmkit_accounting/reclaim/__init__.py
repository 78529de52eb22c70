"""Give idle GPUs back: policies, what they would have done, and what the service does."""
