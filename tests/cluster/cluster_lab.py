"""A running Docker cluster: commands run in its containers through docker/cluster."""

import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

DOCKER = Path(__file__).resolve().parents[2] / "docker"
CLUSTER = DOCKER / "cluster"


@dataclass(frozen=True)
class Lab:
    """A running cluster."""

    name: str
    release: str

    def run(
        self,
        *argv: str,
        user: str = "alice",
        service: str = "login",
        check: bool = True,
        timeout: float = 600,
        input: str | None = None,  # noqa: A002 - as subprocess.run names it
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container, as a person of LDAP or, with "", as root."""
        who = ["--user", user] if user else []
        command = [str(CLUSTER), "exec", service, "--name", self.name, *who, "--", *argv]
        done = subprocess.run(
            command,
            input=input or "",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            said = done.stdout + done.stderr
            pytest.fail(f"exit status {done.returncode} of {' '.join(argv)}\n{said}")
        return done

    def container(self, service: str) -> str:
        """The name of a service's container, for the docker command."""
        return f"slurmkit-{self.name}-{service}"

    def down(self) -> subprocess.CompletedProcess[str]:
        """Remove the containers; the data stays."""
        return cluster_command("down", "--name", self.name)

    def up(self) -> subprocess.CompletedProcess[str]:
        """Bring the cluster, or what of it died, up."""
        return cluster_command("up", "--name", self.name, "--slurm", self.release)


def cluster_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run docker/cluster."""
    argv = [str(CLUSTER), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=1800)


class Site:
    """A cluster of a site of its own: a copy of docker/ that its admin edits."""

    def __init__(self, folder: Path, lab: Lab, suffix: str = "site") -> None:
        self.docker = folder / "docker"
        self.lab = replace(lab, name=f"{lab.name}{suffix}")
        copied = shutil.ignore_patterns("__pycache__")
        shutil.copytree(DOCKER, self.docker, ignore=copied)
        shutil.copy(DOCKER.parent / "constraints.txt", folder)

    def copy_slurmkit(self) -> None:
        """Give the site slurmkit too, before its cluster is up."""
        ignored = shutil.ignore_patterns("__pycache__")
        for name in ("slurmkit", "accounting", "containers", "plugins", "tui"):
            shutil.copytree(DOCKER.parent / name, self.docker.parent / name, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(DOCKER.parent / name, self.docker.parent)

    def cluster(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [str(self.docker / "cluster"), *arguments, "--name", self.lab.name]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=1800)

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.docker / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
