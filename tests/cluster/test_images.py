"""`slurmkit image` as a person of the cluster: an archive becomes the file that a job uses."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cluster_lab import Lab

pytestmark = pytest.mark.cluster

HOME = "/home/alice/images-test"
# An image of two layers as docker save writes it, the second of which hides a file.
MAKE = f"""
set -e
mkdir -p {HOME}/below/etc {HOME}/above/etc {HOME}/saved
cd {HOME}
printf '[containers]\\nruntimes = ["enroot"]\\n' >config.toml
echo one >below/etc/one; echo two >below/etc/two; echo three >above/etc/three
touch above/etc/.wh.one
for layer in below above; do tar -C $layer -cf saved/$layer.tar .; done
ids=$(for layer in below above; do sha256sum saved/$layer.tar; done |
    sed 's/\\(.\\{{64\\}}\\).*/"sha256:\\1"/' | paste -sd,)
machine=$(dpkg --print-architecture)
echo "{{\\"architecture\\": \\"$machine\\", \\"config\\": {{\\"Env\\": [\\"A=1\\"]}},
    \\"rootfs\\": {{\\"diff_ids\\": [$ids]}}}}" >saved/config.json
echo '[{{"Config": "config.json", "Layers": ["below.tar", "above.tar"]}}]' >saved/manifest.json
tar -C saved -cf mine.tar below.tar above.tar config.json manifest.json
"""
ENVIRON = ("env", f"XDG_CACHE_HOME={HOME}/cache", f"SLURMKIT_CONFIG={HOME}/config.toml")


@pytest.fixture
def mine(lab: Lab) -> Iterator[str]:
    """The path of the file that alice imported."""
    if lab.run("sh", "-c", "command -v mksquashfs", check=False).returncode:
        pytest.skip("squashfs-tools are not installed on the login node")
    lab.run("bash", "-c", MAKE)
    try:
        yield image(lab, "import", f"{HOME}/mine.tar", "--as", "mine:2").strip()
    finally:
        lab.run("rm", "-rf", HOME)


def image(lab: Lab, *words: str) -> str:
    return lab.run(*ENVIRON, "slurmkit", "image", *words).stdout


def plan(lab: Lab, name: str) -> str:
    options = ("--container-image", name, "--container-runtime", "enroot", "--nodes", "2")
    done = lab.run(
        *ENVIRON, "slurmkit", "plan", *options, "--time", "5", "--", "hostname", check=False
    )
    return done.stdout + done.stderr


def test_a_saved_image_is_what_the_job_uses(lab: Lab, mine: str) -> None:
    shown = lab.run("unsquashfs", "-cat", mine, "etc/two", "etc/three", "etc/environment").stdout
    assert shown == "two\nthree\nA=1\n"
    assert "etc/one" not in lab.run("unsquashfs", "-l", mine).stdout
    (entry,) = json.loads(image(lab, "list", "--json"))["rows"]
    assert entry["images"] == ["local/mine:2"]
    said = plan(lab, "local/mine:2")
    assert f"image local/mine:2 is {mine}, imported" in said
    assert f"slurmkit-enroot {mine} " in said
    assert "slurmkit image import PATH --as mine:3" in plan(lab, "local/mine:3")


def test_eight_at_once_leave_one_image(lab: Lab, mine: str) -> None:
    """Of a path each import reads what is there now; nobody gets what another one read before."""
    lab.run("cp", "-r", f"{HOME}/below", f"{HOME}/base")
    many = 'for _ in 1 2 3 4 5 6 7 8; do slurmkit image import "$1" --as base:1 & done; wait'
    done = lab.run(*ENVIRON, "bash", "-c", many, "bash", f"{HOME}/base")
    assert done.stderr.count("local/base:1: ") == done.stderr.count("imported now") == 8
    assert len(done.stdout.split()) == 8
    assert len(set(done.stdout.split())) == 1
    found = json.loads(image(lab, "list", "--json"))["rows"]
    assert sorted(each["images"] for each in found) == [["local/base:1"], ["local/mine:2"]]
    left = lab.run("ls", "-A", f"{HOME}/cache/slurmkit/images").stdout.split()
    assert not [name for name in left if name.startswith("import-") or name.endswith(".draft")]


def test_a_file_that_others_could_have_changed_is_refused(lab: Lab, mine: str) -> None:
    lab.run("chown", "bob", mine, user="")
    assert "belongs to user id" in plan(lab, "local/mine:2")
    lab.run("chown", "alice", mine, user="")
    assert f"image local/mine:2 is {mine}" in plan(lab, "local/mine:2")  # its SHA-256 is the same
    lab.run("bash", "-c", 'printf x | dd of="$1" bs=1 seek=500 conv=notrunc', "bash", mine)
    said = plan(lab, "local/mine:2")
    assert "has changed since its import" in said
    assert f"slurmkit-enroot {mine} " not in said
    image(lab, "import", "--again", f"{HOME}/mine.tar", "--as", "local/mine:2")
    assert f"image local/mine:2 is {mine}" in plan(lab, "local/mine:2")


def test_a_file_that_cannot_be_read_is_not_imported_as_an_empty_one(lab: Lab, mine: str) -> None:
    del mine
    lab.run("cp", "-r", f"{HOME}/below", f"{HOME}/secret")
    lab.run("chmod", "000", f"{HOME}/secret/etc/one")
    words = ("slurmkit", "image", "import", f"{HOME}/secret")
    done = lab.run(*ENVIRON, *words, check=False)
    assert done.returncode == 1
    assert "mksquashfs failed" in done.stderr
