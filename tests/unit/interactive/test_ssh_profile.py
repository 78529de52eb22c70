"""Profiles of `slurmkit ssh-config`: their files, and what is written into ~/.ssh/config."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from slurmkit.errors import BadInput
from slurmkit.interactive import ssh_keeper, ssh_profile
from slurmkit.interactive.ssh_profile import SshProfile, find_profile
from slurmkit.spec.containers import Container
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec

SPEC = JobSpec(command=("x",), gpus=Gpus(1, "a100"), time="8:00:00")
CONFIGS = {
    "none": "",
    "a host": "Host lab\n    User me\n",
    "for all hosts": "# mine\nServerAliveInterval 5\n\nHost lab\n    User me\n",
    "no newline": "Host lab\n  User me",
    "match": "Match user root\n  Port 1\n",
}


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshProfile:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "my state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    made = find_profile("lab", "gpu")
    ssh_profile.write_profile(made, ssh_profile.with_keeper(SPEC, made, 30))
    return made


def meant(config: Path, host: str) -> dict[str, str]:
    """What ssh itself takes from a configuration for a host."""
    done = subprocess.run(
        ["ssh", "-G", "-F", str(config), host], capture_output=True, text=True, check=True
    )
    words = (line.split(" ", 1) for line in done.stdout.splitlines())
    return {each[0]: each[-1] for each in words}


@pytest.mark.parametrize("name", CONFIGS)
def test_ssh_takes_the_block_and_leaves_other_hosts_alone(
    profile: SshProfile, tmp_path: Path, name: str
) -> None:
    path = tmp_path / ".ssh/config"
    path.parent.mkdir(mode=0o700)
    path.write_text(CONFIGS[name], "utf-8")
    before = meant(path, "lab"), meant(path, "other")
    ssh_profile.edit_ssh_config("gpu", ssh_profile.host_block(profile, "/opt/a b/slurmkit"))
    known = meant(path, "slurmkit-gpu")
    assert known["proxycommand"] == "'/opt/a b/slurmkit' ssh-config gpu --connect"
    assert known["hostkeyalias"] == "slurmkit-lab-gpu"
    assert known["stricthostkeychecking"] == "true"
    assert known["identityfile"] == str(profile.folder / "client_key")
    assert known["userknownhostsfile"] == str(profile.folder / "known_hosts")
    assert (meant(path, "lab"), meant(path, "other")) == before
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", CONFIGS)
def test_blocks_are_replaced_and_taken_back(profile: SshProfile, tmp_path: Path, name: str) -> None:
    path = tmp_path / ".ssh/config"
    path.parent.mkdir(mode=0o700)
    path.write_text(CONFIGS[name], "utf-8")
    other = msgspec.structs.replace(profile, name="big")
    for each in (profile, other, profile):
        ssh_profile.edit_ssh_config(each.name, ssh_profile.host_block(each, "/bin/slurmkit"))
    assert path.read_text("utf-8").count("Host slurmkit-gpu\n") == 1
    assert meant(path, "slurmkit-big")["proxycommand"].endswith("ssh-config big --connect")
    ssh_profile.edit_ssh_config("big", None)
    assert meant(path, "slurmkit-gpu")["hostkeyalias"] == "slurmkit-lab-gpu"
    ssh_profile.edit_ssh_config("gpu", None)
    assert path.read_text("utf-8") == CONFIGS[name]
    ssh_profile.edit_ssh_config("gpu", None)  # once more changes nothing
    assert path.read_text("utf-8") == CONFIGS[name]


def test_a_block_that_somebody_cut_in_two_stays(tmp_path: Path) -> None:
    text = "# begin slurmkit gpu\nHost slurmkit-gpu\n"
    assert ssh_profile.remove_block(text, "gpu") == text


def test_the_configuration_may_be_a_link(profile: SshProfile, tmp_path: Path) -> None:
    dotfile = tmp_path / "dotfiles-ssh"
    dotfile.write_text("Host lab\n", "utf-8")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").symlink_to(dotfile)
    ssh_profile.edit_ssh_config("gpu", ssh_profile.host_block(profile, "/bin/slurmkit"))
    assert (tmp_path / ".ssh/config").is_symlink()
    assert "Host slurmkit-gpu" in dotfile.read_text("utf-8")


def test_only_the_owner_reads_the_files(profile: SshProfile) -> None:
    assert profile.folder.stat().st_mode & 0o777 == 0o700
    for name in ("client_key", "host_key", "authorized_keys", "job.toml", "keeper.py"):
        assert (profile.folder / name).stat().st_mode & 0o077 == 0, name


def test_keys_stay_when_the_job_changes(profile: SshProfile) -> None:
    before = (profile.folder / "host_key").read_bytes()
    longer = ssh_profile.with_keeper(msgspec.structs.replace(SPEC, time="1-0"), profile, 5)
    ssh_profile.write_profile(profile, longer)
    assert (profile.folder / "host_key").read_bytes() == before
    assert profile.load_spec().time == "1-0"


def test_the_job_is_kept_as_a_job_file(profile: SshProfile) -> None:
    spec = profile.load_spec()
    assert (spec.gpus, spec.time, spec.job_name) == (Gpus(1, "a100"), "8:00:00", "ssh-gpu")
    assert spec.command[2:] == ("keep", str(profile.folder), "30")
    assert spec.requeue is False


def test_a_job_in_a_container_is_refused(profile: SshProfile) -> None:
    inside = msgspec.structs.replace(SPEC, container=Container(image="ubuntu"))
    with pytest.raises(BadInput, match="sshd is the node's"):
        ssh_profile.with_keeper(inside, profile, 30)


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "..", "x" * 33, "a*", "ä"])
def test_names_that_ssh_or_a_folder_cannot_have(name: str) -> None:
    with pytest.raises(BadInput, match="for example gpu2"):
        find_profile("lab", name)


def test_a_laptop_uses_its_own_key_and_knows_the_host_key(
    profile: SshProfile, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    path.write_text(ssh_profile.laptop_block(profile, "hpc", "/opt/slurmkit"), "utf-8")
    known = meant(path, "slurmkit-gpu")
    assert known["proxycommand"] == "ssh hpc '/opt/slurmkit ssh-config gpu --connect'"
    key = (profile.folder / "host_key.pub").read_text("ascii").split()[1]
    assert known["knownhostscommand"] == f'/bin/echo "slurmkit-lab-gpu ssh-ed25519 {key}"'
    assert "client_key" not in path.read_text("utf-8")


def test_what_another_user_wrote_is_no_address(profile: SshProfile) -> None:
    address = profile.folder / ssh_keeper.ADDRESS
    address.write_text('{"job_id": "1", "node": "c1", "socket": "s", "started": 1}', "utf-8")
    found = profile.load_address()
    assert found is not None
    assert (found.job_id, found.node) == ("1", "c1")
    address.write_text("{", "utf-8")
    assert profile.load_address() is None
