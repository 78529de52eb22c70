#!/usr/bin/python3 -EsB
"""Check a node's GPUs, links and disk, for Slurm and for monitoring.

Installed in /etc/slurm, with node_checks.py and node_settings.py next to it. They stand alone: the
standard library of Python 3.6 or later.
"""

import argparse
import contextlib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import syslog
import time
from pathlib import Path
from typing import Any, NamedTuple

from node_checks import (  # type: ignore[import-not-found]  # next to this file on a node
    HANGS,
    SOURCES,
    read_line,
)
from node_settings import (  # type: ignore[import-not-found]  # next to this file on a node
    CHECKS,
    CONF_FILE,
    CONTEXTS,
    SEVERITIES,
    BadSettings,
    CheckResult,
    CheckSettings,
    load_conf,
)

FOLDER = "/run/slurmkit/node_check"
PREFIX = "slurmkit: "
MOST_REASON = 240
"""Characters: slurmdbd keeps 255 bytes of a reason."""
SLURMS_REASONS = (
    "Prolog error",
    "Epilog error",
    "Prolog/Epilog failure",
    "Not responding",
    "Node unexpectedly rebooted",
)
"""What slurmctld itself writes, and nobody misses when it gives way to a fault."""
ROUNDS_TO_RESUME = 3
SCONTROL_SECONDS = 5
FAULTS_SECONDS = 7200
"""gpus.sh waits as long for a health check before it tells slurmctld itself."""
DRAINING_SECONDS = 60
"""slurmctld has drained a node that long after a prolog or epilog has failed there."""
OUT_OF_USE = {"DRAIN", "FAIL", "DOWN"}
RESUMED = " (the node was resumed with it)"
# Keys of state.json as slurmkit 0.1 wrote them, and today's.
OLD_KEYS = {"told": "reported", "told_at": "reported_at"}

EXAMPLES = """examples:
  node_check.py                      check this node and print one line; changes nothing
  node_check.py --all                the same, with a line for each check
  node_check.py --json | jq .checks  the same for a program
  node_check.py --context health     what slurmd does: also drain the node if something is wrong
  node_check.py --forget             after a repair without a reboot: earlier Xids count no more

in slurm.conf:
  HealthCheckProgram=/etc/slurm/node_check.py
  HealthCheckInterval=300

exit code: 0 OK, 1 WARNING (a note), 2 CRITICAL (drain), 3 UNKNOWN; in Slurm's prolog, epilog and
health check 0, or 2 if the node must be drained. Settings: /etc/slurm/slurmkit_node.conf."""


# --- running all of it by the deadline ----------------------------------------------------------


def run_sources(
    names: "list[str]", conf: CheckSettings, state: "dict[str, Any]", deadline: float
) -> "tuple[list[CheckResult], dict[str, Any], dict[str, list[list[int]]]]":
    """Read several sources at the same time, each in a process of its own, until the deadline.

    A process in state D cannot be killed. So none of them has an open file of ours but its pipe,
    and nobody waits for one.

    Args:
        names: keys of `SOURCES`.
        conf: the settings.
        state: what the last health check has stored.
        deadline: of the monotonic clock, in seconds.

    Returns:
        The results, facts to keep, and by source the processes (pid, start) that did not end.
    """
    running = {}
    for name in names:
        pid, pipe = _start(name, conf, state)
        running[pipe] = (name, pid, bytearray())
    results, facts = [], {}  # type: list[CheckResult], dict[str, Any]
    while running:
        left = deadline - time.monotonic()
        ready = select.select(list(running), [], [], max(0.0, left))[0]
        if not ready and left <= 0:
            break
        for pipe in ready:
            name, pid, output = running[pipe]
            part = os.read(pipe, 65536)
            output += part
            if not part:
                del running[pipe]
                os.close(pipe)
                os.waitpid(pid, 0)
                more, found = _parse_answer(name, bytes(output))
                results += more
                facts.update(found)
    hanging = {}
    for name, pid, _ in running.values():
        hanging[name] = _kill(pid)
    return results, facts, hanging


def _start(name: str, conf: CheckSettings, state: "dict[str, Any]") -> "tuple[int, int]":
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        with os.fdopen(writing, "w") as file:
            file.write(_answer(name, conf, state))
    finally:
        os._exit(0)


def _answer(name: str, conf: CheckSettings, state: "dict[str, Any]") -> str:
    try:
        return json.dumps(SOURCES[name](conf, state))
    except Exception as error:  # noqa: BLE001 - a check that fails must not stop the others
        return json.dumps([[], {"failed": f"{type(error).__name__}: {error}"}])


def _parse_answer(name: str, answer: bytes) -> "tuple[list[CheckResult], dict[str, Any]]":
    try:
        rows, facts = json.loads(answer.decode("utf-8"))
    except ValueError:
        rows, facts = [], {"failed": "it ended without an answer"}
    failed = facts.pop("failed", None)
    results = [CheckResult(*row) for row in rows]
    if failed:
        checks = [check for check, info in CHECKS.items() if info.source == name]
        results += [CheckResult(check, "unknown", failed) for check in checks]
    return results, facts


def _kill(group: int) -> "list[list[int]]":
    """Kill a session; return pid and start of its processes that are there afterwards."""
    members = _members(group)
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    time.sleep(0.05)
    with contextlib.suppress(OSError):
        os.waitpid(group, os.WNOHANG)
    return [member for member in members if is_running(member)]


def _members(group: int) -> "list[list[int]]":
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _stat_of(folder.name)
        if fields and int(fields[3]) == group:
            found.append([int(folder.name), int(fields[19])])
    return found


def is_running(process: "list[int]") -> bool:
    """Return whether a process (pid, start) is still there. A zombie is not."""
    fields = _stat_of(str(process[0]))
    return bool(fields) and int(fields[19]) == process[1] and fields[0] not in "ZX"


def _stat_of(pid: str) -> "list[str]":
    """Return the fields of /proc/PID/stat from the state on; none if there is no such process."""
    try:
        return Path("/proc", pid, "stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return []


# --- one round ----------------------------------------------------------------------------------


class CheckRound(NamedTuple):
    """What one round of checks has found.

    Attributes:
        results: all, in the order of `CHECKS`.
        facts: what the next round should know.
        hanging: processes that cannot be killed, by source.
        seconds: how long it took.
    """

    results: "list[CheckResult]"
    facts: "dict[str, Any]"
    hanging: "dict[str, list[list[int]]]"
    seconds: float


def check_node(context: str, conf: CheckSettings, state: "dict[str, Any]") -> CheckRound:
    """Run the checks of a context."""
    begin = time.monotonic()
    # A process that could not be killed still hangs: another one would hang, too.
    hanging = {
        name: [each for each in pids if is_running(each)]
        for name, pids in state.get("hanging", {}).items()
    }
    hanging = {name: pids for name, pids in hanging.items() if pids}
    checks = [name for name in CHECKS if _is_wanted(name, context, conf, state)]
    sources = sorted({CHECKS[name].source for name in checks} - set(hanging))
    facts = {}  # type: dict[str, Any]
    deadline = begin + conf.deadlines[context]
    # slurmd -G may ask slurmctld for its configuration: not on the way of a job.
    if conf.gpus is None and context in {"hand", "health"} and "smi" in sources:
        _, facts, _ = run_sources(["expected"], conf, state, min(deadline, begin + 20))
    results, more, late = run_sources(sources, conf, dict(state, **facts), deadline)
    facts.update(more)
    for name in sorted({*hanging, *late}):
        results += _hang_results(name, checks, context, conf)
    hanging.update({name: pids for name, pids in late.items() if pids})
    results = [_with_severity(each, conf) for each in results if each.check in checks]
    results.sort(key=lambda each: (list(CHECKS).index(each.check), each.pci, each.text))
    return CheckRound(results, facts, hanging, time.monotonic() - begin)


def _is_wanted(name: str, context: str, conf: CheckSettings, state: "dict[str, Any]") -> bool:
    if name in conf.skip or context not in CHECKS[name].contexts:
        return False
    if name != "diag":
        return True
    waited = time.time() - state.get("diag", 0)
    return context in conf.diag and (context != "health" or waited >= conf.diag_hours * 3600)


def _hang_results(
    name: str, checks: "list[str]", context: str, conf: CheckSettings
) -> "list[CheckResult]":
    """Say that a source gave no answer; in a prolog, which has little time, that means nothing."""
    text = f"no answer from {HANGS[name]} within {conf.deadlines[context]:g} s"
    own = [check for check in checks if CHECKS[check].source == name]
    fault = context == "health" and name in {"smi", "tmp"}
    return [
        CheckResult(check, "drain" if fault and at == 0 else "unknown", text)
        for at, check in enumerate(own)
    ]


def _with_severity(result: CheckResult, conf: CheckSettings) -> CheckResult:
    if result.state not in SEVERITIES:
        return result
    return result._replace(state=conf.severity.get(result.check, result.state))


def describe(result: CheckResult, gpus: "list[dict[str, Any]]") -> str:
    """Return a result as it stands in a reason: `ecc SERIAL: /dev/nvidia3: text`."""
    gpu = find_gpu(result.pci, gpus)
    name = gpu.get("serial") or gpu.get("uuid") or result.pci
    number = "/dev/nvidia{}: ".format(gpu["minor_number"]) if gpu.get("minor_number") else ""
    text = f"{number}{result.text}"
    return clean("{}{}: {}".format(result.check, " " + name if name else "", text))


def find_gpu(pci: str, gpus: "list[dict[str, Any]]") -> "dict[str, Any]":
    """Find a GPU by its PCI address or UUID; an empty one if it is not known."""
    return next((gpu for gpu in gpus if pci and pci in {gpu["pci"], gpu["uuid"]}), {})


def clean(text: str) -> str:
    """Return printable ASCII without the sign that separates faults in a reason."""
    return re.sub(r"[^ -~]+", " ", text).replace(";", ",").strip()


def status_of(results: "list[CheckResult]") -> "tuple[int, str]":
    """Return exit code and word as Nagios and NHC have them."""
    states = {result.state for result in results}
    if states & {"drain", "page"}:
        return 2, "CRITICAL"
    if "note" in states:
        return 1, "WARNING"
    return (3, "UNKNOWN") if "unknown" in states else (0, "OK")


def summary(found: CheckRound, gpus: "list[dict[str, Any]]") -> str:
    """Return the round in one line."""
    word = status_of(found.results)[1]
    for states in (("page", "drain"), ("note",), ("unknown",)):
        wrong = [describe(each, gpus) for each in found.results if each.state in states]
        if wrong:
            return "{}: {}".format(word, "; ".join(wrong))
    done = {each.check for each in found.results if each.state == "ok"}
    return f"{word}: {len(done)} checks, {len(gpus)} GPUs"


# --- the reason of the node in Slurm ------------------------------------------------------------


def drain(node: str, faults: "list[str]", states: "set[str]", old: str) -> "tuple[str | None, str]":
    """Take the node out of use, or name further faults in its reason.

    SchedMD lets a HealthCheckProgram do so (man slurm.conf). The reason of an administrator is
    left alone.

    Args:
        node: its name.
        faults: what is wrong with it, at least one.
        states: what slurmctld says of it, as `old`.
        old: its reason.

    Returns:
        The reason that the node has from us now, or None; and what to say about it.
    """
    is_out = bool(states & OUT_OF_USE)
    ours = old.startswith(PREFIX)
    others = bool(old) and not ours and old not in SLURMS_REASONS
    if is_out and others:
        return None, f"the node is already out of use: {old}"
    reason = merge_reason(old if ours and is_out else "", faults)
    if is_out and old == reason:
        return reason, ""
    if others:  # somebody's note on a node in use
        reason = f"{old}; {reason}"[: max(len(old), MOST_REASON)]
    code, output = _scontrol("update", "NodeName=" + node, "State=DRAIN", "Reason=" + reason)
    return (None, "cannot drain the node: " + output) if code else (reason, "drained: " + reason)


def merge_reason(old: str, faults: "list[str]") -> str:
    """Add faults to a reason.

    One that it names already stays as it is: a number in it must not make a new reason, and a new
    event in slurmdbd, each time.
    """
    parts = old[len(PREFIX) :].split("; ") if old else []
    named = {part.partition(":")[0] for part in parts}
    for fault in faults:
        subject = fault.partition(":")[0]
        # A serial number that is cut off would be another one.
        fits = not parts or len(PREFIX + "; ".join([*parts, fault])) <= MOST_REASON
        if subject not in named and fits:
            named.add(subject)
            parts.append(fault)
    return (PREFIX + "; ".join(parts))[:MOST_REASON]


def may_resume(reason: str, results: "list[CheckResult]") -> bool:
    """Return whether each check that the reason names is fine now."""
    fine = {each.check for each in results if each.state == "ok"}
    fine -= {each.check for each in results if each.state not in {"ok", "skipped"}}
    named = {part.partition(":")[0].split()[0] for part in reason[len(PREFIX) :].split("; ")}
    return named <= fine


def resume(node: str, ours: str, results: "list[CheckResult]") -> "tuple[str | None, str]":
    """Take the node back into use, if its reason is from us and nothing of it is wrong any more.

    Args:
        node: its name.
        ours: the reason that we gave it.
        results: of this round.

    Returns:
        The reason that the node still has from us, or None; and what to say about it.
    """
    try:
        states, reason = node_state(node)
    except NoAnswer as error:
        return ours, f"cannot resume: {error}"
    if "DRAIN" not in states or not reason.startswith(PREFIX):
        return None, ""
    if not may_resume(reason, results):
        return reason, ""
    code, output = _scontrol("update", "NodeName=" + node, "State=RESUME")
    return (reason, "cannot resume: " + output) if code else (None, "resumed; it was: " + reason)


class NoAnswer(Exception):
    """Slurmctld does not say how the node is; whoever wrote its reason must not lose it."""


def node_state(node: str) -> "tuple[set[str], str]":
    """Ask slurmctld for states and reason of the node.

    Raises:
        NoAnswer: when it does not answer.
    """
    code, output = _scontrol("-o", "show", "node", node)
    if code:
        raise NoAnswer(output.strip())
    state = re.search(r" State=(\S+)", output)
    reason = re.search(r" Reason=(.*?)(?: \[[^ \]]+@|$)", output, re.MULTILINE)
    states = [re.sub(r"\W+$", "", each) for each in state.group(1).split("+")] if state else []
    return set(states), reason.group(1) if reason else ""


def _scontrol(*words: str) -> "tuple[int, str]":
    process = subprocess.Popen(
        ["scontrol", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output = process.communicate(timeout=SCONTROL_SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return 1, f"scontrol does not answer within {SCONTROL_SECONDS} s"
    return process.returncode, output.decode("utf-8", "replace")


# --- the program --------------------------------------------------------------------------------


def find_context() -> str:
    """Return who calls: Slurm gives its scripts no arguments, but a variable."""
    script = os.environ.get("SLURM_SCRIPT_CONTEXT", "")
    if script in {"prolog_slurmd", "epilog_slurmd"}:
        return script.partition("_")[0]
    # A health check has the node's name and nothing of a job.
    is_health = "SLURMD_NODENAME" in os.environ and "SLURM_JOB_ID" not in os.environ
    return "health" if is_health else "hand"


def load_state(folder: Path) -> "dict[str, Any]":
    """Load what the last health check stored; nothing of it holds after a boot."""
    state = _load_since_boot(folder / "state.json")
    # A prolog or epilog keeps what hangs in a file of its own, as `--forget` does.
    hanging = dict(state.get("hanging", {}))
    for name, pids in _load_since_boot(folder / "hanging.json").get("hanging", {}).items():
        known = hanging.get(name, [])
        hanging[name] = known + [pid for pid in pids if pid not in known]
    state = dict(state, hanging=hanging)
    forgotten = load_forgotten(folder)
    for old, new in OLD_KEYS.items():
        if old in state:
            state.setdefault(new, state.pop(old))
    return dict(state, forgotten=forgotten) if forgotten > state.get("forgotten", -1.0) else state


def load_forgotten(folder: Path) -> float:
    """Return when `--forget` ran last, in seconds since the boot; -1 if it did not.

    It has a file of its own: a health check that runs meanwhile overwrites the state.
    """
    return float(_load_since_boot(folder / "forgotten.json").get("at", -1.0))


def _load_since_boot(path: Path) -> "dict[str, Any]":
    try:
        content = json.loads(path.read_text("utf-8"))
        return content if isinstance(content, dict) and content.get("boot") == _boot() else {}
    except (OSError, ValueError):
        return {}


def _boot() -> str:
    return str(read_line(Path("/proc/sys/kernel/random/boot_id")))


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def write_file(path: Path, content: "dict[str, Any]", mode: int = 0o644) -> None:
    """Write a JSON file in one step. Without a place to write, the checks still count."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(0o755, parents=True, exist_ok=True)
        new.write_text(json.dumps(content, sort_keys=True) + "\n", "utf-8")
        new.chmod(mode)
        new.replace(path)
    except OSError as error:
        say(f"cannot write {path}: {error.strerror}")


def take_faults(folder: Path) -> "tuple[list[str], float]":
    """Take the faults that prolog and epilog have left, one a line; none that are hours old.

    Returns:
        The faults, and how many seconds ago the last one was left.
    """
    taken = folder / "faults.taken"
    try:
        (folder / "faults").replace(taken)
        age = time.time() - taken.stat().st_mtime
        if age > FAULTS_SECONDS:
            return [], age
        lines = taken.read_text("utf-8", "replace").splitlines()
        return [clean(line) for line in lines if line], age
    except OSError:
        return [], 0.0


def leave_faults(folder: Path, faults: "list[str]") -> None:
    """Leave faults of a prolog or epilog for the health check, which gives slurmctld the reason."""
    try:
        folder.mkdir(0o755, parents=True, exist_ok=True)
        with (folder / "faults").open("a", encoding="utf-8") as file:
            file.write("".join(fault + "\n" for fault in faults))
    except OSError as error:
        say(f"cannot write into {folder}: {error.strerror}")


def say(text: str, level: int = syslog.LOG_INFO) -> None:
    """Write a line to standard error and to the system's log."""
    print(text, file=sys.stderr)
    syslog.openlog("slurmkit-node_check", 0, syslog.LOG_DAEMON)
    syslog.syslog(level, text)


def page(conf: CheckSettings, node: str, faults: "list[str]") -> None:
    """Tell people at once: the system's log as an alert, and the site's own command."""
    text = "{}: {}".format(node, "; ".join(faults))
    say(text, syslog.LOG_ALERT)
    if conf.page:
        nothing = subprocess.DEVNULL
        try:
            subprocess.Popen(
                [*shlex.split(conf.page), text],
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                start_new_session=True,
            )
        except OSError as error:
            say(f"CHECK_PAGE={conf.page}: {error.strerror}")


def without_forgotten(found: CheckRound, after: float) -> CheckRound:
    """Return a round without the Xids of before `--forget`, which may have run meanwhile."""
    results = [
        CheckResult("xid", "ok", "") if each.check == "xid" and 0 <= _xid_at(each, found) <= after
        else each
        for each in found.results
    ]  # fmt: skip
    return found._replace(results=results)


def _xid_at(result: CheckResult, found: CheckRound) -> float:
    """Return when an Xid came last, in seconds since the boot; -1 if that is not known."""
    key = result.pci + "|" + result.text.partition(" ")[0]
    return float(found.facts.get("xids", {}).get(key, {}).get("at", -1.0))


def without_accepted(
    found: CheckRound, state: "dict[str, Any]", conf: CheckSettings, context: str
) -> CheckRound:
    """Make notes of the faults with which somebody has resumed the node.

    A prolog or epilog, which asks slurmctld nothing, also leaves a fault alone that the reason of
    the node has named for a while: a job starts on this node, so somebody has resumed it.
    """
    gpus = found.facts.get("gpus") or state.get("gpus", [])
    since = time.time() - conf.resumed_hours * 3600
    accepted = {
        fault: at["up"] for fault, at in state.get("accepted", {}).items() if at["at"] > since
    }
    reported = state.get("reported", ()) if context in {"prolog", "epilog"} else ()
    if time.time() - state.get("reported_at", 0) < DRAINING_SECONDS:
        reported = ()
    results = []
    for each in found.results:
        fault = describe(each, gpus)
        is_old = fault in accepted and _xid_at(each, found) <= accepted[fault]
        if each.state in {"drain", "page"} and (is_old or fault in reported):
            results.append(each._replace(state="note", text=each.text + RESUMED))
        else:
            results.append(each)
    return found._replace(results=results)


def still_there(faults: "list[str]", found: CheckRound, now: "list[str]") -> "list[str]":
    """Return those of some faults that this round has seen, or could not look for."""
    seen = {each.check for each in found.results if each.state != "unknown"}
    seen -= {each.check for each in found.results if each.state == "unknown"}
    return [each for each in faults if each in now or re.split(r"[ :]", each)[0] not in seen]


def act_on_health(
    folder: Path, node: str, found: CheckRound, state: "dict[str, Any]", conf: CheckSettings
) -> "dict[str, Any]":
    """Drain or resume the node, and return what the next health check must know."""
    gpus = found.facts.get("gpus") or state.get("gpus", [])
    new_state = dict(state, **found.facts)
    new_state.update(boot=_boot(), hanging=found.hanging, gpus=gpus)
    left, age = take_faults(folder)
    faults = [describe(each, gpus) for each in found.results if each.state in {"drain", "page"}]
    urgent = [describe(each, gpus) for each in found.results if each.state == "page"]
    new_state["paged"] = [fault.partition(":")[0] for fault in urgent]
    new = [fault for fault in urgent if fault.partition(":")[0] not in state.get("paged", ())]
    if new:
        page(conf, node, new)
    shown = [describe(each, gpus).partition(RESUMED)[0] for each in found.results]
    new_state["reported"] = still_there(state.get("reported", []), found, shown)
    new_state["accepted"] = {
        fault: state["accepted"][fault]
        for fault in still_there(list(state.get("accepted", ())), found, shown)
        # One that is a fault all the same has come again since, or its time is over.
        if fault not in faults
    }
    if faults or left:
        new_state["fine"] = 0
        return dict(new_state, **_tell_faults(folder, node, faults, (left, age), new_state, conf))
    new_state["fine"] = state.get("fine", 0) + 1
    if conf.resume and state.get("reason") and new_state["fine"] >= ROUNDS_TO_RESUME:
        new_state["reason"], text = resume(node, state["reason"], found.results)
        if text:
            say(text, syslog.LOG_NOTICE)
    return new_state


def _tell_faults(
    folder: Path,
    node: str,
    faults: "list[str]",
    of_jobs: "tuple[list[str], float]",
    state: "dict[str, Any]",
    conf: CheckSettings,
) -> "dict[str, Any]":
    """Drain the node for its faults, but not for those with which somebody has resumed it.

    Args:
        folder: where prolog and epilog leave faults.
        node: its name.
        faults: what this round has found.
        of_jobs: what prolog and epilog have left, and how many seconds ago.
        state: the new state so far.
        conf: the settings.

    Returns:
        What else the next health check must know.
    """
    left, age = of_jobs
    try:
        states, old = node_state(node)
    except NoAnswer as error:
        say(f"cannot drain the node: {error}", syslog.LOG_ERR)
        if left:
            leave_faults(folder, left)
        return {}
    accepted = dict(state["accepted"])
    if not states & OUT_OF_USE and conf.resumed_hours:
        for fault in [fault for fault in faults if fault in state["reported"]]:
            accepted[fault] = {"at": time.time(), "up": _uptime()}
            hours = f"{conf.resumed_hours:g}"
            say(f"the node was resumed with {fault}; left alone for {hours} h", syslog.LOG_NOTICE)
        faults = [fault for fault in faults if fault not in accepted]
        if left and age > DRAINING_SECONDS:
            say("the node was resumed after: {}".format("; ".join(left)), syslog.LOG_NOTICE)
            left = []
    reported = [fault for fault in state["reported"] if fault not in accepted]
    if not (faults or left):
        return {"reason": None, "reported": reported, "accepted": accepted}
    reason, text = drain(node, left + faults, states, old)
    if text:
        say(text, syslog.LOG_ERR)
    if reason is None and left and text.startswith("cannot"):
        leave_faults(folder, left)
    if reason is None:
        return {"reason": None, "reported": reported, "accepted": accepted}
    more = [fault for fault in faults if fault not in reported]
    reported_at = time.time() if more else state.get("reported_at", 0)
    return {
        "reason": reason,
        "reported": reported + more,
        "reported_at": reported_at,
        "accepted": accepted,
    }


def to_json(
    node: str, context: str, found: CheckRound, gpus: "list[dict[str, Any]]"
) -> "dict[str, Any]":
    """Return the round as `--json` prints it."""
    code, word = status_of(found.results)
    checks = []
    for each in found.results:
        gpu = find_gpu(each.pci, gpus)
        checks.append({
            "check": each.check,
            "state": each.state,
            "text": clean(each.text),
            "pci": gpu.get("pci", each.pci) or None,
            "uuid": gpu.get("uuid") or None,
            "serial": gpu.get("serial") or None,
        })  # fmt: skip
    return {
        "node": node,
        "context": context,
        "time": int(time.time()),
        "seconds": round(found.seconds, 3),
        "status": word,
        "code": code,
        "gpus": gpus,
        "checks": checks,
    }


def parse_arguments(argv: "list[str]") -> "argparse.Namespace":
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="node_check.py",
        description="Check this node's GPUs, links and disk; in Slurm also drain it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--all", action="store_true", help="print a line for each check")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--list", action="store_true", help="list the checks and run none")
    parser.add_argument(
        "--context", choices=CONTEXTS, help="act as called from there (default: found out)"
    )
    parser.add_argument("--config", metavar="FILE", help=f"settings (default: {CONF_FILE})")
    parser.add_argument(
        "--forget", action="store_true", help="count no Xid from before now (root, after a repair)"
    )
    return parser.parse_args(argv)


def main(argv: "list[str]") -> int:
    """Run the program; return its exit code."""
    options = parse_arguments(argv)
    if options.list:
        for name, info in CHECKS.items():
            print(f"{name:<11} {info.text}")
        return 0
    context = options.context or find_context()
    path = options.config or os.environ.get("SLURMKIT_NODE_CONF", CONF_FILE)
    folder = Path(os.environ.get("SLURMKIT_NODE_CHECKS", FOLDER))
    node = os.environ.get("SLURMD_NODENAME") or os.uname()[1].partition(".")[0]
    try:
        conf = load_conf(path)
    except BadSettings as error:
        # An error in a file must not take every node of a cluster out of use.
        say(f"UNKNOWN: {error}", syslog.LOG_ERR)
        return 0 if context in {"prolog", "epilog"} else 3
    # slurmd gives a health check no PATH.
    os.environ["PATH"] = conf.path if context != "hand" else os.environ.get("PATH", conf.path)
    state = load_state(folder)
    if options.forget:
        write_file(folder / "forgotten.json", {"boot": _boot(), "at": _uptime()})
        return 0
    found = without_forgotten(check_node(context, conf, state), load_forgotten(folder))
    found = without_accepted(found, state, conf, context)
    gpus = found.facts.get("gpus") or state.get("gpus", [])
    if context == "health":
        state = act_on_health(folder, node, found, state, conf)
        write_file(folder / "state.json", state)
        found = without_accepted(found, state, conf, context)
    code, _ = status_of(found.results)
    if context in {"prolog", "epilog"} and found.hanging:
        # Without HealthCheckProgram nobody else notes it, and each job would add one more.
        write_file(folder / "hanging.json", {"boot": _boot(), "hanging": found.hanging})
    if context in {"prolog", "epilog"} and code == 2:
        faults = [describe(each, gpus) for each in found.results if each.state in {"drain", "page"}]
        leave_faults(folder, faults)
    if context != "hand":
        write_file(folder / (context + ".json"), to_json(node, context, found, gpus))
        code = 2 if code == 2 else 0
    show(options, to_json(node, context, found, gpus), summary(found, gpus), found, gpus)
    return code


def show(
    options: "argparse.Namespace",
    content: "dict[str, Any]",
    line: str,
    found: CheckRound,
    gpus: "list[dict[str, Any]]",
) -> None:
    """Print the round."""
    if options.json:
        print(json.dumps(content, indent=2))
        return
    print(line)
    if options.all:
        for each in found.results:
            print(f"{each.state:<8} {describe(each, gpus)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
