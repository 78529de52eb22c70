"""The fields of the form in one table: what each is called, and which option it stands for."""

from __future__ import annotations

from typing import NamedTuple

from slurmkit.cli.joboptions import HELP
from slurmkit.findings import Finding

WHAT, GPUS, PER, MORE = "what", "gpus", "gpus-for", "more"
"""Fields that are no single option: what runs, GPUs, what their count is for, any option."""
PERS = {"node": "gpus-per-node", "task": "gpus-per-task", "job": "gpus"}
"""What GPUs are counted for, and the option that says so."""


class Field(NamedTuple):
    """A field of the form.

    Attributes:
        name: the long option it stands for, without dashes; or one of the names above.
        label: of one or two words.
        words: its help, where that is not the command line's.
        lines: how many it has on the screen.
    """

    name: str
    label: str
    words: str = ""
    lines: int = 1

    @property
    def help(self) -> str:
        """What belongs into it."""
        return self.words or HELP[self.name]


FIELDS = (
    Field(WHAT, "Runs", "A command, which srun starts once for each task; or a batch script: what"
          " begins with #!, has several lines, or signs that a shell reads ($ | > ; *).", 5),
    Field("job-name", "Name"),
    Field("partition", "Partition"),
    Field("account", "Account"),
    Field("qos", "QOS"),
    Field("reservation", "Reservation"),
    Field(GPUS, "GPUs", "Whole GPUs or a part of one: 2, a100:2, 0.5, shard:3, mps:50, 3g.20gb:1."),
    Field(PER, "GPUs for each", "What the number of GPUs is for: node, task or job.  [default:"
          " node]"),
    Field("nodes", "Nodes"),
    Field("ntasks", "Tasks"),
    Field("ntasks-per-node", "Tasks per node"),
    Field("cpus-per-task", "CPUs per task"),
    Field("mem", "Memory"),
    Field("time", "Time"),
    Field("array", "Array"),
    Field("dependency", "Dependency"),
    Field("chdir", "Directory"),
    Field("output", "Output"),
    Field("mail-type", "Mail when"),
    Field("mail-user", "Mail to"),
    Field(MORE, "More options", "Any other option, as on the command line: --constraint=ib"
          " --exclusive --env A=1 --mpi pmix --option contiguous.", 2),
)  # fmt: skip
OPTIONS = tuple(f.name for f in FIELDS if f.name not in (WHAT, GPUS, PER, MORE))
"""Fields that are one option each."""

# By the beginnings of a finding's code; the option that its fix changes comes first elsewhere.
_ABOUT = {
    "gpu": GPUS, "fraction": GPUS, "mig": GPUS,
    "node": "nodes", "no-node": "nodes", "fewer-tasks": "ntasks",
    "no-account": "account", "no-association": "account", "unknown-account": "account",
    "qos-not": "qos", "qos-needs": "qos", "no-qos": "qos", "unknown-qos": "qos",
    "reservation": "reservation", "no-reservation": "reservation",
    "partition-state": "partition", "partition-unknown": "partition",
    "partition-allow": "partition", "partition-deny": "partition", "partition-none": "partition",
    "partition-root": "partition", "partition-no-root": "partition",
    "partition-needs": "reservation", "partition-alloc": "partition",
    "max-array": "array", "dependency": "dependency", "unknown-dependency": "dependency",
    "mem": "mem", "default-time": "time", "launcher": WHAT, "script": WHAT, "secret": WHAT,
    "constraint": MORE, "no-feature": MORE, "license": MORE, "no-license": MORE, "signal": MORE,
    "segment": MORE, "switches": MORE, "begin": MORE, "deadline": MORE, "mpi": MORE,
    "exclusive": MORE, "unchecked": MORE,
}  # fmt: skip
# Limits, by what is limited: in their code, then in their source.
_LIMITED = {
    "wall": "time", "max-time": "time", "-mem": "mem", "cpus": "cpus-per-task", "-nodes": "nodes",
    "gres/": GPUS, "cpu=": "cpus-per-task", "mem=": "mem", "node=": "nodes",
}  # fmt: skip
# By what more is asked for than a node has.
_SHAPES = {"GPU": GPUS, "gres/": GPUS, "of memory": "mem", " CPU": "cpus-per-task"}
_GPU_OPTIONS = (*PERS.values(), "gres", "gpu-bind")


def field_of(finding: Finding) -> str:
    """The field that a finding is about; empty when it is about the whole job."""
    if finding.code == "node-shape":  # by what a node has too little of
        asked, one, _ = finding.message.partition(" on a node;")
        named = [field for word, field in _SHAPES.items() if one and word in asked]
        return named[0] if named else _fixed(finding) or "nodes"
    for begin, field in _ABOUT.items():
        if finding.code.startswith(begin):
            return field
    for words in (finding.code, finding.source):
        for word, field in _LIMITED.items():
            if word in words:
                return field
    return _fixed(finding)


def _fixed(finding: Finding) -> str:
    """The field that its fix changes first."""
    for name, _ in finding.fix:
        if name in OPTIONS:
            return name
        return GPUS if name in _GPU_OPTIONS else MORE
    return ""
