"""docker/lib: waiting for services on a busy machine, and the image; Docker is a stand-in."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slurmkit_accounting.config import LdapSection, ServiceSection
from slurmkit_accounting.portal.settings import PortalSection, check_portal_section

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
    """The history of the image shows build arguments."""
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
        (["up", "--with", "grafana"], "--with grafana: there are prometheus and portal"),
        (["up", "--with", "portal", "--with=grafana"], "--with grafana: there are prometheus and"),
        (["exec", "login", "--with", "portal", "--", "true"], "--with belongs to up and reset"),
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


@pytest.mark.parametrize(
    ("has", "profiles"),
    [
        ("login", ""),
        ("login\\nprometheus", "prometheus"),
        ("portal\\nprometheus", "prometheus,portal"),
    ],
)
def test_parts_that_a_cluster_has_stay_its_services(
    has: str, profiles: str, tmp_path: Path
) -> None:
    docker = f"""
case "$1" in
    ps) printf '{has}\\n' ;;
    inspect) echo true ;;
    compose) echo "profiles=${{COMPOSE_PROFILES:-}}" ;;
esac"""
    (tmp_path / "docker").write_text(f"#!/bin/bash\n{docker}\n", encoding="utf-8")
    (tmp_path / "docker").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment.pop("COMPOSE_PROFILES", None)
    argv = [_DOCKER / "cluster", "logs"]
    assert subprocess.check_output(argv, env=environment, text=True) == f"profiles={profiles}\n"


_ADDRESS = """
set -euo pipefail
source "$docker_dir/lib/ui.sh"; source "$docker_dir/lib/portal.sh"
PROJECT=p CLUSTER=lab
choose_portal_address
echo "${PORTAL_URL:-no pages}$(portal_line)"
"""


@pytest.mark.parametrize(
    ("given", "docker", "said"),
    [
        ({"COMPOSE_PROFILES": ""}, "exit 1", "no pages"),
        ({"COMPOSE_PROFILES": "prometheus"}, "exit 1", "no pages"),
        ({"COMPOSE_PROFILES": "prometheus,portal"}, "exit 1", "http://127.0.0.1:21307"),
        # Of a cluster that has them: what was published before, also while it is stopped.
        (
            {"COMPOSE_PROFILES": "portal"},
            "[[ $1 != inspect ]] || echo 21399",
            "http://127.0.0.1:21399",
        ),
        (
            {"COMPOSE_PROFILES": "portal", "SLURMKIT_PORTAL_PORT": "8080"},
            "[[ $1 != inspect ]] || echo 21399",
            "http://127.0.0.1:8080",
        ),
        (
            {"COMPOSE_PROFILES": "portal"},
            "case $1 in inspect) exit 1 ;; port) echo 127.0.0.1:21307 ;; esac",
            "http://127.0.0.1:21307\n  portal     http://127.0.0.1:21307 as alice, or as vogel,",
        ),
    ],
)
def test_the_pages_for_pis_have_an_address_before_they_start(
    given: dict[str, str], docker: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "docker").write_text(f"#!/bin/bash\n{docker}\n", encoding="utf-8")
    (tmp_path / "docker").chmod(0o755)
    environment = os.environ | given | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "docker_dir": str(_DOCKER),
        "SUBNET": "10.213.7",
    }  # fmt: skip
    argv = ["bash", "-c", _ADDRESS]
    assert subprocess.check_output(argv, env=environment, text=True).startswith(said)


_RENDERED = """
set -euo pipefail
source "$docker_dir/image/lib.sh"; source "$docker_dir/image/slurmkit.sh"
CONF=$docker_dir/conf LOGIN_ADDRESS=$here/login.address
render() {
    local text name
    text=$(<"$CONF/$1")
    for name in "${@:5}"; do text=${text//"@$name@"/"${!name}"}; done
    printf '%s\\n' "$text"
}
"""


@pytest.mark.parametrize("auth", ["munge", "slurm"])
@pytest.mark.parametrize(
    ("line", "section"),
    [
        ("keep_login_address <<<127.0.0.1:32768", {"login": "127.0.0.1", "port": 32768}),
        ("configure_site", None),
    ],
    ids=["login", "ledger"],
)
def test_slurmkits_configuration_names_the_port_of_the_login_node(
    line: str, section: dict[str, object] | None, auth: str, tmp_path: Path
) -> None:
    """`ssh … alice@login` is of no use on the cluster's host."""
    environment = os.environ | {"docker_dir": str(_DOCKER), "here": str(tmp_path), "AUTH": auth}
    rendered = subprocess.check_output(["bash", "-c", _RENDERED + line], env=environment, text=True)
    config = tomllib.loads(rendered)
    assert config.get("tunnel") == section
    assert config["ldap"]["uri"] == "ldap://ldap"
    service = msgspec.convert(config["ledger"]["service"], ServiceSection)
    assert (service.auth, service.url.partition(":")[0]) in {("munge", "http"), ("jwt", "https")}


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:21307"])
def test_the_service_serves_the_pages_where_the_proxy_finds_them(url: str, tmp_path: Path) -> None:
    environment = os.environ | {
        "docker_dir": str(_DOCKER), "here": str(tmp_path), "PORTAL_URL": url, "AUTH": "munge",
    }  # fmt: skip

    def rendered(line: str) -> Any:
        argv = ["bash", "-c", _RENDERED + line]
        return tomllib.loads(subprocess.check_output(argv, env=environment, text=True))

    books = rendered("configure_account books-of-ledger.toml /nowhere")
    site = rendered("configure_site")
    ldap = msgspec.convert(site["ldap"], LdapSection)
    if not url:
        assert "portal" not in books["ledger"]
        return
    portal = msgspec.convert(books["ledger"]["portal"], PortalSection)
    check_portal_section(portal, ldap)
    assert portal.login == ("ldap",)
    assert portal.on_socket
    assert portal.host == "127.0.0.1:21307"
    apache = (_DOCKER / "conf/portal/apache2.conf").read_text("utf-8")
    assert f"ProxyPass / {portal.listen}|http://@PORTAL_HOST@/ " in apache
    folder = str(Path(portal.listen.removeprefix("unix:")).parent)
    compose = (_DOCKER / "compose.yaml").read_text("utf-8")
    assert compose.count(f"portal-socket:{folder}") == 2
    assert f"2750 {folder}" in (_DOCKER / "image/roles/ledger").read_text("utf-8")


def test_every_part_of_a_cluster_is_a_profile_with_a_role_and_a_health() -> None:
    script = (_DOCKER / "cluster").read_text("utf-8")
    parts = re.search(r"^PARTS=\((.*?)\)", script, re.MULTILINE)
    assert parts
    compose = (_DOCKER / "compose.yaml").read_text("utf-8")
    profiles = re.findall(r"^    profiles: \[(\w+)\]$", compose, re.MULTILINE)
    assert sorted(parts[1].split()) == sorted(profiles)
    health = (_DOCKER / "image/health").read_text("utf-8")
    for part in profiles:
        assert os.access(_DOCKER / "image/roles" / part, os.X_OK)
        assert f"\n    {part}) " in health
        assert f'- "{part}:${{SUBNET}}.' in compose
