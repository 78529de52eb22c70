"""The site's own search finds the right page first."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_SITE = ROOT / "build/docs"
_FIRST = {
    "GPU-hours": "docs/concepts#gpu-hours",
    "requeue": "docs/survive",
    "PrivateData": "docs/cluster#privatedata",
    "Permission denied": "docs/errors#permission-denied",
    "container": "docs/containers",
    "MPI": "docs/multi-node#mpi",
    "jupyter": "docs/notebook",
    "JupyterHub": "docs/jupyterhub",
    "seff": "docs/coming-from#seff",
    "fairshare": "docs/cluster",
    "pending": "docs/why",
    "free gpus": "docs/cluster#free-gpus",
    "VS Code": "docs/editors",
    "out of memory": "docs/why#out-of-memory",
    "interactive shell": "docs/from-sbatch#an-interactive-shell",
    "QOSMaxJobsPerUserLimit": "docs/reasons",
    "2FA": "docs/from-my-laptop",
    "ddp": "docs/multi-node",
    "quota": "docs/allocations",
    "dask": "docs/executor",
    "no space left on device": "docs/containers",
}


def _why_not() -> str:
    if shutil.which("node") is None:
        return "node is not installed; it is in Debian's package nodejs"
    built = _SITE / "searchindex.js"
    pages = (ROOT / "docs").glob("**/*.md")
    if not built.exists() or built.stat().st_mtime < max(one.stat().st_mtime for one in pages):
        return "build/docs is not of these pages; run make docs"
    return ""


@pytest.mark.skipif(bool(_why_not()), reason=_why_not())
def test_the_first_hit_is_right() -> None:
    node = ["node", str(ROOT / "tests/support/docs_search.js"), str(_SITE), *_FIRST]
    done = subprocess.run(node, check=True, capture_output=True, text=True)
    found = dict(zip(_FIRST, json.loads(done.stdout), strict=True))
    assert {query: (hits or [""])[0] for query, hits in found.items()} == _FIRST, found
