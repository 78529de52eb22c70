"""What starts Jupyter in a job: shell lines for bash, on the first node, in its container if any.

The token is made there, where a job that never starts leaves none behind. It stands in a file of
mode 0600 that the server's configuration reads; it is in no argv, script, log or environment. The
configuration is given with `--config`, so the person's own cannot open the server to others.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from slurmkit.errors import BadConfig
from slurmkit.launchers import rendezvous

TOKEN = "token"  # noqa: S105 - the name of its file
RECORD = "server.json"


class JupyterSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `[jupyter]`.

    Attributes:
        setup: shell lines that come before the server on the node, e.g. `module load jupyter`.
        command: program that starts the server; by default the first of `jupyter-lab`,
            `jupyter-server` and `jupyter-notebook` on the node's PATH.
    """

    setup: str = ""
    command: str = ""


# Of all addresses of a node the one its name has: the login node knows it by that. Older Jupyters
# take a token elsewhere, and what an application is not told of goes by its own defaults.
_CONFIG = """
import json, os, socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

def major(package):
    try:
        return int(version(package).partition(".")[0])
    except PackageNotFoundError:
        return 0

def address():
    try:
        found = socket.gethostbyname(os.environ["SLURMD_NODENAME"])
    except OSError:
        return ""
    return "" if found.startswith("127.") else found

c = get_config()
beside = Path(__file__).with_name
token = beside("token").read_text().strip()
apps = [c.ServerApp] + ([c.NotebookApp] if 0 < major("notebook") < 7 else [])
for app in apps:
    app.ip, app.port = address(), json.loads(beside("server.json").read_text())["port"]
    app.port_retries, app.open_browser = 0, False
    if app is not c.ServerApp or major("jupyter_server") < 2:
        app.token, app.password = token, ""
c.IdentityProvider.token = token
c.PasswordIdentityProvider.hashed_password = ""
""".lstrip()

_BEFORE = """
[ "${SLURM_PROCID:-0}" = 0 ] || exit 0 # one server, however many tasks
slurmkit_state=$1/$SLURM_JOB_ID slurmkit_config=$2 slurmkit_server=("${@:3}")
rm -f "$slurmkit_state"/{server.json,token} # of a run that was killed
set --
""".strip()

_AFTER = """
slurmkit_port=$MASTER_PORT
unset MASTER_ADDR MASTER_PORT # a notebook's own rendezvous is another
for slurmkit_name in jupyter-lab jupyter-server jupyter-notebook; do
  ((${#slurmkit_server[@]} == 0)) || break
  ! type -P "$slurmkit_name" >/dev/null || slurmkit_server=("$slurmkit_name")
done
if ((${#slurmkit_server[@]} == 0)); then
  echo "slurmkit: no jupyter-lab, jupyter-server or jupyter-notebook on the PATH of $HOSTNAME;" \\
    "name yours after --, or load it in [jupyter] setup" >&2
  exit 127
fi
slurmkit_umask=$(umask)
umask 077
mkdir -p "$slurmkit_state" && chmod 700 "$slurmkit_state" || exit 1
trap 'rm -rf "$slurmkit_state"' EXIT
trap : TERM INT HUP
od -An -N24 -tx1 /dev/urandom | tr -d ' \\n' >"$slurmkit_state/token" || exit 1
printf %s "$slurmkit_config" >"$slurmkit_state/config.py"
printf '{"node": "%s", "port": %d, "started": %d}\\n' "$SLURMD_NODENAME" "$slurmkit_port" \\
  "$(date +%s)" >"$slurmkit_state/new"
mv "$slurmkit_state/new" "$slurmkit_state/server.json"
umask "$slurmkit_umask"
export JUPYTER_RUNTIME_DIR=$slurmkit_state/runtime # Jupyter writes the token there, too
# In the background of a script bash would let it, and so its kernels, ignore interrupts.
(trap - INT QUIT; exec "${slurmkit_server[@]}" --config="$slurmkit_state/config.py") &
slurmkit_pid=$!
trap 'kill "$slurmkit_pid" 2>/dev/null' TERM INT HUP # some container runtimes tell bash alone
wait "$slurmkit_pid"
slurmkit_code=$?
while kill -0 "$slurmkit_pid" 2>/dev/null; do
  wait "$slurmkit_pid"
  slurmkit_code=$?
done
exit "$slurmkit_code"
""".strip()


def command(folder: str, server: Sequence[str], section: JupyterSection) -> tuple[str, ...]:
    """The words of an argv that start a server, and remove what it left when it ends.

    Args:
        folder: where servers leave word of themselves, on a file system that all nodes share.
        server: the program and its arguments; empty for the site's, or what is found.
        section: the site's and the person's configuration.

    Raises:
        BadConfig: when its command has a quote that is not closed.
    """
    given = server or _words(section.command)
    lines = [_BEFORE, *section.setup.strip().splitlines(), *rendezvous.LINES, _AFTER]
    return ("bash", "-c", "\n".join(lines), "slurmkit-jupyter", folder, _CONFIG, *given)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise BadConfig(
            f"[jupyter] command: {line!r}: {error}; give words as for a shell"
        ) from error
