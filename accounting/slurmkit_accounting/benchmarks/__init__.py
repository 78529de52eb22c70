"""Benchmarks of nodes as jobs: what is sent, what the jobs measure, and where results are."""
