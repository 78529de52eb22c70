"""Calls of a notebook whose kernel was killed: the next kernel finds their results by job id."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
PYTHON = "/usr/bin/python3"  # that of the kernel, which is not slurmkit's own
NOTEBOOK = r'''
import json
from jupyter_client.manager import start_new_kernel

def cell(code):
    said = []
    def hook(message):
        content = message["content"]
        if message["msg_type"] == "stream": said.append(content["text"])
        if message["msg_type"] == "error": said.append("\n".join(content["traceback"]))
    client.execute_interactive(code, timeout=500, output_hook=hook)
    return "".join(said)

BEGIN = """
import glob, site, time
for each in glob.glob("/opt/slurmkit/venv/lib/python3*/site-packages"): site.addsitedir(each)
from slurmkit import Executor
"""
manager, client = start_new_kernel(kernel_name="python3")
first = cell(BEGIN + """
def slow(x):
    time.sleep(x)
    return x * x
made = Executor(partition="cpu", time="5", mem="100M", max_workers=2, progress=False)
futures = made.submit_all(slow, range(6))
print(futures[0].job, futures[0].result(400))
""")
manager.restart_kernel(now=True)
client.wait_for_ready(timeout=300)
again = cell(BEGIN + f"""
print([each.result(400) for each in Executor.attach("{first.split()[0]}")])
""")
forgotten = cell("futures")
client.stop_channels()
manager.shutdown_kernel(now=True)
print(json.dumps([first, again, forgotten]))
'''


def test_results_after_a_kernel_was_killed(lab: Lab) -> None:
    known = lab.run(PYTHON, "-c", "import ipykernel, jupyter_client", check=False)
    if known.returncode:
        pytest.skip("no ipykernel and jupyter_client on the login node")
    said = lab.run(PYTHON, "-", input=NOTEBOOK).stdout
    first, again, forgotten = json.loads(said.splitlines()[-1])
    assert first.split()[1:] == ["0"], first
    assert again == "[0, 1, 4, 9, 16, 25]\n"
    assert "NameError" in forgotten
