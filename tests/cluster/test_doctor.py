"""`slurmkit doctor` on the cluster as it is, and on one whose admin got settings wrong."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_lab import Lab, Site
from waiting import wait_for

pytestmark = pytest.mark.cluster


def examined(lab: Lab, user: str = "olga") -> dict[str, dict[str, Any]]:
    """What each check found; of several findings of one check the last."""
    done = lab.run("slurmkit", "doctor", "--json", user=user, check=False)
    found = json.loads(done.stdout)["rows"]
    assert done.returncode == int(any(each["severity"] == "error" for each in found))
    return {each["check"]: each for each in found}


@pytest.mark.smoke
def test_the_cluster_as_it_is(lab: Lab) -> None:
    """What it does without is said; nothing is an error, and nothing breaks."""
    found = examined(lab)
    unwell = {name: each["severity"] for name, each in found.items() if each["severity"] != "ok"}
    assert unwell == {
        "enforce-safe": "warning",
        "part-limits": "warning",
        "preemption": "warning",
        "gpus-confined": "warning",
        "store-flags": "note",
        "shared-files": "note",
        **({} if lab.release == "26.05" else {"pyslurm": "note"}),  # the image of 26.05 has it
    }
    assert "account climate" in found["enforce-safe"]["message"]
    shown = lab.run("slurmkit", "doctor").stdout
    assert "fix: EnforcePartLimits=ALL   [slurm.conf]" in shown


def test_who_may_not_see_is_told_so(lab: Lab) -> None:
    found = examined(lab, "alice")
    assert found["directory"]["severity"] == "unknown"
    assert found["directory"]["message"].startswith("not checked")


def test_a_node_that_is_out(lab: Lab) -> None:
    drain = ("scontrol", "update", "NodeName=c6", "State=DRAIN", "Reason=Prolog error x")
    lab.run(*drain, user="")
    try:
        found = examined(lab)
        assert found["prolog"]["severity"] == "error"
        assert "c6: Prolog error x" in found["prolog"]["message"]
        lab.run("scontrol", "update", "NodeName=c6", "Reason=bad DIMM", user="")
        assert "c6 drained: bad DIMM (root, 20" in examined(lab)["nodes-out"]["message"]
    finally:
        lab.run("scontrol", "update", "NodeName=c6", "State=RESUME", user="")


# Before the real ones on the PATH, so that the calls can be counted.
COUNTED = '#!/bin/bash\necho "${0##*/} $*" >>"${0%/*}/calls"\nexec /usr/bin/"${0##*/}" "$@"\n'


def test_without_slurmctld_the_rest_is_still_looked_at(lab: Lab) -> None:
    """As on a login node that reaches no slurmctld: another slurm.conf stands in for that.

    slurmctld is asked once, not by each check: a question that nobody answers takes 20 s.
    """
    folder = lab.run("mktemp", "-d", user="olga").stdout.strip()
    silent = "ClusterName=none\nSlurmctldHost=localhost\n"
    lab.run("tee", f"{folder}/silent.conf", input=silent, user="olga")
    for name in ("scontrol", "squeue", "sdiag"):
        lab.run("tee", f"{folder}/{name}", input=COUNTED, user="olga")
        lab.run("chmod", "+x", f"{folder}/{name}", user="olga")
    command = f"PATH={folder}:$PATH SLURM_CONF={folder}/silent.conf slurmkit doctor --json"
    done = lab.run("bash", "-c", command, user="olga", check=False)
    calls = lab.run("cat", f"{folder}/calls", user="olga").stdout.splitlines()
    lab.run("rm", "-r", folder, user="olga")
    found = {each["check"]: each for each in json.loads(done.stdout)["rows"]}
    assert done.returncode == 1
    assert found["slurmctld"]["severity"] == "error"
    assert found["memory"]["message"] == "slurmctld is down"
    assert found["configuration"]["severity"] == "ok"
    assert [call for call in calls if "--version" not in call] == ["scontrol ping"]


@pytest.fixture(scope="module")
def spoiled(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A cluster of its own with slurmkit, brought up in order; then its admin edits."""
    site = Site(tmp_path_factory.mktemp("spoiled"), lab, "spoiled")
    site.copy_slurmkit()
    up = site.cluster("up", "--slurm", lab.release)
    try:
        assert up.returncode == 0, up.stderr
        _spoil(site)
        yield site.lab
    finally:
        down = site.cluster("down", "--volumes")
    assert down.returncode == 0, down.stderr


def _spoil(site: Site) -> None:
    conf, nodes = "conf/slurm/slurm.conf", "conf/slurm/nodes.conf"
    text = (site.docker / conf).read_text("utf-8")
    tracked = next(line for line in text.splitlines() if line.startswith("AccountingStorageTRES="))
    site.edit(conf, tracked, "AccountingStorageTRES=license/none")
    site.edit(conf, "DefMemPerCPU=1024", "")
    site.edit(conf, "=associations,limits,qos", "=associations,qos")
    for weight in ("16.0", "8.0", "4.0"):
        site.edit(nodes, f",GRES/gpu={weight}", "")
    site.edit(nodes, ",GRES/mps=0.16", "")
    reload = site.cluster("reload")
    assert reload.returncode == 0, reload.stderr
    site.lab.run("sacctmgr", "-i", "delete", "user", "zoe", user="", service="ctld")
    # Tracked TRES are only read anew at a start.
    subprocess.run(["docker", "restart", "-t", "5", site.lab.container("ctld")], check=True)
    wait_for(lambda: site.lab.run("scontrol", "ping", check=False).returncode == 0)


@pytest.mark.parametrize(
    ("check", "severity", "says"),
    [
        ("gpu-tres", "error", "AccountingStorageTRES has no gres/gpu, and 6 nodes have GPUs"),
        ("memory", "warning", "DefMemPerCPU is not set for gpu, untyped, mig, mps, cpu"),
        ("enforce", "error", "limits are not enforced"),
        ("directory", "warning", "people in the directory have no association: zoe"),
        ("billing", "warning", "has no GRES/gpu"),
    ],
)
def test_settings_that_are_wrong_are_found(
    spoiled: Lab, lab: Lab, check: str, severity: str, says: str
) -> None:
    assert examined(lab)[check]["severity"] == "ok"
    found = examined(spoiled)[check]
    assert found["severity"] == severity
    assert says in found["message"]
    assert all((found["meaning"], found["fix"], found["where"]))
