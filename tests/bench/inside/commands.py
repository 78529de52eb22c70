"""Time commands from start to end, in turn."""

import json
import subprocess
import sys
import time


def once(argv: list[str]) -> float:
    began = time.perf_counter()
    quiet = subprocess.DEVNULL
    subprocess.run(argv, check=True, stdin=quiet, stdout=quiet, stderr=quiet)
    return time.perf_counter() - began


runs, commands = int(sys.argv[1]), json.loads(sys.argv[2])
for argv in commands:
    once(argv)
rounds = [[once(argv) for argv in commands] for _ in range(runs)]
print(json.dumps({"seconds": list(zip(*rounds, strict=True))}))
