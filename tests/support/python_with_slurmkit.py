"""A Python environment with packages of PyPI and the cluster's slurmkit, on the login node."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster_lab import Lab

_SITE = "import site; print(site.getsitepackages()[0])"


def make_python(lab: Lab, folder: str, *packages: str) -> str:
    """Make an environment in a folder on the shared file system; return its Python."""
    python = f"{folder}/venv/bin/python3"
    lab.as_root("login", "install", "-d", folder)
    lab.as_root("login", "python3", "-m", "venv", f"{folder}/venv")
    lab.as_root(
        "login", "env", "PIP_CERT=/etc/ssl/certs/ca-certificates.crt", python, "-m", "pip",
        "install", "-q", *packages,
    )  # fmt: skip
    ours = lab.as_root("login", "/opt/slurmkit/venv/bin/python3", "-c", _SITE)
    theirs = lab.as_root("login", python, "-c", _SITE).strip()
    lab.run("tee", f"{theirs}/slurmkit.pth", user="", input=ours)
    return python
