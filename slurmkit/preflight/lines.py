"""What a plan says of a job's preflight, and the lines of its script that do it.

The program is all_reduce_perf of NVIDIA's nccl-tests, built with MPI; its options and the meaning
of bus bandwidth: README.md and doc/PERFORMANCE.md there.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from slurmkit.checks.say import error, note, warning
from slurmkit.config import load_section
from slurmkit.findings import Finding
from slurmkit.launchers.mpi import MPIRUN, meeting, mpi_of
from slurmkit.launchers.step import PATIENCE, Step
from slurmkit.planning.secrets import secret_variables
from slurmkit.preflight import inside
from slurmkit.spec import JobSpec

_SOURCE = "[preflight]"
_END = "SLURMKIT_PREFLIGHT"
# One large size, so that the average is of what the network can; 5 times before it is measured.
_SIZES = "--minbytes 1G --maxbytes 1G --ngpus 1 --iters 20 --warmup_iters 5 --check 1".split()


class PreflightSection(msgspec.Struct, frozen=True):
    """`[preflight]`: how nodes are measured before a job's work, and what is expected of them.

    Attributes:
        program: path on the nodes of nccl-tests' all_reduce_perf, built with MPI; without one
            the job's own image must have it.
        image_program: its name in images.
        between: bus bandwidth expected of 1 GiB over several nodes, in GB/s, by GPU type and
            count on each node (`a100:8`), type, or partition; the first that there is.
        within: likewise of one node by itself; where not set, `between` holds.
        tolerance: how much less is still good, as a part of it.
        policy: what a job does that has a bad node: `stop`, or `requeue` without that node.
        seconds: time that one run may take.
        hours: how long a good result is good for the same nodes.
    """

    program: str = ""
    image_program: str = "all_reduce_perf_mpi"
    between: dict[str, float] = {}
    within: dict[str, float] = {}
    tolerance: float = 0.1
    policy: Literal["stop", "requeue"] = "stop"
    seconds: int = 120
    hours: float = 24.0

    def least(self, names: Iterable[tuple[str, ...]], *, several: bool) -> float:
        """The least that is good, in GB/s; 0 where nothing is expected.

        Args:
            names: for each partition that the job may run in what its nodes are called.
            several: over several nodes, or within one.
        """
        tables = (self.between,) if several else (self.within, self.between)
        found = [
            next((table[name] for table in tables for name in each if name in table), 0.0)
            for each in names
        ]
        return round(min(found, default=0.0) * (1 - self.tolerance), 3)


class Place(msgspec.Struct, frozen=True):
    """Where a job is measured.

    Attributes:
        step: the job.
        type: type of its GPUs, None where it is not known.
        partitions: names of those it may run in.
        contained: name of the runtime of its container; empty without.
        bare: options of srun for a step outside it.
    """

    step: Step
    type: str | None
    partitions: tuple[str, ...]
    contained: str = ""
    bare: tuple[str, ...] = ()

    @property
    def names(self) -> list[tuple[str, ...]]:
        """What its nodes are called in the configuration, for each partition."""
        count = self.step.layout.gpus
        types = (f"{self.type}:{count}", self.type) if self.type else ()
        return [(*types, f"{each}:{count}", each) for each in self.partitions]


def with_preflight(spec: JobSpec) -> JobSpec:
    """A job that may go back to the queue for a bad node can, and then keeps what was said."""
    if spec.launch.preflight is None or spec.requeue is False:
        return spec
    if load_section("preflight", PreflightSection).policy != "requeue":
        return spec
    return msgspec.structs.replace(spec, requeue=True, open_mode=spec.open_mode or "append")


def preflight(place: Place) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """Lines before those that start the job's command, and what there is to say of them.

    Raises:
        BadConfig: for a wrong configuration.
    """
    spec = place.step.spec
    if spec.launch.preflight is None:
        return (), ()
    section = load_section("preflight", PreflightSection)
    wrong = tuple(_wrong(place, section))
    if wrong:
        return (), wrong
    return _lines(place, section), tuple(_said(place, section))


def _wrong(place: Place, section: PreflightSection) -> Iterator[Finding]:
    step, spec, layout = place.step, place.step.spec, place.step.layout
    if spec.script is not None:
        message = "--preflight stands before a command, and this job is a whole script"
        yield error("preflight-script", message, "--preflight")
    elif spec.gpus is None or spec.gpus.is_part or layout.gpus_in_all or not layout.gpus:
        message = "--preflight measures whole GPUs, as many on each node; ask with --gpus-per-node"
        yield error("preflight-gpus", message, "--preflight")
    elif step.single_node and layout.gpus == 1:
        message = "--preflight measures between GPUs, and the job has one; leave it out"
        yield error("preflight-one", message, "--preflight")
    if not section.program and spec.container is None:
        message = (
            "no all_reduce_perf to run: give the path of one on the nodes, [preflight] program in"
            " the configuration, or an image that has it (--container-image nccl-tests)"
        )
        yield error("preflight-program", message, _SOURCE)
    if not section.program and spec.container and (spec.container.name or spec.container.save):
        message = (
            "a container that is kept would be used by the preflight, too: name a program on the"
            " nodes, [preflight] program"
        )
        yield error("preflight-container", message, _SOURCE)
    if mpi_of(step) in (None, "none", MPIRUN):
        message = "--preflight starts all_reduce_perf by srun with pmix or pmi2; [launch] mpi"
        yield error("preflight-mpi", message, "srun --mpi=list")


def _said(place: Place, section: PreflightSection) -> Iterator[Finding]:
    step, spec = place.step, place.step.spec
    least = section.least(place.names, several=not step.single_node)
    bad = "goes back to the queue without it" if _returns(spec, section) else "stops"
    runs = inside.most_runs(step.layout.most or step.layout.least_nodes)
    more = "" if step.single_node else f", up to {runs} more runs look for the bad node, and"
    message = (
        f"before the work all_reduce_perf runs over its nodes, at most {section.seconds} s, unless"
        f" it did in the last {section.hours:g} h; where it gives wrong sums"
        f"{f' or less than {least:g} GB/s' if least else ''}{more} the job {bad}"
    )
    yield note("preflight", message, _SOURCE)
    if not least:
        table = "within" if step.single_node else "between"
        known = ", ".join(dict.fromkeys(name for names in place.names for name in names))
        message = f"no bandwidth is expected of them; [preflight.{table}] may name one of: {known}"
        yield warning("preflight-unknown", message, _SOURCE)
    if section.policy == "requeue" and spec.requeue is False:
        message = "a bad node stops the job: --no-requeue keeps it from going back to the queue"
        yield warning("preflight-no-requeue", message, _SOURCE)


def _returns(spec: JobSpec, section: PreflightSection) -> bool:
    return section.policy == "requeue" and spec.requeue is not False


def _lines(place: Place, section: PreflightSection) -> tuple[str, ...]:
    source = Path(inside.__file__).read_text("utf-8").rstrip("\n").split("\n")
    text = json.dumps(_ask(place, section), sort_keys=True)
    return (
        *(meeting(place.step, mpi_of(place.step)) if place.contained else ()),
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


def _least_tasks(step: Step) -> int:
    """Tasks on the node that has the fewest, whose CPUs its processes share."""
    layout = step.layout
    spread = (layout.ntasks or 1) // (layout.most or layout.least_nodes)
    return layout.ntasks_per_node or max(1, spread)


def _ask(place: Place, section: PreflightSection) -> dict[str, object]:
    """What `slurmkit.preflight.inside` is told."""
    step, gpus = place.step, place.step.layout.gpus
    options = place.bare
    words: tuple[str, ...] = (section.program,)
    if not section.program:
        options, words = step.options, (*step.prefix, section.image_program)
    cpus = _least_tasks(step) * step.layout.cpus_per_task
    own = [each for each in options if not each.startswith(("--gpu-bind", "--label"))]
    own += ["--gpu-bind=none"] if step.spec.gpus and step.spec.gpus.bind else []
    own += [f"--cpus-per-task={max(1, cpus // gpus)}", *(["--overcommit"] if cpus < gpus else [])]
    return {
        "program": [*words, *_SIZES],
        "srun": [*own, f"--mpi={mpi_of(step)}", *PATIENCE],
        "gpus": gpus,
        "between": section.least(place.names, several=True),
        "within": section.least(place.names, several=False),
        "policy": "requeue" if _returns(step.spec, section) else "stop",
        "seconds": section.seconds,
        "hours": section.hours,
        "without": sorted(secret_variables(step.spec)),
    }
