"""What a user asks for: frozen, typed, without any I/O."""

from __future__ import annotations

import re

import msgspec

from slurmkit.durations import parse_time_limit
from slurmkit.errors import BadInput

_GPUS = re.compile(r"(?:(?P<type>[A-Za-z0-9][\w.\-]*):)?(?P<count>\d+)")
_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*")
_NAMES = re.compile(rf"{_NAME.pattern}(,{_NAME.pattern})*")


class Gpus(msgspec.Struct, frozen=True):
    """Whole GPUs on each node.

    Attributes:
        count: GPUs per node, at least 1.
        type: GRES type as the cluster names it (`a100`), or None for any.
    """

    count: int
    type: str | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BadInput(
                f"{self.count} GPUs per node cannot be asked for; leave the option out for none"
            )
        if self.type is not None and not _NAME.fullmatch(self.type):
            raise BadInput(
                f"GPU type {self.type!r} may hold only letters, digits, '.', '_' and '-'"
            )

    @classmethod
    def parse(cls, text: str) -> Gpus:
        """Read `[TYPE:]COUNT`, the form of sbatch's `--gpus-per-node`.

        Raises:
            BadInput: for any other form.
        """
        match = _GPUS.fullmatch(text)
        if match is None:
            raise BadInput(f"GPUs {text!r} are not of the form [TYPE:]COUNT, e.g. 2 or a100:2")
        return cls(int(match["count"]), match["type"])

    def __str__(self) -> str:
        return f"{self.type}:{self.count}" if self.type else str(self.count)


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job as its user means it; options are named as sbatch's long options.

    Attributes:
        command: argv that srun starts once per task; never a shell line.
        nodes: number of nodes.
        gpus: GPUs on each node.
        ntasks_per_node: processes per node.
        cpus_per_task: CPUs for each process.
        mem: memory per node, Slurm's form (`64G`; MiB without a suffix).
        time: time limit, any form of sbatch(1) `--time`.
        output: path of the log; Slurm's patterns (`%j`) allowed; relative to `chdir`.
        chdir: where the job starts, absolute.
    """

    command: tuple[str, ...]
    nodes: int = 1
    gpus: Gpus | None = None
    ntasks_per_node: int = 1
    cpus_per_task: int = 1
    mem: str | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    job_name: str | None = None
    comment: str | None = None
    output: str = "slurm-%j.out"
    chdir: str | None = None

    def __post_init__(self) -> None:
        _check_command(self.command)
        for name in ("nodes", "ntasks_per_node", "cpus_per_task"):
            if getattr(self, name) < 1:
                raise BadInput(f"{_option(name)} must be at least 1, not {getattr(self, name)}")
        texts = {name: getattr(self, name) for name in _TEXTS}
        for name, value in texts.items():
            if value == "":
                raise BadInput(f"{_option(name)} may not be empty; leave it out for the default")
        if self.time is not None:
            parse_time_limit(self.time)
        for name, (form, meaning) in _FORMS.items():
            value = texts[name]
            if value is not None and not form.fullmatch(value):
                raise BadInput(f"{_option(name)} {value!r} is not {meaning}")


_TEXTS = (*"mem time partition account qos job_name output chdir".split(),)
_FORMS = {
    "mem": (
        re.compile(r"\d+[KMGT]?", re.IGNORECASE),
        "a size: a number with K, M, G or T, e.g. 64G",
    ),
    "partition": (_NAMES, "a Slurm name"),
    "account": (_NAMES, "a Slurm name"),
    "qos": (_NAMES, "a Slurm name"),
    "chdir": (re.compile(r"/.*", re.DOTALL), "an absolute path"),
}


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_command(command: tuple[str, ...]) -> None:
    if isinstance(command, str):
        raise BadInput(f"the command is a tuple of words, not one text: {command!r}")
    if not command:
        raise BadInput("no command to run; give it after --, e.g. -- python train.py")
    for word in command:
        if "\0" in word:
            raise BadInput("an argument of the command holds a NUL, which no program can be given")
        if not is_utf8(word):
            raise BadInput(f"an argument of the command is not UTF-8 text: {word!r}")


def is_utf8(text: str) -> bool:
    """Whether `text` can be written as UTF-8; bytes of another encoding in argv cannot."""
    return not any("\ud800" <= char <= "\udfff" for char in text)
