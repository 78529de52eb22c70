"""Runs in a container: starts the commands it reads, and says what became of each.

A `docker exec` takes a fifth of a second of processor time, and the tests run thousands of
commands. Each line of standard input is a command as JSON, and so is each line of the answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from typing import IO

ONE_AT_A_TIME = threading.Lock()


def main() -> None:
    answer(ready=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer(number=command["number"])
        threading.Thread(target=run, kwargs=command, daemon=True).start()
    os._exit(0)


def run(number: int, argv: list[str], given: str) -> None:
    """Run a command to its end; processes that it leaves behind may keep its output open."""
    with temporary() as output, temporary() as errors:
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=output, stderr=errors, start_new_session=True
            )
        except OSError as problem:
            answer(number=number, status=127, output="", errors=f"{problem}\n")
            return
        process.communicate(given.encode("utf-8", "surrogateescape"))
        code = process.returncode
        status = code if code >= 0 else 128 - code  # of a signal, as `docker exec` says it
        for file in (output, errors):
            file.seek(0)
        answer(number=number, status=status, output=output.read(), errors=errors.read())


def temporary() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogateescape")


def answer(**words: object) -> None:
    with ONE_AT_A_TIME:
        print(json.dumps(words), flush=True)


main()
