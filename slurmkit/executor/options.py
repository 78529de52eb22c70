"""Options of `Executor`: which there are, and how they become the job spec of its tasks."""

from __future__ import annotations

import sys
from typing import Any, TypedDict

import msgspec

from slurmkit.config.files import did_you_mean
from slurmkit.errors import BadInput
from slurmkit.executor.store import Store
from slurmkit.spec.containers import Container
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch
from slurmkit.spec.survival import Action, Survive


class ExecutorOptions(TypedDict, total=False):
    """Options of the jobs that make calls, for type checkers and editors.

    They are the fields of `JobSpec`, without those that the executor sets, and of its `Survive`.
    Unlike `JobSpec.gpus`, `gpus` may be text: `"a100:2"`.
    """

    job_name: str | None
    nodes: int | str | None
    ntasks: int | None
    ntasks_per_node: int | None
    cpus_per_task: int | None
    ntasks_per_gpu: int | None
    ntasks_per_socket: int | None
    ntasks_per_core: int | None
    cpus_per_gpu: int | None
    mincpus: int | None
    sockets_per_node: int | None
    cores_per_socket: int | None
    threads_per_core: int | None
    hint: str | None
    overcommit: bool
    spread_job: bool
    use_min_nodes: bool
    gpus: Gpus | str | None
    gres: str | None
    mem: str | None
    mem_per_cpu: str | None
    mem_per_gpu: str | None
    tmp: str | None
    time: str | None
    time_min: str | None
    partition: str | None
    account: str | None
    qos: str | None
    reservation: str | None
    constraint: str | None
    licenses: str | None
    nodelist: str | None
    exclude: str | None
    exclusive: bool | str | None
    switches: str | None
    segment: int | None
    array_throttle: int | None
    dependency: str | None
    begin: str | None
    deadline: str | None
    hold: bool
    nice: int | None
    requeue: bool | str | None
    signal: str | None
    mail_type: str | None
    mail_user: str | None
    comment: str | None
    chdir: str | None
    open_mode: str | None
    environment: dict[str, str]
    launch: Launch
    container: Container | None
    survive: Survive
    options: dict[str, str]
    on_timeout: Action | None
    on_preempt: Action | None
    on_node_fail: Action | None
    on_oom: Action | None
    max_restarts: int
    restart_delay: int
    checkpoint_signal: str | None
    grace: int
    oom_max_mem: str | None


def task_spec(options: ExecutorOptions, python: str | None, store: Store) -> JobSpec:
    """Return the job spec of the tasks; its command holds only the interpreter so far.

    Args:
        options: as given to `Executor`; `array_throttle` is left out, it is for arrays only.
        python: the jobs' interpreter; None for the default.
        store: holds the files of the calls.

    Raises:
        BadInput: for unknown options and wrong values.
    """
    given: dict[str, Any] = dict(options)
    known = list(ExecutorOptions.__annotations__)
    for name in given:
        if name not in known:
            raise BadInput(f"Executor takes no option {name!r}; {did_you_mean(name, known)}")
    given.pop("array_throttle", None)
    policy = {name: given.pop(name) for name in Survive.__struct_fields__ if name in given}
    survive = msgspec.structs.replace(given.pop("survive", None) or Survive(), **policy)
    fields = {"open_mode": "append", **given}  # a requeued task appends to its log
    if isinstance(fields.get("gpus"), str):
        fields["gpus"] = Gpus.parse(fields["gpus"])
    container = fields.get("container")
    if container is not None:
        fields["container"] = _with_folder(container, store.folder)
    elif not (survive.on_oom or survive.on_preempt):
        # A step costs time. Only these two options need one: when memory runs out the step ends but
        # not the job, and a step hears of a preemption.
        fields.setdefault("launch", Launch(launcher="none"))
    command = (python or _default_python(store, container),)
    return JobSpec(command=command, survive=survive, **fields)


def _default_python(store: Store, container: Container | None) -> str:
    if container is not None:
        return "python3"
    if store.machine.is_here:
        return sys.executable
    return f"python{sys.version_info[0]}.{sys.version_info[1]}"


def _with_folder(container: Container, folder: str) -> Container:
    """Mount the folder of calls into a container; the mounts of a bundle are fixed."""
    if container.source is not None and container.source.kind == "bundle":
        return container
    return msgspec.structs.replace(container, mounts=(*container.mounts, folder))
