"""The GPU map: which job holds which GPU, and the letters and marks that show it.

It is built from the GRES that nodes list as used, the claims of jobs in `scontrol show job`, and
squeue. A user may forge text in a job's record, so claims that disagree with squeue or the nodes
are left out.
"""

from __future__ import annotations

import re
import string
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from secrets import token_hex
from typing import Literal

import msgspec

from slurmkit.errors import NoSuchJob, Refused, SlurmError
from slurmkit.formats.scontrol import parse_settings, parse_tres_counts
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.gpumap_model import Gpu, GpuMap, GpuShare, GpuSharing, GpuState
from slurmkit.state.gres import (
    NODES_LINE_START,
    GresLine,
    GresUse,
    HoldingJob,
    parse_gres_line,
    read_held_gres,
    read_holding_jobs,
)
from slurmkit.state.nodes import NODES_COMMAND, NodeRow, parse_nodes, with_jobs

_MIG_PROFILE = re.compile(r"(?:\d+c\.)?\d+g\.\d+gb.*", re.IGNORECASE)
_JOB = "JobId="  # starts a job's record
ClaimRecord = tuple[GresLine, ...]  # of one job, as scontrol printed it
HeldGres = tuple[tuple[str, GresUse], ...]  # nodes and uses of one job
_MAX_RECORDS = 8  # more records of one job can only be forged

GroupGpusBy = Literal["user", "account", "job"]
FREE = "."
CLOSED = "x"
UNKNOWN = "?"
HIDDEN = "#"
SEVERAL = "+"
_MARKS = {"free": FREE, "drained": CLOSED, "down": CLOSED, "unknown": UNKNOWN}
MARK_MEANINGS = {
    FREE: "free",
    SEVERAL: "shared by several",
    CLOSED: "held by nobody, node drained or down",
    HIDDEN: "held, Slurm does not say by whom",
    UNKNOWN: "unknown",
}
_LETTERS = tuple(c for c in string.ascii_letters if c != CLOSED)
_KEYS: dict[GroupGpusBy, Callable[[GpuShare], str]] = {
    "user": lambda share: share.user,
    "account": lambda share: share.account,
    "job": lambda share: f"{share.job_id} {share.user}",
}

JOBS_COMMAND = ("scontrol", "--all", "--details", "show", "job")
JOBS_BY_ID_COMMAND = ("scontrol", "--all", "--details", "--quiet")  # `show job ID` on its stdin
_PROMPT = "scontrol: "
_ONE_BY_ONE = 100  # more jobs are one question, about all jobs
_UNLIMITED = 20  # commands at once that slurmctld never holds back; by default it is 30
SharingByIndex = Mapping[int, GpuSharing]


def read_gpus(slurm: SlurmCommands) -> GpuMap:
    """Read which job holds which GPU.

    Raises:
        SlurmError: when slurmctld does not answer or its answer cannot be read.
    """
    taken, started = time.time(), time.perf_counter()
    with ThreadPoolExecutor(1) as pool:  # both at the same time, so that the answers agree
        text = pool.submit(slurm.run, NODES_COMMAND)
        holders = read_holding_jobs(slurm)
    nodes = parse_nodes(text.result())
    records = read_claim_records(slurm, _gpu_jobs(holders, nodes))
    gpus, rows, warnings = build_gpu_map(nodes, holders, records)
    return GpuMap(gpus, rows, warnings, taken, time.perf_counter() - started)


def _gpu_jobs(holders: Iterable[HoldingJob], nodes: Iterable[NodeRow]) -> list[str]:
    """Return the raw ids of the jobs that may hold GPUs; their TRES tell if Slurm tracks all."""
    counted = all(
        f"gres/{name}" in node.tracked
        for node in nodes
        for name in ("gpu", "shard", "mps")
        if node.count(name)
    )
    return [each.raw_id for each in holders if not counted or "gres/" in each.tres]


def read_claim_records(
    slurm: SlurmCommands, job_ids: Sequence[str]
) -> dict[str, Sequence[ClaimRecord]]:
    """Read the records of these jobs one by one, if they are few; else those of all jobs.

    Of 20,000 jobs, scontrol alone needs half a minute to print what waits. Of all jobs, those with
    several records are read once more: a name of another job has forged one.
    """
    with suppress(NoSuchJob, Refused):  # one of them is known no more
        if _may_ask_one_by_one(slurm, job_ids):
            return read_claims_one_by_one(slurm, job_ids)
    records = parse_claim_records(slurm.stream(JOBS_COMMAND)) if job_ids else {}
    several = [job_id for job_id in job_ids if len(records.get(job_id, ())) > 1]
    with suppress(NoSuchJob, Refused):
        if _may_ask_one_by_one(slurm, several):
            records |= read_claims_one_by_one(slurm, several)
    return records


def _may_ask_one_by_one(slurm: SlurmCommands, job_ids: Sequence[str]) -> bool:
    few = 0 < len(job_ids) <= _ONE_BY_ONE
    return few and (len(job_ids) <= _UNLIMITED or not _limits_rates(slurm))


def read_claims_one_by_one(
    slurm: SlurmCommands, job_ids: Sequence[str]
) -> dict[str, Sequence[ClaimRecord]]:
    """Read the records of these jobs. A record counts only in the answer about its own job.

    After each answer scontrol prints a random name, which no job's name can hold.

    Raises:
        NoSuchJob: when slurmctld does not know one of them any more.
        SlurmError: when it does not answer, or its answer breaks off.
    """
    mark = f"end{token_hex(8)}x"
    commands = "".join(f"show job {job_id}\nshow hostnames {mark}\n" for job_id in job_ids)
    text = slurm.run(JOBS_BY_ID_COMMAND, stdin=commands)
    answers: list[list[str]] = [[]]
    for printed in text.split("\n"):
        line = printed.removeprefix(_PROMPT)  # without readline, it stands before what is printed
        if line == mark:
            answers.append([])
        else:
            answers[-1].append(line)
    if len(answers) != len(job_ids) + 1:
        raise SlurmError("scontrol's answer about the jobs with GPUs broke off; try again")
    return {
        job_id: parse_claim_records(answer).get(job_id, ())
        for job_id, answer in zip(job_ids, answers, strict=False)
    }


def _limits_rates(slurm: SlurmCommands) -> bool:
    """Return whether slurmctld holds back a user who asks often (rl_enable, slurm.conf(5))."""
    config = parse_settings(slurm.run(["scontrol", "show", "config"]))
    return "rl_enable" in config.get("SlurmctldParameters", "").lower()


def build_gpu_map(
    nodes: Iterable[NodeRow],
    holders: Sequence[HoldingJob],
    records: Mapping[str, Sequence[ClaimRecord]],
) -> tuple[tuple[Gpu, ...], tuple[NodeRow, ...], tuple[str, ...]]:
    """Return GPUs, nodes and warnings from what the three commands printed."""
    rows = with_jobs(nodes, holders)
    claims, left_out = check_claims(records, holders, rows)
    gpus, clashes = build_gpus(rows, claims)
    return tuple(gpus), rows, (*left_out, *clashes)


class GpuClaim(msgspec.Struct, frozen=True, gc=False):
    """The GRES that a job holds on one node."""

    holder: HoldingJob
    node: str
    use: GresUse


def parse_claim_records(lines: Iterable[str]) -> dict[str, Sequence[ClaimRecord]]:
    """Parse the records of `scontrol show job --details`: nodes and GRES, by raw job id.

    A job has several records only if one of them is forged.
    """
    records: dict[str, Sequence[ClaimRecord]] = {}
    job, held = "", list[GresLine]()
    for line in lines:
        if line.startswith(_JOB):
            _add_record(records, job, tuple(held))
            job, held = line[len(_JOB) :].partition(" ")[0], []
        elif line.startswith(NODES_LINE_START) and (gres := parse_gres_line(line)):
            held.append(gres)
    _add_record(records, job, tuple(held))
    return records


def _add_record(records: dict[str, Sequence[ClaimRecord]], job: str, record: ClaimRecord) -> None:
    """Add a job's record. A list is made only for a second one, to spare the garbage collector."""
    before = records.get(job)
    if before is None:
        records[job] = (record,)
    elif isinstance(before, list):
        before.append(record)
    else:
        records[job] = [*before, record]


def check_claims(
    records: Mapping[str, Sequence[ClaimRecord]],
    holders: Iterable[HoldingJob],
    nodes: Iterable[NodeRow],
) -> tuple[list[GpuClaim], list[str]]:
    """Keep each job's record that agrees with squeue and the nodes; warn about the others.

    If several records of a job agree, one of them is true but we do not know which. Then the GPUs
    of all of them are left out, for every job. If a job has very many records, all GPUs of its
    nodes are left out.

    Returns:
        The claims, and the warnings.
    """
    check = _ClaimCheck({node.name: node for node in nodes})
    claims: list[GpuClaim] = []
    doubtful: set[tuple[str, int]] = set()
    warnings: list[str] = []
    for holder in holders:
        different = set(records.get(holder.raw_id, ()))
        if len(different) > _MAX_RECORDS:
            claimed, fitting = True, []
            doubtful |= check.gpus_of_nodes(holder.nodes)
        else:
            read = {check.read(record, holder) for record in different} - {()}
            claimed = bool(read)
            fitting = [held for held in read if held and check.fits(held, holder)]
        if len(fitting) == 1:
            claims += [GpuClaim(holder, node, use) for node, use in fitting[0]]
            continue
        doubtful |= {
            gpu for held in fitting for node, use in held for gpu in _whole_gpus(node, use)
        }
        if claimed and holder.state != "COMPLETING":
            warnings.append(
                f"scontrol lists GPUs of job {holder.job_id} ({holder.user}) twice, or not as"
                " squeue and the nodes do; they are left out"
            )
    left_out = [e for e in claims if not doubtful.isdisjoint(_whole_gpus(e.node, e.use))]
    for job, user in dict.fromkeys((e.holder.job_id, e.holder.user) for e in left_out):
        warnings.append(
            f"job {job} ({user}) claims GPUs that may belong to another job; they are left out"
        )
    return [e for e in claims if doubtful.isdisjoint(_whole_gpus(e.node, e.use))], warnings


def _whole_gpus(node: str, use: GresUse) -> set[tuple[str, int]]:
    """Return the GPUs that are used as a whole, by node and index."""
    return {(node, at) for at in use.indices or ()} if use.name == "gpu" else set()


def _has_valid_indices(uses: Sequence[GresUse]) -> bool:
    """Return whether the indices are valid; with units per GPU, each GPU type restarts at 0."""
    by_type = len(uses) > 1 and any(use.parts for use in uses)
    return not by_type and all(use.indices is not None for use in uses)


class _ClaimCheck:
    """Compares records with squeue and the nodes."""

    def __init__(self, nodes: Mapping[str, NodeRow]) -> None:
        self._nodes = nodes
        self._counted = {name for node in nodes.values() for name in node.tracked}
        self._max_gpus = max((node.count("gpu") for node in nodes.values()), default=0)

    def read(self, record: ClaimRecord, holder: HoldingJob) -> HeldGres | None:
        """Return what the record says that the job holds; None if it cannot be true."""
        return read_held_gres(record, holder.nodes, self._max_gpus)

    def gpus_of_nodes(self, names: Iterable[str]) -> set[tuple[str, int]]:
        """Return all GPUs of these nodes, by node and index."""
        rows = (self._nodes[name] for name in names if name in self._nodes)
        return {(row.name, at) for row in rows for at in range(row.count("gpu"))}

    def fits(self, held: HeldGres, holder: HoldingJob) -> bool:
        """Return whether squeue and the nodes say the same as the record."""
        return all(self._in_use(node, use) for node, use in held) and self._adds_up(held, holder)

    def _in_use(self, node: str, use: GresUse) -> bool:
        """Return whether the node lists all these GPUs as used; compare counts without indices."""
        row = self._nodes.get(node)
        if row is None or max(use.indices or (0,)) >= row.count("gpu"):
            return False
        on_node = [u for u in row.uses if u.name == use.name]
        if use.indices is None and any(u.indices for u in on_node):
            return False
        if use.indices is None or not _has_valid_indices(on_node):
            return use.count <= sum(u.count for u in on_node)
        return set(use.indices) <= {at for u in on_node for at in u.indices or ()}

    def _adds_up(self, held: HeldGres, holder: HoldingJob) -> bool:
        """Return whether the record's counts, by name, are the job's TRES in squeue."""
        counts: dict[str, int] = defaultdict(int)
        for _, use in held:
            counts[f"gres/{use.name}"] += use.count
        has = parse_tres_counts(holder.tres)
        return all(
            counts[name] == has.get(name, 0)
            for name in ("gres/gpu", "gres/shard", "gres/mps")
            if name in self._counted
        )


class _NodeGpuClaims(msgspec.Struct, frozen=True):
    """The GPUs of one node, with the jobs that claim each as a whole or in parts.

    Attributes:
        numbered: whether Slurm numbers the GPUs; without device files it only counts them.
        whole: by index, the jobs that claim the whole GPU.
        listed: indices that the node lists as shared.
    """

    node: NodeRow
    count: int
    numbered: bool
    whole: Mapping[int, Sequence[HoldingJob]]
    shards: SharingByIndex
    mps: SharingByIndex
    listed: set[int]

    @property
    def sharings(self) -> list[tuple[int, GpuSharing]]:
        """The use of shards and of MPS, each with its GPU index."""
        return [*self.shards.items(), *self.mps.items()]

    @property
    def shared(self) -> set[int]:
        """Indices of GPUs of which a job holds a part."""
        return {at for at, sharing in self.sharings if sharing.used or sharing.by} | self.listed

    @property
    def doubtful(self) -> set[int]:
        """Indices of GPUs of which it is unknown whether a job holds a part."""
        return {at for at, sharing in self.sharings if sharing.used is None} - self.shared


def build_gpus(nodes: Iterable[NodeRow], claims: Iterable[GpuClaim]) -> tuple[list[Gpu], list[str]]:
    """Return all GPUs of all nodes, and warnings where claims collide."""
    by_node: dict[str, list[GpuClaim]] = defaultdict(list)
    for claim in claims:
        by_node[claim.node].append(claim)
    gpus: list[Gpu] = []
    warnings: list[str] = []
    for node in nodes:
        if count := node.count("gpu"):
            board = _node_gpu_claims(node, count, by_node[node.name])
            states, clashes = _states(board)
            types = _types(node, count)
            gpus += [_gpu(board, at, types.get(at), states[at]) for at in range(count)]
            warnings += clashes
            # The node's Gres was reduced while jobs ran, or jobs started or ended meanwhile.
            in_use = {at for use in node.uses for at in use.indices or ()} | set(board.whole)
            if (most := max(in_use, default=0)) >= count:
                warnings.append(
                    f"GPU {most} of {node.name} is in use, but the node has {count} GPUs"
                )
    return gpus, warnings


def _node_gpu_claims(node: NodeRow, count: int, claims: Sequence[GpuClaim]) -> _NodeGpuClaims:
    whole: dict[int, list[HoldingJob]] = defaultdict(list)
    numbered = True
    for claim in claims:
        if claim.use.name != "gpu":
            continue
        if claim.use.indices is None:
            numbered = False
        for at in claim.use.indices or range(len(whole), len(whole) + claim.use.count):
            whole[at].append(claim.holder)
    shards, mps = (sharing_by_index(node, name, claims) for name in ("shard", "mps"))
    # Slurm 22.05 lists the GPUs that are shared; later releases print the units of each GPU.
    lists = (use.indices or () for use in node.uses if use.shared and use.parts is None)
    listed = {at for indices in lists for at in indices}
    return _NodeGpuClaims(node, count, numbered, whole, shards, mps, listed)


def _states(board: _NodeGpuClaims) -> tuple[list[GpuState], list[str]]:
    """Return the state of every GPU, and warnings about colliding claims."""
    held, doubtful = _used(board)
    shared = board.shared
    clashing = {at for at, holders in board.whole.items() if len(holders) > 1} | (held & shared)
    states: list[GpuState] = [_unheld(board.node)] * board.count
    layers: tuple[tuple[set[int], GpuState], ...] = (  # a later layer overrides earlier ones
        ((doubtful - shared) | board.doubtful, "unknown"),
        (held, "held"),
        (shared, "shared"),
        (clashing, "unknown"),
    )
    for indices, state in layers:
        for at in indices & set(range(board.count)):
            states[at] = state
    names = ", ".join(map(str, sorted(clashing)))
    warning = f"several jobs claim GPU {names} of {board.node.name}; shown as unknown"
    return states, [warning] if clashing else []


def _used(board: _NodeGpuClaims) -> tuple[set[int], set[int]]:
    """Return the indices of GPUs held as a whole, and of GPUs for which that is unknown."""
    uses = [use for use in board.node.uses if use.name == "gpu"]
    claimed, everything = set(board.whole), set(range(board.count))
    if all(use.indices is not None for use in uses):
        return {at for use in uses for at in use.indices or ()}, set()
    used = sum(use.count for use in uses)
    if len(claimed) > used:  # the commands did not run at the same time: a job started or ended
        return set(), claimed
    if len(claimed) == used or not board.numbered:
        return claimed or set(range(used)), set()
    return (everything, set()) if used == board.count else (claimed, everything - claimed)


def _unheld(node: NodeRow) -> GpuState:
    if node.usable:
        return "free"
    return "down" if node.kind == "down" else "drained"


def _types(node: NodeRow, count: int) -> dict[int, str]:
    """Return the type of each GPU, by index, as far as it is known.

    Slurm prints the type of an index only while that GPU is in use. The types of the others are
    known if only one type is left.
    """
    left = {gpus.type: gpus.total for gpus in node.gpus}
    if len(left) == 1:
        (only,) = left
        return dict.fromkeys(range(count), only) if only else {}
    known: dict[int, str] = {}
    for use in node.uses:
        for at in (use.indices or ()) if use.name == "gpu" and use.type else ():
            known[at] = str(use.type)
            left[use.type] = left.get(use.type, 0) - 1
    others = [type_ for type_, more in left.items() if more > 0]
    if len(others) == 1 and others[0]:
        known |= {at: others[0] for at in range(count) if at not in known}
    return known


def _gpu(board: _NodeGpuClaims, at: int, type_: str | None, state: GpuState) -> Gpu:
    profile = _MIG_PROFILE.search(type_ or "")
    whole = [make_gpu_share(holder, None) for holder in board.whole.get(at, ())]
    entry = Gpu(
        node=board.node.name,
        index=at if board.numbered else None,
        type=type_,
        state=state,
        shard=board.shards.get(at),
        mps=board.mps.get(at),
        mig=profile[0] if profile else None,
    )
    shares = {"held": whole, "shared": list(entry.sharers)}.get(state, [])
    if len(shares) != 1:
        return entry
    (only,) = shares
    return msgspec.structs.replace(
        entry, job_id=only.job_id, user=only.user, account=only.account, since=only.since
    )


def sharing_by_index(node: NodeRow, name: str, claims: Iterable[GpuClaim]) -> SharingByIndex:
    """Return the use of each GPU's shards or MPS, by index; empty for a node without `name`."""
    if not node.count(name):
        return {}
    uses = [use for use in node.uses if use.name == name]
    by: dict[int, list[GpuShare]] = defaultdict(list)
    for claim in claims:
        if claim.use.name == name:
            for at in claim.use.indices or ():
                by[at].append(make_gpu_share(claim.holder, _amount(claim.use, at)))
    count = node.count("gpu")
    if len(uses) == 1 and uses[0].parts and len(uses[0].parts) == count:
        return {at: GpuSharing(*uses[0].parts[at], tuple(by[at])) for at in range(count)}
    return _without_parts(node, name, by)


def _without_parts(node: NodeRow, name: str, by: Mapping[int, list[GpuShare]]) -> SharingByIndex:
    """Count the units that jobs hold, for a node that does not print the use of each GPU.

    Slurm 22.05 does not print it, nor does a node that shares GPUs of several types. The counts
    are used only if they add up to the node's total.
    """
    parts = node.shards if name == "shard" else node.mps
    amounts = {at: [share.amount for share in shares] for at, shares in by.items()}
    total = sum(amount or 0 for own in amounts.values() for amount in own)
    adds_up = parts is not None and total == parts.used
    uses = [use for use in node.uses if use.name == name]
    # Without units per GPU, the node lists the GPUs that are shared; the others are unused.
    listed = {at for use in uses for at in use.indices or ()}
    is_listed = all(use.parts is None for use in uses)

    def used(at: int) -> int | None:
        own = amounts.get(at, [])
        if adds_up and None not in own:
            return sum(amount or 0 for amount in own)
        return 0 if is_listed and at not in listed else None

    indices = range(node.count("gpu"))
    return {at: GpuSharing(used(at), None, tuple(by.get(at, ()))) for at in indices}


def make_gpu_share(holder: HoldingJob, amount: int | None) -> GpuShare:
    """Return a job's share of a GPU."""
    return GpuShare(holder.job_id, holder.user, holder.account, amount, holder.started)


def _amount(use: GresUse, at: int) -> int | None:
    if use.parts:
        return use.parts[at][0]
    return use.count if use.indices == (at,) else None


def holder_names(gpu: Gpu, by: GroupGpusBy) -> frozenset[str]:
    """Return the names of the jobs, users or accounts on a GPU; empty if none or unknown."""
    if gpu.state == "held" and gpu.job_id is not None:
        only = GpuShare(gpu.job_id, gpu.user or "", gpu.account or "", None, None)
        return frozenset([_KEYS[by](only)])
    sharers = gpu.sharers if gpu.state == "shared" else ()
    return frozenset(_KEYS[by](share) for share in sharers)


def count_by_holder(gpus: Iterable[Gpu], by: GroupGpusBy) -> Counter[str]:
    """Count the GPUs of each holder, most GPUs first."""
    counted = Counter(who for gpu in gpus for who in holder_names(gpu, by))
    return Counter(dict(sorted(counted.items(), key=lambda item: (-item[1], item[0]))))


def choose_letters(names: Collection[str]) -> dict[str, str]:
    """Choose a letter for each name, if possible one of its own; pairs if there are many names."""
    width = 1
    while len(_LETTERS) ** width < len(names):
        width += 1
    left = dict.fromkeys(map("".join, product(_LETTERS, repeat=width)))
    chosen = {}
    for name in names:
        chosen[name] = next(
            (own for own in _own_letters(name, width) if own in left), next(iter(left))
        )
        del left[chosen[name]]
    return chosen


def _own_letters(name: str, width: int) -> Iterator[str]:
    own = [c for c in name if c in string.ascii_letters]
    yield from ("".join(own[at : at + width]) for at in range(len(own) - width + 1))
    yield from ("".join(own[at : at + width]).upper() for at in range(len(own) - width + 1))


def gpu_mark(gpu: Gpu, by: GroupGpusBy, letter: dict[str, str]) -> str:
    """Return the mark of one GPU; it is at most as wide as the letters."""
    on_it = sorted(holder_names(gpu, by))
    if len(on_it) == 1:
        return letter[on_it[0]]
    return SEVERAL if on_it else _MARKS.get(gpu.state, HIDDEN)


def mark_meanings(cells: Collection[str]) -> list[tuple[str, str]]:
    """Return the drawn marks that are not letters, with their meanings."""
    return [(mark, meaning) for mark, meaning in MARK_MEANINGS.items() if mark in cells]


def format_gpu_types(row: NodeRow) -> str:
    """Format the GPU types of a node, with their numbers if there are several types."""
    one = len(row.gpus) == 1
    return " ".join((g.type or "untyped") + ("" if one else f":{g.total}") for g in row.gpus)


def node_note(row: NodeRow, cells: Collection[str]) -> str:
    """Say why no job can start on a node although GPUs look free; not escaped."""
    closed = row.why_closed
    if closed is None or (row.usable and FREE not in cells):
        return ""
    return f"{closed}: {row.reason}" if row.reason and not row.usable else closed
