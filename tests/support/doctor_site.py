"""A site whose Slurm is in order, as recorded of our clusters; for the checks of `doctor`."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurmkit.doctor.case import Diagnosis
from slurmkit.doctor.checks import CHECKS, run_checks
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[1] / "recorded"
ME = pwd.getpwuid(os.geteuid()).pw_name
# What the clusters that were recorded do without.
MENDED = {
    "AccountingStorageEnforce": "associations,limits,qos,safe",
    "AccountingStoreFlags": "job_comment,job_env,job_script",
    "EnforcePartLimits": "ALL",
    "SlurmctldParameters": "preempt_send_user_signal",
    "TaskPlugin": "task/affinity,task/cgroup",
    "ConstrainDevices": "yes",
    "CgroupJobIdPaths": "yes",
}


@dataclass
class Site:
    """What Slurm answers on a site in order; a test spoils something."""

    release: str
    config: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str | Exception] = field(default_factory=dict)
    nodes: str = ""
    partitions: str = ""

    def __post_init__(self) -> None:
        folder = RECORDED / self.release
        self.nodes = (folder / "scontrol-nodes.txt").read_text("utf-8")
        self.partitions = (folder / "scontrol-partitions.txt").read_text("utf-8")
        text = (folder / "scontrol-config.txt").read_text("utf-8")
        self.settings = dict(re.findall(r"^(\S+)\s+=[ ](.*)$", text, re.MULTILINE)) | MENDED
        cluster = self.settings["ClusterName"]
        self.answers = {
            "ping": "Slurmctld(primary) at ctld is UP\n",
            "version": f"slurm-wlm {self.settings['SLURM_VERSION']}\n",
            "sdiag": "Server thread count: 1\nDBD Agent queue size: 0\n",
            "munge": "MUNGE:AwQ\n",
            "unmunge": "STATUS:          Success (0)\n",
            "cluster": f"{cluster}|ctld\n",
            "assoc": f"{cluster}|root|root\n{cluster}|vision|\n{cluster}|vision|{ME}\n"
            f"{cluster}|vision|alice\nother|vision|bob\n",
            "limits": f"{cluster}|vision||{'|' * 10}\n{cluster}|vision|{ME}|{'|' * 10}\n",
            "qos": f"normal|{'|' * 14}\n",
            "user": f"alice|None\n{ME}|Operator\n",
        }

    def slurm(self) -> FakeSlurm:
        names = "scontrol sdiag sacctmgr munge unmunge"
        return FakeSlurm(dict.fromkeys(names.split(), self._answer))

    def _answer(self, argv: Sequence[str], stdin: str | None) -> str:
        answer = self.answers.get(self._asked(argv))
        if isinstance(answer, Exception):
            raise answer
        return self._shown(argv[-1]) if answer is None else answer

    def _asked(self, argv: Sequence[str]) -> str:
        if argv[0] == "sacctmgr":
            return "limits" if argv[4] == "assoc" and "grptres" in argv[5] else argv[4]
        return argv[-1].lstrip("-") if argv[0] == "scontrol" else argv[0]

    def _shown(self, what: str) -> str:
        if what == "config":
            head = f"Configuration data as of {int(time.time())}\n"
            return head + "".join(f"{k} = {v}\n" for k, v in (self.settings | self.config).items())
        return self.nodes if what == "node" else self.partitions


def look(site: Site, name: str) -> list[Diagnosis]:
    (check,) = [check for check in CHECKS if check.name == name]
    return list(run_checks(site.slurm(), [check]))
