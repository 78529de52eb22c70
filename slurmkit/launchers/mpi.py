"""MPI: srun with a plugin that serves it, or the site's mpirun in the batch shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

import msgspec

from slurmkit.checks.say import error, note, warning
from slurmkit.config import load_section
from slurmkit.findings import Finding
from slurmkit.launchers.plain import needs_command, needs_one_start, one_per_gpu
from slurmkit.launchers.ranklogs import needs_file, rank_logs, srun_output
from slurmkit.launchers.step import Step, srun
from slurmkit.spec import JobSpec

_SOURCE = "srun --mpi=list"

MPIRUN = "mpirun"
"""In place of a plugin of srun."""
_BEST = ("pmix", "pmi2")
_NONE = (
    "this Slurm has no MPI plugin that serves MPI ({known}); name the site's mpirun, or the plugin"
    " to use, in the configuration: [launch] mpi"
)


class LaunchSection(msgspec.Struct, frozen=True):
    """`[launch]`: how commands are started here.

    Attributes:
        mpi: plugin of srun that serves the site's MPI, or `mpirun`; by default pmix, else pmi2.
        mpirun: the program, where mpi is `mpirun`: a name in PATH, or a path.
    """

    mpi: str = ""
    mpirun: str = MPIRUN


class Mpi:
    """Starts one MPI process for each task."""

    def settle(self, spec: JobSpec) -> JobSpec:
        """See `slurmkit.plugins.Launcher`; the plan names what it chose."""
        return one_per_gpu(spec)

    def needs(self, step: Step) -> Iterable[Finding]:
        """See `slurmkit.plugins.Launcher`."""
        yield from needs_command(step.spec, "mpi")
        yield from needs_one_start(step.spec, "mpi")
        yield from needs_file(step)
        chosen, known = mpi_of(step), step.capabilities.mpi
        if chosen not in (None, MPIRUN, *(known or (chosen,))) and not step.spec.launch.mpi:
            message = f"[launch] mpi is {chosen!r}, which this Slurm does not have; it has"
            yield error("mpi-unknown", f"{message} {', '.join(known or ())}", _SOURCE)
        elif chosen is None:
            said = _NONE.format(known=f"it has {', '.join(known or ())}")
            yield error("mpi-none", said, _SOURCE)
        elif chosen == MPIRUN and step.spec.container and not step.prefix:
            message = "mpirun starts processes past srun, and so outside the container; give --mpi"
            yield error("mpi-container", message, _SOURCE)
        elif chosen == MPIRUN:
            program = load_section("launch", LaunchSection).mpirun
            yield note("mpi-chosen", f"MPI starts through {program} in the batch shell", _SOURCE)
            logs = ("--log-per-rank",) if step.spec.launch.log_per_rank else ()
            lost = [o for o in step.options if o.startswith(("--gpu-bind", "--label"))]
            if lost := [*lost, *logs]:
                message = f"{' and '.join(lost)} is for srun; give {program} its own such options"
                yield warning("mpi-no-srun", message, _SOURCE)
        else:
            yield note("mpi-chosen", f"MPI starts through srun --mpi={chosen}", _SOURCE)

    def lines(self, step: Step) -> tuple[str, ...]:
        """See `slurmkit.plugins.Launcher`."""
        chosen = mpi_of(step)
        if chosen != MPIRUN:
            kind = () if chosen is None else (f"--mpi={chosen}",)
            options = (step.cpus, *step.options, *kind, "--kill-on-bad-exit=1")
            started = srun(options, (*step.prefix, *step.spec.command), srun_output(step))
            return (*meeting(step, chosen), *rank_logs(step), started)
        program = load_section("launch", LaunchSection).mpirun
        words = [program, "-n", str(step.layout.tasks), *step.prefix, *step.spec.command]
        return (shlex.join(words),)


def meeting(step: Step, chosen: str | None) -> tuple[str, ...]:
    """PMIx 5 shares what it knows in a file of the node's /tmp, which a container does not see."""
    if step.spec.container is None or not (chosen or "").startswith("pmix"):
        return ()
    return ('export PMIX_MCA_gds="${PMIX_MCA_gds:-hash}"',)


def mpi_of(step: Step) -> str | None:
    """What the job names, what the site names, or the best that srun has."""
    known = step.capabilities.mpi
    named = step.spec.launch.mpi or load_section("launch", LaunchSection).mpi
    if named or known is None:
        return named or _BEST[0]
    return next((kind for kind in _BEST if kind in known), None)
