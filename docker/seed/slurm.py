"""Makes Slurm's accounts, users and QOS equal to the seed, changing only what differs."""

import re
import subprocess
import time
from collections.abc import Iterator

from model import Group, Person, Qos, Seed, SeedError

Command = list[str]
Places = set[tuple[str, str]]  # of users: (user, account)

JOBS_END_WITHIN = 60  # seconds: KillWait and a margin
MINUTE, HOUR, DAY = 60, 3600, 86400

# The limits that the seed manages: one that is not in the file is taken away.
ACCOUNT_LIMITS = ("GrpTRES", "GrpTRESMins", "MaxTRES", "GrpJobs", "MaxJobs", "MaxWall")
QOS_LIMITS = ("GrpTRES", "MaxTRESPerUser", "MaxTRESPerJob", "MaxJobsPerUser", "MaxWall")


def apply(seed: Seed, cluster: str) -> int:
    """Make Slurm equal to the seed; returns how many changes it took.

    What fails does not keep the rest from being done; it is told at the end.
    """
    count = 0
    failures = []
    # Each step reads what the one before it made.
    for step in (_clusters, _qos, _accounts, _users, _coordinators, _not_in_the_seed):
        for command in step(seed, cluster):
            try:
                _change(command)
                count += 1
            except SeedError as error:
                failures.append(str(error))
    if failures:
        raise SeedError("; ".join(failures))
    return count


def _show(what: str, *fields: str, options: tuple[str, ...] = ()) -> list[dict[str, str]]:
    argv = ["sacctmgr", "-nP", "show", *what.split(), *options, "format=" + ",".join(fields)]
    rows = (line.split("|") for line in _run(argv).splitlines())
    return [dict(zip(fields, row, strict=True)) for row in rows]


def _change(command: Command) -> None:
    _run(["sacctmgr", "-i", *command])


def _run(argv: Command) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr + done.stdout).split())
        raise SeedError(f"{' '.join(argv)}: {said}")
    return done.stdout


def _clusters(_seed: Seed, cluster: str) -> Iterator[Command]:
    if not any(row["Cluster"] == cluster for row in _show("cluster", "Cluster")):
        yield ["add", "cluster", cluster]


def _qos(seed: Seed, _cluster: str) -> Iterator[Command]:
    fields = ("Name", "Priority", "Preempt", "PreemptMode", *QOS_LIMITS)
    have = {row["Name"]: row for row in _show("qos", *fields)}
    for name in seed.qos:
        if name not in have:
            yield ["add", "qos", name]
    for qos in seed.qos.values():
        if settings := _qos_settings(qos, have.get(qos.name, dict.fromkeys(fields, ""))):
            yield ["modify", "qos", "where", f"name={qos.name}", "set", *settings]


def _qos_settings(qos: Qos, have: dict[str, str]) -> Command:
    settings = _limit_settings(qos.limits, have, QOS_LIMITS)
    if have["Priority"] != str(qos.priority):
        settings.append(f"Priority={qos.priority}")
    if _names(have["Preempt"]) != set(qos.preempt):
        settings.append(f"Preempt={','.join(qos.preempt)}")
    if have["PreemptMode"] != qos.preempt_mode:
        settings.append(f"PreemptMode={qos.preempt_mode}")
    return settings


def _accounts(seed: Seed, cluster: str) -> Iterator[Command]:
    fields = ("Account", "User", "Fairshare", "QOS", *ACCOUNT_LIMITS)
    rows = _show("assoc", *fields, options=("where", f"cluster={cluster}"))
    have = {row["Account"]: row for row in rows if not row["User"]}
    for group in seed.accounts:
        if group.name not in have:
            about = [f"Description={group.description}", f"Organization={group.name}"]
            yield ["add", "account", group.name, f"Cluster={cluster}", *about]
        settings = _account_settings(group, have.get(group.name, dict.fromkeys(fields, "")))
        if settings:
            where = [f"name={group.name}", f"cluster={cluster}"]
            yield ["modify", "account", "where", *where, "set", *settings]


def _account_settings(group: Group, have: dict[str, str]) -> Command:
    settings = _limit_settings(group.limits, have, ACCOUNT_LIMITS)
    if have["Fairshare"] != str(group.fairshare):
        settings.append(f"Fairshare={group.fairshare}")
    if _names(have["QOS"]) != set(group.qos):
        settings.append(f"QOS={','.join(group.qos)}")
    return settings


def _users(seed: Seed, cluster: str) -> Iterator[Command]:
    rows = _show("assoc", "Account", "User", options=("where", f"cluster={cluster}"))
    have = {(row["User"], row["Account"]) for row in rows if row["User"] not in ("", "root")}
    want = dict.fromkeys(  # in the order of the file
        (person.name, seed.account_of(group)) for person in seed.active for group in person.groups
    )
    missing: dict[str, list[str]] = {}
    for user, account in want:
        if (user, account) not in have:
            missing.setdefault(account, []).append(user)
    # One command an account: on 22.05 each takes half a second.
    for account, users in missing.items():
        yield ["add", "user", ",".join(users), f"Account={account}", f"Cluster={cluster}"]
    yield from _user_settings(seed)
    active = {person.name for person in seed.active}
    if have - want.keys():
        _end_jobs(set(want))
    for user in sorted({user for user, _ in have} - active):
        yield ["delete", "user", "where", f"name={user}"]
    for user, account in sorted(have - want.keys()):
        if user in active:
            where = [f"name={user}", f"account={account}", f"cluster={cluster}"]
            yield ["delete", "user", "where", *where]


def _end_jobs(places: Places) -> None:
    """Cancel the jobs that have no place in the seed: Slurm lets nobody go whose jobs are active.

    A job that outlasts this makes the deletion fail, which says so.
    """
    end = time.monotonic() + JOBS_END_WITHIN
    while (jobs := _jobs_without(places)) and time.monotonic() < end:
        # Again and again: until the deletion, the user may submit another.
        subprocess.run(["scancel", "--quiet", *jobs], capture_output=True, check=False)
        time.sleep(1)


def _jobs_without(places: Places) -> list[str]:
    rows = [line.split("|") for line in _run(["squeue", "-h", "-o", "%A|%u|%a"]).splitlines()]
    return [job for job, user, account in rows if user != "root" and (user, account) not in places]


def _user_settings(seed: Seed) -> Iterator[Command]:
    have = {row["User"]: row for row in _show("user", "User", "DefaultAccount", "AdminLevel")}
    for person in seed.active:
        if settings := _person_settings(seed, person, have.get(person.name, {})):
            yield ["modify", "user", "where", f"name={person.name}", "set", *settings]


def _person_settings(seed: Seed, person: Person, have: dict[str, str]) -> Command:
    settings = []
    default = seed.account_of(person.groups[0])
    if have.get("DefaultAccount") != default:
        settings.append(f"DefaultAccount={default}")
    if have.get("AdminLevel") != person.admin:
        settings.append(f"AdminLevel={person.admin}")
    return settings


def _coordinators(seed: Seed, _cluster: str) -> Iterator[Command]:
    rows = _show("account", "Account", "Coordinators", options=("withcoord",))
    have = {row["Account"]: _names(row["Coordinators"]) for row in rows}
    for group in seed.accounts:
        want = {group.pi} if group.pi else set()
        for name in sorted(want - have.get(group.name, set())):
            yield ["add", "coordinator", f"account={group.name}", f"names={name}"]
        for name in sorted(have.get(group.name, set()) - want):
            yield ["delete", "coordinator", f"account={group.name}", f"names={name}"]


def _not_in_the_seed(seed: Seed, cluster: str) -> Iterator[Command]:
    rows = _show("assoc", "Account", "User", options=("where", f"cluster={cluster}"))
    have = {row["Account"] for row in rows}
    for account in sorted(have - {"root"} - {group.name for group in seed.accounts}):
        yield ["delete", "account", "where", f"name={account}", f"cluster={cluster}"]
    for name in sorted(
        {row["Name"] for row in _show("qos", "Name")} - {"normal"} - seed.qos.keys()
    ):
        yield ["delete", "qos", "where", f"name={name}"]


def _limit_settings(
    want: dict[str, str], have: dict[str, str], managed: tuple[str, ...]
) -> Command:
    if unknown := want.keys() - set(managed):
        raise SeedError(f"limit {', '.join(unknown)}: the seed knows {', '.join(managed)}")
    pairs = ((name, _limit_change(name, want.get(name, ""), have[name])) for name in managed)
    return [f"{name}={value}" for name, value in pairs if value]


def _limit_change(name: str, want: str, have: str) -> str:
    """What to set so that a limit becomes the one wanted; empty where it is."""
    wanted, had = _parts(want), _parts(have)
    if _normal(name, wanted) == _normal(name, had):
        return ""
    gone = dict.fromkeys(had.keys() - wanted.keys(), "-1")
    return ",".join(f"{k}={v}" if k else v for k, v in (gone | wanted).items())


def _parts(limit: str) -> dict[str, str]:
    """The parts of "gres/gpu=8,cpu=64"; a plain value is a part without a name."""
    pairs = (part.rpartition("=") for part in limit.split(",") if part)
    return {name: value for name, _, value in pairs}


def _normal(limit: str, parts: dict[str, str]) -> dict[str, float]:
    """Values as numbers: sacctmgr prints 24:00:00 as 1-00:00:00, and mem=1024G as mem=1T."""
    number = _seconds if limit.endswith("Wall") else _amount
    return {name: number(value) for name, value in parts.items()}


def _amount(text: str) -> float:
    match = re.fullmatch(r"(-?[0-9.]+)([KMGTP]?)B?", text, re.IGNORECASE)
    if not match:
        raise SeedError(f"limit {text!r} is not a number")
    unit = match[2].upper()
    return float(match[1]) * 1024.0 ** ("KMGTP".index(unit) - 1 if unit else 0)


def _seconds(text: str) -> float:
    """Slurm's times: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    days, dash, clock = text.rpartition("-")
    try:
        numbers = [int(number) for number in clock.split(":")]
        units = (HOUR, MINUTE, 1) if dash or len(numbers) > 2 else (MINUTE, 1)
        return int(days or 0) * DAY + sum(n * u for n, u in zip(numbers, units, strict=False))
    except ValueError:
        raise SeedError(f"limit {text!r} is not a time") from None


def _names(text: str) -> set[str]:
    return set(filter(None, text.split(",")))
