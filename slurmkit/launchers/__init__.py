"""How a job's command is started on its nodes: by srun, torchrun, MPI, or the batch shell alone."""
