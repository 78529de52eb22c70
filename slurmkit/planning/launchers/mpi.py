"""The mpi launcher: srun with an MPI plugin, or the site's mpirun in the batch shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

import msgspec

from slurmkit.config.files import load_section
from slurmkit.planning.launchers.base import (
    LaunchStep,
    check_output_is_file,
    rank_log_lines,
    srun_line,
    srun_output,
)
from slurmkit.planning.launchers.srun import (
    check_is_command,
    check_not_a_launcher,
    one_task_per_gpu,
)
from slurmkit.spec.findings import Finding, error, note, warning
from slurmkit.spec.jobspec import JobSpec

_SOURCE = "srun --mpi=list"

MPIRUN = "mpirun"
"""The value of `mpi` that means mpirun instead of a plugin of srun."""
_DEFAULT_PLUGIN = "pmix"
_NONE = (
    "this Slurm has no MPI plugin pmix ({known}); name the site's mpirun, or the plugin"
    " to use, in the configuration: [launch] mpi, or for this job: --mpi NAME"
)
_NONE_BUT_PMI2 = (
    "; pmi2 serves MPICH and Intel MPI, but with Open MPI 5 or later each task of a job would run"
    " alone, as rank 0 of 1"
)


def check_mpi_plugin(spec: JobSpec, known: tuple[str, ...] | None) -> Iterable[Finding]:
    """Report an `--mpi` plugin that this cluster's Slurm does not have.

    Args:
        spec: a job with `--mpi`.
        known: the plugins that `srun --mpi=list` shows; None if they are not known.
    """
    if spec.launch.mpi == MPIRUN and spec.launch.launcher == "mpi":
        return
    if known is not None and spec.launch.mpi not in known:
        message = f"this Slurm has no MPI plugin {spec.launch.mpi!r}; it has {', '.join(known)}"
        yield error("mpi-unknown", message, _SOURCE)


class LaunchSection(msgspec.Struct, frozen=True):
    """`[launch]`: how commands are started on this cluster.

    Attributes:
        mpi: plugin of srun that serves the site's MPI, or `mpirun`; by default pmix.
        mpirun: the program, where mpi is `mpirun`: a name in PATH, or a path.
    """

    mpi: str = ""
    mpirun: str = MPIRUN


class Mpi:
    """The launcher that starts one MPI process for each task."""

    def settle(self, spec: JobSpec) -> JobSpec:
        return one_task_per_gpu(spec)

    def needs(self, step: LaunchStep) -> Iterable[Finding]:
        yield from check_is_command(step.spec, "mpi")
        yield from check_not_a_launcher(step.spec, "mpi")
        yield from check_output_is_file(step)
        chosen, known = choose_mpi(step), step.capabilities.mpi
        if chosen not in (None, MPIRUN, *(known or (chosen,))) and not step.spec.launch.mpi:
            message = f"[launch] mpi is {chosen!r}, which this Slurm does not have; it has"
            yield error("mpi-unknown", f"{message} {', '.join(known or ())}", _SOURCE)
        elif chosen is None:
            message = _NONE.format(known=f"it has {', '.join(known or ())}")
            yield error("mpi-none", message + (_NONE_BUT_PMI2 * ("pmi2" in (known or ()))), _SOURCE)
        elif chosen == MPIRUN and step.spec.container and not step.prefix:
            message = (
                "mpirun starts processes without srun, and so outside the container; choose a"
                " plugin of srun with --mpi"
            )
            yield error("mpi-container", message, _SOURCE)
        elif chosen == MPIRUN:
            program = load_section("launch", LaunchSection).mpirun
            yield note("mpi-chosen", f"MPI starts through {program} in the batch shell", _SOURCE)
            logs = ("--log-per-rank",) if step.spec.launch.log_per_rank else ()
            only = ("--gpu-bind", "--cpu-bind", "--label")
            if lost := [*(o for o in step.options if o.startswith(only)), *logs]:
                message = (
                    f"{' and '.join(lost)} works only with srun; give {program} its own options for"
                    " this"
                )
                yield warning("mpi-no-srun", message, _SOURCE)
        else:
            yield note("mpi-chosen", f"MPI starts through srun --mpi={chosen}", _SOURCE)

    def lines(self, step: LaunchStep) -> tuple[str, ...]:
        chosen = choose_mpi(step)
        if chosen != MPIRUN:
            kind = () if chosen is None else (f"--mpi={chosen}",)
            options = (step.cpus, *step.options, *kind, "--kill-on-bad-exit=1")
            started = srun_line(options, (*step.prefix, *step.spec.command), srun_output(step))
            return (*pmix_lines(step, chosen), *rank_log_lines(step), started)
        program = load_section("launch", LaunchSection).mpirun
        words = [program, "-n", str(step.layout.tasks), *step.prefix, *step.spec.command]
        return (shlex.join(words),)


def pmix_lines(step: LaunchStep, chosen: str | None) -> tuple[str, ...]:
    """Return a line that keeps PMIx 5 from sharing data in the node's /tmp.

    A container does not see that folder.
    """
    if step.spec.container is None or not (chosen or "").startswith("pmix"):
        return ()
    return ('export PMIX_MCA_gds="${PMIX_MCA_gds:-hash}"',)


def choose_mpi(step: LaunchStep) -> str | None:
    """Return the MPI plugin that the job names, or the site names, else pmix if srun has it.

    pmi2 is never chosen by itself: Open MPI has no PMI-2 from release 5 on, and then starts each
    task as a job of its own, with exit code 0.
    """
    known = step.capabilities.mpi
    named = step.spec.launch.mpi or load_section("launch", LaunchSection).mpi
    if named or known is None or _DEFAULT_PLUGIN in known:
        return named or _DEFAULT_PLUGIN
    return None
