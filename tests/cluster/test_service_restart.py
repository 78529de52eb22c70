"""Any one service may be killed: started again, the cluster comes back without a reset."""

import json
import subprocess
import time

import pytest
from cluster_lab import Lab
from waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.service]

PERSISTENT = ("ldap", "db", "dbd", "ctld", "login", "postgres", "ledger", "c1")


def _docker(*argv: str) -> str:
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _health(container: str) -> str:
    return _docker("inspect", "-f", "{{.State.Health.Status}}", container)


def _health_checks(container: str) -> set[str]:
    """When each of the last health checks began."""
    log = json.loads(_docker("inspect", "-f", "{{json .State.Health.Log}}", container))
    return {check["Start"] for check in log}


def _wait_healthy(container: str) -> None:
    wait_for(lambda: _health(container), "healthy".__eq__)


def _job_runs_and_is_accounted(lab: Lab) -> None:
    submit = ["sbatch", "--wait", "--parsable", "--output=/dev/null", "-w", "c1"]
    job = lab.run(*submit, "--gres=gpu:1", "--wrap", "true").stdout.strip()
    asked = ("sacct", "-nPX", "-j", job, "-o", "State")
    wait_for(lambda: "COMPLETED" in lab.run(*asked, check=False).stdout)


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
    over = f"outlived-{time.time_ns()}"
    waits = f"echo begun; until test -e {over}; do sleep 1; done; rm {over}; echo done"
    submit = ["sbatch", "--parsable", "--output=outlived", "-w", "c1"]
    job = lab.run(*submit, "--wrap", waits).stdout.strip()
    _wait_for_state(lab, job, "RUNNING")
    node = _docker("inspect", "-f", "{{.Id}}", lab.container("c1"))
    _docker("stop", lab.container("ctld"))
    before = _health_checks(node)

    def checked_twice() -> bool:
        """Two checks began while slurmctld was away; one may have been under way."""
        lab.run("rm", "-f", "/run/lab/healthy", service="c1", user="")  # asked often, as if new
        return len(_health_checks(node) - before) >= 3

    wait_for(checked_twice)
    assert _health(node) == "healthy"
    lab.run("touch", over)
    back = lab.up()
    assert back.returncode == 0, back.stderr
    assert _docker("inspect", "-f", "{{.Id}}", lab.container("c1")) == node
    _wait_for_state(lab, job, "COMPLETED")
    assert lab.run("cat", "outlived").stdout == "begun\ndone\n"


def _wait_for_state(lab: Lab, job: str, state: str) -> None:
    show = ["scontrol", "-o", "show", "job", job]
    wait_for(lambda: f"JobState={state} " in lab.run(*show, check=False).stdout)


def _wait_until_saved(lab: Lab, name: str) -> None:
    """slurmctld writes a job down, name and all, some seconds after it accepted it."""
    saved = ["grep", "-q", name, "/var/lib/slurm/slurmctld/job_state"]
    wait_for(lambda: not lab.run(*saved, service="ctld", user="", check=False).returncode)


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
