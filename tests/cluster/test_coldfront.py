"""A real ColdFront of PyPI: what it grants runs here, and what is used appears there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_lab import Lab
from test_allocations import Books, account, counter, over, state, submit
from waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
assert account  # a fixture

FOLDER = "/tmp/coldfront"
ADDRESS = "127.0.0.1:8123"
HOURS = "Accelerator Usage (Hours)"
PACKAGES = ("coldfront==1.1.10", "djangorestframework", "django-filter")
ENVIRON = (
    f"PYTHONPATH={FOLDER}/site", "PLUGIN_API=True", f"DB_URL=sqlite:///{FOLDER}/db.sqlite",
    "DEBUG=True", "SECRET_KEY=trial", "PYTHONDONTWRITEBYTECODE=1",
)  # fmt: skip
MANAGE = ("python3", "-c", "from coldfront import manage; manage()")
SETUP = f"""
import datetime, sys
from django.contrib.auth import get_user_model
from rest_framework.authtoken.models import Token
from coldfront.core.allocation.models import *
from coldfront.core.field_of_science.models import FieldOfScience
from coldfront.core.project.models import *
from coldfront.core.resource.models import *

pi, _ = get_user_model().objects.get_or_create(username="vogel")
root, _ = get_user_model().objects.get_or_create(username="root", is_superuser=True)
project = Project.objects.create(
    pi=pi, title="QGP \\u202e<b>", status=ProjectStatusChoice.objects.get(name="Active"),
    field_of_science=FieldOfScience.objects.first(),
)
resource = Resource.objects.create(
    name="lab", resource_type=ResourceType.objects.get(name="Cluster"), description="the cluster"
)
allocation = Allocation.objects.create(
    project=project, status=AllocationStatusChoice.objects.get(name="Active"), justification="x",
)
allocation.resources.add(resource)
for name, value in (("slurm_account_name", "ACCOUNT"), ("{HOURS}", "0.017")):
    AllocationAttribute.objects.create(
        allocation=allocation, value=value,
        allocation_attribute_type=AllocationAttributeType.objects.get(name=name),
    )
print("made", allocation.pk, Token.objects.get_or_create(user=root)[0].key)
"""
CHANGE = """
from coldfront.core.allocation.models import *
allocation = Allocation.objects.get(pk={number})
allocation.status = AllocationStatusChoice.objects.get(name="{status}")
allocation.save()
own = allocation.allocationattribute_set.get(allocation_attribute_type__name="{name}")
own.value = "{hours}"
own.save()
"""


class Coldfront:
    """A ColdFront on the login node, served by Django's own server."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def manage(self, *words: str, text: str = "") -> str:
        argv = ("env", "-C", FOLDER, *ENVIRON, *MANAGE, *words)
        return self._lab.run(*argv, user="", input=text).stdout

    def make(self, account: str) -> int:
        """Make an allocation of a minute; its number."""
        said = self.manage("shell", text=SETUP.replace("ACCOUNT", account))
        number, token = said.rpartition("made ")[2].split()
        self._lab.run("sh", "-c", f"umask 077; cat > {FOLDER}/token", user="", input=token)
        return int(number)

    def change(self, number: int, hours: str, status: str = "Active") -> None:
        values = {"number": number, "hours": hours, "status": status, "name": HOURS}
        self.manage("shell", text=CHANGE.format(**values))

    def shows(self, number: int) -> dict[str, Any]:
        """The attribute of hours, as ColdFront's API shows it."""
        header = f"Authorization: Token {self._lab.run('cat', f'{FOLDER}/token', user='').stdout}"
        url = f"http://{ADDRESS}/api/allocations/{number}/?allocation_attributes=true"
        code = (
            "import sys, urllib.request as u; name, value = sys.argv[2].split(': ');"
            "print(u.urlopen(u.Request(sys.argv[1], headers={name: value})).read().decode())"
        )
        said = self._lab.run("python3", "-c", code, url, header, user="").stdout
        attributes = json.loads(said)["allocation_attributes"]
        (own,) = (one for one in attributes if one["allocation_attribute_type"] == HOURS)
        return dict(own)


@pytest.fixture
def coldfront(lab: Lab, tmp_path: Path) -> Iterator[Coldfront]:
    # They are Python only, so those of this Python run with any.
    site_packages = str(tmp_path / "site")
    pip = (sys.executable, "-m", "pip", "install", "--target", site_packages, *PACKAGES)
    subprocess.run(pip, check=True, capture_output=True)
    lab.run("mkdir", "-p", FOLDER, user="")
    there = f"{lab.container('login')}:{FOLDER}/"
    subprocess.run(["docker", "cp", "-q", site_packages, there], check=True)
    site = Coldfront(lab)
    site.manage("initial_setup", text="yes\n")
    environ, command = " ".join(ENVIRON), f'{MANAGE[0]} -c "{MANAGE[2]}"'
    lab.run(
        "sh", "-c", f"cd {FOLDER}; env {environ} setsid {command} runserver --noreload {ADDRESS}"
        " >server.log 2>&1 & echo $! >pid; exec >/dev/null 2>&1", user="",
    )  # fmt: skip
    yield site
    lab.run("sh", "-c", f"kill $(cat {FOLDER}/pid); rm -r {FOLDER}", user="", check=False)


@pytest.fixture
def books(lab: Lab) -> Iterator[Books]:
    folder = lab.run("mktemp", "-d", user="").stdout.strip()
    made = Books(lab, folder)
    section = f'[coldfront]\nurl = "http://{ADDRESS}"\ntoken_file = "{FOLDER}/token"\n'
    lab.run("sh", "-c", f"cat >> {folder}/config.toml", user="", input=section)
    yield made
    lab.run("rm", "-r", folder, user="")


def test_a_project_of_coldfront_runs_here_and_its_use_appears_there(
    lab: Lab, books: Books, coldfront: Coldfront, account: str
) -> None:
    number = coldfront.make(account)
    books.slurmkit("ledger", "ingest")
    pull = ("allocation", "coldfront", "pull", "--new")
    dry_run = (*pull, "--dry-run")  # until ColdFront answers
    wait_for(lambda: books.slurmkit(*dry_run, check=False), lambda done: not done.returncode)
    (granted,) = books.rows(*pull)
    assert (granted["kind"], granted["holder"]) == ("grant", f"account {account}")
    assert books.rows(*pull) == []
    assert books.apply()["after"] == 1
    assert counter(lab, account) == ("1", 0)
    submit(lab, account, "--gpus-per-node=2", command="sleep 40")
    wait_for(lambda: over(lab, account))
    late = submit(lab, account, "--gpus-per-node=1", command="sleep 5")
    wait_for(lambda: state(lab, late), lambda text: "AssocGrp" in text)
    # More hours in ColdFront let it run.
    coldfront.change(number, "4")
    (topped,) = books.rows(*pull)
    assert (topped["kind"], round(topped["hours"], 3)) == ("top-up", 3.983)
    books.apply()
    wait_for(lambda: over(lab, account))
    books.slurmkit("ledger", "ingest")
    (balance,) = books.rows("balance", "--account", account)
    assert balance["used"] >= 80 / 3600
    coldfront.manage("shell", text=books.slurmkit("allocation", "coldfront", "usage").stdout)
    shown = coldfront.shows(number)
    assert (shown["value"], shown["usage"]) == ("4", pytest.approx(balance["used"], abs=0.005))
    # What ColdFront ends does not run any more.
    coldfront.change(number, "4", "Expired")
    (ended,) = books.rows(*pull)
    assert ended["kind"] == "expiry"
    books.apply()
    late = submit(lab, account, "--gpus-per-node=2", command="sleep 1")
    wait_for(lambda: state(lab, late), lambda text: "AssocGrp" in text)
