"""An old job as a draft of a new one: its script, its options, and more of what it ran out of."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from slurmkit.capabilities.text import amount
from slurmkit.checks.say import memory_option
from slurmkit.cluster import Cluster
from slurmkit.directives import options_in
from slurmkit.errors import BadInput, SlurmError, SlurmkitError
from slurmkit.gpus import Gpus
from slurmkit.jobfile import script_fields
from slurmkit.jobs.ids import whole_id
from slurmkit.jobs.info import JobInfo
from slurmkit.options import ASIDES, merged, read_options
from slurmkit.queue.rows import record_mark
from slurmkit.secretfiles import without_reading
from slurmkit.slurm import Slurm
from slurmkit.tres import parse_tres
from slurmkit.why.aftermath import longer, more_memory
from slurmkit.why.failure import worst_part
from slurmkit_tui.submit.draft import texts_of_fields

Fields = dict[str, Any]

# sacct's field for each of a spec's; all are there on 22.05 to 26.05. Free text comes last.
_RECORD = {
    "partition": "Partition", "account": "Account", "qos": "QOS", "time": "Timelimit",
    "reservation": "Reservation", "constraint": "Constraints", "chdir": "WorkDir",
    "nodes": "NNodes", "tres": "ReqTRES", "job_name": "JobName", "line": "SubmitLine",
}  # fmt: skip
_FLAGS = frozenset("contiguous overcommit no-kill spread-job use-min-nodes".split())
_SBATCHS = frozenset((*ASIDES, "wrap", "test-only", "export", "chdir"))
_OURS = re.compile(r"#!/bin/bash\n\s*srun --cpus-per-task=\d+ -- (?P<words>[^\n]+)\n*")
_TITLE = re.compile(r"Batch Script for [^\n]*\n-+\n")
_MEMORY = ("mem", "mem_per_cpu", "mem_per_gpu")


class Proposal(msgspec.Struct, frozen=True):
    """A change with which to submit a job again.

    Attributes:
        label: in a word or two.
        why: what the job ran out of, and how much there would be.
        texts: the form with that change.
    """

    label: str
    why: str
    texts: dict[str, str]


class Past(msgspec.Struct, frozen=True):
    """A job of before.

    Attributes:
        texts: the form that submits it again.
        proposals: what to change, best first.
        notes: what could not be found out.
        taken: epoch seconds at which Slurm was asked.
    """

    job_id: str
    state: str
    texts: dict[str, str]
    proposals: tuple[Proposal, ...]
    notes: tuple[str, ...]
    taken: float


def read_past(cluster: Cluster, job_id: str) -> Past:
    """Ask for an old job's script and options: of slurmctld while it knows it, else of slurmdbd.

    Raises:
        NoSuchJob: when neither knows it.
        SlurmError: when neither answers.
    """
    taken = time.time()
    info = cluster.job(job_id).info()
    record, notes = _record(cluster.slurm, info)
    sent, trouble = _script(cluster.slurm, whole_id(info.job_id))
    script, secrets = without_reading(sent)
    if secrets:
        trouble = [*trouble, f"secret and not kept, so give it again with --env: {secrets}"]
    submitted, unread = _submitted(script, record)
    found = merged(submitted, _plain(record))
    if not script or unread:
        found = _sizes(record) | found
    texts, wrong = texts_of_fields(found)
    notes = [*notes, *trouble, *unread, *wrong]
    proposals = tuple(_proposals(cluster, info, found))
    return Past(info.job_id, info.state, texts, proposals, tuple(notes), taken)


def _record(slurm: Slurm, info: JobInfo) -> tuple[dict[str, str], list[str]]:
    """What slurmdbd has of it; without slurmdbd what every job tells."""
    mark = record_mark()
    argv = ["sacct", "--noheader", "--parsable", f"--delimiter={mark}", "-X"]
    argv += [f"--jobs={info.part or info.job_id}", f"--format={','.join(_RECORD.values())}"]
    known = {"partition": info.partition, "account": info.account, "time": info.time_limit,
             "job_name": info.name, "tres": info.tres}  # fmt: skip
    try:
        parts = slurm.run(argv).split(mark)
    except SlurmError as error:
        return known, [f"only a part of its options is known: {error}"]
    if len(parts) <= len(_RECORD):
        return known, ["slurmdbd has no record of it yet: only a part of its options is known"]
    last = parts[-len(_RECORD) - 1 : -1]
    said = {name: text.strip("\n") for name, text in zip(_RECORD, last, strict=True)}
    return {name: text for name, text in said.items() if text}, []


def _script(slurm: Slurm, job_id: str) -> tuple[str, list[str]]:
    """Its batch script; empty with the reason where it is no longer known."""
    why = ""
    try:
        said = slurm.run(["scontrol", "write", "batch_script", job_id, "-"])
        if said.startswith("#!"):
            return said, []
    except SlurmError as error:
        why = f" (slurmctld: {error})"
    try:
        stored = _TITLE.sub("", slurm.run(["sacct", f"--jobs={job_id}", "--batch-script"]), count=1)
    except SlurmError:
        stored = ""
    if stored.startswith("#!"):
        return stored, []
    return "", [f"its script is not known any more{why}; say what is to run"]


def _submitted(script: str, record: dict[str, str]) -> tuple[Fields, list[str]]:
    """The options in its script and on its command line, which goes before."""
    trouble: list[str] = []
    fields: Fields = {}
    try:
        fields = _as_command(script_fields(script)) if script else {}
    except BadInput as error:
        fields, trouble = {"script": script}, [f"the script's options: {error}"]
    pairs, rest = _options_of_line(record.get("line", ""))
    for pair in pairs:
        try:
            fields = merged(fields, read_options([pair], fields))
        except BadInput as error:
            trouble.append(f"an option it was submitted with: {error}")
    if any(word.startswith("-") for word in rest):
        words = " ".join(rest[:3])
        trouble.append(f"options after {words!r} on its command line, if they are some, are not"
                       " read: see whether all is here")  # fmt: skip
    return fields, trouble


def _as_command(fields: Fields) -> Fields:
    """A script that was made from a command is a command again."""
    match = _OURS.fullmatch(fields["script"])
    if match is None:
        return fields
    return {name: value for name, value in fields.items() if name != "script"} | {
        "command": tuple(shlex.split(match["words"]))
    }


def _options_of_line(line: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Options of sbatch in a command line, which Slurm keeps without quotes, and what follows."""
    words = line.split()[1:] if line.startswith("sbatch ") or "/sbatch " in line[:80] else []
    flags = [word for word in words if word.removeprefix("--") in _FLAGS]
    words = [word for word in words if word not in flags]
    for end in range(len(words), 0, -1):
        try:
            pairs = options_in(words[:end])
        except BadInput:
            continue
        named = [pair for pair in pairs if pair[0] not in _SBATCHS]
        at_wrap = next((n for n, word in enumerate(words) if word.startswith("--wrap")), end)
        rest = words[end:] if at_wrap >= end else []
        return [*named, *((flag.removeprefix("--"), "") for flag in flags)], rest
    return [], words


def _plain(record: dict[str, str]) -> Fields:
    """What holds for the job now, however it was submitted; of nodes and sizes see `_sizes`."""
    names = [name for name in _RECORD if name not in ("nodes", "tres", "line")]
    found = {name: record[name] for name in names if record.get(name)}
    if found.get("time", "").upper() in ("UNLIMITED", "PARTITION_LIMIT", "INVALID"):
        found.pop("time")
    return found


def _sizes(record: dict[str, str]) -> Fields:
    """Its size by the record alone: as many CPUs for one task on each node."""
    tres = parse_tres(record.get("tres", ""))
    nodes = int(record.get("nodes", "1")) if record.get("nodes", "1").isdigit() else 1
    found: Fields = {"nodes": max(1, nodes)}
    if tres.get("cpu", "").isdigit() and not int(tres["cpu"]) % found["nodes"]:
        found["cpus_per_task"] = int(tres["cpu"]) // found["nodes"]
    memory = amount(tres.get("mem"))
    if memory:
        found["mem"] = memory_option(memory // found["nodes"])
    gpus = _gpus(tres, found["nodes"])
    return found | ({"gpus": gpus} if gpus else {})


def _gpus(tres: dict[str, str], nodes: int) -> Gpus | None:
    typed = [(name, n) for name, n in tres.items() if name.startswith("gres/gpu:") and n.isdigit()]
    name, count = typed[0] if typed else ("gres/gpu:", tres.get("gres/gpu", ""))
    if count.isdigit() and int(count):
        kind = name.removeprefix("gres/gpu:") or None
        even = int(count) % nodes == 0
        return Gpus(int(count) // nodes, kind) if even else Gpus(int(count), kind, "job")
    shard, mps = (tres.get(f"gres/{part}", "") for part in ("shard", "mps"))
    if shard.isdigit() and int(shard) >= nodes:
        return Gpus(shard=int(shard) // nodes)
    return Gpus(mps=int(mps) // nodes) if mps.isdigit() and int(mps) >= nodes else None


def _proposals(cluster: Cluster, info: JobInfo, found: Fields) -> Iterable[Proposal]:
    """What `slurmkit why` says to ask for after a job ran out of time or memory."""
    if not info.is_over:
        return
    try:
        outcome = cluster.job(info.job_id).outcome()
        one = cluster.job(worst_part(info, outcome)).info() if info.tally else info
        if outcome.kind == "out_of_memory" and (memory := more_memory(cluster.slurm, one)):
            without = {name: value for name, value in found.items() if name not in _MEMORY}
            texts, _ = texts_of_fields(without | {"mem": memory})
            yield Proposal("More memory", f"it ran out of memory: --mem={memory}", texts)
        if outcome.kind == "timeout" and (more := longer(cluster.slurm, one)) and more[0]:
            texts, _ = texts_of_fields(found | {"time": more[0]})
            yield Proposal("Longer", f"it ran into its time limit: --time={more[0]}", texts)
    except SlurmkitError:  # it can be submitted again all the same
        return
