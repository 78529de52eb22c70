"""How jobs end, in words: exit codes, signals and Slurm's own reasons, each with advice."""

from __future__ import annotations

import signal

from slurmkit.jobs.outcome import NO_OUTPUT

# Meaning and advice. Codes above 128 are a signal that ended the last command.
CODES: dict[int, tuple[str, str]] = {
    1: ("the script's last command failed", "see the error in its log"),
    2: ("a command was called wrongly, or its input was wrong", "see the error in its log"),
    126: (
        "a command was found and could not be run",
        "make it executable (chmod +x), and see whether it is built for the nodes' CPUs",
    ),
    127: (
        "a command was not found",
        "load its module or activate its environment in the script, or give its whole path",
    ),
    255: ("a command ended with an error of its own, as ssh and MPI do", "see its log"),
}
SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGKILL: (
        "it was killed",
        "most often for its memory: ask for more with --mem, or see who ended it",
    ),
    signal.SIGSEGV: (
        "it touched memory that is not its own",
        "a bug of the program or a library that does not go with it; get a core file or a debugger",
    ),
    signal.SIGBUS: (
        "a bus error",
        "often /dev/shm is full (workers of a data loader), or a file was cut while it was read",
    ),
    signal.SIGABRT: (
        "it gave up by itself",
        "an assertion failed, or NCCL's watchdog ended it; see the error in its log",
    ),
    signal.SIGILL: (
        "an instruction that this CPU does not have",
        "it was built for other CPUs; build it on the node, or choose nodes with --constraint",
    ),
    signal.SIGFPE: ("an arithmetic error, such as a division by 0", "see the error in its log"),
    signal.SIGTERM: ("it was asked to end", "see who cancelled it, or which command ended it"),
    signal.SIGINT: ("it was interrupted", "see which command interrupted it"),
    signal.SIGPIPE: ("it wrote to a command that had ended", "see which command ended first"),
    signal.SIGXCPU: ("it used up its CPU time (ulimit -t)", "ask your administrator for the limit"),
    NO_OUTPUT: (
        "its output file could not be opened on the node",
        "give an --output whose directory is there and yours, seen from the node too",
    ),
}
ADVICE: dict[str, str] = {
    "timeout": "ask for more time, or let it save its state and come back: --on-timeout requeue",
    "out_of_memory": "ask for more memory: --mem or --mem-per-cpu",
    "preempted": "let it save its state and come back: --on-preempt requeue; or use another QOS",
    "node_failure": "submit it again, with --on-node-fail requeue; --exclude avoids the node",
    "cancelled": "",
    "deadline": "submit it with a later --deadline, or a shorter --time",
    "boot_failure": "submit it again; tell your administrator of the node",
    "unknown": "ask your administrator: its record is not in the accounting database",
}


def of_code(code: int) -> tuple[str, str]:
    """What an exit code means, and what to do."""
    if code in CODES:
        return CODES[code]
    if code > 128 and code - 128 in SIGNALS:
        means, advice = SIGNALS[code - 128]
        return f"its last command was ended by signal {code - 128}: {means}", advice
    return "the program chose this code itself", "see its documentation, and the error in its log"


def of_signal(number: int) -> tuple[str, str]:
    """What a signal means, and what to do."""
    return SIGNALS.get(number, ("a signal ended it", "see the error in its log"))
