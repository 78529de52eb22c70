"""Nodes measured with nccl-tests before a job's work begins, and the bad one found."""
