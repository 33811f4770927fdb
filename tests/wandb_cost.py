"""What W&B costs a sweep, well and in trouble: ``python -m tests.wandb_cost``, for docs/how-to/wandb.md.

The same sweep without W&B, offline, and online against the server on loopback, which is well, refuses the key, or
answers with errors or not at all from a third of the way on. For each: when the jobs had ended, and the command.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Timer

from tests.wandb_server import KEY, serving

SWEEP = ["--protocol", "matched", "--datasets", "D1", "D2", "--backbones", "dm", "udm", "--seeds", "0..9"]
SWEEP += ["--workers", "2"]
FAULTS = {"disabled": "", "offline": "", "well": "", "wrong key": "401", "errors": "500", "no answer": "hang"}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.wandb_cost", description=__doc__)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--cases", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--sweep", nargs=argparse.REMAINDER, default=SWEEP, help="options of the sweep")
    options = parser.parse_args()
    whole = 90.0  # of the sweep, until the first one says
    for _ in range(options.turns):
        for name in options.cases:
            jobs, command = run(name, whole / 3, options.sweep)
            whole = jobs
            print(f"{name}: jobs ended after {jobs:.1f} s, the command after {command:.1f} s", flush=True)


def run(name, seconds, sweep):
    """Seconds until the jobs had ended, and until the command had; ``seconds`` until the server fails."""
    with tempfile.TemporaryDirectory() as folder, serving() as server:
        mode = name if name in ("disabled", "offline") else "online"
        environment = os.environ | {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY, "NO_COLOR": "1"}
        environment.pop("WANDB_MODE", None)
        fail = Timer(0 if name == "wrong key" else seconds, lambda: setattr(server, "fault", FAULTS[name]))
        fail.start()
        command = [sys.executable, "-m", "benchmarks.sweep", *sweep, "--wandb", mode, "--out", folder]
        start, begun = time.monotonic(), time.time()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        took = time.monotonic() - start
        fail.cancel()
        server.mend()
        if done.returncode:
            raise RuntimeError(done.stderr)
        print("\n".join(line for line in done.stderr.splitlines() if "W&B" in line or "sync" in line))
        return json.loads((Path(folder) / "progress.json").read_text())["updated"] - begun, took


if __name__ == "__main__":
    main()
