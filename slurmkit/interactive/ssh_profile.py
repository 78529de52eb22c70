"""Profiles of `slurmkit ssh-config`: a job, its keys, and the block of ~/.ssh/config that names it.

A profile has a folder with mode 0700 on the shared home: a key for the user, a key for the job's
sshd, the job file, and the program of the job (`ssh_keeper.py`).
"""

from __future__ import annotations

import getpass
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from slurmkit.config.paths import read_private_file, state_folder, write_private_file
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.interactive import ssh_keeper
from slurmkit.spec.jobfile import format_job_file, load_job_file
from slurmkit.spec.jobspec import JobSpec, Launch

FOLDER = "ssh"
_JOB_FILE, _KEEPER = "job.toml", "keeper.py"
_CLIENT_KEY, _HOST_KEY = "client_key", "host_key"
_KNOWN_HOSTS, _AUTHORIZED = "known_hosts", "authorized_keys"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", re.ASCII)
_BEGIN, _END = "# begin slurmkit {}", "# end slurmkit {}"
_NEW_SECTION = re.compile(r"(host|match)\b", re.IGNORECASE)


class KeeperAddress(msgspec.Struct, frozen=True):
    """Where the job of a profile waits for connections.

    Attributes:
        node: Slurm's name of the node.
        socket: name in the abstract namespace of unix sockets on that node.
        started: epoch seconds.
    """

    job_id: str
    node: str
    socket: str
    started: int


class SshProfile(msgspec.Struct, frozen=True):
    """A profile.

    Attributes:
        name: the user's name for it.
        cluster: Slurm's name of the cluster.
        folder: its files.
    """

    name: str
    cluster: str
    folder: Path

    @property
    def host(self) -> str:
        """The name for ssh."""
        return f"slurmkit-{self.name}"

    @property
    def host_key_alias(self) -> str:
        """The name of its host key."""
        return f"slurmkit-{self.cluster}-{self.name}"

    @property
    def job_file(self) -> Path:
        """The job file, which the user may edit."""
        return self.folder / _JOB_FILE

    def load_spec(self) -> JobSpec:
        """Load the job.

        Raises:
            BadInput: when the job file is missing or wrong.
        """
        return JobSpec(**load_job_file(self.job_file))

    def load_address(self) -> KeeperAddress | None:
        """Load where the job waits for connections; None while none does."""
        try:
            data = read_private_file(self.folder / ssh_keeper.ADDRESS)
            return msgspec.json.decode(data, type=KeeperAddress)
        except (OSError, msgspec.MsgspecError):
            return None

    def keeper_command(self, idle: float) -> tuple[str, ...]:
        """Return the command of the job.

        Args:
            idle: minutes without a connection after which the job ends; 0 for never.
        """
        return ("python3", str(self.folder / _KEEPER), "keep", str(self.folder), f"{idle:g}")

    def bridge_command(self, address: KeeperAddress) -> list[str]:
        """Return the command that leads a connection into the running job.

        Without `--unbuffered`, srun holds output back until a line is full.
        """
        return [
            "srun", f"--jobid={address.job_id}", f"--nodelist={address.node}",
            "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--overlap", "--mem=0", "--mpi=none",
            "--cpu-bind=none", "--input=0", "--unbuffered", "--quiet", "--chdir=/",
            "--job-name=ssh", "python3", str(self.folder / _KEEPER), "bridge", address.socket,
        ]  # fmt: skip


def find_profile(cluster: str, name: str) -> SshProfile:
    """Return a profile, which may not exist.

    Raises:
        BadInput: for a name that ssh or a folder cannot have.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is no name for a profile: letters, digits, '.', '_' and '-', at most 32,"
            " with a letter or digit first; for example gpu2"
        )
    return SshProfile(name, cluster, state_folder(FOLDER) / cluster / name)


def load_profiles(cluster: str) -> list[SshProfile]:
    """Return the profiles of a cluster, by name."""
    files = sorted((state_folder(FOLDER) / cluster).glob(f"*/{_JOB_FILE}"))
    return [SshProfile(file.parent.name, cluster, file.parent) for file in files]


def with_keeper(spec: JobSpec, profile: SshProfile, idle: float) -> JobSpec:
    """Return the job of a profile: its batch shell keeps the sshd, and nobody requeues it.

    Raises:
        BadInput: for a job in a container, or one with several parts.
    """
    if spec.container is not None:
        raise BadInput(
            "a job for ssh cannot be in a container: sshd is the node's; start the container in"
            " the session, e.g. apptainer shell IMAGE"
        )
    return msgspec.structs.replace(
        spec,
        command=profile.keeper_command(idle),
        script=None,
        launch=Launch(launcher="none"),
        job_name=spec.job_name or f"ssh-{profile.name}",
        requeue=False if spec.requeue is None else spec.requeue,
        output=spec.output or str(profile.folder / "%j.log"),
    )


def write_profile(profile: SshProfile, spec: JobSpec) -> None:
    """Write the files of a profile; keys that are there stay.

    Raises:
        SlurmkitError: when the folder cannot be written, or ssh-keygen fails.
    """
    folder = profile.folder
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for key in (_CLIENT_KEY, _HOST_KEY):
            if not (folder / key).exists():
                _make_key(folder / key, f"{profile.host} {key}")
        client, host = (_public(folder / key) for key in (_CLIENT_KEY, _HOST_KEY))
        write_private_file(folder / _AUTHORIZED, f"{client}\n".encode())
        write_private_file(folder / _KNOWN_HOSTS, f"{profile.host_key_alias} {host}\n".encode())
        write_private_file(folder / _KEEPER, Path(ssh_keeper.__file__).read_bytes())
        write_private_file(profile.job_file, format_job_file(spec).encode())
    except OSError as error:
        raise SlurmkitError(
            f"cannot write {error.filename or folder}: {error.strerror}; the profile needs a folder"
            " on the home that login nodes and nodes share"
        ) from error


def _make_key(path: Path, comment: str) -> None:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    try:
        made = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise SlurmkitError(
            "ssh-keygen is missing on this machine; it is in the package openssh-client"
        ) from error
    if made.returncode:
        raise SlurmkitError(f"ssh-keygen: {made.stderr.decode('utf-8', 'replace').strip()}")


def _public(key: Path) -> str:
    """Return type and data of a public key, without its comment."""
    return " ".join(key.with_name(f"{key.name}.pub").read_text("ascii").split()[:2])


def remove_profile(profile: SshProfile) -> None:
    """Remove the files of a profile.

    Raises:
        SlurmkitError: when they cannot be removed.
    """
    try:
        shutil.rmtree(profile.folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SlurmkitError(f"cannot remove {error.filename}: {error.strerror}") from error


def host_block(profile: SshProfile, program: str) -> str:
    """Return the block of ~/.ssh/config on this machine.

    Args:
        profile: the profile.
        program: path of the command `slurmkit`.
    """
    return _block(
        profile,
        [
            f"ProxyCommand {_command(_connect(program, profile))}",
            *_own_keys(profile),
        ],
    )


def _own_keys(profile: SshProfile) -> list[str]:
    return [
        f"UserKnownHostsFile {_quote(profile.folder / _KNOWN_HOSTS)}",
        f"IdentityFile {_quote(profile.folder / _CLIENT_KEY)}",
        "IdentitiesOnly yes",
    ]


def direct_block(profile: SshProfile, address: KeeperAddress, lines: Sequence[str]) -> str:
    """Return the block that leads into a job that runs, with more lines of ssh_config(5)."""
    return _block(
        profile,
        [
            f"ProxyCommand {_command(profile.bridge_command(address))}",
            *_own_keys(profile),
            *lines,
        ],
    )


def laptop_block(profile: SshProfile, login: str, program: str) -> str:
    """Return the block for a laptop, which connects through the login node with its own key.

    Args:
        profile: the profile.
        login: what the laptop's ssh calls the login node.
        program: path of the command `slurmkit` there.
    """
    inner = shlex.quote(_command(_connect(program, profile)))
    key = _public(profile.folder / _HOST_KEY)
    return _block(
        profile,
        [
            f"ProxyCommand ssh {shlex.quote(login)} {inner}",
            f'KnownHostsCommand /bin/echo "{profile.host_key_alias} {key}"',
        ],
    )


def _block(profile: SshProfile, lines: list[str]) -> str:
    options = [
        f"User {getpass.getuser()}",
        f"HostKeyAlias {profile.host_key_alias}",
        "StrictHostKeyChecking yes",
        "ServerAliveInterval 30",
        *lines,
    ]
    body = "".join(f"    {line}\n" for line in options)
    begin, end = _BEGIN.format(profile.name), _END.format(profile.name)
    return f"{begin}\nHost {profile.host}\n{body}{end}\n"


def _connect(program: str, profile: SshProfile) -> list[str]:
    return [program, "ssh-config", profile.name, "--connect"]


def _command(argv: Sequence[str]) -> str:
    """Return a command as ssh gives it to a shell; % begins a token there."""
    return shlex.join(argv).replace("%", "%%")


def _quote(path: Path) -> str:
    """Quote a path for ssh_config(5), where % begins a token."""
    return '"' + str(path).replace("%", "%%") + '"'


def add_block(config: str, name: str, block: str) -> str:
    """Return a text of ~/.ssh/config with the block of a profile, in place of its old one.

    The block stands first, since ssh takes the first value it finds for an option. Options that
    stood before the first Host or Match counted for all hosts: `Match all` lets them do so still.
    """
    rest = remove_block(config, name)
    lines = (line.strip() for line in rest.splitlines())
    first = next((line for line in lines if line and line[0] != "#"), "Host")
    between = "" if _NEW_SECTION.match(first) else "Match all\n"
    return block + between + rest


def remove_block(config: str, name: str) -> str:
    """Return a text of ~/.ssh/config without the block of a profile."""
    return "".join(_without_block(config.splitlines(keepends=True), name))


def _without_block(lines: list[str], name: str) -> Iterator[str]:
    begin, end = _BEGIN.format(name), _END.format(name)
    texts = [line.strip() for line in lines]
    if begin not in texts or end not in texts[texts.index(begin) :]:
        yield from lines
        return
    first = texts.index(begin)
    last = texts.index(end, first)
    rest = lines[last + 1 :]
    if not first and rest and rest[0] == "Match all\n":
        rest = rest[1:]
    yield from lines[:first]
    yield from rest


def edit_ssh_config(name: str, block: str | None) -> Path:
    """Write the block of a profile into ~/.ssh/config, or take it out; return the file's path.

    Args:
        name: of the profile.
        block: None to take it out.

    Raises:
        SlurmkitError: when the file cannot be read or written; it stays as it is then.
    """
    path = Path("~/.ssh/config").expanduser().resolve()  # often a link into a user's dotfiles
    try:
        old = path.read_text("utf-8") if path.exists() else ""
        new = remove_block(old, name) if block is None else add_block(old, name, block)
        if new != old:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_private_file(path, new.encode())
    except (OSError, UnicodeDecodeError) as error:
        raise SlurmkitError(f"cannot change {path}: {error}") from error
    return path
