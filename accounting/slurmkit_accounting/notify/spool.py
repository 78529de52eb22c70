"""The spool in which `slurmkit-mail`, Slurm's MailProg, leaves an event for each mail.

An event is a file `NAME.event` of `NAME=VALUE` fields, each ended by a NUL byte. It appears whole,
by a rename. The fields are slurmctld's (src/slurmctld/agent.c, `mail_job_info`), but job names,
user names and addresses are text that users choose.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from slurmkit.errors import BadConfig
from slurmkit.state.arrays import parse_array_tag
from slurmkit_accounting.notify.job_letter import short_name

EventKind = Literal["begin", "end", "fail", "requeue", "time", "stage_out", "depend", "other"]
_SUFFIX = ".event"
_LARGEST = 1 << 16  # bytes of an event; slurmkit-mail writes less than half of it
_PART_SECONDS = 3600  # after which a file that never became an event is removed
_DAY = 86400
_KINDS: dict[str, EventKind] = {
    "Began": "begin",
    "Ended": "end",
    "Failed": "fail",
    "Requeued": "requeue",
    "StageOut/Teardown": "stage_out",
    "Invalid dependency": "depend",
}
_TIME_LIMIT = re.compile(r"Reached (?:\d+% of )?time limit")
_WHOLE_ARRAY = "Slurm Array Summary "
# What a mail may show of an event, by the name in slurmctld's environment.
_SHOWN = {
    "JOB_NAME": "name",
    "JOB_ACCOUNT": "account",
    "JOB_PARTITION": "partition",
    "JOB_STATE": "state",
    "JOB_EXIT_CODE2": "exit_code",
    "JOB_END_TIME": "ended",
    "JOB_RUN_TIME": "run_time",
    "JOB_QUEUED_TIME": "queued_time",
    "JOB_NODELIST": "nodes",
    "JOB_MAIL_TYPE": "said",
    "HET_JOB_ID": "het_job",
}
_NO_VALUE = 2**32 - 2  # slurmctld's NO_VAL
_NO_NODES = "(null)"  # slurmctld's, for the nodes of a job that never started
_LATE_SECONDS = 900  # after a job's end slurmctld may call MailProg: it makes 64 calls at a time
_NO_FILES = frozenset((errno.ELOOP, errno.ENXIO))  # of a link and of a socket


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a job for which slurmctld wants a mail to be sent.

    Attributes:
        digest: the same for the same event, however often slurmctld or the spool gives it.
        job_id_raw: Slurm's own id of the job or array task.
        array_id: id of its array; None for any other job.
        whole_array: whether the event is about the whole array, because all of it has ended.
        kind: what happened: `fail` also for a job that ended badly and wanted mails of its end.
        uid: user id of the owner; None if slurmctld does not say.
        address: a mail address, several with commas, or a user name.
        at: epoch seconds.
        facts: further facts by name, see `_SHOWN`; text that users choose among them. Of a part of
            a user's array that slurmkit split: `array_token`. The id of the whole array in the
            comment is not believed: anybody may write another's there.
        text_shown: whether a mail about it shows text that users choose.
    """

    digest: str
    cluster: str
    job_id_raw: int
    array_id: int | None
    whole_array: bool
    kind: EventKind
    user: str
    uid: int | None
    address: str
    at: int
    facts: dict[str, str]
    text_shown: bool = True

    def title(self, job_id: str) -> str:
        """Return the job with its name, e.g. `Job 12 (train)`, as mails begin."""
        what = f"{'Array' if self.array else 'Job'} {job_id}"
        return f"{what} ({short_name(self.facts.get('name', ''))})" if self.text_shown else what

    @property
    def job_id(self) -> str:
        """The id that people use: of the array, if the job is a task of one."""
        return str(self.array_id or self.facts.get("het_job") or self.job_id_raw)

    @property
    def array(self) -> str:
        """The id that all events of an array share; empty for any other job.

        slurmkit may send one array of a user as several arrays of Slurm.
        """
        if self.array_id is None:
            return ""
        return self.facts.get("array_token") or str(self.array_id)

    @property
    def nodes(self) -> str:
        """The job's nodes; empty if it never had any, or if slurmctld does not say."""
        return "" if self.never_started else self.facts.get("nodes", "")

    @property
    def never_started(self) -> bool:
        """Whether the job had no nodes when it ended, mostly because it never started."""
        return self.facts.get("nodes") == _NO_NODES

    @property
    def ended_since(self) -> int:
        """When the job of an event about its end has ended, or a time shortly before that.

        22.05 does not say when.
        """
        ended = _number(self.facts.get("ended", ""))
        return min(ended, self.at) if ended else self.at - _LATE_SECONDS


class SpooledFile(msgspec.Struct, frozen=True):
    """A file of the spool; `event` is None if it is no event, or cannot be read: `trouble`."""

    path: Path
    event: JobEvent | None
    trouble: str = ""


def read_spool(folder: Path, most: int) -> Iterator[SpooledFile]:
    """Read at most so many events of the spool, oldest first.

    Raises:
        BadConfig: when the folder cannot be read.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise BadConfig(
            f"[job_mail] spool: cannot read {folder}: {error.strerror}; make it as"
            " docs/service.md says, for slurmctld to write and for this account to read"
        ) from error
    _remove_parts(folder, names)
    for name in [name for name in names if name.endswith(_SUFFIX)][:most]:
        path = folder / name
        try:
            yield SpooledFile(path, parse_event(_read_file(path)))
        except FileNotFoundError:
            continue
        except ValueError:
            yield SpooledFile(path, None)
        except OSError as error:
            trouble = (
                f"[job_mail] spool: cannot read {path}: {error.strerror}; the file and the folder"
                " must have the group of this account, the folder mode 2770"
            )
            yield SpooledFile(path, None, "" if error.errno in _NO_FILES else trouble)


def _read_file(path: Path) -> bytes:
    """Read a regular file; who may write the spool cannot make the service follow a link."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise ValueError("not a regular file")
        return file.read(_LARGEST + 1)


def _remove_parts(folder: Path, names: list[str]) -> None:
    """Remove what a `slurmkit-mail` that was killed left behind."""
    for name in names:
        if name.startswith("."):
            with suppress(OSError):
                path = folder / name
                if path.lstat().st_mtime < time.time() - _PART_SECONDS:
                    path.unlink()


def parse_event(content: bytes) -> JobEvent:
    """Parse an event of the spool.

    Raises:
        ValueError: when it is not one.
    """
    if len(content) > _LARGEST or not content.endswith(b"\0"):
        raise ValueError("too long, or cut off")
    texts = (field.decode("utf-8", "replace") for field in content[:-1].split(b"\0"))
    fields = {name: value for name, _, value in (text.partition("=") for text in texts)}
    job_id_raw, at = (_number(fields.get(name, "")) for name in ("JOB_ID", "AT"))
    if job_id_raw is None or at is None or "ADDRESS" not in fields:
        raise ValueError("no job, time or address")
    array_id = _number(fields.get("ARRAY_JOB_ID", ""))
    whole = fields.get("SUBJECT", "").startswith(_WHOLE_ARRAY)
    # The same event has the same content, but for its time: slurmctld may call MailProg again.
    same = sorted((name, value) for name, value in fields.items() if name != "AT")
    digest = hashlib.sha256(msgspec.json.encode([same, at // _DAY])).hexdigest()
    facts = {shown: fields[name] for name, shown in _SHOWN.items() if fields.get(name)}
    tag = parse_array_tag(fields.get("JOB_COMMENT", ""))
    if tag is not None and array_id is not None:
        facts["array_token"] = tag.token
    return JobEvent(
        digest=digest,
        cluster=fields.get("CLUSTER_NAME", ""),
        job_id_raw=job_id_raw,
        array_id=array_id if array_id is not None or not whole else job_id_raw,
        whole_array=whole,
        kind=_kind(fields),
        user=fields.get("JOB_USER", ""),
        uid=_number(fields.get("JOB_UID", "")),
        address=fields["ADDRESS"].strip(),
        at=at,
        facts=facts,
    )


def _kind(fields: dict[str, str]) -> EventKind:
    mail_type = fields.get("JOB_MAIL_TYPE", "")
    if _TIME_LIMIT.fullmatch(mail_type):
        return "time"
    kind = _KINDS.get(mail_type, "other")
    badly = fields.get("JOB_STATE", "COMPLETED") != "COMPLETED"
    badly = badly or fields.get("JOB_EXIT_CODE_MAX", "0") != "0"
    return "fail" if kind == "end" and badly else kind


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) < _NO_VALUE else None
