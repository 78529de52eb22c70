"""Exit codes of jobs and steps, as Slurm writes them: `code:signal`.

Up to 25.05 sacct takes 128 off a code of 128 or more (src/sacct/print.c): after `exit 200` it
prints `72:0`. Such a code is `72 or 200` here. squeue tells the whole code while slurmctld
remembers the job. Later `sacct --json` does, since 23.11; it prints much, so it is asked for few.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from slurmkit.errors import SlurmError
from slurmkit.formats.job_ids import batch_job_ids
from slurmkit.formats.releases import EXIT_CODES_WHOLE_SINCE
from slurmkit.jobs.info import JobInfo
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.records import read_records

_TAKEN_OFF = 128
_JSON_BATCH = 50  # jobs in one `sacct --json`, which prints all steps in full
_MOST_JSON = 500  # jobs about which it is asked; the codes of further jobs stay in doubt
_PROGRAM_SIGNALS = range(1, 32)  # without the real-time signals
_releases: WeakKeyDictionary[SlurmCommands, tuple[int, ...]] = WeakKeyDictionary()


class ExitCode(NamedTuple):
    """How a job or step ended: an exit code or a signal.

    Attributes:
        codes: the possible exit codes: one; two if sacct may have taken 128 off; none if a signal
            ended it or it is unknown.
        signal: number of the signal.
    """

    codes: tuple[int, ...] = ()
    signal: int | None = None


def parse_exit_code(text: str | None) -> ExitCode:
    """Parse `3:0`, `0:9` or `72 or 200`; with a signal there is no exit code."""
    low, doubt, high = (text or "").partition(" or ")
    if doubt:
        return ExitCode((int(low), int(high)))
    code, _, number = low.partition(":")
    if not code.isdigit() or not number.isdigit():
        return ExitCode()
    return ExitCode(signal=int(number)) if int(number) else ExitCode((int(code),))


def sacct_exit_code(slurm: SlurmCommands, text: str, state: str) -> str:
    """Return an exit code of sacct; `72 or 200` if sacct may have taken 128 off.

    Args:
        slurm: ran the sacct.
        text: `code:signal`, as sacct printed it.
        state: the state of that job or step.
    """
    codes = parse_exit_code(text).codes
    if not codes or codes[0] >= _TAKEN_OFF or not (codes[0] or state.startswith("FAILED")):
        return text
    if read_sacct_release(slurm) >= EXIT_CODES_WHOLE_SINCE:
        return text
    return f"{codes[0]} or {codes[0] + _TAKEN_OFF}"


def read_sacct_release(slurm: SlurmCommands) -> tuple[int, ...]:
    """Return sacct's release, e.g. (24, 11, 5); empty if it does not say."""
    if slurm not in _releases:
        try:
            text = slurm.run(["sacct", "--version"])
        except SlurmError:
            return ()
        _releases[slurm] = tuple(int(part) for part in re.findall(r"\d+", text)[:3])
    return _releases[slurm]


def settle_exit_codes(slurm: SlurmCommands, infos: Iterable[JobInfo]) -> list[JobInfo]:
    """Return the facts of jobs with whole exit codes, where Slurm still tells them.

    Runs squeue for all codes in doubt, then sacct for those of up to `_MOST_JSON` other jobs.
    """
    settled = list(infos)
    if asked := list(filter(is_in_doubt, settled)):
        with suppress(SlurmError):
            settled = _with_codes(settled, read_squeue_codes(slurm, asked))
    asked = list(filter(is_in_doubt, settled))[:_MOST_JSON]
    with suppress(SlurmError):
        for first in range(0, len(asked), _JSON_BATCH):
            codes = _read_json_codes(slurm, asked[first : first + _JSON_BATCH])
            settled = _with_codes(settled, codes)
    return settled


def _with_codes(infos: Iterable[JobInfo], codes: Mapping[str, str]) -> list[JobInfo]:
    return [_with_code(info, codes.get(info.raw_id)) for info in infos]


def is_in_doubt(info: JobInfo) -> bool:
    """Return whether the exit code of a job, or of the worst part of one, may lack 128."""
    return len(parse_exit_code(info.exit_code).codes) > 1


def _with_code(info: JobInfo, code: str | None) -> JobInfo:
    """Return the job with this code, unless it is the code of another run."""
    if not is_in_doubt(info):
        return info
    return msgspec.structs.replace(info, exit_code=_settled(info.exit_code or "", code))


def _settled(doubt: str, code: str | None) -> str:
    """Return a whole exit code that settles a code in doubt, or else this one."""
    whole = parse_exit_code(code).codes
    return code if code and len(whole) == 1 and whole[0] in parse_exit_code(doubt).codes else doubt


def read_squeue_codes(slurm: SlurmCommands, infos: Iterable[JobInfo]) -> dict[str, str]:
    """Read the exit codes of ended jobs that slurmctld still remembers, by raw id.

    Raises:
        NoSuchJob: when it remembers none of a single job.
    """
    codes: dict[str, str] = {}
    for batch in batch_job_ids(info.part or info.job_id for info in infos):
        argv = ["squeue", "--states=all", f"--jobs={','.join(batch)}"]
        for raw_id, code in read_records(slurm, argv, ("JobID", "exit_code")):
            codes[raw_id.strip()] = _parse_status(code.strip())
    return codes


def _parse_status(text: str) -> str:
    """Return `code:signal`; up to 23.02 squeue prints the status of wait(2)."""
    if not text.isdigit():
        return text
    ended_by = int(text) & 0x7F
    return f"0:{ended_by}" if ended_by else f"{int(text) >> 8}:0"


class _JsonNumber(msgspec.Struct):
    number: int


class _JsonExitCode(msgspec.Struct):
    # Up to 23.02 a text, and the return code is then always 0.
    status: list[str]
    return_code: _JsonNumber


class _JsonStepId(msgspec.Struct):
    id: str


class _JsonStep(msgspec.Struct):
    step: _JsonStepId
    exit_code: _JsonExitCode


class _JsonRun(msgspec.Struct):
    job_id: int
    exit_code: _JsonExitCode
    steps: list[_JsonStep] = []


class _JsonAnswer(msgspec.Struct):
    jobs: list[_JsonRun]


def _read_json_codes(slurm: SlurmCommands, infos: Iterable[JobInfo]) -> dict[str, str]:
    """Read the exit codes of the jobs' last runs from `sacct --json`, by raw id."""
    runs = _read_json(slurm, [info.part or info.job_id for info in infos])
    return {str(run.job_id): code for run in runs if (code := _json_code(run.exit_code))}


def settle_step_codes(
    slurm: SlurmCommands, job_id: str, codes: Mapping[str, str]
) -> dict[str, str]:
    """Return the exit codes of a job's steps, whole where `sacct --json` tells them.

    Args:
        slurm: runs sacct, if one of them is in doubt.
        job_id: the job.
        codes: of its steps, by their id.
    """
    if not any(len(parse_exit_code(code).codes) > 1 for code in codes.values()):
        return dict(codes)
    runs: list[_JsonRun] = []
    with suppress(SlurmError):
        runs = _read_json(slurm, [job_id])
    if len(runs) != 1:  # the components of a het job have steps of the same numbers
        return dict(codes)
    # JSON has the job's raw id where sacct's text has that of the task.
    whole = {step.step.id.rpartition(".")[2]: _json_code(step.exit_code) for step in runs[0].steps}
    return {
        step_id: _settled(code, whole.get(step_id.rpartition(".")[2], ""))
        for step_id, code in codes.items()
    }


def _read_json(slurm: SlurmCommands, job_ids: Iterable[str]) -> list[_JsonRun]:
    text = slurm.run(["sacct", "--json", f"--jobs={','.join(job_ids)}"])
    try:
        return msgspec.json.decode(text, type=_JsonAnswer).jobs
    except (msgspec.MsgspecError, UnicodeError):  # 22.05 and 23.02
        return []


def _json_code(code: _JsonExitCode) -> str:
    return f"{code.return_code.number}:0" if "ERROR" in code.status else ""


def signal_name(number: int) -> str:
    """Return `SIGSEGV` for 11; `signal 53` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_end(text: str | None) -> str:
    """Write `3:0` as `exit code 3`, and `0:9` as `signal 9 (SIGKILL)`; empty if it is unknown."""
    codes, number = parse_exit_code(text)
    if codes:
        return f"exit code {describe_exit_codes(codes)}"
    if not number:
        return ""
    name = signal_name(number)
    return name if name == f"signal {number}" else f"signal {number} ({name})"


def describe_exit_codes(codes: tuple[int, ...]) -> str:
    """Write the possible exit codes: `3`, `72 or 200`, `137 (128 + 9, SIGKILL)`."""
    return " or ".join(map(_describe, codes))


def _describe(code: int) -> str:
    number = code - _TAKEN_OFF
    if number not in _PROGRAM_SIGNALS:
        return str(code)
    return f"{code} ({_TAKEN_OFF} + {number}, {signal_name(number)})"
