#!/usr/bin/env python3
"""Stands in for `munge` and `unmunge` where no munged runs: the same options, output, exit codes.

Called by the name of either. STAND_IN_UID is the uid that munged would see; STAND_IN_SEEN a file
of the credentials opened so far; STAND_IN_SAYS an error number that unmunge ends with.
"""

import base64
import json
import os
import secrets
import sys
from pathlib import Path

UID = int(os.environ.get("STAND_IN_UID", os.getuid()))


def munge() -> int:
    only = next(int(a.partition("=")[2]) for a in sys.argv if a.startswith("--restrict-uid="))
    payload = base64.b64encode(sys.stdin.buffer.read()).decode()
    sealed = {"uid": UID, "only": only, "payload": payload, "salt": secrets.token_hex(4)}
    print("MUNGE:" + base64.b64encode(json.dumps(sealed).encode()).decode() + ":")
    return 0


def unmunge() -> int:
    assert sys.argv[1:] == ["--numeric", "--keys=STATUS,UID,LENGTH"]
    text = sys.stdin.read().strip()
    if not text.startswith("MUNGE:"):
        return say("Failed to match armor prefix", 8)
    try:
        sealed = json.loads(base64.b64decode(text.removeprefix("MUNGE:").removesuffix(":")))
    except ValueError:
        return say("Invalid credential", 14)
    if sealed["only"] != UID:
        return say(f"Unauthorized credential for client UID={UID}", 18)
    seen = Path(os.environ["STAND_IN_SEEN"])
    status = int(os.environ.get("STAND_IN_SAYS", "0"))
    if text in (seen.read_text() if seen.exists() else ""):
        status = 17
    with seen.open("a") as file:
        file.write(text + "\n")
    payload = base64.b64decode(sealed["payload"])
    # A replayed or expired one is printed all the same.
    head = f"STATUS:          {status}\nUID:             {sealed['uid']}\n"
    sys.stdout.buffer.write(f"{head}LENGTH:          {len(payload)}\n\n".encode() + payload)
    return status


def say(words: str, code: int) -> int:
    print(f"unmunge: Error: {words}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit({"munge": munge, "unmunge": unmunge}[Path(sys.argv[0]).name]())
