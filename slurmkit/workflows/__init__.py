"""Several jobs that wait for each other: read, planned, sent, followed and resumed as one."""
