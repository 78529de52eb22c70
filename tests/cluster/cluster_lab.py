"""A running Docker cluster, and commands in its containers."""

import atexit
import json
import shutil
import subprocess
import threading
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar

import pytest

DOCKER = Path(__file__).resolve().parents[2] / "docker"
CLUSTER = DOCKER / "cluster"
DRIVER = Path(__file__).with_name("command_driver.py")
GONE = {"status": 137, "output": "", "errors": "the container has stopped\n"}
"""The answer for all commands of a container that stops, as `docker exec` has it."""


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
        who = ["/opt/lab/as-person", user] if user else []
        commands = Commands.of(self.container(service))
        done = commands and commands.run([*who, *argv], input or "", timeout)
        if done is None:  # docker/cluster says what is wrong with the container
            asked = ["--user", user] if user else []
            command = [str(CLUSTER), "exec", service, "--name", self.name, *asked, "--", *argv]
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

    def as_root(self, service: str, *argv: str) -> str:
        """Return what a command prints that root runs in a service's container."""
        return self.run(*argv, service=service, user="").stdout

    @cached_property
    def auth(self) -> str:
        """How Slurm knows who asks: munge or slurm."""
        return self.as_root("ctld", "printenv", "AUTH").strip()

    def container(self, service: str) -> str:
        """The name of a service's container, for the docker command."""
        return f"slurmkit-{self.name}-{service}"

    def down(self) -> subprocess.CompletedProcess[str]:
        """Remove the containers; the data stays."""
        return cluster_command("down", "--name", self.name)

    def up(self) -> subprocess.CompletedProcess[str]:
        """Bring the cluster, or what of it died, up."""
        return cluster_command("up", "--name", self.name, "--slurm", self.release)


class Commands:
    """Commands in one container, started by a process there: `command_driver`."""

    _of: ClassVar[dict[str, "Commands"]] = {}
    _making = threading.Lock()

    def __init__(self, container: str) -> None:
        argv = ["docker", "exec", "-i", container, "python3", "-c", DRIVER.read_text("utf-8")]
        self._driver = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._input, self._output = self._driver.stdin, self._driver.stdout
        atexit.register(self._driver.kill)
        self._answers: dict[int, SimpleQueue[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self.runs = bool(self._output.readline())
        threading.Thread(target=self._read, daemon=True).start()

    @classmethod
    def of(cls, container: str) -> "Commands | None":
        """Return those of a container; None if it does not run."""
        with cls._making:
            known = cls._of.get(container)
            if known is None or not known.runs:
                known = cls._of[container] = cls(container)
            return known if known.runs else None

    def run(
        self, argv: list[str], given: str, timeout: float
    ) -> subprocess.CompletedProcess[str] | None:
        """Run a command; None if the container had gone before the command was started.

        Raises:
            subprocess.TimeoutExpired: if it takes longer; it goes on then.
        """
        answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
        with self._lock:
            if not self.runs:
                return None
            number = len(self._answers)
            self._answers[number] = answers
            command = {"number": number, "argv": argv, "given": given}
            try:
                self._input.write(json.dumps(command) + "\n")
            except BrokenPipeError:
                return None
        try:
            begun = answers.get(timeout=timeout)
            if begun is GONE:
                return None
            ended = answers.get(timeout=timeout)
        except Empty:
            raise subprocess.TimeoutExpired(argv, timeout) from None
        status, output, errors = ended["status"], ended["output"], ended["errors"]
        return subprocess.CompletedProcess(argv, status, output, errors)

    def _read(self) -> None:
        for line in self._output:
            answer = json.loads(line)
            self._answers[answer["number"]].put(answer)
        with self._lock:
            self.runs = False
            for waiting in self._answers.values():
                waiting.put(GONE)


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
