"""What a policy asks of a job's options, and what of the cluster's settings it depends on."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from slurmkit.capabilities.model import Capabilities, Partition, Standing
from slurmkit.errors import BadInput
from slurmkit.spec import JobSpec

_DEFAULT_KILL_WAIT = 30  # slurm.conf(5) KillWait
_MODES = ("requeue", "cancel", "suspend", "gang", "off", "within")


def with_survival(spec: JobSpec) -> JobSpec:
    """The job with the options its policy needs; without any policy as it is.

    Raises:
        BadInput: for options that contradict it.
    """
    policy = spec.survive
    if not policy:
        return spec
    if spec.signal not in (None, policy.signal):
        raise BadInput(
            f"--signal={spec.signal}: a job that survives is told by a signal of its own; leave it"
            " out, and give --checkpoint-signal and --grace for what the work is told"
        )
    if spec.requeue is False and policy.comes_back:
        raise BadInput("--no-requeue keeps the job from coming back; leave it out")
    if not policy.comes_back:
        return msgspec.structs.replace(spec, signal=policy.signal)
    mode = spec.open_mode or "append"
    return msgspec.structs.replace(spec, requeue=True, signal=policy.signal, open_mode=mode)


def kill_wait(config: Mapping[str, str]) -> int:
    """Seconds from SIGTERM to SIGKILL."""
    found = re.match(r"\d+", config.get("KillWait", ""))
    return int(found[0]) if found else _DEFAULT_KILL_WAIT


def preempt_mode(
    site: tuple[Capabilities, Standing], partition: Partition | None, qos: str | None
) -> str:
    """What Slurm does with such a job once it is preempted: `requeue`, `cancel`, …, or `off`.

    By src/common or slurmctld's slurm_job_preempt_mode: with preempt/qos the QOS says, else the
    partition, and the cluster where these do not.
    """
    capabilities, standing = site
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
    said = own if own.lower() not in ("", "cluster") else config.get("PreemptMode", "")
    words = said.lower().split(",")
    return next((mode for mode in _MODES if mode in words and mode != "gang"), "off")


def sends_user_signal(config: Mapping[str, str]) -> bool:
    """Whether the batch shell hears of a preemption (slurm.conf(5), send_user_signal)."""
    named = f"{config.get('PreemptParameters', '')},{config.get('SlurmctldParameters', '')}".lower()
    return bool({"send_user_signal", "preempt_send_user_signal"} & set(named.split(",")))
