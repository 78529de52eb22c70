"""The queue as typed rows, read with one `squeue` call, and errors for filters that fit no name."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from slurmkit.errors import BadInput, Refused, SlurmkitError
from slurmkit.formats.job_ids import check_job_id
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.machine import machine_of
from slurmkit.slurm.records import record_mark
from slurmkit.state.arrays import drop_foreign_tags, parse_array_tag
from slurmkit.state.queue_rows import QueueRow, parse_queue, squeue_format

_SECONDS = 120.0  # squeue of the largest queues takes some seconds
_LISTS = {
    "users": "user",
    "partitions": "partition",
    "accounts": "account",
    "qos": "qos",
    "states": "states",
    "names": "name",
    "job_ids": "jobs",
}
_SHOW = ("scontrol", "--all", "--oneliner", "show")
# squeue's error messages (src/squeue/opts.c, 22.05 to 26.05), and ours.
_REFUSALS = (
    (r"Invalid user: (.*?)(?:;|$)", "--user {}: there is no such user here"),
    (r"Invalid node name (.*?)(?:;|$)", "--nodelist: there is no node {}; see: sinfo -N"),
    (r"'(.*?)' invalid entry for --nodelist", "--nodelist {}: not a list of nodes like c[1-3],c5"),
    (
        r"Invalid job state specified: (.*?)(?:;|$).*Valid job states include: (.*?)(?:;|$)",
        "--states {}: not a state; give all by itself, or one or more of {}",
    ),
)
_WORDS = {"qos": "QOS"} | {word: word for word in ("partition", "account", "reservation")}


class QueueFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that a job must fulfil together to be shown; Slurm applies them.

    Attributes:
        users: login names or user ids.
        me: only the caller's own jobs.
        states: Slurm's names or short codes. `all` includes ended jobs that slurmctld still
            remembers (MinJobAge).
        names: job names. Slurm ignores their case, and cannot look for a name with a comma.
        nodelist: jobs on any of these nodes, e.g. `c[1-3],c5`.
        reservation: jobs in this reservation.
        job_ids: `12`, `12_3` or `12+1`; the id of an array means all its tasks.
        array: show each pending task of an array as its own row.
        hidden: also jobs in hidden partitions, and in partitions that the caller may not use.
            slurmctld leaves them out, even the caller's own, unless `users`, `me`, `reservation`
            or `job_ids` is given.

    Raises:
        BadInput: for an empty value, which Slurm takes as no condition, and for a value that
            squeue would split into several.
    """

    users: tuple[str, ...] = ()
    me: bool = False
    partitions: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    nodelist: str | None = None
    reservation: str | None = None
    job_ids: tuple[str, ...] = ()
    array: bool = False
    hidden: bool = False

    def __post_init__(self) -> None:
        """Refuse values that squeue would misread."""
        for field, option in _LISTS.items():
            for value in getattr(self, field):
                _check_value(option, value)
        for option in ("nodelist", "reservation"):
            value = getattr(self, option)
            if value is not None:
                _check_value(option, value, commas=option == "nodelist")
        if self.me and self.users:
            raise BadInput("give either --me or --user, not both")

    def options(self) -> list[str]:
        """Return the conditions as squeue options."""
        lists = ((option, ",".join(getattr(self, field))) for field, option in _LISTS.items())
        singles = (("nodelist", self.nodelist), ("reservation", self.reservation))
        given = [f"--{option}={value}" for option, value in (*lists, *singles) if value]
        # --jobs includes --all (src/squeue/squeue.c).
        shows_all = self.hidden or self.me or self.users or self.reservation
        flags = (("--all", shows_all), ("--me", self.me), ("--array", self.array))
        return [*given, *(flag for flag, is_given in flags if is_given)]

    def named(self) -> dict[str, tuple[str, ...]]:
        """Return, by squeue option, the names that squeue does not check."""
        reservation = (self.reservation,) if self.reservation else ()
        named = {"partition": self.partitions, "account": self.accounts, "qos": self.qos}
        return {**named, "reservation": reservation}


class Queue(msgspec.Struct, frozen=True):
    """A snapshot of the queue.

    Attributes:
        rows: in squeue's order.
        taken: epoch seconds at which squeue was started.
        seconds: how long squeue and parsing took.
    """

    rows: tuple[QueueRow, ...]
    taken: float
    seconds: float


def read_queue(
    slurm: SlurmCommands,
    only: QueueFilter | None = None,
    *,
    user: str | None = None,
    job_ids: Iterable[str] = (),
    ended: bool = False,
) -> Queue:
    """Read the queue with one squeue call; rows are parsed while squeue prints.

    An array's tag in another user's comment is removed where it cannot be true, see
    `drop_foreign_tags`.

    Args:
        slurm: runs squeue.
        only: the filter. Without it, the next three arguments make one.
        user: only this user's jobs.
        job_ids: only these jobs.
        ended: also ended jobs that slurmctld still remembers (MinJobAge).

    Raises:
        BadInput: when the filter has a name that does not exist on this cluster.
        NoSuchJob: when the only job requested is unknown.
        SlurmError: when Slurm does not answer or its answer cannot be read.
    """
    only = only or QueueFilter(
        users=(user,) if user else (),
        job_ids=tuple(job_ids),
        states=("all",) if ended else (),
    )
    mark = record_mark()
    argv = ["squeue", "--noheader", "-O", squeue_format(mark), *only.options()]
    taken = time.time()
    began = time.perf_counter()
    try:
        rows = parse_queue(slurm.stream(argv, timeout=_SECONDS), mark)
    except Refused as error:
        raise name_refused_filter(error) from error
    seconds = time.perf_counter() - began
    if not only.me and any(parse_array_tag(row.comment) for row in rows):
        rows = drop_foreign_tags(rows, _own_user(slurm))
    refuse_unknown_names(slurm, only.named(), rows)
    return Queue(_keep_components(rows, only.job_ids), taken, seconds)


def _own_user(slurm: SlurmCommands) -> str | None:
    try:
        return machine_of(slurm).user
    except SlurmkitError:  # this machine does not know the user
        return None


def _check_value(option: str, value: str, *, commas: bool = False) -> None:
    where = "job id" if option == "jobs" else f"--{option}"
    if not value.strip():
        raise BadInput(f"{where} may not be empty; leave it out for all")
    if option == "jobs":
        check_job_id(value)
    elif not value.isprintable() or ("," in value and not commas):
        raise BadInput(f"{where} {value!r} has a character that squeue cannot search for")


def _keep_components(rows: tuple[QueueRow, ...], job_ids: tuple[str, ...]) -> tuple[QueueRow, ...]:
    """Keep the het components that were asked for: squeue shows all components of a het job."""
    if not any("+" in job_id for job_id in job_ids):
        return rows
    asked = set(job_ids)
    return tuple(r for r in rows if asked & {r.job_id, r.raw_id, *re.split("[_+]", r.job_id)[:1]})


def name_refused_filter(error: Refused) -> Refused | BadInput:
    """Turn squeue's refusal into an error that names the filter option."""
    for pattern, words in _REFUSALS:
        match = re.search(pattern, str(error))
        if match:
            return BadInput(words.format(*match.groups()))
    return error


def refuse_unknown_names(
    slurm: SlurmCommands, named: Mapping[str, Sequence[str]], rows: Sequence[QueueRow]
) -> None:
    """Check the names that no row has; names that Slurm hides from us pass.

    Args:
        slurm: runs scontrol.
        named: names by squeue option: partition, account, qos and reservation.
        rows: the rows that squeue printed.

    Raises:
        BadInput: naming the option, the name and the names that exist.
    """
    for option, names in named.items():
        if not names:
            continue
        seen = {value.lower() for row in rows for value in getattr(row, option).split(",")}
        for name in names:
            if name.lower() not in seen:
                _NAME_CHECKS[option](slurm, name)


def _partition(slurm: SlurmCommands, name: str) -> None:
    existing = _names(slurm, [*_SHOW, "partition"], "PartitionName")
    _must_be_in(existing, "partition", name, f"there are {', '.join(existing)}")


def _qos(slurm: SlurmCommands, name: str) -> None:
    existing = _names(slurm, [*_SHOW, "assoc_mgr", "flags=qos"], "QOS")
    if existing:
        advice = f"there are {', '.join(existing)}"
        _must_be_in(map(str.lower, existing), "qos", name.lower(), advice)


def _account(slurm: SlurmCommands, name: str) -> None:
    """Check an account. If even `root`, which always exists, is not shown, all are hidden."""
    argv = [*_SHOW, "assoc_mgr", "flags=assoc", f"accounts={name.lower()},root"]
    existing = _names(slurm, argv, "Account")
    if "root" in existing:
        advice = "see: sacctmgr show account"
        _must_be_in(map(str.lower, existing), "account", name.lower(), advice)


def _reservation(slurm: SlurmCommands, name: str) -> None:
    existing = _names(slurm, [*_SHOW, "reservation"], "ReservationName")
    _must_be_in(existing, "reservation", name, f"there are {', '.join(existing) or 'none'}")


_NAME_CHECKS = {
    "partition": _partition,
    "qos": _qos,
    "account": _account,
    "reservation": _reservation,
}


def _names(slurm: SlurmCommands, argv: list[str], key: str) -> list[str]:
    pattern = rf"^(?:ClusterName=\S+ )?{key}=([^\s(]+)"
    return list(dict.fromkeys(re.findall(pattern, slurm.run(argv), re.MULTILINE)))


def _must_be_in(existing: Iterable[str], option: str, name: str, advice: str) -> None:
    if name not in set(existing):
        raise BadInput(f"--{option} {name}: this cluster has no such {_WORDS[option]}; {advice}")
