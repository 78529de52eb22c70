"""What slurmkit puts into Slurm itself, and into a shell: job_submit.lua, prolog, epilog, Tab."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from waiting import wait_for

from slurmkit.planning.refusals import refusal_text

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
NODE_CONF = "/etc/slurm/slurmkit_node.conf"
# Runs job_submit.lua as slurmctld does, by the same library, on jobs as any client could send them.
LUA = """
import ctypes, sys
lua = ctypes.CDLL("liblua5.1.so.0")
lua.luaL_newstate.restype = ctypes.c_void_p
lua.lua_tolstring.restype = ctypes.c_char_p
state = ctypes.c_void_p(lua.luaL_newstate())
lua.luaL_openlibs(state)
if lua.luaL_loadstring(state, sys.argv[1].encode()) or lua.lua_pcall(state, 0, 0, 0):
    sys.exit(lua.lua_tolstring(state, -1, None))
"""
HARNESS = """
slurm = {{ SUCCESS = 0, ERROR = -1, log_error = print, log_user = print }}
dofile("/etc/slurm/job_submit.lua")
local gpu = {{ flag_default = 1 }}
print(slurm_job_submit({job}, {{ gpu = gpu, mig = {{}} }}, 0))
"""


# --- job_submit.lua -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "-p gpu --gres=shard:h100:3",
            refusal_text("typed-shard", name="shard", type="h100", count=3),
        ),
        (
            "-p mps --gres=mps:a100:50",
            refusal_text("typed-shard", name="mps", type="a100", count=50),
        ),
        (
            "--gpus-per-node=9",
            refusal_text("gpus-per-node", asked="gpu:9", most="gpu:8", partition="gpu"),
        ),
        (
            "-p gpu,mps --gpus=a100:20 -N2",
            refusal_text(
                "gpus-per-node", asked="gpu:a100:10", most="gpu:a100:8", partition="gpu,mps"
            ),
        ),
        (
            "-p untyped --gpus-per-task=2 --ntasks-per-node=3 -N1 -n3",
            refusal_text("gpus-per-node", asked="gpu:6", most="gpu:4", partition="untyped"),
        ),
        ("-p gpu --gres=shard:5", refusal_text("shards-per-gpu", asked=5, most=4, partition="gpu")),
        (
            "-p mps --gres=mps:150",
            refusal_text("mps-per-gpu", asked=150, most=100, partition="mps"),
        ),
        (
            "-p mig --gres=gpu:3g.20gb:1",
            refusal_text("mig-profile", asked="3g.20gb", types="gpu:a100_3g.20gb"),
        ),
    ],
)
def test_sbatch_is_refused_in_the_words_of_plan(lab: Lab, options: str, said: str) -> None:
    argv = ["sbatch", "--parsable", "--hold", "--time=1", *options.split(), "--wrap=true"]
    done = lab.run(*argv, check=False)
    assert done.returncode, done.stdout
    assert f"error: {said}\n" in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        "-p cpu",
        "-p gpu --gres=gpu:a100:8 -N2",
        "-p gpu --gpus=8 --gpus-per-task=1 --ntasks-per-node=8 -N1",
        "-p gpu --gpus-per-task=2 --ntasks-per-node=8 -n1",
        "-p gpu --gpus-per-task=2 --ntasks-per-node=8 -n5 -N2",
        "-p gpu --gpus=16",
        "-p gpu --gres=shard:4",
        "-p mps --gres=mps:100",
        "-p mig --gres=gpu:a100_3g.20gb:2",
        "-p untyped --gres=gpu",
    ],
)
def test_what_fits_is_not_refused(lab: Lab, options: str) -> None:
    argv = ["sbatch", "--parsable", "--hold", "--time=1", *options.split(), "--wrap=true"]
    lab.run("scancel", lab.run(*argv).stdout.strip())


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ('{ tres_per_node = "gres/gpu:1,gres/shard:1" }', "gpu-and-shared"),
        ('{ tres_per_job = "gres:gpu:a100:1", tres_per_node = "gres:shard:1" }', "gpu-and-shared"),
    ],
)
def test_what_sbatch_itself_stops_is_stopped_for_other_clients(
    lab: Lab, job: str, code: str
) -> None:
    script = HARNESS.format(job=job)
    said = lab.as_root("ctld", "python3", "-c", LUA, script).splitlines()
    assert said == [f"%s\t{refusal_text(code, name='shard')}", "-1"]


def test_a_defect_lets_jobs_pass(lab: Lab) -> None:
    """Values that no release sends, and a site file that is no Lua."""
    script = HARNESS.format(job='{ tres_per_node = "gres/gpu:9", partition = 5 }')
    fine = HARNESS.format(job='{ tres_per_node = "gpu::::,=,gres/:" }')
    for each in (script, fine, HARNESS.format(job="{ tres_per_job = {} }")):
        assert lab.as_root("ctld", "python3", "-c", LUA, each).splitlines()[-1] == "0"


def test_an_edit_that_does_not_parse_is_named(lab: Lab) -> None:
    write = "echo 'function slurm_job_submit(' >/tmp/edit.lua; /opt/lab/check-lua /tmp/edit.lua"
    done = lab.run("sh", "-c", write, service="ctld", user="", check=False)
    assert done.returncode
    assert "/tmp/edit.lua:2:" in done.stderr
    lab.as_root("ctld", "/opt/lab/check-lua", "/etc/slurm/job_submit.lua")


def test_the_limits_are_those_of_the_nodes(lab: Lab) -> None:
    def limits(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith("--")]

    told = lab.as_root("ctld", "cat", "/etc/slurm/slurmkit_site.lua")
    assert limits(told) == limits(lab.run("slurmkit", "config", "slurm-lua").stdout)


# --- prolog and epilog --------------------------------------------------------------------------


def test_a_node_knows_who_has_which_gpu(lab: Lab) -> None:
    show = "cat /run/slurmkit/gpus/*/$SLURM_JOB_ID"
    shown = lab.run("srun", "-p", "untyped", "--gres=gpu:2", "--time=1", "bash", "-c", show).stdout
    lines = shown.splitlines()
    assert lines.count("user=alice") == 2
    assert lines.count("partition=untyped") == 2
    job = next(line for line in lines if line.startswith("job=")).partition("=")[2]
    find = ("find", "/run/slurmkit/gpus", "-name", job)
    wait_for(lambda: not lab.as_root("c4", *find))


@pytest.fixture
def other_devices(lab: Lab) -> Iterator[str]:
    """Let c4's GPUs be other device files: ones that a process can open, unlike those of GPUs."""
    prefix = "/run/test_gpu"
    kept = lab.as_root("c4", "cat", NODE_CONF)
    make = f"for i in 0 1 2 3; do mknod -m 666 {prefix}$i c 1 3; done"
    lab.as_root("c4", "sh", "-c", f"{make}; echo GPU_DEVICE={prefix} >{NODE_CONF}")
    yield prefix
    lab.run("tee", NODE_CONF, service="c4", user="", input=kept)
    lab.as_root("c4", "sh", "-c", f"rm -f {prefix}?")


def test_a_lost_device_drains_the_node_and_keeps_the_job(lab: Lab, other_devices: str) -> None:
    lab.as_root("c4", "sh", "-c", f"rm {other_devices}?")
    argv = "sbatch --parsable -p untyped --gres=gpu:1 --time=1 --output=/dev/null --wrap=true"
    job = lab.run(*argv.split()).stdout.strip()
    try:
        node = ("scontrol", "-o", "show", "node", "c4")
        reason = f"Reason=slurmkit: devices: GPU 0 has no device file {other_devices}0"
        wait_for(lambda: reason in lab.run(*node).stdout)
        held = "launch failed requeued held"
        wait_for(lambda: held in lab.run("squeue", "-h", "-j", job, "-o", "%r").stdout)
    finally:
        lab.run("scancel", job)
        wait_for(lambda: job not in lab.run("squeue", "-h", "-o", "%i").stdout)
        lab.as_root("ctld", "scontrol", "update", "NodeName=c4", "State=RESUME")
    wait_for(lambda: "State=IDLE " in lab.run("scontrol", "-o", "show", "node", "c4").stdout)


def test_a_jobs_last_process_lets_go_of_its_gpu(lab: Lab, other_devices: str) -> None:
    """A daemon that a job has left, as nothing but cgroups would have kept it in the job."""
    name = f"left_{time.time_ns()}"
    hold = f"exec 9<{other_devices}0; exec -a {name} sleep 3000"
    leave = f"SLURM_JOB_ID=1 setsid -f bash -c '{hold}' </dev/null >/dev/null 2>&1"
    lab.as_root("c4", "bash", "-c", leave)
    find = ("pgrep", "-f", f"^{name}")
    wait_for(lambda: lab.run(*find, service="c4", user="", check=False).stdout)
    lab.run("srun", "-p", "untyped", "--gres=gpu:1", "--time=1", "true")
    assert lab.run(*find, service="c4", user="", check=False).returncode == 1


def test_another_jobs_prolog_leaves_a_het_job_alone(lab: Lab, other_devices: str) -> None:
    """Its processes name the first component, which runs on c7 and has no GPU."""
    name = f"het_{time.time_ns()}"
    hold = f"exec 9<{other_devices}0; exec -a {name} sleep 1000"
    parts = ("-p cpu -n1 --mem=100", "hetjob", "-p untyped -n1 --gres=gpu:1")
    options = "".join(f"#SBATCH {part}\n" for part in parts)
    script = f"#!/bin/bash\n{options}srun --het-group=1 bash -c '{hold}'\n"
    argv = ("sbatch", "--parsable", "--time=20", "--output=/dev/null")
    job = lab.run(*argv, input=script).stdout.strip()
    find = ("pgrep", "-f", f"^{name}")
    try:
        wait_for(lambda: lab.run(*find, service="c4", user="", check=False).returncode == 0)
        lab.run("srun", "-p", "untyped", "--gres=gpu:1", "--time=1", "true")
        assert lab.run(*find, service="c4", user="", check=False).returncode == 0
    finally:
        lab.run("scancel", job)
    wait_for(lambda: job not in lab.run("squeue", "-h", "-o", "%i").stdout)


# --- on the login node --------------------------------------------------------------------------


def test_configuration_and_plugins_are_sound(lab: Lab) -> None:
    lab.run("slurmkit", "config", "check")
    shown = json.loads(lab.run("slurmkit", "config", "show", "--json").stdout)["rows"]
    sources = {(s["section"], s["key"]): s["source"] for s in shown}
    assert sources["ldap", "uri"] == "/etc/slurmkit/config.toml"
    listed = json.loads(lab.run("slurmkit", "plugins", "--check", "--json").stdout)["rows"]
    assert {"srun", "none", "gpu_hours"} <= {line["name"] for line in listed}


def test_a_sites_policy_fills_in_and_refuses(lab: Lab) -> None:
    config = f"/tmp/policy{time.time_ns()}.toml"
    text = '[policy.gpu_hours]\ndefault_time = "1:30:00"\nmax_gpu_hours = 20\n'
    lab.run("tee", config, input=text)
    plan = ("env", f"SLURMKIT_CONFIG={config}", "slurmkit", "plan", "--json")
    try:
        filled = lab.run(*plan, "--gpus-per-node", "a100:8", "--", "true").stdout
        refused = lab.run(
            *plan, "--gpus-per-node", "a100:8", "--nodes=2", "--", "true", check=False
        )
    finally:
        lab.run("rm", config)
    (submission,) = json.loads(filled)["rows"][0]["submissions"]
    assert submission["options"]["time"] == "1:30:00"
    assert refused.returncode == 2
    (row,) = json.loads(refused.stdout)["rows"]
    errors = {error["code"]: error for error in row["errors"]}
    assert errors["gpu-hours-cap"]["fix"] == {"time": "1:15:00"}


def test_tab_completes_in_a_login_shell(lab: Lab) -> None:
    tmux = ("tmux", "-L", f"tab{time.time_ns()}")
    lab.run(*tmux, "-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "20", "bash -l")
    try:
        wait_for(lambda: "$" in lab.run(*tmux, "capture-pane", "-p").stdout)
        lab.run(*tmux, "send-keys", "slurmkit que", "Tab", "--us", "Tab")
        wait_for(lambda: "slurmkit queue --user" in lab.run(*tmux, "capture-pane", "-p").stdout)
    finally:
        lab.run(*tmux, "kill-server")
