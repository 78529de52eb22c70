"""What can be changed of a job that was submitted."""

from __future__ import annotations

import signal

import msgspec

from slurmkit.durations import parse_time_limit
from slurmkit.errors import BadInput
from slurmkit.valueforms import FORMS, check_text


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """New values for a job; None leaves one as it is.

    Attributes:
        time_limit: any form of sbatch(1) `--time`; users may only lower that of a running job.
        priority: 0 and more; most sites let only operators set it.
        partition: one or several with commas, of a job that waits.
        qos: of a job that waits.
        job_name: any text on one line.
        nice: added to what lowers the priority; only operators may go below 0.

    Raises:
        BadInput: for a value that Slurm would not take, or when there is nothing to change.
    """

    time_limit: str | None = None
    priority: int | None = None
    partition: str | None = None
    qos: str | None = None
    job_name: str | None = None
    nice: int | None = None

    def __post_init__(self) -> None:
        """Check the form of each value."""
        if self.time_limit is not None:
            parse_time_limit(self.time_limit)
        if self.priority is not None and not 0 <= self.priority <= 2**32 - 3:
            raise BadInput(f"--priority is a number from 0 to {2**32 - 3}, not {self.priority}")
        for name, value in self.options().items():
            form = FORMS.get(name.replace("-", "_"))
            check_text(f"--{name}", value)
            if form and form.pattern and not form.pattern.fullmatch(value):
                raise BadInput(f"--{name} {value!r} is not {form.meaning}")
        if not self.options():
            raise BadInput(f"nothing to change; there are --{', --'.join(_OPTIONS.values())}")

    def options(self) -> dict[str, str]:
        """The changes by sbatch's long options."""
        values = {name: getattr(self, field) for field, name in _OPTIONS.items()}
        return {name: str(value) for name, value in values.items() if value is not None}


def check_signal(text: str) -> str:
    """Return a signal as scancel takes it: `USR1`, or `B:USR1` for the batch shell.

    Raises:
        BadInput: for anything else.
    """
    batch, _, name = text.upper().rpartition(":")
    short = name.removeprefix("SIG")
    known = short in _SIGNALS or (short.isdigit() and 1 <= int(short) <= 64)
    if batch not in {"", "B"} or not known:
        raise BadInput(f"--signal {text!r} is no signal; e.g. USR1, or B:USR1 for the batch shell")
    return f"B:{short}" if batch else short


_SIGNALS = {one.name.removeprefix("SIG") for one in signal.Signals}
_OPTIONS = {
    "time_limit": "time",
    "priority": "priority",
    "partition": "partition",
    "qos": "qos",
    "job_name": "job-name",
    "nice": "nice",
}
