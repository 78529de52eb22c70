"""The preflight in a plan: its findings, and the lines of the script that run it.

The program is all_reduce_perf of NVIDIA's nccl-tests, built with MPI. README.md and
doc/PERFORMANCE.md there explain its options and the bus bandwidth.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from slurmkit.config.files import load_section
from slurmkit.planning.launchers.base import END_ALL_ON_FAILURE, LaunchStep
from slurmkit.planning.launchers.mpi import MPIRUN, choose_mpi, pmix_lines
from slurmkit.planning.preflight import inside
from slurmkit.planning.secrets import secret_variables
from slurmkit.spec.findings import Finding, error, note, warning
from slurmkit.spec.jobspec import JobSpec

_SOURCE = "[preflight]"
_END = "SLURMKIT_PREFLIGHT"
# One large size, so that the average is the network's bandwidth; 5 warm-up runs before.
_SIZES = "--minbytes 1G --maxbytes 1G --ngpus 1 --iters 20 --warmup_iters 5 --check 1".split()


class PreflightSection(msgspec.Struct, frozen=True):
    """`[preflight]`: how nodes are measured before a job's work, and the bandwidth expected.

    Attributes:
        program: path on the nodes of nccl-tests' all_reduce_perf, built with MPI; if empty, the
            job's own image must have it.
        image_program: name of the program in images.
        between: expected bus bandwidth for 1 GiB over several nodes, in GB/s, by GPU type and
            count on each node (`a100:8`), by type, or by partition; the first match counts.
        within: the same within one node; `between` where not set.
        tolerance: share of the expected bandwidth that may be missing.
        policy: what a job with a bad node does: `stop`, or `requeue` without that node.
        seconds: the longest time that one run may take.
        unpack_seconds: the longest time that pyxis may take to unpack the job's image before.
        hours: how long a good result counts for the same nodes.
    """

    program: str = ""
    image_program: str = "all_reduce_perf_mpi"
    between: dict[str, float] = {}
    within: dict[str, float] = {}
    tolerance: float = 0.1
    policy: Literal["stop", "requeue"] = "stop"
    seconds: int = 120
    unpack_seconds: int = 1800
    hours: float = 24.0

    def least(self, names: Iterable[tuple[str, ...]], *, several: bool) -> float:
        """Return the least good bandwidth in GB/s; 0 where nothing is expected.

        Args:
            names: the names of the nodes in each partition that the job may run in.
            several: whether over several nodes, or within one.
        """
        tables = (self.between,) if several else (self.within, self.between)
        expected = [
            next((table[name] for table in tables for name in each if name in table), 0.0)
            for each in names
        ]
        return round(min(expected, default=0.0) * (1 - self.tolerance), 3)


class PreflightTarget(msgspec.Struct, frozen=True):
    """The job and the nodes that a preflight measures.

    Attributes:
        step: the job.
        type: type of its GPUs; None where it is not known.
        partitions: names of the partitions that it may run in.
        contained: name of its container's runtime; empty without a container. pyxis unpacks the
            image for each step, so the runs share one container of it.
        bare: srun options for a step outside the container.
    """

    step: LaunchStep
    type: str | None
    partitions: tuple[str, ...]
    contained: str = ""
    bare: tuple[str, ...] = ()

    @property
    def names(self) -> list[tuple[str, ...]]:
        """The names of its nodes in the configuration, for each partition."""
        count = self.step.layout.gpus
        types = (f"{self.type}:{count}", self.type) if self.type else ()
        return [(*types, f"{each}:{count}", each) for each in self.partitions]


def with_preflight(spec: JobSpec) -> JobSpec:
    """Return the job with `--requeue` and an appended log, if a bad node requeues it."""
    if spec.requeue is False:
        return spec
    if load_section("preflight", PreflightSection).policy != "requeue":
        return spec
    return msgspec.structs.replace(
        spec, requeue=spec.requeue or True, open_mode=spec.open_mode or "append"
    )


def preflight_lines(place: PreflightTarget) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """Return the lines of the preflight, which stand before the job's command, and the findings.

    Raises:
        BadConfig: for a wrong configuration.
    """
    section = load_section("preflight", PreflightSection)
    wrong = tuple(_preflight_errors(place, section))
    if wrong:
        return (), wrong
    return _lines(place, section), tuple(_preflight_notes(place, section))


def _preflight_errors(place: PreflightTarget, section: PreflightSection) -> Iterator[Finding]:
    step, spec, layout = place.step, place.step.spec, place.step.layout
    if spec.script is not None:
        message = (
            "--preflight works only before a command, and this job is a whole script; leave"
            " --preflight out"
        )
        yield error("preflight-script", message, "--preflight")
    elif spec.gpus is None or spec.gpus.is_part or layout.gpus_in_all or not layout.gpus:
        message = (
            "--preflight measures whole GPUs, the same number on each node; ask for GPUs with"
            " --gpus-per-node"
        )
        yield error("preflight-gpus", message, "--preflight")
    elif step.single_node and layout.gpus == 1:
        message = "--preflight measures between GPUs, and the job has one; leave it out"
        yield error("preflight-one", message, "--preflight")
    if not section.program and spec.container is None:
        message = (
            "there is no all_reduce_perf to run: give its path on the nodes as [preflight] program"
            " in the configuration, or an image that has it (--container-image nccl-tests)"
        )
        yield error("preflight-program", message, _SOURCE)
    if not section.program and spec.container and (spec.container.name or spec.container.save):
        message = (
            "the preflight would run in the container that the job keeps; name a program on the"
            " nodes instead: [preflight] program in the configuration"
        )
        yield error("preflight-container", message, _SOURCE)
    if choose_mpi(step) in (None, "none", MPIRUN):
        message = (
            "--preflight starts all_reduce_perf by srun, which needs a plugin for its MPI: pmix, or"
            " for MPICH and Intel MPI pmi2; name it in the configuration: [launch] mpi, or for this"
            " job: --mpi NAME"
        )
        yield error("preflight-mpi", message, "srun --mpi=list")


def _preflight_notes(place: PreflightTarget, section: PreflightSection) -> Iterator[Finding]:
    step, spec = place.step, place.step.spec
    least = section.least(place.names, several=not step.single_node)
    bad = "goes back to the queue without it" if _requeues(spec, section) else "stops"
    if _requeues(spec, section) and step.layout.least_nodes <= 2 <= (step.layout.most or 2):
        bad += " (of two nodes that are bad only together: without both, once)"
    runs = inside.most_runs(step.layout.most or step.layout.least_nodes)
    more = "" if step.single_node else f", up to {runs} more runs look for the bad node, and"
    before = ""
    if _unpacks_image(place, section):
        before = f"the image is unpacked on each node in at most {section.unpack_seconds} s, and "
    message = (
        f"before the work, {before}all_reduce_perf runs over the job's nodes for at most"
        f" {section.seconds} s, unless these nodes were good in the last {section.hours:g} h; after"
        f" wrong sums{f' or less than {least:g} GB/s' if least else ''}{more} the job {bad}"
    )
    yield note("preflight", message, _SOURCE)
    if not least:
        table = "within" if step.single_node else "between"
        known = ", ".join(dict.fromkeys(name for names in place.names for name in names))
        message = (
            "the configuration has no expected bandwidth for these nodes; name one of these in"
            f" [preflight.{table}]: {known}"
        )
        yield warning("preflight-unknown", message, _SOURCE)
    if section.policy == "requeue" and spec.requeue is False:
        message = "a bad node stops the job: --no-requeue keeps it from going back to the queue"
        yield warning("preflight-no-requeue", message, _SOURCE)


def _unpacks_image(place: PreflightTarget, section: PreflightSection) -> bool:
    """Return whether pyxis unpacks the job's image for the measurement."""
    return place.contained == "pyxis" and not section.program


def _requeues(spec: JobSpec, section: PreflightSection) -> bool:
    return section.policy == "requeue" and spec.requeue is not False


def _lines(place: PreflightTarget, section: PreflightSection) -> tuple[str, ...]:
    source = Path(inside.__file__).read_text("utf-8").rstrip("\n").split("\n")
    text = json.dumps(_parameters(place, section), sort_keys=True)
    return (
        *(pmix_lines(place.step, choose_mpi(place.step)) if place.contained else ()),
        "# Before the work: all_reduce_perf over the nodes (--preflight nccl). What ends the job",
        "# must not end this shell before it, or it could not change which nodes come next.",
        "trap : TERM",
        "slurmkit_code=0",
        f"python3 -IS - {shlex.quote(text)} <<'{_END}' || slurmkit_code=$?",
        *source,
        _END,
        "trap - TERM",
        '[ "$slurmkit_code" = 0 ] || exit "$slurmkit_code"',
        "",
    )


def _least_tasks(step: LaunchStep) -> int:
    """Return the tasks on the node with the fewest, whose CPUs the test's processes share."""
    layout = step.layout
    spread = (layout.ntasks or 1) // (layout.most or layout.least_nodes)
    return layout.ntasks_per_node or max(1, spread)


def _parameters(place: PreflightTarget, section: PreflightSection) -> dict[str, object]:
    """Return the parameters of `slurmkit.planning.preflight.inside`."""
    step, gpus = place.step, place.step.layout.gpus
    options = place.bare
    words: tuple[str, ...] = (section.program,)
    if not section.program:
        options, words = step.options, (*step.prefix, section.image_program)
    cpus = _least_tasks(step) * step.layout.cpus_per_task
    of_tasks = ("--gpu-bind", "--cpu-bind", "--label")  # of the job's own, which are others
    own = [each for each in options if not each.startswith(of_tasks)]
    own += ["--gpu-bind=none"] if step.spec.gpus and step.spec.gpus.bind else []
    own += [f"--cpus-per-task={max(1, cpus // gpus)}", *(["--overcommit"] if cpus < gpus else [])]
    return {
        "program": [*words, *_SIZES],
        "srun": [*own, f"--mpi={choose_mpi(step)}", *END_ALL_ON_FAILURE],
        "mpi": choose_mpi(step),
        "unpack": _unpacks_image(place, section),
        "unpack_seconds": section.unpack_seconds,
        "gpus": gpus,
        "between": section.least(place.names, several=True),
        "within": section.least(place.names, several=False),
        "policy": "requeue" if _requeues(step.spec, section) else "stop",
        "seconds": section.seconds,
        "hours": section.hours,
        "without": sorted(secret_variables(step.spec)),
    }
