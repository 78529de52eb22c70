"""`slurmkit setup`: what the cluster and the directory say, as a proposed configuration."""
