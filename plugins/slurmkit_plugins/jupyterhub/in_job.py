"""Runs in the job: starts the person's server, and tells the hub its port once the port is ours.

It is given to the node's own Python as text (3.6 or later, standard library). A port could be taken
by another user of the node before the server listens on it, and the hub would send the person's
browser there. So the hub hears of the port only when a socket of this user listens on it. When the
hub wants no server of this job any more, the job ends.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

_LISTENS = "0A"  # TCP_LISTEN of linux/tcp_states.h, as /proc/net/tcp has it
_PORT = re.compile(r"(?<=:)\d+(?=/)")
_ANSWER_SECONDS = 20
_HUB_SECONDS = 600  # in which a hub that restarts is back


def main(argv: "list[str]") -> int:
    """Run the server until it ends, and return its exit code."""
    port = free_port()
    url = os.environ["JUPYTERHUB_SERVICE_URL"]
    os.environ["JUPYTERHUB_SERVICE_URL"] = _PORT.sub(str(port), url, count=1)
    try:
        server = subprocess.Popen(argv)
    except OSError as error:
        say(
            f"cannot start {argv[0]}: {error.strerror}; the job needs it on its PATH: see [jupyter]"
            " setup of slurmkit's configuration, or c.Spawner.cmd of the hub"
        )
        return 127
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda which, _frame: server.send_signal(which))
    while server.poll() is None and not listens(port):
        time.sleep(0.2)
    if server.poll() is None and not tell_hub(server, port):
        server.terminate()
    code = server.wait()
    return 128 - code if code < 0 else code


def free_port() -> int:
    """Return a TCP port that nothing listens on now."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def listens(port: int) -> bool:
    """Return whether a socket of this user listens on a port, on this machine or in its container.

    Source: proc_net_tcp of the kernel's documentation; the fields are sl, local_address,
    rem_address, st, …, and uid in the eighth place.
    """
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            of_port = int(row[1].rpartition(":")[2], 16) == port
            if of_port and row[3] == _LISTENS and int(row[7]) == os.getuid():
                return True
    return False


def tell_hub(server: "subprocess.Popen[bytes]", port: int) -> bool:
    """Tell the hub the port; return whether the hub wants the server."""
    url = "{}/users/{}/slurmkit-server".format(
        os.environ["JUPYTERHUB_API_URL"].rstrip("/"),
        urllib.request.pathname2url(os.environ["JUPYTERHUB_USER"]),
    )
    fact = {"job_id": os.environ["SLURM_JOB_ID"], "port": port}
    request = urllib.request.Request(
        url,
        json.dumps(fact).encode(),
        {
            "Authorization": "token " + os.environ["JUPYTERHUB_API_TOKEN"],
            "Content-Type": "application/json",
        },
    )
    straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no site's proxy
    end = time.time() + _HUB_SECONDS
    while server.poll() is None:
        try:
            with straight.open(request, timeout=_ANSWER_SECONDS):
                return True
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 429:
                say(f"the hub does not wait for this job ({error}); the job ends")
                return False
            why = str(error)
        except OSError as error:
            why = str(error)
        if time.time() > end:
            say(f"no answer from {url}: {why}; the job ends")
            return False
        time.sleep(2)
    return True


def say(words: str) -> None:
    """Write a line to the job's log."""
    sys.stderr.write(f"slurmkit: {words}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
