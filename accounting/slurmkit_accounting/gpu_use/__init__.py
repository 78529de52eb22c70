"""What GPUs really did, for each run, node and GPU: samples, summaries, curves, sources."""
