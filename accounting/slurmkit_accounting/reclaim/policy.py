"""The policies `[reclaim.NAME]`: which jobs they are for, and what is done about idle GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from slurmkit.config.files import load_tables
from slurmkit.errors import BadConfig
from slurmkit.state.gpu_metrics import IDLE_BELOW
from slurmkit_accounting.calendar import Zone

Action = Literal["report", "mail", "requeue", "cancel"]
Minutes = Annotated[int, msgspec.Meta(ge=1, le=30 * 1440)]
MinutesOrNone = Annotated[int, msgspec.Meta(ge=0, le=30 * 1440)]
Hours = Annotated[int, msgspec.Meta(ge=0, le=720)]
Percent = Annotated[float, msgspec.Meta(gt=0, le=100)]
IdleShare = Annotated[float, msgspec.Meta(gt=0, le=1)]
Covered = Annotated[float, msgspec.Meta(ge=0.5, le=1)]
_SECTION = "reclaim"
_SUSPENDED = 300  # seconds; the clocks of slurmctld and the service may differ by some


class ReclaimPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`[reclaim.NAME]`: what the service does about GPUs that jobs hold and do not use.

    Of several policies, the first whose partitions, accounts and QOS match decides about a job.

    Attributes:
        action: `report`: only a row of `slurmkit report reclaimed`. `mail`: a mail to the user.
            `requeue`: a mail, then a job that survives is asked for its checkpoint and requeued
            held; other jobs are left alone. `cancel`: as `requeue`, but other jobs are cancelled.
        partitions: only jobs of these partitions; empty: of all.
        accounts: only jobs of these accounts; empty: of all.
        qos: only jobs with these QOS; empty: with all.
        except_users: users whose jobs are left alone.
        except_accounts: accounts whose jobs are left alone.
        except_qos: QOS whose jobs are left alone.
        except_reservations: reservations whose jobs are left alone; `*` for all.
        window: `sliding`: GPUs that were idle in the last minutes. `first`: GPUs that the job did
            not use since its begin, for at least so many minutes.
        minutes: length of the window.
        skip_minutes: minutes after the start of a run that never count.
        below: a GPU is idle while its utilization is below this, percent.
        idle_share: share of the job's GPUs that must be idle.
        covered: share of the window that samples of each GPU must cover.
        interactive_minutes: length of the window of interactive jobs; 0 leaves them alone.
        interactive_names: a batch job with such a name (`*` for any text) counts as interactive.
        hours: hours of day in which something is done, e.g. `8-18` or `22-6`; empty: at any time.
        warn_minutes: minutes from the mail until the job is requeued or cancelled.
        keep_hours: hours that `slurmkit reclaim keep` gives a job.
        to_pi: which mails also go to the PI: `second`: if the user had a mail in the last 30 days,
            before these GPUs were idle; `always`; `never`.
    """

    action: Action = "report"
    partitions: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    except_users: tuple[str, ...] = ()
    except_accounts: tuple[str, ...] = ()
    except_qos: tuple[str, ...] = ()
    except_reservations: tuple[str, ...] = ()
    window: Literal["sliding", "first"] = "sliding"
    minutes: Minutes = 60
    skip_minutes: MinutesOrNone = 10
    below: Percent = IDLE_BELOW
    idle_share: IdleShare = 1.0
    covered: Covered = 0.8
    interactive_minutes: MinutesOrNone = 240
    interactive_names: tuple[str, ...] = ("*jupyter*", "code-server", "ssh-*", "sys/dashboard/*")
    hours: str = ""
    warn_minutes: Minutes = 60
    keep_hours: Hours = 24
    to_pi: Literal["second", "always", "never"] = "second"

    def __post_init__(self) -> None:
        _parse_hours(self.hours)

    def acts_at(self, epoch: float, zone: Zone) -> bool:
        """Return whether a time lies in the hours of day in which something is done."""
        if not self.hours:
            return True
        first, last = _parse_hours(self.hours)
        hour = datetime.fromtimestamp(epoch, zone.rules).hour
        return first <= hour < last if first < last else hour >= first or hour < last

    def window_seconds(self, job: ReclaimJob) -> int:
        """Return the length of the window for a job, in seconds."""
        return 60 * (self.interactive_minutes if self.is_interactive(job) else self.minutes)

    def is_interactive(self, job: ReclaimJob) -> bool:
        """Return whether a job is one that somebody works in."""
        named = any(fnmatchcase(job.name.lower(), each.lower()) for each in self.interactive_names)
        return named or not job.batch

    def exemption(self, job: ReclaimJob) -> str:
        """Return why a job is left alone; empty if it is not."""
        reserved = {job.reservation, "*"} & set(self.except_reservations)
        reasons = {
            "its user is exempt": job.user in self.except_users,
            "its account is exempt": job.account in self.except_accounts,
            "its QOS is exempt": job.qos in self.except_qos,
            "its reservation is exempt": bool(job.reservation and reserved),
            "interactive jobs are exempt": (
                not self.interactive_minutes and self.is_interactive(job)
            ),
            "it was suspended": job.suspended > _SUSPENDED,
            # To cancel or requeue one component is to do so with all.
            "it is part of a heterogeneous job": job.het,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def is_for(self, job: ReclaimJob) -> bool:
        """Return whether this policy decides about a job."""
        chosen = (
            (self.partitions, job.partition),
            (self.accounts, job.account),
            (self.qos, job.qos),
        )
        return all(not names or name in names for names, name in chosen)


class ReclaimJob(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a job, as far as policies look at it. Times are epoch seconds.

    Attributes:
        job_id_raw: Slurm's own job id.
        job_id: the id that people use.
        uid: None if unknown.
        reservation: empty for none.
        name: free text of the user.
        batch: whether it was submitted with a script; False for salloc and srun.
        het: whether it is a part of a heterogeneous job.
        suspended: seconds for which it was suspended so far.
        submit: when it was submitted, or requeued.
        limit_end: when its time limit ends; None if it has none.
        gpus: number of GPUs, or MIG instances, that it holds; 0 if unknown, e.g. for shards.
        alloc_tres: what it holds, as Slurm prints it.
        restarts: how often it was requeued before.
    """

    cluster_id: int
    job_id_raw: int
    job_id: str
    user: str
    uid: int | None
    account: str
    partition: str
    qos: str
    reservation: str = ""
    name: str = ""
    batch: bool = True
    het: bool = False
    suspended: int = 0
    submit: int
    start: int
    limit_end: int | None
    gpus: int
    alloc_tres: str
    restarts: int = 0


Policies = Mapping[str, ReclaimPolicy]


def load_policies(file: Path | None = None) -> Policies:
    """Read the policies in the order in which they are tried.

    Args:
        file: a TOML file with tables `[reclaim.NAME]`; None for the configuration.

    Raises:
        BadConfig: naming the file, the policy and the key, or when `file` has no policy.
    """
    if file is not None and not file.is_file():
        raise BadConfig(f"cannot read the policies in {file}: there is no such file")
    policies = load_tables(_SECTION, ReclaimPolicy, None if file is None else [file])
    if file is not None and not policies:
        raise BadConfig(f"{file} has no policy; write one, e.g. [reclaim.idle] with minutes = 60")
    return policies


def choose_policy(policies: Policies, job: ReclaimJob) -> tuple[str, ReclaimPolicy] | None:
    """Return name and policy that decide about a job; None if none is for it."""
    return next(((name, each) for name, each in policies.items() if each.is_for(job)), None)


def _parse_hours(text: str) -> tuple[int, int]:
    """Parse `8-18` as (8, 18); (0, 24) for an empty text."""
    if not text:
        return 0, 24
    first, dash, last = text.replace(" ", "").partition("-")
    known = first.isdecimal() and last.isdecimal() and first != last
    if not (dash and known and int(first) <= 23 and 1 <= int(last) <= 24):
        raise ValueError(f"hours: {text!r} is not valid; write two hours of day, e.g. 8-18 or 22-6")
    return int(first), int(last)
