"""The sbatch options and script lines of a job that survives its time limit or preemption.

The shell files in `survive` go into the script unchanged.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from slurmkit.errors import BadInput
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.survival import ENDINGS, SURVIVAL_LINE, size_in_mib
from slurmkit.state.model import Capabilities, Partition, Standing

_SHELL_FILES = tuple(
    Path(__file__).with_name("survive") / f"{name}.sh" for name in ("turns", "slurm", "course")
)
_MARK = "SLURMKIT_SCRIPT"
_SETTINGS_START = "slurmkit_on_timeout="
_DEFAULT_KILL_WAIT = 30  # slurm.conf(5) KillWait
_MODES = ("requeue", "cancel", "suspend", "gang", "off", "within")


class SurvivalTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Time spans of a job that survives, in seconds; only tests change the defaults.

    Attributes:
        kill_wait: from SIGTERM to SIGKILL (KillWait).
        pause: between two checks of something awaited.
        tick: between two checks of which run may work; each third check renews the lease.
        lease: a run that does not renew its lease for so long is taken for dead.
        fence: a run that reaches neither the home nor slurmctld for so long pauses. Testing both
            may take 25 s, and it must pause before its lease ends.
        patience: how long a slurmctld that does not answer is asked to requeue.
        margin: the job must be back in the queue so long before the end that Slurm has set.
        slack: how long after the end of its grace time Slurm may end a preempted job.
        short: a run shorter than this waits before its next start.
    """

    kill_wait: int = 30
    pause: float = 1
    tick: float = 5
    lease: int = 60
    fence: int = 30
    patience: int = 3600
    margin: int = 5
    slack: int = 120
    short: int = 600


def survival_lines(spec: JobSpec, preempt_mode: str, pace: SurvivalTimings) -> tuple[str, ...]:
    """Return the first lines of the script of a job that survives.

    Args:
        spec: the job.
        preempt_mode: what Slurm does with this job once it is preempted, e.g. `requeue`.
        pace: time spans.
    """
    policy = spec.survive
    actions = {f"on_{name.replace('-', '_')}": policy.action(name) or "" for name in ENDINGS}
    values: dict[str, object] = {
        **actions,
        "restarts": policy.max_restarts,
        "delay": policy.restart_delay,
        "signal": policy.checkpoint_signal or "",
        "grace": policy.grace,
        "most": size_in_mib(policy.oom_max_mem or "0"),
        "preempt": preempt_mode,
        **msgspec.structs.asdict(pace),
        "beats": 3,
    }
    assignments = " ".join(
        f"slurmkit_{name}={shlex.quote(str(value))}" for name, value in values.items()
    )
    inside = "\n".join(path.read_text("utf-8") for path in _SHELL_FILES).rstrip("\n").split("\n")
    shell = (line for line in inside if not line.lstrip().startswith("# shellcheck"))
    return (assignments, *shell, "")


def parse_survival(script: str) -> dict[str, str]:
    """Return the settings that `survival_lines` wrote into a job's script, by name.

    Returns:
        For example `on_timeout`, `restarts` and `grace`; empty for a job that does not survive.
    """
    lines = script.split("\n")
    settings = next((line for line in lines if line.startswith(_SETTINGS_START)), "")
    if not settings or SURVIVAL_LINE not in script:
        return {}
    try:
        words = shlex.split(settings)
    except ValueError:
        return {}
    pairs = (word.removeprefix("slurmkit_").partition("=") for word in words)
    return {name: value for name, _, value in pairs}


def as_work_function(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Wrap the lines of a job's work in a function that the shell around them waits for."""
    return ("slurmkit_work() {", *lines, "}", SURVIVAL_LINE)


def as_one_block(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Wrap lines in one block; bash reads it whole, then runs it and handles signals."""
    return ("{", "slurmkit_listen", *lines, "exit", "}")


def run_script_lines(script: str) -> tuple[str, ...]:
    """Return lines that run a whole script by its own interpreter, below the batch shell."""
    first, _, _ = script.partition("\n")
    interpreter, _, argument = first.removeprefix("#!").strip().partition(" ")
    words = [interpreter, *([argument.strip()] if argument.strip() else []), "/dev/fd/9"]
    text = script.rstrip("\n").split("\n")
    mark = _MARK
    while mark in text:
        mark += "_"
    return (f"{shlex.join(words)} 9<<'{mark}'", *text, mark)


def with_survival_options(spec: JobSpec) -> JobSpec:
    """Return the job with the options that its policy needs.

    Raises:
        BadInput: for options that contradict the policy.
    """
    policy = spec.survive
    if spec.signal not in (None, policy.signal):
        raise BadInput(
            f"--signal={spec.signal}: the survival options use --signal themselves; leave it out,"
            " and choose the signal to your program with --checkpoint-signal and --grace"
        )
    if spec.requeue is False and policy.requeues:
        raise BadInput("--no-requeue keeps the job from coming back; leave it out")
    if not policy.requeues:
        return msgspec.structs.replace(spec, signal=policy.signal)
    mode = spec.open_mode or "append"
    requeue = spec.requeue or True  # `expedite` stays
    return msgspec.structs.replace(spec, requeue=requeue, signal=policy.signal, open_mode=mode)


def parse_kill_wait(config: Mapping[str, str]) -> int:
    """Return the seconds from SIGTERM to SIGKILL (KillWait)."""
    match = re.match(r"\d+", config.get("KillWait", ""))
    return int(match[0]) if match else _DEFAULT_KILL_WAIT


def preempt_mode_of(
    capabilities: Capabilities, standing: Standing, partition: Partition | None, qos: str | None
) -> str:
    """Return what Slurm does with such a job at preemption: `requeue`, `cancel`, …, or `off`.

    From slurm_job_preempt_mode in src/common or slurmctld: with preempt/qos the QOS decides, with
    preempt/partition the partition. If these do not say, the cluster's PreemptMode counts.
    """
    config = capabilities.config
    kind = config.get("PreemptType", "")
    own = ""
    if kind.startswith("preempt/qos"):
        name = qos or next((a.default_qos for a in standing.associations if a.user), "")
        own = next((each.preempt_mode for each in standing.qos if each.name == name), "")
    elif kind.startswith("preempt/partition") and partition is not None:
        own = partition.settings.get("PreemptMode", "")
    elif not kind.startswith("preempt/partition"):
        return "off"
    mode_text = own if own.lower() not in ("", "cluster") else config.get("PreemptMode", "")
    words = mode_text.lower().split(",")
    return next((mode for mode in _MODES if mode in words and mode != "gang"), "off")


def sends_user_signal(config: Mapping[str, str]) -> bool:
    """Return whether the batch shell gets a signal at preemption (slurm.conf(5)).

    The parameter is send_user_signal.
    """
    named = f"{config.get('PreemptParameters', '')},{config.get('SlurmctldParameters', '')}".lower()
    return bool({"send_user_signal", "preempt_send_user_signal"} & set(named.split(",")))
