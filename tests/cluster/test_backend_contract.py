"""What every backend must do, on the real cluster: the same tests for each that is registered.

The report's end says how many ran, with which backend, on which release of Slurm.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from cluster_lab import CLUSTER
from waiting import PATIENCE, wait_for

from slurmkit import errors
from slurmkit.config.plugins import plugins
from slurmkit.formats.job_ids import parse_task_indices

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
DRIVER = (Path(__file__).parent / "backend_driver.py").read_text("utf-8")
PYTHON = "/opt/slurmkit/venv/bin/python"
OVER_SSH = "commands over SSH"
UNKNOWN = "987654"
Row = dict[str, Any]


class Drivers:
    """Pythons on the login node, one for each person and environment."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self._folder = folder
        self._let_in = ExitStack()
        self._running: dict[tuple[str, ...], subprocess.Popen[str]] = {}

    def ask(self, asked: dict[str, object], user: str, env: tuple[str, ...]) -> dict[str, Any]:
        way = self._from_outside if asked["backend"] == OVER_SSH else self._there
        key = (way.__name__, user, *env)
        if key not in self._running:
            argv, pipe = way(user, env), subprocess.PIPE
            self._running[key] = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
        process = self._running[key]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    def _there(self, user: str, env: tuple[str, ...]) -> list[str]:
        argv = [str(CLUSTER), "exec", "login", "--name", self.lab.name, "--user", user, "--"]
        return [*argv, "env", *env, PYTHON, "-c", DRIVER]

    def _from_outside(self, user: str, env: tuple[str, ...]) -> list[str]:
        from ssh_person import Person  # noqa: PLC0415 - one way of two

        folder = self._folder / f"{user}{len(self._running)}"
        folder.mkdir()
        person = Person(self.lab, user, folder)
        self._let_in.enter_context(person.let_in())
        own = (f"{name}={value}" for name, value in person.env.items())
        return ["env", "-i", *own, *env, sys.executable, "-c", DRIVER]

    def close(self) -> None:
        for process in self._running.values():
            process.communicate(timeout=PATIENCE)
        self._let_in.close()


class Remote:
    """A backend on the login node."""

    def __init__(self, drivers: Drivers, name: str, ways: list[tuple[str, object]]) -> None:
        self.lab = drivers.lab
        self.name = name
        self.sent: list[str] = []
        self._drivers = drivers
        self._ways = ways  # properties of the test

    def __call__(
        self, call: str, *, user: str = "alice", env: tuple[str, ...] = (), **given: object
    ) -> Any:
        answer = self._drivers.ask({"backend": self.name, "call": call, **given}, user, env)
        self._ways += [("way", way) for way in answer["ways"]]
        return answer["value"] if "value" in answer else _raise(answer)

    def submit(self, command: str = "sleep 300", *options: tuple[str, str], **given: Any) -> str:
        """Send a job to partition cpu, unless an option says otherwise."""
        defaults = {"job-name": "contract", "partition": "cpu", "time": "5", "output": "/dev/null"}
        chosen = {**defaults, **dict(options)}
        header = "".join(f"#SBATCH --{name}={value}\n" for name, value in chosen.items())
        script = f"#!/bin/bash\n{header}{command}\n"
        made = {"script": script, "options": list(chosen.items())}
        job_id: str = self("submit", submission=made, **given)
        self.sent.append(job_id)
        return job_id

    def rows(self, job_id: str) -> list[Row]:
        rows: list[Row] = self("queue", job_ids=[job_id], states=["all"])
        return rows

    def row(self, job_id: str) -> Row:
        (row,) = self.rows(job_id)
        return row

    def cancel(self, *job_ids: str, **given: Any) -> dict[str, str]:
        """Errors by id, by the names of their classes."""
        failed = self("cancel", job_ids=job_ids, **given)
        return {job_id: error["error"] for job_id, error in failed.items()}

    def ended(self) -> str:
        """A job that slurmctld remembers as ended."""
        job_id = self.submit("true")
        wait_for(lambda: self.row(job_id)["state"] == "COMPLETED")
        return job_id


def _raise(answer: dict[str, str]) -> NoReturn:
    raise getattr(errors, answer["error"])(answer["words"])


@pytest.fixture(scope="module")
def drivers(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    made = Drivers(lab, tmp_path_factory.mktemp("laptops"))
    yield made
    made.close()


@pytest.fixture(params=[*sorted(plugins("backends")), OVER_SSH])
def backend(drivers: Drivers, request: pytest.FixtureRequest) -> Iterator[Remote]:
    lab = drivers.lab
    release = lab.run("scontrol", "--version").stdout.split()[1]
    if request.param == "pyslurm" and lab.release != "26.05":
        pytest.skip(f"there is no PySlurm for Slurm {release}")
    request.node.user_properties.append(("backend", f"{request.param} on Slurm {release}"))
    remote = Remote(drivers, str(request.param), request.node.user_properties)
    yield remote
    if remote.sent:
        lab.run("scancel", *remote.sent, user="", check=False)


def test_the_id_is_that_of_the_job_in_the_queue(backend: Remote) -> None:
    job_id = backend.submit(
        "sleep 300", ("partition", "gpu"), ("gpus-per-node", "a100:2"), ("qos", "high")
    )
    row = backend.row(job_id)
    facts = {name: row[name] for name in ("job_id", "name", "user", "partition", "qos")}
    assert facts == {
        "job_id": job_id,
        "name": "contract",
        "user": "alice",
        "partition": "gpu",
        "qos": "high",
    }
    wait_for(lambda: backend.row(job_id)["state"] == "RUNNING")
    assert backend.row(job_id)["gpus"] == 2


def test_the_script_is_sent_byte_for_byte(backend: Remote) -> None:
    command = "echo 'a  b' \"$HOME\" \\\n\t# ünïcode 🙂\n\nsleep 300"
    job_id = backend.submit(command)
    kept = backend.lab.run("scontrol", "write", "batch_script", job_id, "-").stdout
    assert kept.rstrip("\n").endswith(command)
    assert kept.startswith("#!/bin/bash\n#SBATCH --job-name=contract\n")


def test_a_refused_job_leaves_nothing(backend: Remote) -> None:
    for option, says in (
        (("qos", "nope"), "qos"),
        (("partition", "nope"), "partition"),
        (("account", "nope"), "account"),
    ):
        with pytest.raises(errors.Refused, match=f"(?i){says}"):
            backend.submit("true", option, ("job-name", "refused"))
    assert backend("queue", names=["refused"], states=["all"]) == []


def test_a_job_waits_for_those_it_comes_after(backend: Remote) -> None:
    first, second = backend.submit("sleep 300"), backend.submit("sleep 300")
    third = backend.submit("true", after=[f"afterok:{first}:{second}"])
    waits = backend.row(third)
    assert waits["state"] == "PENDING"
    assert first in waits["dependency"]
    assert second in waits["dependency"]
    assert "afterok" in waits["dependency"]


def test_what_comes_after_a_failure_is_given_up(backend: Remote) -> None:
    first = backend.submit("exit 1", hold=True)
    second = backend.submit("true", after=[f"afterok:{first}"])
    backend("release", job_id=first)
    wait_for(lambda: backend.row(second)["state"] == "CANCELLED")


def test_a_job_is_sent_held_with_words_after_its_comment(backend: Remote) -> None:
    job_id = backend.submit("true", ("comment", "mine"), hold=True, comment="slurmkit:abc")
    row = backend.row(job_id)
    assert (row["state"], row["reason"]) == ("PENDING", "JobHeldUser")
    said = backend.lab.run("squeue", "--noheader", "--job", job_id, "-O", "Comment:100").stdout
    own = r" slurmkit:[0-9a-f]{16}" if backend.name == OVER_SSH else ""
    assert re.fullmatch(f"mine slurmkit:abc{own}", said.strip())
    backend("release", job_id=job_id)
    wait_for(lambda: backend.row(job_id)["state"] == "COMPLETED")


def test_cancel(backend: Remote) -> None:
    job_id, ended = backend.submit(), backend.ended()
    others = backend("submit", submission=_plain(), user="bob")
    backend.sent.append(others)
    assert backend.cancel(job_id, ended, UNKNOWN, others) == {
        ended: "JobOver",
        UNKNOWN: "NoSuchJob",
        others: "Refused",
    }
    wait_for(lambda: backend.row(job_id)["state"] == "CANCELLED")
    assert backend.row(others)["state"] in {"PENDING", "RUNNING"}


def _plain() -> dict[str, object]:
    script = "#!/bin/bash\n#SBATCH --partition=cpu\n#SBATCH --output=/dev/null\nsleep 300\n"
    return {"script": script, "options": []}


def test_a_signal_reaches_the_batch_shell(backend: Remote) -> None:
    out = f"contract-{time.time_ns()}"
    trap = f"trap 'echo caught >{out}; exit 3' USR1; echo ready >{out}; while :; do sleep 1; done"
    job_id = backend.submit(trap)
    read = ("cat", out)
    wait_for(lambda: backend.lab.run(*read, check=False).stdout == "ready\n")
    assert backend.cancel(job_id, signal="B:USR1") == {}
    wait_for(lambda: backend.lab.run(*read).stdout == "caught\n")
    backend.lab.run("rm", out)


def test_a_job_that_waits_takes_no_signal(backend: Remote) -> None:
    job_id = backend.submit("true", ("begin", "now+1hour"))
    assert backend.cancel(job_id, signal="USR1") == {job_id: "Refused"}
    assert backend.row(job_id)["state"] == "PENDING"


def test_hold_and_release(backend: Remote) -> None:
    job_id = backend.submit("sleep 300", ("begin", "now+1hour"))
    backend("hold", job_id=job_id)
    held = backend.row(job_id)
    assert (held["reason"], held["priority"]) == ("JobHeldUser", 0)
    backend("release", job_id=job_id)
    wait_for(lambda: backend.row(job_id)["reason"] != "JobHeldUser")
    assert backend.row(job_id)["state"] == "PENDING"


def test_requeue(backend: Remote) -> None:
    job_id = backend.submit("sleep 300")
    wait_for(lambda: backend.row(job_id)["state"] == "RUNNING")
    before = backend.row(job_id)["submitted"]
    time.sleep(1)
    backend("requeue", job_id=job_id)
    wait_for(lambda: backend.row(job_id)["submitted"] > before)
    show = ("scontrol", "-o", "show", "job", job_id)  # soon it may run again
    wait_for(lambda: "Restarts=1 " in backend.lab.run(*show).stdout)


def test_a_job_that_may_not_be_requeued(backend: Remote) -> None:
    script = _plain()
    script["script"] = str(script["script"]).replace("sleep", "#SBATCH --no-requeue\nsleep")
    job_id = backend("submit", submission=script)
    backend.sent.append(job_id)
    wait_for(lambda: backend.row(job_id)["state"] == "RUNNING")
    with pytest.raises(errors.Refused):
        backend("requeue", job_id=job_id)


def test_update(backend: Remote) -> None:
    job_id = backend.submit("true", ("begin", "now+1hour"))
    changes = {"time": "7", "partition": "gpu", "qos": "high", "job-name": 'a b=c "x"'}
    backend("update", job_id=job_id, changes=changes)
    row = backend.row(job_id)
    assert (row["time_limit"], row["partition"], row["qos"]) == ("7:00", "gpu", "high")
    assert row["name"] == 'a b=c "x"'
    before = row["priority"]
    backend("update", job_id=job_id, changes={"nice": "50"})
    wait_for(lambda: backend.row(job_id)["priority"] < before)


def test_a_running_jobs_time_limit_goes_down_only(backend: Remote) -> None:
    job_id = backend.submit("sleep 300")
    wait_for(lambda: backend.row(job_id)["state"] == "RUNNING")
    with pytest.raises(errors.Refused, match="denied"):
        backend("update", job_id=job_id, changes={"time": "10"})
    backend("update", job_id=job_id, changes={"time": "3"})
    assert backend.row(job_id)["time_limit"] == "3:00"


def test_changes_slurm_refuses(backend: Remote) -> None:
    job_id = backend.submit("true", ("begin", "now+1hour"))
    for changes in ({"partition": "nope"}, {"qos": "nope"}, {"nice": "-9"}, {"priority": "99"}):
        with pytest.raises(errors.Refused):
            backend("update", job_id=job_id, changes=changes)
    with pytest.raises(errors.BadInput, match="--mem of a job cannot be changed"):
        backend("update", job_id=job_id, changes={"mem": "1G"})


@pytest.mark.parametrize("call", ["hold", "release", "update"])
def test_control_of_what_is_not_there_to_control(backend: Remote, call: str) -> None:
    more = {"changes": {"time": "1"}} if call == "update" else {}
    with pytest.raises(errors.NoSuchJob):
        backend(call, job_id=UNKNOWN, **more)
    with pytest.raises(errors.JobOver):
        backend(call, job_id=backend.ended(), **more)
    job_id = backend.submit("true", ("begin", "now+1hour"))
    with pytest.raises(errors.Refused):
        backend(call, job_id=job_id, user="bob", **more)


def test_requeue_of_an_unknown_job(backend: Remote) -> None:
    with pytest.raises(errors.NoSuchJob):
        backend("requeue", job_id=UNKNOWN)


def test_an_array(backend: Remote) -> None:
    """One task is controlled by its id, those that wait by theirs, all by the array's."""
    job_id = backend.submit("sleep 300", ("array", "1-9%1"), ("begin", "now+1hour"))
    (row,) = backend.rows(job_id)
    assert row["job_id"] == f"{job_id}_[1-9%1]"
    backend("hold", job_id=f"{job_id}_3")
    assert backend.row(f"{job_id}_3")["reason"] == "JobHeldUser"
    assert backend.cancel(f"{job_id}_[4-5]", f"{job_id}_7", f"{job_id}_99") == {
        f"{job_id}_99": "NoSuchJob"
    }
    spans = [
        span
        for row in backend("queue", job_ids=[job_id])
        for span in parse_task_indices(row["job_id"])
    ]
    assert sorted(index for span in spans for index in span) == [1, 2, 3, 6, 8, 9]
    assert backend.cancel(job_id) == {}
    wait_for(lambda: backend("queue", job_ids=[job_id]) == [])


def runs(row: dict[str, Any]) -> bool:
    return row["state"] == "RUNNING" and row["reason"] == "None"


def test_an_array_that_has_ended_in_part(backend: Remote) -> None:
    """Slurm ends badly for it, though it does what was asked for all tasks that have not ended."""
    job_id = backend.submit("[ $SLURM_ARRAY_TASK_ID = 0 ] || sleep 300", ("array", "0-3%2"))
    wait_for(lambda: backend.row(f"{job_id}_0")["state"] == "COMPLETED")
    # The end of the prolog takes away what a hold has set, and Slurm then refuses the release.
    wait_for(lambda: [runs(backend.row(f"{job_id}_{task}")) for task in (1, 2)] == [True, True])
    backend("hold", job_id=job_id)
    assert backend.row(f"{job_id}_3")["reason"] == "JobHeldUser"
    backend("update", job_id=job_id, changes={"time": "1"})
    assert backend.row(f"{job_id}_3")["time_limit"] == "1:00"
    with pytest.raises(errors.Refused, match="no longer pending execution; its other tasks are"):
        backend("update", job_id=job_id, changes={"partition": "gpu"})
    backend("release", job_id=job_id)
    assert backend.cancel(job_id) == {}
    wait_for(lambda: {row["state"] for row in backend.rows(job_id)} == {"COMPLETED", "CANCELLED"})
    with pytest.raises(errors.JobOver):
        backend("hold", job_id=job_id)


def test_a_het_job(backend: Remote) -> None:
    script = (
        "#!/bin/bash\n#SBATCH --partition=cpu --begin=now+1hour\n#SBATCH hetjob\n"
        "#SBATCH --partition=untyped\ntrue\n"
    )
    job_id = backend("submit", submission={"script": script, "options": []})
    backend.sent.append(job_id)
    parts = {row["job_id"]: row["partition"] for row in backend.rows(job_id)}
    assert parts == {f"{job_id}+0": "cpu", f"{job_id}+1": "untyped"}
    (second,) = backend.rows(f"{job_id}+1")
    assert second["partition"] == "untyped"
    assert backend.cancel(f"{job_id}+1") == {f"{job_id}+1": "Refused"}
    assert backend.cancel(job_id) == {}
    wait_for(lambda: {row["state"] for row in backend.rows(job_id)} == {"CANCELLED"})


@pytest.mark.parametrize(
    "name", ["evil\n\x1b[2J9999|root", "a\x1f1234 b", 'it\'s "x" \\ ; $(date)', "ünïcode 🙂", "%j"]
)
def test_hostile_names(backend: Remote, name: str) -> None:
    options = ("--parsable", "--partition=cpu", "--begin=now+1hour", f"--job-name={name}")
    job_id = backend.lab.run("sbatch", *options, "--wrap=true").stdout.strip()
    backend.sent.append(job_id)
    assert backend.row(job_id)["name"] == name
    backend("update", job_id=job_id, changes={"job-name": f"{name} again"})
    assert backend.row(job_id)["name"] == f"{name} again"


def test_the_callers_environment_changes_nothing(backend: Remote) -> None:
    """As left over from a surrounding job, or set by a site."""
    if backend.name == OVER_SSH:
        pytest.skip("over SSH a job gets the login node's environment; see test_ssh.py for that")
    leaks = (
        "SLURM_JOB_ID=1", "SLURM_PARTITION=gpu", "SLURM_NNODES=3", "SBATCH_PARTITION=mig",
        "SBATCH_QOS=nope", "SBATCH_TIMELIMIT=1", "SBATCH_EXPORT=NONE", "SLURM_EXPORT_ENV=NONE",
        "SQUEUE_FORMAT=%i", "SQUEUE_STATES=CD", "SQUEUE_USERS=bob", "SLURM_TIME_FORMAT=relative",
        "SCANCEL_STATE=SUSPENDED", "SCANCEL_PARTITION=mig",
        "PYXIS_CONTAINER_IMAGE=nowhere", "SRUN_CPUS_PER_TASK=9", "MINE=kept",
    )  # fmt: skip
    out = f"contract-{time.time_ns()}"
    command = f"env >{out}.part; mv {out}.part {out}; sleep 300"
    job_id = backend.submit(command, env=leaks)
    backend.sent.append(job_id)
    row = backend("queue", job_ids=[job_id], env=leaks)[0]
    assert (row["partition"], row["qos"], row["time_limit"]) == ("cpu", "normal", "5:00")
    wait_for(lambda: backend.lab.run("test", "-e", out, check=False).returncode == 0)
    seen = dict(
        line.split("=", 1)
        for line in backend.lab.run("cat", out).stdout.splitlines()
        if "=" in line
    )
    assert seen["SLURM_JOB_ID"] == job_id
    assert seen["MINE"] == "kept"
    assert {name for name in seen if name.startswith(("PYXIS_", "SBATCH_", "SCANCEL_"))} == set()
    assert "SRUN_CPUS_PER_TASK" not in seen
    assert backend.cancel(job_id, env=leaks) == {}
    wait_for(lambda: backend.row(job_id)["state"] == "CANCELLED")
    backend.lab.run("rm", out)


def test_the_queue_of_unknown_jobs_is_empty(backend: Remote) -> None:
    assert backend.rows(UNKNOWN) == []
    job_id = backend.submit("true", ("begin", "now+1hour"))
    both = backend("queue", job_ids=[UNKNOWN, job_id])
    assert [row["job_id"] for row in both] == [job_id]


def test_filters_of_the_queue(backend: Remote) -> None:
    job_id = backend.submit("true", ("begin", "now+1hour"), ("job-name", "filtered"))
    for given, found in (
        ({"users": ["alice"]}, True),
        ({"users": ["bob"]}, False),
        ({"me": True}, True),
        ({"partitions": ["cpu"]}, True),
        ({"partitions": ["gpu"]}, False),
        ({"states": ["PENDING"]}, True),
        ({"states": ["RUNNING"]}, False),
        ({"names": ["filtered"]}, True),
    ):
        ids = [row["job_id"] for row in backend("queue", **given)]
        assert (job_id in ids) is found, given
