"""The cluster is what docker/README.md says: nodes, GPUs, people, accounts, doors, MPI."""

import json
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_lab import DOCKER, Lab, Site
from waiting import wait_for

pytestmark = pytest.mark.cluster

MEMORY_HOG = """
import os, resource, time
held = bytearray(300 * 2**20)
while not os.path.exists("hog.over"):
    time.sleep(0.3)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""

MPI_HELLO = """
from mpi4py import MPI
world = MPI.COMM_WORLD
names = world.allgather(MPI.Get_processor_name())
print(world.rank, world.size, *names)
"""


def _rows(lab: Lab, *argv: str) -> list[list[str]]:
    printed = lab.run(*argv, service="ctld", user="").stdout
    return [line.split("|") for line in printed.splitlines()]


def _docker(*argv: str) -> str:
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, check=True)
    return done.stdout


def test_every_node_is_idle(lab: Lab) -> None:
    idle = {f"c{number}": "idle" for number in range(1, 8)}
    # The test before may have left a node completing.
    wait_for(lambda: dict(_rows(lab, "sinfo", "-h", "-N", "-o", "%N|%t")), idle.__eq__)


def test_the_release_is_the_one_asked_for(lab: Lab) -> None:
    version = lab.run("scontrol", "--version").stdout.split()[1]
    assert version.startswith(f"{lab.release}.")


def test_a_gpu_job_sees_its_gpus(lab: Lab) -> None:
    printed = lab.run("srun", "--gres=gpu:a100:2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").stdout
    assert printed == "0,1\n"


@pytest.mark.parametrize(
    ("options", "variable"),
    [
        (("-p", "gpu", "--gres=gpu:h100:1"), "CUDA_VISIBLE_DEVICES"),
        (("-p", "gpu", "--gres=shard:2"), "SLURM_SHARDS_ON_NODE"),
        (("-p", "untyped", "--gres=gpu:1"), "CUDA_VISIBLE_DEVICES"),
        (("-p", "mig", "--gres=gpu:a100_1g.5gb:1"), "CUDA_VISIBLE_DEVICES"),
        (("-p", "mps", "--gres=mps:50"), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
        (
            (
                "-p",
                "cpu",
            ),
            "SLURM_JOB_ID",
        ),
    ],
)
def test_every_kind_of_node_runs_a_job(lab: Lab, options: tuple[str, ...], variable: str) -> None:
    assert f"{variable}=" in lab.run("srun", *options, "env").stdout


def _active_people(lab: Lab) -> set[str]:
    passwd = lab.run("getent", "passwd", user="").stdout
    fields = [line.split(":") for line in passwd.splitlines()]
    return {f[0] for f in fields if int(f[2]) > 10000 and f[6] == "/bin/bash"}


def test_people_have_associations_with_the_accounts_of_their_groups(lab: Lab) -> None:
    rows = _rows(lab, "sacctmgr", "-nP", "show", "assoc", "format=User,Account")
    have = {(user, account) for user, account in rows if user not in ("", "root")}
    groups = [line.split(":") for line in lab.run("getent", "group", user="").stdout.splitlines()]
    accounts = {"vision", "genomics", "climate", "staff"}
    assert have == {
        (user, name)
        for name, _, _, users in groups
        for user in users.split(",")
        if user and name in accounts
    }
    assert {user for user, _ in have} == _active_people(lab)


def test_who_left_is_in_ldap_and_nowhere_else(lab: Lab) -> None:
    assert lab.run("getent", "passwd", "trent", user="").stdout.strip().endswith("nologin")
    assert _rows(lab, "sacctmgr", "-nP", "show", "assoc", "user=trent", "format=User") == []


def test_accounts_have_their_shares_limits_and_coordinators(lab: Lab) -> None:
    fields = "format=Account,User,Fairshare,GrpTRES,QOS"
    rows = _rows(lab, "sacctmgr", "-nP", "show", "assoc", fields)
    assert ["genomics", "", "30", "gres/gpu=12", "high,normal,scavenger"] in rows
    coordinators = dict(
        _rows(lab, "sacctmgr", "-nP", "show", "account", "withcoord", "format=Account,Coord")
    )
    assert coordinators["vision"] == "vogel"


def test_people_are_real_accounts_everywhere(lab: Lab) -> None:
    for service in ("login", "ctld", "c1"):
        groups = lab.run("id", "-Gn", "erin", service=service, user="").stdout.split()
        assert set(groups) == {"people", "vision", "genomics"}


def test_ssh_to_the_login_node_with_a_key_and_with_a_password(lab: Lab) -> None:
    assert lab.run("ssh", "login", "id", "-un").stdout == "alice\n"
    askpass = "#!/bin/sh\ncat /tmp/password\n"
    lab.run(
        "sh", "-c", "install -m 0700 /dev/null /tmp/askpass && cat >/tmp/askpass", input=askpass
    )
    password = lab.run("cat", "/secrets/people/alice.password", user="").stdout
    lab.run("sh", "-c", "umask 077; cat >/tmp/password", input=password)
    ssh = ["ssh", "-o", "PubkeyAuthentication=no", "-o", "NumberOfPasswordPrompts=1"]
    ask = ["env", "SSH_ASKPASS=/tmp/askpass", "SSH_ASKPASS_REQUIRE=force"]
    assert lab.run(*ask, *ssh, "login", "id", "-un").stdout == "alice\n"
    refused = lab.run(*ask, *ssh, "trent@login", "true", check=False)
    lab.run("rm", "/tmp/askpass", "/tmp/password")
    assert refused.returncode == 255


def test_homes_are_private(lab: Lab) -> None:
    assert lab.run("ls", "/home/bob", check=False).returncode != 0


def test_root_follows_no_link_of_a_home(lab: Lab) -> None:
    """The seed, run again, makes nobody's key in somebody else's home."""
    away = "mv .ssh .ssh.kept && ln -s /home/alice/.ssh .ssh"
    lab.run("sh", "-c", away, user="bob")
    before = lab.run("sh", "-c", "ls -ln .ssh; cat .ssh/authorized_keys").stdout
    try:
        _docker("start", "-a", lab.container("people"))
        assert lab.run("readlink", ".ssh", user="bob").stdout == "/home/alice/.ssh\n"
    finally:
        lab.run("sh", "-c", "rm .ssh && mv .ssh.kept .ssh", user="bob")
    assert lab.run("sh", "-c", "ls -ln .ssh; cat .ssh/authorized_keys").stdout == before


def test_maxrss_of_a_persons_job_is_what_it_used(lab: Lab) -> None:
    lab.run("sh", "-c", "rm -f hog.over; cat >hog.py", input=MEMORY_HOG)
    submit = ["sbatch", "--parsable", "-p", "cpu", "--time=20", "--output=hog.out"]
    job = lab.run(*submit, "--wrap", "srun python3 hog.py").stdout.strip()

    def max_rss(command: str) -> float:
        """In KiB, of the step; 0 while it is not known."""
        argv = (command, "-nP", "-j", f"{job}.0", "-o", "MaxRSS")
        said = re.match(r"([\d.]+)([KMG])$", lab.run(*argv, check=False).stdout.strip())
        return float(said[1]) * 1024 ** "KMG".index(said[2]) if said else 0

    wait_for(lambda: max_rss("sstat"), lambda kib: kib > 300 * 2**10)
    lab.run("touch", "hog.over")
    measured = int(wait_for(lambda: lab.run("cat", "hog.out").stdout))
    assert wait_for(lambda: max_rss("sacct")) == pytest.approx(measured, rel=0.05)


def test_a_job_without_the_environment_of_its_submitter_runs(lab: Lab) -> None:
    """slurmd reads the person's own in a namespace, and ends where it may make none."""
    words = ("--wait", "--export=NONE", "--output=/dev/null", "--wrap=test $HOME = /home/alice")
    lab.run("sbatch", *words)


def test_a_job_over_its_memory_is_killed(lab: Lab) -> None:
    lab.run("sh", "-c", "cat >hog.py", input=MEMORY_HOG.replace("hog.over", "never"))
    srun = ["srun", "-p", "cpu", "--time=5", "--mem=100M", "python3", "hog.py"]
    killed = lab.run(*srun, check=False)
    assert killed.returncode != 0
    assert "memory" in killed.stderr.lower()


def test_a_scavenger_job_makes_room_and_is_requeued(lab: Lab) -> None:
    whole = ["-w", "c3", "--gres=gpu:h100:4"]
    scavenge = ["sbatch", "--parsable", "--qos=scavenger", "--output=/dev/null", *whole]
    job = lab.run(*scavenge, "--wrap", "sleep 1000").stdout.strip()
    try:
        runs = ("squeue", "-h", "-j", job, "-o", "%T")
        wait_for(lambda: lab.run(*runs).stdout, lambda state: state == "RUNNING\n")
        lab.run("srun", *whole, "true", user="bob")
        shown = lab.run("scontrol", "-o", "show", "job", job).stdout
        assert "Restarts=1 " in shown
    finally:
        lab.run("scancel", job)


def test_nodes_and_login_hold_only_the_secrets_they_need(lab: Lab) -> None:
    slurm = {"ca.pem", "ldap-reader.password", f"{lab.auth}.key"}
    held = lab.run("ls", "/secrets", service="c1", user="").stdout
    assert set(held.split()) == slurm
    held = lab.run("ls", "/secrets", user="").stdout
    others = {"ca.key", "ldap.key", "ldap-admin.password", "slurm.key", "jwt_hs256.key"}
    assert not others & set(held.split())


def test_mpi_over_two_nodes(lab: Lab) -> None:
    types = lab.run("srun", "--mpi=list")
    if lab.release == "26.05" and "pmix" not in types.stdout + types.stderr:
        pytest.skip(f"Slurm {lab.release} of this Debian has no pmix plugin")
    lab.run("sh", "-c", "cat >hello.py", input=MPI_HELLO)
    srun = ["srun", "--mpi=pmix", "-N2", "-n2", "--ntasks-per-node=1", "-w", "c1,c2"]
    for _ in range(4):
        done = lab.run(*srun, "python3", "hello.py", check=False)
        # Open MPI 5 crashes now and then while it starts: open-mpi/ompi#12495.
        if not done.returncode or "mca_pml_ob1_recv_frag_callback_match" not in done.stderr:
            break
    assert not done.returncode, done.stderr
    ranks = sorted(done.stdout.splitlines())
    assert ranks == ["0 2 c1 c2", "1 2 c1 c2"]


def test_exec_keeps_arguments_input_and_exit_status(lab: Lab) -> None:
    hostile = ["a b", "", "$HOME", "'\"", "x\ny", "-n"]
    program = "import json, sys; print(json.dumps([sys.argv[1:], sys.stdin.read()])); sys.exit(7)"
    done = lab.run("python3", "-c", program, *hostile, check=False, input="in\n")
    assert done.returncode == 7
    assert json.loads(done.stdout) == [hostile, "in\n"]
    assert lab.run("sh", "-c", "pwd; echo $HOME $USER").stdout == "/home/alice\n/home/alice alice\n"


def test_exec_passes_signals_on(lab: Lab) -> None:
    script = "trap 'echo got it; exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    command = [str(DOCKER / "cluster"), "exec", "login", "--name", lab.name, "--user", "alice"]
    with subprocess.Popen(
        [*command, "--", "bash", "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == "got it\n"
    assert process.returncode == 9


def test_the_image_holds_no_secret(lab: Lab) -> None:
    find = (
        "ls /etc/ssh/ssh_host_* /etc/munge/munge.key /etc/ssl/private/* /etc/ldap/slapd.d/*"
        " /var/lib/ldap/* /var/lib/mysql/* /var/lib/mariadb/* /var/lib/postgresql/*/*"
        " /etc/nslcd.conf /etc/machine-id /secrets/* 2>/dev/null;"
        " grep -rlE 'PRIVATE KEY-----' /etc /opt/lab /root;"
        " awk -F: '$2 !~ /^[!*]/' /etc/shadow"
    )
    image = f"slurmkit-cluster:{lab.release}"
    printed = _docker("run", "--rm", "--entrypoint", "/bin/sh", image, "-c", f"{find}; true")
    assert printed == ""


def _files_of_layers(archive: Path) -> Iterator[str]:
    with tarfile.open(archive) as image:
        manifest = image.extractfile("manifest.json")
        assert manifest is not None
        for layer in json.load(manifest)[0]["Layers"]:
            with tarfile.open(fileobj=image.extractfile(layer)) as files:
                yield from files.getnames()


def test_no_layer_of_the_image_holds_a_secret(lab: Lab, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    _docker("save", "-o", str(archive), f"slurmkit-cluster:{lab.release}")
    files = list(_files_of_layers(archive))
    archive.unlink()
    secret = re.compile(r"etc/ssh/ssh_host_.*|etc/munge/munge\.key|etc/ssl/private/.+")
    assert len(files) > 1000
    assert [path for path in files if secret.fullmatch(path.removeprefix("./"))] == []


def test_only_ssh_is_published_and_only_on_this_machine(lab: Lab) -> None:
    published = _docker(
        "ps", "--filter", f"name=^slurmkit-{lab.name}-", "--format", "{{.Names}} {{.Ports}}"
    ).split("\n")
    doors = [line for line in published if "->" in line]
    assert len(doors) == 1
    assert re.fullmatch(rf"slurmkit-{lab.name}-login 127\.0\.0\.1:\d+->22/tcp", doors[0])


def test_ldap_refuses_a_bind_in_clear(lab: Lab) -> None:
    search = ["ldapsearch", "-x", "-H", "ldap://ldap", "-D", "cn=reader,dc=lab,dc=example"]
    secret = ["-y", "/secrets/ldap-reader.password", "-b", "dc=lab,dc=example", "-s", "base"]
    assert "confidentiality" in lab.run(*search, *secret, user="", check=False).stderr.lower()
    assert "dn: dc=lab,dc=example" in lab.run(*search, "-ZZ", *secret, user="").stdout


def test_postgres_opens_to_the_ledgers_user(lab: Lab) -> None:
    query = ["psql", "-h", "postgres", "-U", "slurmkit", "-Atc", "SELECT current_user", "slurmkit"]
    assert lab.run(*query, user="slurmkit").stdout == "slurmkit\n"


def test_reload_changes_nothing_twice(lab: Lab) -> None:
    argv = [str(DOCKER / "cluster"), "reload", "--name", lab.name]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert "LDAP: 0 entries changed" in done.stderr
    assert "Slurm: 0 changes" in done.stderr
    assert lab.run("srun", "hostname").returncode == 0


def _image_library(
    script: str, tmp_path: Path, **programs: str
) -> subprocess.CompletedProcess[str]:
    """Run a script on docker/lib/image.sh, with stand-ins for programs."""
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    source = 'set -euo pipefail; source "$docker_dir/lib/ui.sh"; source "$docker_dir/lib/image.sh"'
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "docker_dir": str(DOCKER),
        "scratch": str(tmp_path / "scratch"),
    }
    (tmp_path / "scratch").mkdir()
    argv = ["bash", "-c", f"{source}\n{script}"]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


def test_a_failed_debootstrap_makes_no_base_image(tmp_path: Path) -> None:
    docker = f"echo docker $* >>{tmp_path}/said; [[ $1 == import ]]"
    debootstrap = 'mkdir -p "$4"; echo no mirror; exit 1'
    script = 'ensure_base trixie || { cat "$scratch/log"; exit 3; }'
    done = _image_library(script, tmp_path, docker=docker, debootstrap=debootstrap)
    if os.geteuid() == 0:
        assert done.stdout == "no mirror\n"
    assert done.returncode == 3
    assert "import" not in (tmp_path / "said").read_text(encoding="utf-8")


def test_a_local_debian_image_is_taken_before_a_registry_is_asked(tmp_path: Path) -> None:
    docker = f'echo "$*" >>{tmp_path}/said; [[ "$*" != *slurmkit-base* || $1 == tag ]]'
    done = _image_library("ensure_base trixie", tmp_path, docker=docker)
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "said").read_text(encoding="utf-8")
    assert "tag debian:trixie slurmkit-base:trixie" in said
    assert "pull" not in said


def test_the_image_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    gather = "(umask {0}; gather_context $scratch/{0})"
    script = "\n".join(gather.format(mask) for mask in ("077", "022"))
    modes = "find . -type f -printf '%P %m\\n' | sort"
    compare = f"cd $scratch; diff <(cd 077; {modes}) <(cd 022; {modes})\n"
    hashes = '[[ $(context_hash 077) == "$(context_hash 022)" ]]\n'
    check = "stat -c %a 077/image/etc/nsswitch.conf 077/image/health"
    done = _image_library(script + "\n" + compare + hashes + check, tmp_path)
    assert (done.returncode, done.stdout) == (0, "644\n755\n"), done.stdout + done.stderr


def test_an_image_that_is_there_serves_where_there_is_no_network(tmp_path: Path) -> None:
    build = "echo \"E: Temporary failure resolving 'mirror.example.org'\"; exit 100"
    docker = f'[[ $1 != build ]] || {{ {build}; }}; [[ "$*" != *Labels* ]] || echo older'
    script = "make_scratch() { :; }\nensure_image 24.11 slurmkit-cluster:24.11"
    done = _image_library(script, tmp_path, docker=docker)
    assert done.returncode == 0, done.stderr
    assert "using slurmkit-cluster:24.11 as it is" in done.stderr


def test_a_build_that_fails_for_another_reason_fails(tmp_path: Path) -> None:
    docker = '[[ $1 != build ]] || { echo broken; exit 1; }; [[ "$*" != *Labels* ]] || echo older'
    script = "make_scratch() { :; }\nensure_image 24.11 slurmkit-cluster:24.11"
    done = _image_library(script, tmp_path, docker=docker)
    assert done.returncode == 1
    assert "broken" in done.stderr


def test_a_wrong_release_fails_the_build_naming_both() -> None:
    check = DOCKER / "image" / "build" / "check-release"
    argv = [str(check), "24.11", "22.05.8-4+deb12u3"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "24.11" in done.stderr
    assert "22.05.8" in done.stderr


@pytest.mark.usefixtures("lab")  # it makes sure of an engine
@pytest.mark.parametrize("command", ["reload", "down", "logs", "status"])
def test_a_cluster_that_does_not_exist_is_one_line(command: str) -> None:
    argv = [str(DOCKER / "cluster"), command, "--name", "nosuchcluster"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "cluster: cluster nosuchcluster does not exist (docker/cluster up --name nosuchcluster)"
    ]


@pytest.mark.parametrize(
    "arguments",
    [("up", "--slurm", "23.02"), ("up", "--bogus"), ("bogus",), ("status", "--name", "A b")],
)
def test_bad_arguments_are_one_line_and_exit_2(arguments: tuple[str, ...]) -> None:
    argv = [str(DOCKER / "cluster"), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"), lab)
    up = made.cluster("up", "--slurm", lab.release)
    try:
        assert up.returncode == 0, up.stderr
        yield made
    finally:
        down = made.cluster("down", "--volumes")
    assert down.returncode == 0, down.stderr
    assert _docker("volume", "ls", "-q", "--filter", f"name=slurmkit-{made.lab.name}_") == ""


def test_reload_takes_edits_over_and_lets_who_left_go(site: Site) -> None:
    lab = site.lab
    job = lab.run("sbatch", "--parsable", "--chdir=/tmp", "--wrap", "sleep 3000", user="zoe").stdout
    site.edit("conf/slurm/slurm.conf", "KillWait=10", "KillWait=11")
    person = 'number = 10023\ngroups = ["climate"]'
    site.edit("seed/people.toml", person, "number = 10023\ngroups = []\nleft = 2026-06-30")
    site.edit("seed/people.toml", 'qos = ["normal", "scavenger"]', 'qos = ["normal"]')
    scavenger = '[[qos]]\nname = "scavenger"\npriority = 1\npreempt_mode = "requeue"\n'
    site.edit("seed/people.toml", scavenger, "")
    site.edit("seed/people.toml", ', "scavenger"]', "]")
    site.edit("seed/people.toml", '\npreempt = ["scavenger"]', "")
    site.edit("seed/people.toml", 'MaxWall = "1-00:00:00"', 'MaxWall = "24:00:00"')
    reload = site.cluster("reload")
    assert reload.returncode == 0, reload.stderr
    assert "KillWait                = 11 sec" in lab.run("scontrol", "show", "config").stdout
    assert "CANCELLED" in lab.run("scontrol", "show", "job", job.strip()).stdout
    assert _rows(lab, "sacctmgr", "-nP", "show", "assoc", "user=zoe", "format=User") == []
    assert _rows(lab, "sacctmgr", "-nP", "show", "qos", "format=Name") == [["normal"], ["high"]]
    assert lab.run("ls", "/secrets/people/zoe.password", user="", check=False).returncode != 0
    bind = ["ldapwhoami", "-x", "-ZZ", "-H", "ldap://ldap", "-y", "/dev/stdin"]
    admin = [*bind, "-D", "uid=zoe,ou=people,dc=lab,dc=example"]
    assert lab.run(*admin, user="", check=False, input="any").returncode == 49
    again = site.cluster("reload")
    assert "Slurm: 0 changes" in again.stderr
    assert "LDAP: 0 entries changed" in again.stderr


def test_reload_names_a_service_that_its_edit_breaks(site: Site) -> None:
    site.edit("conf/db/mariadb.cnf", "[mariadbd]", "[mariadbd]\nno_such_option = 1")
    broken = site.cluster("reload")
    site.edit("conf/db/mariadb.cnf", "\nno_such_option = 1", "")
    assert broken.returncode == 1
    assert "reload failed in: db" in broken.stderr
    assert "no-such-option" in broken.stderr or "no_such_option" in broken.stderr


def test_reload_takes_no_configuration_over_that_slurm_cannot_read(site: Site) -> None:
    """A wrong line stopped scontrol and sacctmgr for everyone."""
    for file, line in (("slurm.conf", "KillWait=11"), ("nodes.conf", "NodeName=c7")):
        site.edit(f"conf/slurm/{file}", line, f"NoSuchParameter=1\n{line}")
        broken = site.cluster("reload")
        site.edit(f"conf/slurm/{file}", f"NoSuchParameter=1\n{line}", line)
        assert broken.returncode == 1
        assert "NoSuchParameter" in broken.stderr
        assert "nothing was taken over" in broken.stderr
        assert (
            "KillWait                = 11 sec" in site.lab.run("scontrol", "show", "config").stdout
        )


def test_up_fails_with_the_last_lines_of_the_service_that_failed(site: Site) -> None:
    site.edit("conf/slurm/slurm.conf", "KillWait=11", "NoSuchParameter=1")
    _docker("kill", site.lab.container("ctld"))
    failed = site.cluster("up")
    assert failed.returncode == 1
    assert "--- the last lines of ctld" in failed.stderr
    assert "NoSuchParameter" in failed.stderr
