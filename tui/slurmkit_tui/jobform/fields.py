"""The table of the form's fields: name, label, and option of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from slurmkit.cli.job_options import OPTION_HELP
from slurmkit.formats.display import format_time
from slurmkit.spec.findings import Finding
from slurmkit.state.model import Capabilities, GresKind, Partition, Standing, gres_kinds

COMMAND_FIELD, GPUS_FIELD, GPUS_PER_FIELD, OTHER_OPTIONS_FIELD = "what", "gpus", "gpus-for", "more"
"""Fields that are no single option: command or script, GPUs, GPUs per what, other options."""
GPU_COUNT_OPTIONS = {"node": "gpus-per-node", "task": "gpus-per-task", "job": "gpus"}
"""Option for a number of GPUs per node, task or job."""


class FormField(NamedTuple):
    """A field of the form.

    Attributes:
        name: the long option without dashes, or one of the names above.
        label: label of one or two words.
        words: help text, if it is not that of the command line.
        lines: height on the screen.
        example: a value, shown in an empty field.
    """

    name: str
    label: str
    words: str = ""
    lines: int = 1
    example: str = ""

    @property
    def help(self) -> str:
        """Help text of the field."""
        return self.words or OPTION_HELP[self.name]


FIELDS = (
    FormField(
        COMMAND_FIELD,
        "Runs",
        "A command that srun starts once for each task, or a batch script: text with"
        " #! at its start, several lines, or characters of the shell ($ | > ; *).",
        5,
        "python train.py",
    ),
    FormField(
        GPUS_FIELD,
        "GPUs",
        "Whole GPUs or a part of one: 2, a100:2, 0.5, shard:3, mps:50, 3g.20gb:1.",
        example="a100:2",
    ),
    FormField(
        GPUS_PER_FIELD,
        "GPUs for each",
        "The number of GPUs is for each node, task or job.  [default: node]",
    ),
    FormField("job-name", "Name"),
    FormField("partition", "Partition"),
    FormField("account", "Account"),
    FormField("qos", "QOS"),
    FormField("reservation", "Reservation"),
    FormField("nodes", "Nodes", example="2"),
    FormField("ntasks", "Tasks", example="8"),
    FormField("ntasks-per-node", "Tasks per node", example="4"),
    FormField("ntasks-per-gpu", "Tasks per GPU", example="1"),
    FormField("cpus-per-task", "CPUs per task", example="8"),
    FormField("cpus-per-gpu", "CPUs per GPU", example="8"),
    FormField("mem", "Memory", example="32G"),
    FormField("time", "Time", example="4:00:00"),
    FormField("array", "Array", example="0-9%2"),
    FormField("dependency", "Dependency", example="afterok:123"),
    FormField("chdir", "Directory"),
    FormField("output", "Output", example="logs/%x-%j.out"),
    FormField("mail-type", "Mail when"),
    FormField("mail-user", "Mail to"),
    FormField(
        OTHER_OPTIONS_FIELD,
        "More options",
        "Any other option, as on the command line: --constraint=ib"
        " --exclusive --env A=1 --mpi pmix --option contiguous.",
        2,
    ),
)
OPTION_FIELDS = tuple(
    f.name
    for f in FIELDS
    if f.name not in (COMMAND_FIELD, GPUS_FIELD, GPUS_PER_FIELD, OTHER_OPTIONS_FIELD)
)
"""Fields that are one option each."""

# Field by the begin of a finding's code. For other codes it is the option that the fix changes.
_ABOUT = {
    "gpu": GPUS_FIELD,
    "fraction": GPUS_FIELD,
    "mig": GPUS_FIELD,
    "node": "nodes",
    "no-node": "nodes",
    "fewer-tasks": "ntasks",
    "no-account": "account",
    "no-association": "account",
    "unknown-account": "account",
    "qos-not": "qos",
    "qos-needs": "qos",
    "no-qos": "qos",
    "unknown-qos": "qos",
    "reservation": "reservation",
    "no-reservation": "reservation",
    "partition-state": "partition",
    "partition-unknown": "partition",
    "partition-allow": "partition",
    "partition-deny": "partition",
    "partition-none": "partition",
    "partition-root": "partition",
    "partition-no-root": "partition",
    "partition-needs": "reservation",
    "partition-alloc": "partition",
    "max-array": "array",
    "dependency": "dependency",
    "unknown-dependency": "dependency",
    "mem": "mem",
    "default-time": "time",
    "launcher": COMMAND_FIELD,
    "script": COMMAND_FIELD,
    "secret": COMMAND_FIELD,
    "constraint": OTHER_OPTIONS_FIELD,
    "no-feature": OTHER_OPTIONS_FIELD,
    "license": OTHER_OPTIONS_FIELD,
    "no-license": OTHER_OPTIONS_FIELD,
    "signal": OTHER_OPTIONS_FIELD,
    "segment": OTHER_OPTIONS_FIELD,
    "switches": OTHER_OPTIONS_FIELD,
    "begin": OTHER_OPTIONS_FIELD,
    "deadline": OTHER_OPTIONS_FIELD,
    "mpi": OTHER_OPTIONS_FIELD,
    "exclusive": OTHER_OPTIONS_FIELD,
    "unchecked": OTHER_OPTIONS_FIELD,
}
# Field by a part of a limit's code, or else of its source.
_LIMITED = {
    "wall": "time", "max-time": "time", "-mem": "mem", "cpus": "cpus-per-task", "-nodes": "nodes",
    "gres/": GPUS_FIELD, "cpu=": "cpus-per-task", "mem=": "mem", "node=": "nodes",
}  # fmt: skip
# Field by the resource that exceeds what a node has.
_SHAPES = {"GPU": GPUS_FIELD, "gres/": GPUS_FIELD, "of memory": "mem", " CPU": "cpus-per-task"}
_GPU_OPTIONS = (*GPU_COUNT_OPTIONS.values(), "gres", "gpu-bind")


def field_of_finding(finding: Finding) -> str:
    """Return the field that a finding is about; empty if it is about the whole job."""
    if finding.code == "node-shape":
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
    """Return the field that the fix of a finding changes first; empty without a fix."""
    for name, _ in finding.fix:
        if name in OPTION_FIELDS:
            return name
        return GPUS_FIELD if name in _GPU_OPTIONS else OTHER_OPTIONS_FIELD
    return ""


_COUNTS = (1, 2, 4, 8, 16)
_MAILS = ("END", "FAIL", "BEGIN", "END,FAIL", "TIME_LIMIT_80", "ALL")


class FieldOffers(msgspec.Struct, frozen=True):
    """Values offered in the fields.

    Attributes:
        values: values that this person may use, by field; fields with free text have none.
        absent: fields that this cluster has no use for, with the reason.
        notes: what could not be found out.
        taken: epoch seconds at which Slurm was asked.
    """

    values: dict[str, tuple[str, ...]]
    absent: dict[str, str]
    notes: tuple[str, ...]
    taken: float


def field_offers(capabilities: Capabilities, standing: Standing) -> FieldOffers:
    """Return the values that one person is offered on a cluster."""
    partitions = [p for p in capabilities.partitions if _open_to(p, standing, capabilities)]
    partitions.sort(key=lambda p: not p.default)
    own = [each for each in standing.associations if each.user == standing.user]
    own.sort(key=lambda each: each.account != standing.default_account)
    nodes = capabilities.nodes_of(*(p.name for p in partitions))
    values: dict[str, Iterable[str]] = {
        "partition": (p.name for p in partitions),
        "account": (each.account for each in own),
        "qos": (name for each in own for name in (each.default_qos, *each.qos) if name),
        "reservation": _reservations(standing),
        GPUS_FIELD: (text for kind in gres_kinds(nodes) for text in _gpus(kind)),
        GPUS_PER_FIELD: GPU_COUNT_OPTIONS,
        "mail-type": _MAILS,
    }
    unique = {name: tuple(dict.fromkeys(each)) for name, each in values.items()}
    hidden = (*capabilities.hidden, *standing.hidden)
    return FieldOffers(unique, _absent(capabilities, standing), hidden, capabilities.taken)


def _open_to(partition: Partition, standing: Standing, capabilities: Capabilities) -> bool:
    """Return whether a partition takes this person's jobs, as far as Slurm shows it."""
    if partition.state in ("DRAIN", "INACTIVE") or standing.user == "root":
        return standing.user == "root"
    if partition.settings.get("RootOnly") == "YES":
        return False
    groups = partition.allow_groups
    if groups is not None and not set(groups) & set(standing.groups):
        return False
    accounts = {each.account for each in standing.associations}
    allowed = partition.allow_accounts
    counts = any(map(capabilities.enforces, ("associations", "limits", "qos", "safe")))
    return not (counts and accounts and allowed is not None and not accounts & set(allowed))


def _reservations(standing: Standing) -> Iterable[str]:
    accounts = [each.account for each in standing.associations]
    usable = (r for r in standing.reservations if r.end > standing.taken)
    return (r.name for r in usable if r.admits(standing.user, accounts, standing.groups))


def _gpus(kind: GresKind) -> Iterable[str]:
    most = max(kind.per_node)
    if kind.name == "gpu":
        counts = sorted({n for n in _COUNTS if n <= most} | ({most} if not kind.is_mig else set()))
        return [f"{kind.type}:{n}" if kind.type else str(n) for n in counts]
    if kind.name == "shard":
        return [f"{kind.name}:1"]
    return [f"mps:{n}" for n in (10, 25, 50, 100) if kind.name == "mps" and n <= most]


def _absent(capabilities: Capabilities, standing: Standing) -> dict[str, str]:
    absent: dict[str, str] = {}
    config = capabilities.config
    if config.get("AccountingStorageType", "?") in ("accounting_storage/none", "(null)", ""):
        without = "this cluster keeps no accounts"
        absent |= {"account": without, "qos": without}
    if not standing.reservations:
        absent["reservation"] = "there is no reservation"
    kinds = {g.name for node in capabilities.nodes for g in node.gres}
    if capabilities.nodes and not kinds & {"gpu", "shard", "mps"}:
        absent |= dict.fromkeys(
            (GPUS_FIELD, GPUS_PER_FIELD, "ntasks-per-gpu", "cpus-per-gpu"),
            f"no node had GPUs at {format_time(capabilities.taken)}",
        )
    if config.get("MaxArraySize", "?") in ("0", "1"):
        absent["array"] = "this cluster has no job arrays (MaxArraySize)"
    return absent
