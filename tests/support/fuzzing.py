"""Run random cases of one fuzz target for some seconds; each case follows from the seed alone."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec

SEED = int(os.environ.get("SLURMKIT_TEST_FUZZ_SEED") or random.SystemRandom().randrange(10**6))
CASE = os.environ.get("SLURMKIT_TEST_FUZZ_CASE")  # only this case
SECONDS = float(os.environ.get("SLURMKIT_TEST_FUZZ_SECONDS") or 24)  # of one target
_CASE_CPU_SECONDS = 5.0
_CASE_MEMORY = 1 << 30

_PIECES = (
    *"'\"\\`$#%{}[]()<>|&;*?!~=,:/@^ \t\n\r\0\x01\x1b\x1e\x1f\x7f-+.0129",
    "$(touch OWNED)", "`touch OWNED`", "\n#SBATCH --wrap=x\n", "\n#PBS -q x\n", "${HOME}", "'; x",
    "..", "--", "\u202e", "\u2028", "\x85", "\xe9", "\u65e5", "\U0001f600", "\uffff", "\xa0",
    "null",
    "99999999999999999999", "1e400", "nan", "inf", "-1", "4294967294", "\u0663",
)  # fmt: skip


class _TooLong(BaseException):
    """One case used more CPU time than any case may."""


def fuzz(name: str, case: Callable[[random.Random], object], at_least: int) -> None:
    """Run cases until the time is over and enough are done; fail at the first wrong one.

    Args:
        name: of the target; a part of each case's seed.
        case: runs one case.
        at_least: number of cases for 24 seconds, however busy the machine is.
    """
    began, done, enough = time.monotonic(), 0, at_least * min(SECONDS / 24, 1)
    numbers = iter([int(CASE)]) if CASE else iter(range(1 << 60))
    for number in numbers:
        try:
            with _bounded():
                case(random.Random(f"{SEED} {name} {number}"))
        except (Exception, _TooLong) as error:
            again = f"make fuzz SEED={SEED} CASE={number} TARGET={name}"
            raise AssertionError(f"{name}: case {number} failed; repeat it with {again}") from error
        done += 1
        if time.monotonic() - began > SECONDS and done >= enough:
            break
    spent = time.monotonic() - began
    print(f"{name}: seed {SEED}, {done} cases, {done / spent:.0f} per second")


@contextmanager
def _bounded() -> Iterator[None]:
    """Bound the CPU time and the new memory of a case."""

    def stop(*_: object) -> None:
        raise _TooLong(f"more than {_CASE_CPU_SECONDS:.0f} s of CPU time")

    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGVTALRM, stop)
    most = pages * resource.getpagesize() + _CASE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, _CASE_CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGVTALRM, before)


def odd_text(chance: random.Random, most: int = 8) -> str:
    """Return text of quotes, line breaks, control characters, numbers and words."""
    pieces = (
        chance.choice(_PIECES) if chance.random() < 0.6 else chr(chance.randrange(97, 123))
        for _ in range(chance.randrange(most + 1))
    )
    return "".join(pieces)


def mutated(chance: random.Random, text: str) -> str:
    """Return text with some parts cut, doubled, moved or replaced by odd ones."""
    for _ in range(chance.randrange(4)):
        at, end = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        part = chance.choice(("", text[at:end] * 2, odd_text(chance, 3), chance.choice(_PIECES)))
        text = text[:at] + part + text[chance.choice((at, end)) :]
    return text


def one_of(chance: random.Random, examples: Sequence[str]) -> str:
    """Return one of the examples, mutated, or odd text."""
    return odd_text(chance) if chance.random() < 0.1 else mutated(chance, chance.choice(examples))


_GPUS_AND_PROCESSORS: tuple[tuple[Gpus | None, dict[str, int]], ...] = (
    (None, {}),
    (None, {"cpus_per_task": 4}),
    (None, {"mincpus": 3, "ntasks": 2}),
    (None, {"sockets_per_node": 2, "cores_per_socket": 2, "threads_per_core": 1}),
    (None, {"ntasks_per_socket": 2, "ntasks_per_core": 1, "ntasks_per_node": 2}),
    (Gpus(), {"cpus_per_task": 1}),
    (Gpus(2), {}),
    (Gpus(2, "a100"), {"cpus_per_gpu": 3}),
    (Gpus(2, "a100", bind="closest"), {"ntasks_per_gpu": 2}),
    (Gpus(2, per="job"), {"ntasks_per_gpu": 1}),
    (Gpus(1, "a100", "task"), {"ntasks": 2}),
    (Gpus(4, "a100", sockets=2), {"sockets_per_node": 2}),
)
_PASSED_ON: tuple[dict[str, str], ...] = (
    {},
    {"contiguous": "", "distribution": "block:*,pack"},
    {"export": "PATH,HOME", "mem-bind": "verbose,local", "wckey": "a=b"},
    {"gres-flags": "enforce-binding", "comment-of-a-plugin": 'it\'s # "x"'},
)


def random_spec(chance: random.Random) -> JobSpec:
    """Return a job with odd words, name, comment and variables; GPUs of any kind.

    A value that no job can have, such as a name with a line break, is left out.
    """

    def line() -> str | None:
        text = odd_text(chance)
        return None if not text or set(text) & set("\n\r\0") else text

    gpus, processors = chance.choice(_GPUS_AND_PROCESSORS)
    words = tuple(odd_text(chance).replace("\0", "") for _ in range(chance.randrange(4)))
    names = ("A", "GREETING", "x_1", "EMPTY")
    return JobSpec(
        command=("train", *words),
        job_name=line(),
        comment=line(),
        nodes=chance.choice((None, 1, 2)),
        gpus=gpus,
        mem=chance.choice((None, "1G", "512M")),
        tmp=chance.choice((None, "1G")),
        hint=chance.choice((None, "nomultithread")),
        overcommit=chance.random() < 0.2,
        spread_job=chance.random() < 0.2,
        use_min_nodes=chance.random() < 0.2,
        options=chance.choice(_PASSED_ON),
        **processors,
        time=chance.choice(("10", "1:00:00", "1-2")),
        chdir=chance.choice(("/", "/home/alice", "/tmp/it's a b")),
        environment={
            name: odd_text(chance).replace("\0", "")
            for name in chance.sample(names, chance.randrange(4))
        },
    )
