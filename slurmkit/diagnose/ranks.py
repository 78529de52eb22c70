"""The ranks of a running job: who is stopped, who sleeps, and who keeps the others waiting.

What NCCL's RAS subsystem says of ranks is the text of `ncclras -v`; see "RAS" in NCCL's user guide,
and `src/ras/client_support.cc`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from slurmkit.diagnose.model import RunningFinding, WatchedRank
from slurmkit.diagnose.probe import ProbedNode, ProcessFacts
from slurmkit.formats.display import join_names

WaitKind = Literal["file", "pipe", "timer", "network", "poll", "lock", "child", "other", ""]
SOURCE = "/proc"
_ASLEEP = 0.05  # CPUs; a process that uses less sleeps
_BUSY = 0.5
_BUSY_IF_READY = 0.25  # of a process that was ready to run at most looks: its node is overloaded
_MOSTLY = 0.6  # share of the looks
# Programs that start others and wait for them.
_WRAPPERS = frozenset(
    "bash sh dash zsh ksh srun env time timeout numactl nice tini xargs slurm_script".split()
)
# Functions of the kernel in which processes sleep, Linux 3.10 to 6.18, and system calls of x86-64.
_WAITS: tuple[tuple[WaitKind, re.Pattern[str]], ...] = (
    (
        "file",
        re.compile(
            r"folio_wait|wait_on_page|wait_on_buffer|io_schedule|submit_bio|^blk_|^jbd2|^xfs_|^ext4_"
            r"|nfs|^rpc_|^ll_|^cl_|^osc_|^ptlrpc|request_wait_answer|fuse|ceph|gpfs|beegfs"
        ),
    ),
    ("pipe", re.compile(r"pipe_read|pipe_wait|pipe_write|fifo_open")),
    ("timer", re.compile(r"nanosleep|^system call (?:35|230)$")),
    (
        "network",
        re.compile(
            r"^sk_wait|^wait_woken|^tcp_|^inet_|^unix_stream|^unix_wait|skb_wait|skb_recv"
            r"|^system call (?:45|47)$"
        ),
    ),
    (
        "poll",
        re.compile(r"poll|_select$|^system call (?:7|23|232|270|271|281)$"),
    ),
    ("lock", re.compile(r"futex|rwsem|mutex|^system call 202$")),
    ("child", re.compile(r"^do_wait|^system call (?:61|247)$")),
)
_NCCL_SOURCE = "NCCL's RAS"
_NCCL_SECTIONS = ("Errors", "Warnings")
_MOST_NCCL_LINES = 20
_LONGEST_NCCL_LINE = 200  # characters
_NCCL_TROUBLE = re.compile(
    r"Missing communicator data from .+|\d+ job process(?:es are| is) considered dead.*"
    r"|.* errors? on \d+ ranks?|Communicator ranks have different .+|Encountered \d+ .+"
)
_NCCL_RANKS = re.compile(
    r"Rank \d+ .*|Process \d+ on node .*|The missing ranks?: .*|\d+ ranks? ha(?:s|ve) .*"
)
_WAIT_WORDS: dict[WaitKind, str] = {
    "file": "waits for a file system",
    "pipe": "reads from a pipe, so it waits for another process",
    "timer": "sleeps until a timer ends",
    "network": "waits for the network",
    "poll": "waits for events (poll)",
    "lock": "waits for a lock or another thread",
    "child": "waits for a child process",
    "other": "sleeps",
    "": "",
}
_LOADS = frozenset(("file", "timer", "pipe"))  # as who reads data does, not who waits for ranks


class JobRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, or a process without one.

    Attributes:
        number: of the rank; None for a process of no rank.
        step: step id; empty for the batch script.
        main: the process that does the work.
        helpers: the other processes of the rank, for example those that load data.
        seconds: how long it was watched.
    """

    number: int | None
    step: str
    node: str
    main: ProcessFacts
    helpers: tuple[ProcessFacts, ...]
    seconds: float

    @property
    def cpus(self) -> float | None:
        """CPUs that the main process used."""
        return None if self.main.cpu is None else self.main.cpu / max(self.seconds, 0.1)

    @property
    def is_asleep(self) -> bool:
        """Whether the main process used hardly any CPU."""
        return self.cpus is not None and self.cpus < _ASLEEP

    @property
    def is_busy(self) -> bool:
        """Whether the main process used at least half a CPU, or less and wanted more."""
        ready, looks = self.main.states.get("R", 0), sum(self.main.states.values())
        least = _BUSY_IF_READY if looks and ready >= _MOSTLY * looks else _BUSY
        return self.cpus is not None and self.cpus >= least

    @property
    def title(self) -> str:
        """Name for messages: `rank 3 on c2 (pid 811)`."""
        who = "" if self.number is None else f"rank {self.number}"
        return f"{who or self.main.command or self.main.name} on {self.node} (pid {self.main.pid})"


def find_ranks(nodes: Mapping[str, ProbedNode]) -> tuple[JobRank, ...]:
    """Return the job's ranks, or its top processes if it has none, in order."""
    watched = {name: node.processes for name, node in nodes.items() if node.processes}
    by_torch = any(each.rank.isdigit() for node in watched.values() for each in node.processes)
    ranks: list[JobRank] = []
    for name, node in watched.items():
        groups: dict[tuple[str, int], list[ProcessFacts]] = defaultdict(list)
        for each in node.processes:
            text = each.rank if by_torch else each.task if each.step.isdigit() else ""
            if text.isdigit():
                groups[each.step, int(text)].append(each)
        for (step, number), family in groups.items():
            ranks.append(_to_rank(number, step, name, family, node.seconds))
        if not groups:
            ranks += _processes_without_rank(name, node.processes, node.seconds)
    return tuple(sorted(ranks, key=lambda rank: (rank.step, rank.number or 0, rank.node)))


def _to_rank(
    number: int, step: str, node: str, family: Sequence[ProcessFacts], seconds: float
) -> JobRank:
    main = _main_process(family)
    helpers = tuple(each for each in family if each.pid != main.pid)
    return JobRank(number=number, step=step, node=node, main=main, helpers=helpers, seconds=seconds)


def _main_process(family: Sequence[ProcessFacts]) -> ProcessFacts:
    """Return the topmost process that is not only there to start others."""
    own = {each.pid for each in family}
    children: dict[int, list[ProcessFacts]] = defaultdict(list)
    for each in family:
        children[each.parent].append(each)
    level = [each for each in family if each.parent not in own]
    while level:
        for each in sorted(level, key=lambda one: -(one.cpu_total or 0)):
            if each.name not in _WRAPPERS and each.state != "Z":
                return each
        level = [child for each in level for child in children[each.pid]]
    return family[0]


def _processes_without_rank(
    node: str, processes: Sequence[ProcessFacts], seconds: float
) -> Iterator[JobRank]:
    """Yield each top process that is no wrapper, with all that descends from it."""
    by_id = {each.pid: each for each in processes}

    def is_top(each: ProcessFacts) -> bool:
        parent = by_id.get(each.parent)
        while parent is not None:
            if parent.name not in _WRAPPERS:
                return False
            parent = by_id.get(parent.parent)
        return each.name not in _WRAPPERS

    for top in processes:
        if is_top(top) and top.state != "Z":
            family = _descendants(top, processes)
            yield JobRank(
                number=None, step=top.step, node=node, main=top, helpers=family, seconds=seconds
            )


def _descendants(top: ProcessFacts, processes: Sequence[ProcessFacts]) -> tuple[ProcessFacts, ...]:
    ids, found = {top.pid}, list[ProcessFacts]()
    grown = True
    while grown:
        more = [each for each in processes if each.parent in ids and each.pid not in ids]
        grown = bool(more)
        ids |= {each.pid for each in more}
        found += more
    return tuple(found)


def wait_kind(place: str) -> WaitKind:
    """Return what a process waits for, by the function of the kernel in which it sleeps."""
    if not place:
        return ""
    return next((kind for kind, pattern in _WAITS if pattern.search(place)), "other")


def usual_wait(process: ProcessFacts) -> tuple[WaitKind, str]:
    """Return what a process waits for in most looks, and the kernel's name of it."""
    looks = sum(process.states.values())
    blocked = process.states.get("D", 0)
    kinds: Counter[WaitKind] = Counter()
    for place, count in process.waits.items():
        kinds[wait_kind(place)] += count
    if looks and blocked >= _MOSTLY * looks:
        place = max(process.waits, key=lambda each: process.waits[each], default="")
        return "file", place
    kind, count = max(kinds.items(), key=lambda item: item[1], default=("", 0))
    if not looks or not kind or count < _MOSTLY * looks:
        return "", ""
    places = {place: n for place, n in process.waits.items() if wait_kind(place) == kind}
    return kind, max(places, key=lambda each: places[each])


def describe_state(process: ProcessFacts) -> str:
    """Return in words what a process did while it was watched."""
    if process.state == "T":
        return "is stopped (SIGSTOP)"
    if process.state == "t" or process.tracer:
        return f"is held by a debugger (pid {process.tracer})"
    if process.state == "Z":
        return "has ended, and its parent has not noticed (zombie)"
    kind, place = usual_wait(process)
    if kind:
        return f"{_WAIT_WORDS[kind]} ({place})"
    return "runs" if process.states.get("R") else "sleeps and runs in turn"


def to_watched(rank: JobRank) -> WatchedRank:
    """Return the facts of a rank that are shown."""
    family = (rank.main, *rank.helpers)
    sizes = [each.rss for each in family if each.rss is not None]
    read = [each.read for each in family if each.read is not None]
    return WatchedRank(
        rank=rank.number,
        node=rank.node,
        pid=rank.main.pid,
        step=rank.step,
        command=rank.main.command or rank.main.name,
        state=rank.main.state,
        does=describe_state(rank.main),
        cpus=rank.cpus,
        processes=len(family),
        threads=sum(each.threads for each in family),
        rss=sum(sizes) if sizes else None,
        read_per_second=sum(read) / max(rank.seconds, 0.1) if read else None,
    )


def rank_findings(ranks: Sequence[JobRank], taken: float) -> Iterator[RunningFinding]:
    """Yield what is wrong with single ranks, and how they keep each other waiting.

    Args:
        ranks: of the job.
        taken: epoch seconds at which they were watched.
    """
    stopped = [rank for rank in ranks if _held(rank)]
    blocked = [rank for rank in ranks if rank not in stopped and _is_blocked(rank)]
    if stopped:
        yield _finding("stopped", _stopped_text(stopped, ranks), taken, _continue_advice(stopped))
    if blocked:
        text = f"{_titles(blocked)} {'is' if len(blocked) == 1 else 'are'} blocked in the kernel"
        places = {place for rank in blocked for place in _blocked_in(rank) if place}
        where = f" ({', '.join(sorted(places)[:3])})" if places else ""
        yield _finding(
            "blocked",
            f"{text}{where}: all the time, and by no signal to be woken",
            taken,
            "a file system or device does not answer; tell your administrator, with the node",
        )
    if not stopped and not blocked:
        yield from _stragglers(ranks, taken)
    yield from _ended_processes(ranks, taken)


def _finding(kind: str, text: str, taken: float, advice: str) -> RunningFinding:
    return RunningFinding(kind=kind, text=text, source=SOURCE, taken=taken, advice=advice)


def _held(rank: JobRank) -> list[ProcessFacts]:
    """Return the processes of a rank that were stopped, or held by a debugger, at every look.

    A profiler such as py-spy stops a process for a moment, again and again.
    """
    return [
        each
        for each in (rank.main, *rank.helpers)
        if each.state in ("T", "t") and set(each.states) <= {"T", "t"}
    ]


def _is_blocked(rank: JobRank) -> bool:
    """Return whether a thread of the main process slept without end, by no signal to be woken.

    One that reads or writes without pause is uninterruptible at every look, too, but it wakes.
    """
    looks = sum(rank.main.states.values())
    always = looks > 1 and rank.main.states.get("D", 0) == looks
    return bool(rank.main.blocked) and (always or rank.is_asleep)


def _blocked_in(rank: JobRank) -> tuple[str, ...]:
    return rank.main.blocked or tuple(rank.main.waits)


def _titles(ranks: Sequence[JobRank]) -> str:
    return join_names([rank.title for rank in ranks])


def _stopped_text(stopped: Sequence[JobRank], ranks: Sequence[JobRank]) -> str:
    one = stopped[0]
    process = _held(one)[0]
    who = _titles(stopped)
    if process.pid != one.main.pid:
        who = f"{process.command or process.name} (pid {process.pid}) of {one.title}"
    how = describe_state(process)
    if len(stopped) > 1:
        how = how.replace("is ", "are ", 1)
    others = [rank for rank in ranks if rank not in stopped]
    if not others or one.number is None:
        return f"{who} {how}"
    if all(rank.is_asleep for rank in others):
        return f"{who} {how}, and {_waiting(others)} for {_verb(stopped, 'it', 'them')}"
    awake = sum(not rank.is_asleep for rank in others)
    count = f"{awake} of the {len(others)}" if awake < len(others) else f"the {len(others)}"
    rest = _verb(others, "the other uses its CPU", f"{count} others use their CPUs")
    return f"{who} {how}; {rest}, perhaps to wait"


def _waiting(others: Sequence[JobRank]) -> str:
    return _verb(others, "the other waits", f"the {len(others)} others wait")


def _continue_advice(stopped: Sequence[JobRank]) -> str:
    rank = stopped[0]
    process = _held(rank)[0]
    if process.state == "t":
        return f"a debugger holds it: end it, or let it go on (pid {process.tracer})"
    return f"let it go on, in a shell on {rank.node}: kill -CONT {process.pid}"


def _stragglers(ranks: Sequence[JobRank], taken: float) -> Iterator[RunningFinding]:
    """Compare the ranks of the largest step."""
    steps = Counter(rank.step for rank in ranks if rank.number is not None)
    step = max(steps, key=lambda each: steps[each], default=None)
    peers = [rank for rank in ranks if rank.step == step and rank.number is not None]
    if len(peers) < 2 or any(rank.cpus is None for rank in peers):
        return
    asleep = [rank for rank in peers if rank.is_asleep]
    busy = [rank for rank in peers if rank.is_busy]
    if len(asleep) == len(peers):
        yield from _loaders(peers, taken)
    elif _are_few(busy, peers) and len(asleep) + len(busy) == len(peers):
        yield _finding(
            "busy",
            f"{_titles(busy)} {_verb(busy, 'computes', 'compute')}, and"
            f" {_rest(busy, peers)}: {_verb(asleep, 'it waits', 'they wait')} for"
            f" {_verb(busy, 'it', 'them')}",
            taken,
            "see what it does: slurmkit why JOB --stacks; its share of the data may be larger",
        )
    elif _are_few(asleep, peers) and len(asleep) + len(busy) == len(peers):
        yield _finding(
            "asleep",
            f"{_titles(asleep)} {describe_state(asleep[0].main)}, and {_rest(asleep, peers)}:"
            " the others may wait for it in a loop",
            taken,
            "see what it does: slurmkit why JOB --stacks",
        )


def _are_few(some: Sequence[JobRank], peers: Sequence[JobRank]) -> bool:
    return 0 < len(some) <= max(1, len(peers) // 4)


def _verb(some: Sequence[JobRank], one: str, several: str) -> str:
    return one if len(some) == 1 else several


def _rest(some: Sequence[JobRank], peers: Sequence[JobRank]) -> str:
    """Return what the other ranks do: `the 7 others sleep`."""
    others = [rank for rank in peers if rank not in some]
    does = "sleep" if all(rank.is_asleep for rank in others) else "use their CPUs"
    if len(others) > 1:
        return f"the {len(others)} others {does}"
    return "the other sleeps" if does == "sleep" else "the other uses its CPU"


def _loaders(peers: Sequence[JobRank], taken: float) -> Iterator[RunningFinding]:
    """Find the few ranks that wait for something else than the others do.

    All sleep. Ranks that wait for each other sleep in locks, polls or the network. One that waits
    for its data sleeps in a file system, in a pipe from its loader, or until a timer ends; or its
    loader does.
    """
    for kind_of in (_own_kind, _loading_kind):
        loading = [rank for rank in peers if kind_of(rank) in _LOADS]
        others = [rank for rank in peers if rank not in loading]
        if _are_few(loading, peers) and not any(kind_of(rank) in _LOADS for rank in others):
            yield _finding(
                "loader",
                f"{_loader_text(loading, own=kind_of is _own_kind)}, and"
                f" {_waiting(others)} for {_verb(loading, 'it', 'them')}",
                taken,
                "it may load its data slowly: look at what it reads, and from where;"
                " slurmkit why JOB --stacks shows the line of the program",
            )
            return


def _own_kind(rank: JobRank) -> WaitKind:
    return usual_wait(rank.main)[0]


def _loading_kind(rank: JobRank) -> WaitKind:
    """Return what a process other than the main one waits for, if that is how loaders wait."""
    kinds = [usual_wait(each)[0] for each in rank.helpers if each.name not in _WRAPPERS]
    telling: tuple[WaitKind, ...] = ("file", "timer")
    return next((kind for kind in telling if kind in kinds), "")


def _loader_text(loading: Sequence[JobRank], *, own: bool) -> str:
    rank = loading[0]
    if own:
        return f"{_titles(loading)} {describe_state(rank.main)}"
    helper = next(
        each
        for each in rank.helpers
        if usual_wait(each)[0] in _LOADS and each.name not in _WRAPPERS
    )
    return f"{_titles(loading)}: its process {helper.pid} {describe_state(helper)}"


def _ended_processes(ranks: Sequence[JobRank], taken: float) -> Iterator[RunningFinding]:
    """Report ranks of which a process has ended without its parent's notice."""
    zombies = [(rank, each) for rank in ranks for each in rank.helpers if each.state == "Z"]
    if zombies:
        rank, process = zombies[0]
        count = len(zombies)
        more = f", and {count - 1} more" if count > 1 else ""
        yield _finding(
            "zombie",
            f"process {process.pid} ({process.name}) of {rank.title} has ended, and its parent has"
            f" not noticed{more}",
            taken,
            "a worker may have crashed: look for its error in the log",
        )


def suspects(
    ranks: Sequence[JobRank], findings: Iterable[RunningFinding], most: int
) -> list[JobRank]:
    """Return the ranks whose stacks tell most: those that a finding names, else the first ones."""
    texts = [finding.text for finding in findings]
    named = [rank for rank in ranks if any(rank.title in text for text in texts)]
    others = [rank for rank in ranks if rank not in named]
    return [*named, *others][:most]


def parse_nccl_problems(text: str) -> tuple[str, ...]:
    """Return the lines of the sections Errors and Warnings; empty if NCCL is content."""
    lines: list[str] = []
    section = ""
    before = ""
    for line in text.splitlines():
        if line and set(line) == {"="}:
            section = before.strip() if before.strip() in _NCCL_SECTIONS else ""
            lines = lines[:-1] if lines and lines[-1] == before.rstrip() else lines
        elif line.strip() and (section or line.strip() in _NCCL_SECTIONS):
            lines.append(line.rstrip()[:_LONGEST_NCCL_LINE])
        before = line
    return tuple(line for line in lines if line.strip() not in _NCCL_SECTIONS)[:_MOST_NCCL_LINES]


def nccl_finding(problems: Sequence[str], taken: float) -> RunningFinding | None:
    """Return the finding of what NCCL says; None if it names no problem."""
    reports = list(dict.fromkeys(_matching(problems, _NCCL_TROUBLE)))
    if not reports:
        return None
    who = [*_matching(problems, _NCCL_RANKS)]
    text = "NCCL: " + "; ".join(dict.fromkeys([reports[0], *who[-1:], *reports[1:2]]))
    return RunningFinding(
        kind="nccl",
        text=text,
        source=_NCCL_SOURCE,
        taken=taken,
        advice="look at the rank that it names first; the others wait for it",
    )


def _matching(lines: Sequence[str], pattern: re.Pattern[str]) -> Iterator[str]:
    return (line.strip() for line in lines if pattern.fullmatch(line.strip()))
