"""An old job as a draft of a new one: script, options, and more time or memory if it ran out."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from slurmkit.cluster.cluster import Cluster
from slurmkit.diagnose.failure import longer_time_limit, more_memory, worst_part
from slurmkit.errors import BadInput, SlurmError, SlurmkitError
from slurmkit.formats.job_ids import whole_id
from slurmkit.formats.memory import memory_option
from slurmkit.formats.scontrol import parse_amount
from slurmkit.formats.tres import parse_tres
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.lookup import read_batch_script
from slurmkit.planning.secrets import without_secret_lines
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.records import read_records
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobfile import parse_option_words, parse_script
from slurmkit.spec.sbatch_options import SBATCH_ONLY_OPTIONS, merge_fields, parse_options
from slurmkit_tui.jobform.draft import form_texts_of_fields

Fields = dict[str, Any]

# sacct field of each field of a spec; all exist in Slurm 22.05 to 26.05. Free text comes last.
_RECORD = {
    "partition": "Partition", "account": "Account", "qos": "QOS", "time": "Timelimit",
    "reservation": "Reservation", "constraint": "Constraints", "chdir": "WorkDir",
    "nodes": "NNodes", "tres": "ReqTRES", "job_name": "JobName", "line": "SubmitLine",
}  # fmt: skip
_FLAGS = frozenset("contiguous overcommit no-kill spread-job use-min-nodes".split())
_SKIPPED_OPTIONS = frozenset((*SBATCH_ONLY_OPTIONS, "wrap", "test-only", "export", "chdir"))
_COMMAND_SCRIPT = re.compile(r"#!/bin/bash\n\s*srun --cpus-per-task=\d+ -- (?P<words>[^\n]+)\n*")
_TITLE = re.compile(r"Batch Script for [^\n]*\n-+\n")
_MEMORY = ("mem", "mem_per_cpu", "mem_per_gpu")


class ResubmitProposal(msgspec.Struct, frozen=True):
    """A change with which to submit a job again.

    Attributes:
        label: name of the change, one or two words.
        why: what the job ran out of, and the new amount.
        texts: the form with this change.
    """

    label: str
    why: str
    texts: dict[str, str]


class PastJob(msgspec.Struct, frozen=True):
    """An old job, converted for the form.

    Attributes:
        texts: the form that submits the job again.
        proposals: changes to offer, best first.
        notes: what could not be found out.
        taken: epoch seconds at which Slurm was asked.
    """

    job_id: str
    state: str
    texts: dict[str, str]
    proposals: tuple[ResubmitProposal, ...]
    notes: tuple[str, ...]
    taken: float


def read_past_job(cluster: Cluster, job_id: str) -> PastJob:
    """Read an old job's script and options from slurmctld, or else from slurmdbd.

    Raises:
        NoSuchJob: when neither knows it.
        SlurmError: when neither answers.
    """
    taken = time.time()
    info = cluster.job(job_id).info()
    record, notes = _read_record(cluster.slurm, info)
    sent, trouble = _read_script(cluster.slurm, whole_id(info.job_id))
    script, secrets = without_secret_lines(sent)
    if secrets:
        trouble = [*trouble, f"secrets are not copied; set them again with --env: {secrets}"]
    submitted, unread = _submitted_fields(script, record)
    fields = merge_fields(submitted, _fields_of_record(record))
    if not script or unread:
        fields = _size_of_record(record) | fields
    texts, wrong = form_texts_of_fields(fields)
    notes = [*notes, *trouble, *unread, *wrong]
    proposals = tuple(_proposals(cluster, info, fields))
    return PastJob(info.job_id, info.state, texts, proposals, tuple(notes), taken)


def _read_record(slurm: SlurmCommands, info: JobInfo) -> tuple[dict[str, str], list[str]]:
    """Read the job's record from slurmdbd, with notes; without slurmdbd use `info` alone."""
    argv = ["sacct", "-X", f"--jobs={info.part or info.job_id}"]
    known = {"partition": info.partition, "account": info.account, "time": info.time_limit,
             "job_name": info.name, "tres": info.tres}  # fmt: skip
    try:
        records = read_records(slurm, argv, tuple(_RECORD.values()))
    except SlurmError as error:
        return known, [f"only some of its options are known: {error}"]
    if not records:
        return known, ["slurmdbd has no record of it yet: only some of its options are known"]
    record = dict(zip(_RECORD, records[-1], strict=True))
    return {name: text for name, text in record.items() if text}, []


def _read_script(slurm: SlurmCommands, job_id: str) -> tuple[str, list[str]]:
    """Read the batch script; if it is no longer known, return an empty text and a note."""
    why = ""
    try:
        return read_batch_script(slurm, job_id), []
    except SlurmError as error:
        why = f" (slurmctld: {error})"
    try:
        stored = _TITLE.sub("", slurm.run(["sacct", f"--jobs={job_id}", "--batch-script"]), count=1)
    except SlurmError:
        stored = ""
    if stored.startswith("#!"):
        return stored, []
    return "", [f"its script is no longer known{why}; enter what the job runs"]


def _submitted_fields(script: str, record: dict[str, str]) -> tuple[Fields, list[str]]:
    """Return the options of script and command line, and errors; the command line wins."""
    trouble: list[str] = []
    fields: Fields = {}
    try:
        fields = _as_command(parse_script(script)) if script else {}
    except BadInput as error:
        fields, trouble = {"script": script}, [f"an option in its script is wrong: {error}"]
    pairs, rest = _options_of_line(record.get("line", ""))
    for pair in pairs:
        try:
            fields = merge_fields(fields, parse_options([pair], fields))
        except BadInput as error:
            trouble.append(f"an option of its sbatch command is wrong: {error}")
    if any(word.startswith("-") for word in rest):
        words = " ".join(rest[:3])
        trouble.append(f"the words after {words!r} on its command line were not read: check"
                       " that no option is missing here")  # fmt: skip
    return fields, trouble


def _as_command(fields: Fields) -> Fields:
    """Turn a script that slurmkit made from a command back into that command."""
    match = _COMMAND_SCRIPT.fullmatch(fields["script"])
    if match is None:
        return fields
    return {name: value for name, value in fields.items() if name != "script"} | {
        "command": tuple(shlex.split(match["words"]))
    }


def _options_of_line(line: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Split a submit line, which Slurm keeps without quotes, into sbatch options and the rest."""
    words = line.split()[1:] if line.startswith("sbatch ") or "/sbatch " in line[:80] else []
    flags = [word for word in words if word.removeprefix("--") in _FLAGS]
    words = [word for word in words if word not in flags]
    for end in range(len(words), 0, -1):
        try:
            pairs = parse_option_words(words[:end])
        except BadInput:
            continue
        named = [pair for pair in pairs if pair[0] not in _SKIPPED_OPTIONS]
        at_wrap = next((n for n, word in enumerate(words) if word.startswith("--wrap")), end)
        rest = words[end:] if at_wrap >= end else []
        return [*named, *((flag.removeprefix("--"), "") for flag in flags)], rest
    return [], words


def _fields_of_record(record: dict[str, str]) -> Fields:
    """Return the fields that the record holds directly.

    For nodes and sizes see `_size_of_record`.
    """
    names = [name for name in _RECORD if name not in ("nodes", "tres", "line")]
    fields = {name: record[name] for name in names if record.get(name)}
    if fields.get("time", "").upper() in ("UNLIMITED", "PARTITION_LIMIT", "INVALID"):
        fields.pop("time")
    return fields


def _size_of_record(record: dict[str, str]) -> Fields:
    """Return the job's size from its record alone: one task per node with all its CPUs."""
    tres = parse_tres(record.get("tres", ""))
    nodes = int(record.get("nodes", "1")) if record.get("nodes", "1").isdigit() else 1
    fields: Fields = {"nodes": max(1, nodes)}
    if tres.get("cpu", "").isdigit() and not int(tres["cpu"]) % fields["nodes"]:
        fields["cpus_per_task"] = int(tres["cpu"]) // fields["nodes"]
    memory = parse_amount(tres.get("mem"))
    if memory:
        fields["mem"] = memory_option(memory // fields["nodes"])
    gpus = _gpus(tres, fields["nodes"])
    return fields | ({"gpus": gpus} if gpus else {})


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


def _proposals(cluster: Cluster, info: JobInfo, fields: Fields) -> Iterable[ResubmitProposal]:
    """Propose the time or memory that `slurmkit why` recommends after a job ran out of it."""
    if not info.is_over:
        return
    try:
        outcome = cluster.job(info.job_id).outcome()
        one = cluster.job(worst_part(info, outcome)).info() if info.tally else info
        if outcome.kind == "out_of_memory" and (memory := more_memory(cluster.slurm, one)):
            without = {name: value for name, value in fields.items() if name not in _MEMORY}
            texts, _ = form_texts_of_fields(without | {"mem": memory})
            yield ResubmitProposal("More memory", f"it ran out of memory: --mem={memory}", texts)
        if (
            outcome.kind == "timeout"
            and (more := longer_time_limit(cluster.slurm, one))
            and more[0]
        ):
            texts, _ = form_texts_of_fields(fields | {"time": more[0]})
            yield ResubmitProposal("Longer", f"it reached its time limit: --time={more[0]}", texts)
    except SlurmkitError:  # the job can still be submitted unchanged
        return
