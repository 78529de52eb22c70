"""`slurmkit gpu-exporter`: what the GPUs of a node do, from NVML, for Prometheus and the ledger."""
