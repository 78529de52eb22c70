"""Any one service may be killed: started again, the cluster comes back without a reset."""

import subprocess
import time

import pytest
from cluster_lab import Lab

pytestmark = pytest.mark.cluster

PERSISTENT = ("ldap", "db", "dbd", "ctld", "login", "postgres", "ledger", "c1")


def _docker(*argv: str) -> str:
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _wait_healthy(container: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while _docker("inspect", "-f", "{{.State.Health.Status}}", container) != "healthy":
        assert time.monotonic() < end, f"{container} is not healthy after {seconds} s"
        time.sleep(0.5)


def _job_runs_and_is_accounted(lab: Lab) -> None:
    submit = ["sbatch", "--wait", "--parsable", "--output=/dev/null", "-w", "c1"]
    job = lab.run(*submit, "--gres=gpu:1", "--wrap", "true").stdout.strip()
    end = time.monotonic() + 60
    while "COMPLETED" not in lab.run("sacct", "-nPX", "-j", job, "-o", "State", check=False).stdout:
        assert time.monotonic() < end, f"job {job} never reached accounting"
        time.sleep(1)


@pytest.mark.parametrize("service", PERSISTENT)
def test_killed_and_started_again(lab: Lab, service: str) -> None:
    container = lab.container(service)
    _docker("kill", container)
    _docker("start", container)
    _wait_healthy(container)
    _job_runs_and_is_accounted(lab)


def test_up_brings_back_what_died(lab: Lab) -> None:
    dead = [lab.container(service) for service in ("ctld", "c1", "ldap", "db")]
    _docker("kill", *dead)
    back = lab.up()
    assert back.returncode == 0, back.stderr
    _job_runs_and_is_accounted(lab)


def test_a_job_outlives_an_outage_of_slurmctld_and_up(lab: Lab) -> None:
    submit = ["sbatch", "--parsable", "--output=outlived", "-w", "c1"]
    job = lab.run(*submit, "--wrap", "echo begun; sleep 45; echo done").stdout.strip()
    _wait_for_state(lab, job, "RUNNING")
    node = _docker("inspect", "-f", "{{.Id}}", lab.container("c1"))
    _docker("stop", lab.container("ctld"))
    time.sleep(40)  # two health checks of a node
    assert _docker("inspect", "-f", "{{.State.Health.Status}}", node) == "healthy"
    back = lab.up()
    assert back.returncode == 0, back.stderr
    assert _docker("inspect", "-f", "{{.Id}}", lab.container("c1")) == node
    _wait_for_state(lab, job, "COMPLETED")
    assert lab.run("cat", "outlived").stdout == "begun\ndone\n"


def _wait_for_state(lab: Lab, job: str, state: str) -> None:
    show = ["scontrol", "-o", "show", "job", job]
    end = time.monotonic() + 60
    while f"JobState={state} " not in lab.run(*show, check=False).stdout:
        assert time.monotonic() < end, f"job {job} is not {state}"
        time.sleep(0.5)


def _wait_until_saved(lab: Lab, name: str) -> None:
    """slurmctld writes a job down, name and all, some seconds after it accepted it."""
    saved = ["grep", "-q", name, "/var/lib/slurm/slurmctld/job_state"]
    end = time.monotonic() + 60
    while lab.run(*saved, service="ctld", user="", check=False).returncode:
        assert time.monotonic() < end, "slurmctld did not save its state"
        time.sleep(0.5)


def test_what_was_there_is_there_again(lab: Lab) -> None:
    name = f"kept-{time.time_ns()}"
    held = ["--hold", f"--job-name={name}", "--wrap", "true"]
    job = lab.run("sbatch", "--parsable", *held).stdout.strip()
    _wait_until_saved(lab, name)
    _docker("kill", lab.container("ctld"))
    _docker("start", lab.container("ctld"))
    _wait_healthy(lab.container("ctld"))
    assert lab.run("squeue", "-h", "-j", job, "-o", "%i").stdout.strip() == job
    lab.run("scancel", job)


def test_down_and_up_keep_accounting_homes_and_ledger(lab: Lab) -> None:
    job = lab.run("sbatch", "--wait", "--parsable", "--output=kept", "--wrap", "echo kept").stdout
    table = ["psql", "-q", "-h", "postgres", "-U", "slurmkit", "slurmkit", "-Atc"]
    lab.run(*table, "CREATE TABLE IF NOT EXISTS kept (n int)", user="slurmkit")
    assert lab.down().returncode == 0
    back = lab.up()
    assert back.returncode == 0, back.stderr
    sacct = lab.run("sacct", "-nPX", "-j", job.strip(), "-o", "User,State").stdout
    assert sacct == "alice|COMPLETED\n"
    assert lab.run("cat", "kept").stdout == "kept\n"
    lab.run(*table, "DROP TABLE kept", user="slurmkit")
