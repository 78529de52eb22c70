"""node_check in real Slurm: drain with a reason, requeue, resume, and a check that hangs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from node_lab import smi_xml
from portal_service import PYTHON
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
NODE = "c4"
NODE_CONF = "/etc/slurm/slurmkit_node.conf"
SLURM_CONF = "/etc/slurm/slurmkit.conf"
CHECKS = "/run/slurmkit/node_check"
TOOLS = "/run/node_check_tools"
HEALTH = "HealthCheckProgram=/etc/slurm/node_check.py\nHealthCheckInterval=5\n"
SETTINGS = f"""
CHECK_PATH={TOOLS}:/usr/sbin:/usr/bin:/sbin:/bin
CHECK_SKIP="xid leftovers"
CHECK_TMP_FREE=0
CHECK_GPUS=4
"""
SERIAL = "1320922000001"
REMAP = "memory is to be remapped at the next reset"


def write(lab: Lab, path: str, text: str, service: str = NODE) -> None:
    lab.run("tee", path, service=service, user="", input=text)


def use_gpus(lab: Lab, *gpus: dict[str, str]) -> None:
    """Let nvidia-smi on the node show these GPUs."""
    write(lab, f"{TOOLS}/smi.xml", smi_xml(*gpus))
    use_tool(lab, f'[ "$1" != nvlink ] || exit 1\ncat {TOOLS}/smi.xml')


def use_tool(lab: Lab, body: str) -> None:
    write(lab, f"{TOOLS}/new", f"#!/bin/sh\n{body}\n")
    lab.as_root(NODE, "sh", "-c", f"chmod 755 {TOOLS}/new; mv {TOOLS}/new {TOOLS}/nvidia-smi")


def node(lab: Lab) -> str:
    return lab.run("scontrol", "-o", "show", "node", NODE).stdout


def submit(lab: Lab, command: str = "true") -> str:
    options = "-p untyped --gres=gpu:1 --time=2 --output=/dev/null"
    return lab.run("sbatch", "--parsable", *options.split(), "--wrap", command).stdout.strip()


def state(lab: Lab, job: str) -> str:
    return lab.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T", check=False).stdout.strip()


def results(lab: Lab, context: str) -> dict[str, Any]:
    """The last results of a context; none while the file is not there."""
    done = lab.run("cat", f"{CHECKS}/{context}.json", service=NODE, user="", check=False)
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def resume(lab: Lab) -> None:
    if "DRAIN" in node(lab):
        lab.as_root("ctld", "scontrol", "update", f"NodeName={NODE}", "State=RESUME")
    wait_for(lambda: "State=IDLE " in node(lab))


@pytest.fixture(scope="module")
def health(lab: Lab) -> Iterator[None]:
    """The node has node_check as its health check; the other nodes have none."""
    kept = {each: lab.as_root(each, "cat", SLURM_CONF) for each in ("ctld", NODE)}
    settings = lab.as_root(NODE, "cat", NODE_CONF)
    lab.as_root(NODE, "mkdir", "-p", TOOLS)
    use_gpus(lab, {}, {}, {}, {})
    write(lab, NODE_CONF, settings + SETTINGS)
    try:
        for service, text in kept.items():
            write(lab, SLURM_CONF, text + HEALTH, service)
        lab.as_root("ctld", "scontrol", "reconfigure")
        wait_for(lambda: results(lab, "health"))
        yield
    finally:
        for service, text in kept.items():
            write(lab, SLURM_CONF, text, service)
        write(lab, NODE_CONF, settings)
        lab.as_root("ctld", "scontrol", "reconfigure")
        lab.as_root(NODE, "rm", "-rf", CHECKS, TOOLS)


@pytest.fixture
def settings(lab: Lab, health: None) -> Iterator[Callable[[str], None]]:
    """Add lines to the node's settings for one test; the node is idle and good before and after."""
    text = lab.as_root(NODE, "cat", NODE_CONF)
    use_gpus(lab, {}, {}, {}, {})
    resume(lab)

    def add(lines: str) -> None:
        write(lab, NODE_CONF, f"{text}{lines}\n")

    yield add
    write(lab, NODE_CONF, text)
    use_gpus(lab, {}, {}, {}, {})
    begin = int(time.time())
    wait_for(lambda: results(lab, "health").get("time", 0) > begin + 1)
    resume(lab)


def test_a_good_node_is_left_alone(lab: Lab, settings: Callable[[str], None]) -> None:
    wait_for(lambda: results(lab, "health").get("status") == "OK")
    assert len(results(lab, "health")["gpus"]) == 4
    assert "Reason=" not in node(lab)
    assert lab.run("srun", "-p", "untyped", "--gres=gpu:1", "--time=1", "hostname").stdout


def test_a_bad_gpu_drains_and_a_repaired_one_is_resumed(
    lab: Lab, settings: Callable[[str], None]
) -> None:
    settings("CHECK_RESUME=yes")
    use_gpus(lab, {}, {"pending": "Yes"}, {}, {})
    said = f"Reason=slurmkit: remap {SERIAL}: /dev/nvidia1: {REMAP} [root@"
    wait_for(lambda: said in node(lab))
    assert "State=IDLE+DRAIN" in node(lab)
    job = submit(lab)
    try:
        wait_for(lambda: state(lab, job) == "PENDING")
        use_gpus(lab, {}, {}, {}, {})
        wait_for(lambda: state(lab, job) in {"RUNNING", "COMPLETED", "COMPLETING"})
    finally:
        lab.run("scancel", job, check=False)
    # The history that the ledger reads: the reason with its GPU, and an end.
    show = ("sacctmgr", "-nP", "show", "event", f"Nodes={NODE}", "Format=End,Reason")
    wait_for(lambda: any(
        reason.startswith(f"slurmkit: remap {SERIAL}: ") and end not in {"", "Unknown"}
        for end, _, reason in (
            line.partition("|") for line in lab.as_root("ctld", *show).splitlines()
        )
    ))  # fmt: skip
    # The ledger's service takes it over within a minute.
    report = ("slurmkit", "report", "nodes", "--by", "gpu", "--json")
    wait_for(lambda: SERIAL in {
        row["gpu"] for row in json.loads(lab.run(*report, user="olga").stdout)["rows"]
        if row["checks"] == "remap" and row["well_since"]
    })  # fmt: skip


def test_a_fault_in_the_prolog_requeues_the_job_and_its_reason_stays(
    lab: Lab, settings: Callable[[str], None]
) -> None:
    """The prolog runs no command of Slurm: slurmd drains, and the health check says why."""
    settings("CHECK_IN=prolog\nCHECK_PROLOG_SECONDS=30")
    # Only the prolog sees it: what the health check finds by itself is another test.
    bad = smi_xml({}, {"pending": "Yes"}, {}, {})
    write(lab, f"{TOOLS}/bad.xml", bad)
    use_tool(
        lab,
        f'[ "$1" != nvlink ] || exit 1\n'
        f'file=smi.xml; [ -z "${{SLURM_JOB_ID:-}}" ] || file=bad.xml\ncat {TOOLS}/$file',
    )
    job = submit(lab)
    try:
        said = f"Reason=slurmkit: remap {SERIAL}: /dev/nvidia1: {REMAP} [root@"
        wait_for(lambda: said in node(lab))
        held = "launch failed requeued held"
        wait_for(lambda: held in lab.run("squeue", "-h", "-j", job, "-o", "%r").stdout)
        use_gpus(lab, {}, {}, {}, {})
        lab.as_root("ctld", "scontrol", "update", f"NodeName={NODE}", "State=RESUME")
        lab.run("scontrol", "release", job)
        wait_for(lambda: state(lab, job) in {"RUNNING", "COMPLETED", "COMPLETING"})
    finally:
        lab.run("scancel", job, check=False)


def test_a_check_that_hangs_delays_no_job(lab: Lab, settings: Callable[[str], None]) -> None:
    """What it has started holds the output of nobody, and is not waited for."""
    settings("CHECK_IN=prolog\nCHECK_PROLOG_SECONDS=1.5\nCHECK_HEALTH_SECONDS=40")
    pids = f"{TOOLS}/pids"
    hang = f"setsid sh -c 'echo $$ >>{pids}; exec sleep 6000' & wait"
    use_tool(lab, f'[ -n "${{SLURM_JOB_ID:-}}" ] || exec cat {TOOLS}/smi.xml\n{hang}')
    try:
        assert lab.run("srun", "-p", "untyped", "--gres=gpu:1", "--time=1", "hostname").stdout
        took = results(lab, "prolog")
        hung = lab.as_root(NODE, "cat", pids).split()
        assert hung
        lab.as_root(NODE, "kill", "-0", *hung)  # the job has run, and each of them still hangs
    finally:
        lab.as_root(NODE, "sh", "-c", f"kill -9 $(cat {pids}); true")
    # It has waited for the deadline, and not for the end of what still hung after the job.
    assert took["seconds"] > 1.4
    assert "no answer from nvidia-smi within 1.5 s" in {each["text"] for each in took["checks"]}
    assert {each["state"] for each in took["checks"] if each["check"] == "gpus"} == {"unknown"}
    assert "DRAIN" not in node(lab)


def test_asking_slurmd_for_its_gpus_leaves_the_nodes_socket_alone(lab: Lab) -> None:
    """`slurmd -G` of 24.11 takes the place of the socket that certifies the node's commands."""
    if lab.auth != "slurm":
        pytest.skip("this cluster has MUNGE: docker/cluster up --auth slurm")
    code = "import node_checks; print(node_checks.read_expected(None, {}))"
    in_slurm = ("env", "PYTHONPATH=/etc/slurm", "PYTHONDONTWRITEBYTECODE=1")
    said = lab.run(*in_slurm, "python3", "-c", code, service="c1", user="").stdout
    assert said == "([], {'expected': 0})\n"  # none of NVIDIA's or AMD's
    sources = "/opt/slurmkit/src:/opt/slurmkit/src/plugins"
    environ = ("env", "LD_LIBRARY_PATH=/opt/lab/nvml", f"PYTHONPATH={sources}")
    exporter = (*environ, PYTHON, "-B", "-m", "slurmkit", "gpu-exporter", "--once")
    assert 'gpu="0"' in lab.run(*exporter, service="c1", user="").stdout
    assert lab.run("sacctmgr", "-n", "show", "cluster", service="c1").stdout
