"""JupyterHub of PyPI as in docs/jupyterhub.md, on the login node: people of LDAP start servers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cluster_lab import Lab
from guide_text import code_blocks
from python_with_slurmkit import make_python
from waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "jupyterhub.md"
DRIVER, BROWSER = "hub_people.py", "hub_browser.py"
HUB = "6.1.1"
SHARED, FOLDER = "/home/.jupyterhub-test", "/var/tmp/jupyterhub-test"
PYTHON = f"{SHARED}/venv/bin/python3"
BASE = "http://127.0.0.1:8000"
PEOPLE = (
    "vogel", "garcia", "chen", "alice", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan",
    "judy", "niaj", "peggy", "zoe",
)  # fmt: skip
SECOND = PEOPLE[:5]  # have two servers, so that twenty start
CULLER = "t" * 32
HURRY = "0:59:00"  # with this time limit, the hub waits for twenty seconds
SETTINGS = f"""
c.JupyterHub.bind_url = "http://0.0.0.0:8000"
c.JupyterHub.db_url = "sqlite:///{FOLDER}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{FOLDER}/cookie_secret"
c.ConfigurableHTTPProxy.pid_file = "{FOLDER}/proxy.pid"
c.JupyterHub.allow_named_servers = True
c.SlurmkitSpawner.profiles = {{
    "Small": {{"cpus-per-task": 1, "mem": "500M", "time": "1:00:00"}},
    "Later": {{"mem": "500M", "time": "1:00:00", "begin": "now+1hour"}},
    "Too long": {{"time": "400-00:00:00"}},
    "No program": {{"time": "1:00:00", "mem": "100M", "environment": {{"PATH": "/nowhere"}}}},
}}
def hurry(spawner):
    if spawner.user_options.get("time") == "{HURRY}":
        spawner.start_timeout = 20
c.Spawner.pre_spawn_hook = hurry
c.JupyterHub.services = [{{"name": "idle-culler", "api_token": "{CULLER}"}}]
"""
# Notes each squeue of this machine, who ran it and when.
SQUEUE = f"""#!/bin/sh
echo "$(date +%s.%N) $(id -un)" >> {FOLDER}/squeue.log
exec /usr/bin/squeue "$@"
"""
START = f"""
cd {FOLDER}
setsid {SHARED}/venv/bin/jupyterhub -f config.py >> hub.log 2>&1 &
echo $! > pid
"""
WHERE = "import os, socket; print(socket.gethostname(), os.environ['SLURM_JOB_ID'])"


class Hub:
    """A hub on the login node."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.passwords = {
            name: lab.as_root("login", "cat", f"/secrets/people/{name}.password").strip()
            for name in PEOPLE
        }

    def start(self) -> None:
        self.lab.as_root("login", "bash", "-c", START)
        wait_for(self.answers)

    def answers(self) -> bool:
        asked = self.lab.run("curl", "-sf", f"{BASE}/hub/health", user="", check=False)
        return asked.returncode == 0

    def end(self) -> None:
        """End the hub, not its servers."""
        line = f"kill $(cat {FOLDER}/pid); tail --pid=$(cat {FOLDER}/pid) -f /dev/null"
        self.lab.as_root("login", "bash", "-c", line)

    def do(self, *steps: tuple[Sequence[str], str, dict[str, Any]]) -> list[list[Any]]:
        """Let people do something, step by step; return what they saw."""
        names = sorted({name for who, _, _ in steps for name in who})
        login = (names, "login", {})
        told = {"base": BASE, "people": {name: self.passwords[name] for name in names}}
        told["steps"] = [login, *steps]
        done = self.lab.run(PYTHON, f"{FOLDER}/{DRIVER}", user="", input=json.dumps(told))
        logins, *seen = json.loads(done.stdout)
        assert all(logins)
        return seen

    def jobs(self, user: str) -> list[str]:
        said = self.lab.run("/usr/bin/squeue", "--me", "-h", "-o", "%i %T", user=user).stdout
        return said.splitlines()

    def stop_all(self) -> None:
        for name in PEOPLE:
            if self.jobs(name):
                self.do(([name], "stop", {}), ([name], "stop", {"server": "second"}))
                wait_for(partial(self.jobs, name), good=lambda jobs: not jobs)


@pytest.fixture(scope="module")
def hub(lab: Lab) -> Iterator[Hub]:
    apt = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq")
    lab.as_root("login", "apt-get", "-o", "Acquire::Check-Valid-Until=false", "update")
    packages = ("node-configurable-http-proxy", "chromium", "chromium-driver")
    lab.as_root("login", *apt, "--no-install-recommends", *packages)
    lab.as_root("login", "install", "-d", "-m", "0755", FOLDER)
    lab.as_root("login", "touch", f"{FOLDER}/squeue.log")
    lab.as_root("login", "chmod", "0666", f"{FOLDER}/squeue.log")
    make_python(
        lab, SHARED, f"jupyterhub=={HUB}", "jupyterlab", "jupyterhub-idle-culler", "selenium"
    )
    examples = "\n".join(code_blocks(PAGE.read_text("utf-8"), "python"))
    config = examples.replace("/opt/jupyterhub", f"{SHARED}/venv") + SETTINGS
    for path, text in (
        (f"{FOLDER}/config.py", config),
        ("/usr/local/bin/squeue", SQUEUE),
        *((f"{FOLDER}/{name}", (HERE / name).read_text("utf-8")) for name in (DRIVER, BROWSER)),
    ):
        lab.run("tee", path, user="", input=text)
    lab.as_root("login", "chmod", "0755", "/usr/local/bin/squeue")
    # Secrets of jobs that were killed: slurmkit asks once in ten minutes whether they are over.
    left = "rm -f /home/*/.local/state/slurmkit/secrets/*/[0-9]*"
    lab.as_root("login", "bash", "-c", left)
    hub = Hub(lab)
    hub.start()
    yield hub
    hub.stop_all()
    hub.end()
    lab.as_root("login", "rm", "-rf", FOLDER, "/usr/local/bin/squeue", SHARED)


@pytest.fixture
def started(hub: Hub) -> Iterator[Hub]:
    """The hub, whose servers all end with the test."""
    yield hub
    hub.stop_all()


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["html"])


def test_twenty_servers_at_once_cost_one_squeue_in_ten_seconds(started: Hub) -> None:
    log = f"{FOLDER}/squeue.log"
    started.lab.as_root("login", "truncate", "--size=0", log)
    small = {"profile": "Small"}
    seen = started.do(
        (PEOPLE, "start", small),
        (SECOND, "start", {"server": "second", **small}),
        (PEOPLE, "ready", {}),
        (SECOND, "ready", {"server": "second"}),
        (PEOPLE, "run", {"code": WHERE}),
    )
    for each in (*seen[2], *seen[3]):
        assert each["events"][-1].get("ready"), each["events"]
    jobs = {name: line.split()[1] for name, line in zip(PEOPLE, seen[4], strict=True)}
    for name, job_id in jobs.items():
        assert any(line.split() == [job_id, "RUNNING"] for line in started.jobs(name))
    asked = [line.split() for line in started.lab.as_root("login", "cat", log).splitlines()]
    assert {who for _, who in asked} == {"root"}  # the hub; and none of the people
    times = [float(when) for when, _ in asked]
    assert all(after - before > 9.5 for before, after in pairwise(times))


def test_form_says_what_may_start_and_what_not(hub: Hub) -> None:
    ((form,),) = hub.do((["alice"], "form", {}))
    page = text_of(form)
    assert "May start at once" in page
    assert 'value="Small" checked' in page
    assert 'value="Too long" disabled' in page
    assert "partition gpu allows" in page


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profile": "Too long"}, "partition gpu allows"),
        ({"profile": "<b>none"}, "no profile"),
        ({"profile": "Small", "time": "soon"}, "time"),
        ({"profile": "Small", "account": "nobodys"}, "nobodys"),
    ],
)
def test_what_cannot_start_is_said_on_the_form(
    hub: Hub, options: dict[str, str], words: str
) -> None:
    ((page,),) = hub.do((["alice"], "start", options))
    assert words in text_of(page)
    assert "<b>none" not in text_of(page)
    assert hub.jobs("alice") == []


def test_job_that_fails_says_how_on_the_page(hub: Hub) -> None:
    started, ready = hub.do(
        (["alice"], "start", {"profile": "No program"}), (["alice"], "ready", {})
    )
    said = json.dumps(ready) + text_of(started[0])
    assert "exit code 127" in said
    assert "bash: command not found" in said  # the last line of the log


def test_hub_that_gives_up_says_why_the_job_waited(started: Hub) -> None:
    later = {"profile": "Later", "time": HURRY}
    _, (ready,) = started.do((["dave"], "start", later), (["dave"], "ready", {}))
    last = ready["events"][-1]
    assert last["failed"]
    assert "waits" in last["message"]
    assert "has cancelled the job" in last["message"]
    wait_for(lambda: not started.jobs("dave"))


def test_kernel_restarts_in_the_job_and_culling_ends_it(started: Hub) -> None:
    _, _, (before,), (after,) = started.do(
        (["alice"], "start", {"profile": "Small"}),
        (["alice"], "ready", {}),
        (["alice"], "run", {"code": f"here = 1; {WHERE}"}),
        (["alice"], "run", {"code": f"{WHERE}; print('here' in dir())", "restart": True}),
    )
    assert after == f"{before}\nFalse"
    (line,) = started.jobs("alice")
    assert line == f"{before.split()[1]} RUNNING"
    lab = started.lab
    cull = (
        f"JUPYTERHUB_API_TOKEN={CULLER} timeout 300 {PYTHON} -m jupyterhub_idle_culler"
        f" --timeout=1 --cull-every=2 --url={BASE}/hub/api"
    )
    lab.run("bash", "-c", f"{cull} >{FOLDER}/culler.log 2>&1 &", user="")
    wait_for(lambda: not started.jobs("alice"))
    lab.as_root("login", "pkill", "-f", "[j]upyterhub_idle_culler")


def test_servers_and_waiting_jobs_outlive_the_hub(started: Hub) -> None:
    lab = started.lab
    _, _, (before,), _ = started.do(
        (["alice"], "start", {"profile": "Small"}),
        (["alice"], "ready", {}),
        (["alice"], "run", {"code": WHERE}),
        (["carol"], "start", {"profile": "Later"}),
    )
    waits = [line.split()[0] for line in wait_for(lambda: started.jobs("carol"))]
    started.end()
    started.start()
    (job_id,) = waits
    lab.run("scontrol", "update", f"JobId={job_id}", "StartTime=now", user="carol")
    (after,), _, (waited,) = started.do(
        (["alice"], "run", {"code": WHERE}),
        (["carol"], "ready", {}),
        (["carol"], "run", {"code": WHERE}),
    )
    assert after == before
    assert waited.split()[1] == job_id


def test_stop_while_the_job_waits_cancels_it(started: Hub) -> None:
    started.do((["alice"], "start", {"profile": "Later"}))
    wait_for(lambda: started.jobs("alice"))
    started.do((["alice"], "stop", {}))
    wait_for(lambda: not started.jobs("alice"))


def test_nobody_can_name_a_port_for_somebody_else(started: Hub) -> None:
    """Bob has Alice's job id, and a token of his own server."""
    lab = started.lab
    *_, (hers,), (token,) = started.do(
        (["alice", "carol"], "start", {"profile": "Small"}),
        (["alice", "carol"], "ready", {}),
        (["alice"], "run", {"code": "import os; print(os.environ['SLURM_JOB_ID'])"}),
        (["carol"], "run", {"code": "import os; print(os.environ['JUPYTERHUB_API_TOKEN'])"}),
    )
    codes = []
    for user in ("alice", "carol"):
        asked = (
            "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST",
            "-H", f"Authorization: token {token}", "-d", json.dumps({"job_id": hers, "port": 22}),
            f"http://login:8081/hub/api/users/{user}/slurmkit-server",
        )  # fmt: skip
        codes.append(lab.run(*asked, user="carol").stdout)
    assert codes == ["404", "404"]


def test_secrets_of_a_server_are_nowhere_but_in_its_environment(started: Hub) -> None:
    lab = started.lab
    *_, (said,) = started.do(
        (["alice"], "start", {"profile": "Small"}),
        (["alice"], "ready", {}),
        (["alice"], "run", {
            "code": "import os; print(os.environ['JUPYTERHUB_API_TOKEN'],"
            " os.environ['SLURM_JOB_ID'], os.environ['SLURMD_NODENAME'])"
        }),
    )  # fmt: skip
    token, job_id, node = said.split()
    script = lab.run("scontrol", "write", "batch_script", job_id, "-").stdout
    assert token not in script
    argv = lab.as_root(node, "bash", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "jupyterhub-singleuser" in argv
    assert token not in argv
    left = lab.run("bash", "-c", 'grep -rlF -- "$1" ~/.local/state || :', "grep", token).stdout
    assert left == ""


def test_whole_way_in_chromium(started: Hub) -> None:
    """Log in, choose, wait, run a cell, restart the kernel: by the buttons of the pages."""
    started.lab.run("rm", "-rf", ".jupyter/lab/workspaces", "Untitled.ipynb")  # of another time
    told = {"base": BASE, "user": "alice", "password": started.passwords["alice"]}
    told |= {"profile": "Small", "pictures": "/var/tmp"}
    done = started.lab.run(PYTHON, f"{FOLDER}/{BROWSER}", user="", input=json.dumps(told))
    seen = json.loads(done.stdout)
    assert "May start at once" in seen["form"]
    assert "Job " in seen["waiting"]
    (line,) = started.jobs("alice")
    assert f"job {line.split()[0]}" in seen["cell"]
    assert "here is gone" in seen["restarted"]
