"""The environment that sbatch would hand on to a job, for what submits without sbatch.

After src/sbatch/sbatch.c and opt.c and src/common/env.c of Slurm 26.05, without SPANK plugins.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from functools import lru_cache

from slurmkit.slurm import environment_for

# In the order of src/common/slurm_rlimits_info.c.
_LIMITS = {
    name: getattr(resource, f"RLIMIT_{name}")
    for name in "CPU FSIZE DATA STACK CORE RSS NPROC NOFILE MEMLOCK AS".split()
}
_OF_OPTIONS = {  # what srun in the job takes as its own options
    "cpus-per-task": ("SLURM_CPUS_PER_TASK",),
    "dependency": ("SLURM_JOB_DEPENDENCY",),
    "gpus": ("SLURM_GPUS",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE",),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
}
_LAUNCHERS = {
    "OMPI_MCA_plm_slurm_args": "--external-launcher",
    "PRTE_MCA_plm_slurm_args": "--external-launcher",
}
_HYDRA = {  # unless another way of starting processes is set
    "HYDRA_BOOTSTRAP": "HYDRA_LAUNCHER_EXTRA_ARGS",
    "I_MPI_HYDRA_BOOTSTRAP": "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",
}


def handed_on(options: Mapping[str, str], config: Mapping[str, str]) -> dict[str, str]:
    """All variables of a job, by name.

    Args:
        options: those of the job, sbatch's long names without dashes.
        config: the cluster's, as `scontrol show config` prints it.
    """
    found = environment_for(["sbatch"], os.environ)
    if "export" not in options:
        found.pop("SLURM_JWT", None)
    found |= _here() | dict(_limits(config))
    for option, names in _OF_OPTIONS.items():
        found |= dict.fromkeys(names, options[option]) if option in options else {}
    if "cpus-per-task" in options:  # as sbatch of 26.05 has it in two ways
        found["SLURM_TRES_PER_TASK"] = f"cpu={options['cpus-per-task']}"
    return _launchers(config) | found


def _here() -> dict[str, str]:
    return {
        "SLURM_PRIO_PROCESS": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "SLURM_SUBMIT_DIR": os.getcwd(),  # noqa: PTH109 - text
        "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_UMASK": _umask(),
    }


def _umask() -> str:
    """Asked of the kernel: `os.umask` would change it for files that other threads make."""
    status = os.open("/proc/self/status", os.O_RDONLY)  # for each job: nothing slower
    try:
        return os.read(status, 4096).partition(b"\nUmask:")[2].split(None, 1)[0].decode()
    finally:
        os.close(status)


def _limits(config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The soft limits that slurm.conf propagates."""
    named = config.get("PropagateResourceLimits", "ALL")
    for variable, number in _propagated(named, config.get("PropagateResourceLimitsExcept", "")):
        soft, _ = resource.getrlimit(number)
        yield variable, str(soft % 2**64)  # without limit it is -1


@lru_cache(maxsize=8)
def _propagated(named: str, but: str) -> tuple[tuple[str, int], ...]:
    """Variables and limits: those named, or all but those named."""
    names, excepted = _words(named), _words(but)
    return tuple(
        (f"SLURM_RLIMIT_{name}", number)
        for name, number in _LIMITS.items()
        if (name not in excepted if excepted else names & {name, "ALL"})
    )


def _words(value: str) -> set[str]:
    return set(value.upper().split(",")) - {"", "(NULL)"}


def _launchers(config: Mapping[str, str]) -> dict[str, str]:
    """For what starts processes of MPI by a srun of its own; the user's own values stay."""
    found = dict(_LAUNCHERS)
    off = "disable_slurm_hydra_bootstrap" in config.get("MpiParams", "")
    for bootstrap, arguments in _HYDRA.items():
        if os.environ.get(bootstrap, "" if off else "slurm") == "slurm":
            found |= {bootstrap: "slurm", arguments: "--external-launcher"}
    return found
