"""The pages of the ledger's service, with settings of a test, and what stands before them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from cluster_lab import CLUSTER, Lab
from waiting import PATIENCE

PYTHON = "/opt/slurmkit/venv/bin/python"
_SERVE = """
import sys
from slurmkit_accounting.portal.process import portal_process
from slurmkit_accounting.service.log import make_log
with portal_process(None, make_log("text")):
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def pages_served(lab: Lab, settings: str) -> Iterator[None]:
    """Serve the pages on the ledger's host, with the service's ledger and configuration.

    Args:
        lab: the cluster.
        settings: TOML that is read after the service's own.
    """
    folder = lab.run("mktemp", "-d", service="ledger", user="slurmkit").stdout.strip()
    file = f"{folder}/portal.toml"
    lab.run("tee", file, service="ledger", user="slurmkit", input=settings)
    environ = (f"SLURMKIT_CONFIG={file}", f"XDG_STATE_HOME={folder}")
    with running(lab, "env", *environ, PYTHON, "-c", _SERVE, user="slurmkit") as said:
        assert said == "ready\n"
        yield


@contextmanager
def running(lab: Lab, *argv: str, user: str = "", told: str = "") -> Iterator[str]:
    """Run a command on the ledger's host, from its first line to the end of the `with` block.

    Args:
        lab: the cluster.
        argv: the command; it ends by SIGTERM.
        user: who runs it; root by default.
        told: what it reads first.

    Yields:
        Its first line.
    """
    who = ("--user", user) if user else ()
    command = [str(CLUSTER), "exec", "ledger", "--name", lab.name, *who, "--", *argv]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        try:
            process.stdin.write(told)
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield line
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)
