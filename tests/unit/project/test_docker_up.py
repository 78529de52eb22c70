"""docker/lib: waiting for services on a busy machine, and the image; Docker is a stand-in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_DOCKER = Path(__file__).parents[3] / "docker"

# What docker/cluster sets, and short times. `service_states` reads what the stand-in says.
_SCRIPT = """
set -euo pipefail
source "$docker_dir/lib/ui.sh"; source "$docker_dir/lib/network.sh"; source "$docker_dir/lib/up.sh"
PROJECT=p CLUSTER=lab scratch=$(mktemp -d -p "$here")
option_name() { :; }
remove_unhealthy() { :; }
unlock_network_when_made() { :; }
compose_command=(compose)
PATIENCE=$patience network_lock=9
start_services
"""


def _up(
    tmp_path: Path, docker: str, compose: str, patience: int = 3
) -> subprocess.CompletedProcess[str]:
    for name, text in (("docker", docker), ("compose", compose), ("sleep", "/bin/sleep 0.05")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path, "docker_dir": str(_DOCKER), "here": str(tmp_path), "patience": str(patience)
    }  # fmt: skip
    argv = ["bash", "-c", _SCRIPT]
    return subprocess.run(
        argv, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


_STATES = """
case "$*" in
    ps*) echo id ;;
    *StartedAt*) echo "login running 0 0001-01-01T00:00:00Z $health 2099-01-01T00:00:00Z" ;;
    *Health*) echo "/p-login: $said" ;;
    logs*) echo "sshd: no host key" ;;
esac
"""


def test_a_service_that_is_unhealthy_for_now_is_waited_for(tmp_path: Path) -> None:
    """Findings newcomer A20, submission 24, containers D18."""
    asked = f"{tmp_path}/asked"
    docker = f"""
echo >>{asked}; number=$(wc -l <{asked}); said="not yet, $number" health=unhealthy
((number < 40)) || health=healthy
{_STATES}"""
    compose = (
        f'[[ -e {tmp_path}/second ]] || {{ touch {tmp_path}/second; echo "unhealthy"; exit 1; }}'
    )
    done = _up(tmp_path, docker, compose, patience=50)
    assert done.returncode == 0, done.stderr
    assert "login ready" in done.stderr


def test_a_service_with_which_nothing_moves_is_named_with_its_last_lines(tmp_path: Path) -> None:
    docker = f'health=unhealthy said="Connection refused"\n{_STATES}'
    done = _up(tmp_path, docker, "exit 0")
    assert done.returncode == 1
    for words in ("nothing has moved for 3 s", "no host key", "Connection refused", "up again"):
        assert words in done.stderr


def test_a_service_that_ended_is_not_waited_for(tmp_path: Path) -> None:
    states = _STATES.replace("running 0 0001", "exited 1 2099")
    done = _up(tmp_path, f"health=unhealthy said=no\n{states}", "exit 0")
    assert done.returncode == 1
    assert "login failed (exit status 1)" in done.stderr
    assert "nothing has moved" not in done.stderr


@pytest.mark.parametrize("url", ["https://me:secret@pip.example/simple", "https://me@pip.example"])
def test_an_index_with_a_password_is_refused(tmp_path: Path, url: str) -> None:
    """Finding security L20: the history of the image shows build arguments."""
    script = (
        'set -euo pipefail; source "$docker_dir/lib/ui.sh"; source "$docker_dir/lib/image.sh"; '
        "docker() { touch $here/asked; }; build 24.11 image trixie inputs"
    )
    environment = os.environ | {
        "docker_dir": str(_DOCKER), "here": str(tmp_path), "PIP_INDEX_URL": url,
    }  # fmt: skip
    argv = ["bash", "-c", script]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the history of the image" in done.stderr
    assert "secret" not in done.stderr
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["up", "--with", "grafana"], "--with grafana: there is prometheus"),
        (["down", "--with", "prometheus"], "--with belongs to up and reset"),
        (["up", "--with"], "--with needs a value"),
    ],
)
def test_what_a_cluster_cannot_have_beside_the_rest(words: list[str], why: str) -> None:
    done = subprocess.run(
        [_DOCKER / "cluster", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert why in done.stderr
