"""Facts that hold on some releases of Slurm only, each with its first release and its source.

A message or a check about such a fact asks here, so that it says nothing wrong on another release.
"""

from __future__ import annotations

# slurmstepd makes the folders of a log that are missing: `mkdirpath` in
# src/slurmd/slurmstepd/io.c, `_init_task_stdio_fds`.
LOG_FOLDERS_MADE_SINCE = (23, 2)

# `%r` (restarts) and `%S` (SLUID) in a log's path: `_is_wildcard` in src/common/print_fields.c.
# From the same release on, `%N` is the NodeName, before it is the node's host name (`fname_create`
# in src/slurmd/common/fname.c).
LOG_NAMES_RESTARTS_SINCE = (25, 11)
# sacct no longer takes 128 off an exit code of 128 or more: src/sacct/print.c.
EXIT_CODES_WHOLE_SINCE = (25, 11)

# On these, up to the second exclusive, --cpus-per-task sets SLURM_TRES_PER_TASK, and srun refuses
# that with --ntasks-per-gpu, whatever is in it: `_validate_ntasks_per_gpu` in
# src/common/slurm_opt.c.
CPUS_WITH_TASKS_PER_GPU_FAIL = (23, 11), (25, 5, 1)

# The end of a job that had ended stays in slurmdbd when the job is requeued then; before, sacct
# says that it ran until the requeue. Seen with 22.05.8 and 24.11.5, and not any more with 26.05.5.
ENDS_KEPT_SINCE = (26, 5)


def format_release(release: tuple[int, ...]) -> str:
    """Return a release as Slurm writes it: `24.05` for (24, 5, 3)."""
    return ".".join(f"{part:02}" for part in release[:2])
