"""What W&B costs a sweep, well and in trouble: ``python -m tests.wandb_cost``, for docs/how-to/wandb.md.

The same sweep without W&B, offline, and online against the server on loopback, which is well, refuses the key, or
answers with errors or not at all from a third of the way on; and with a disk under W&B's folder that is full after the
first runs (it is mounted, which root may). For each: when the jobs had ended, and the command; and the processor time
of W&B's processes until the jobs had ended, which says the same of a machine that is not always as fast. On Linux.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer

from tests.wandb_server import KEY, serving

SWEEP = ["--protocol", "matched", "--datasets", "D1", "D2", "--backbones", "dm", "udm", "--seeds", "0..9"]
SWEEP += ["--workers", "2"]
FAULTS = {"disabled": "", "offline": "", "well": "", "wrong key": "401", "errors": "500", "no answer": "hang"}
FULL = {"full disk, offline": "offline", "full disk, online": "online"}
DISK = "200k"  # holds the logs of two or three of the sweep's runs
LOOK_S = 0.5


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.wandb_cost", description=__doc__)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--cases", nargs="+", choices=[*FAULTS, *FULL], default=list(FAULTS))
    parser.add_argument("--sweep", nargs=argparse.REMAINDER, default=SWEEP, help="options of the sweep")
    options = parser.parse_args()
    whole = 90.0  # of the sweep, until the first one says
    for _ in range(options.turns):
        for name in options.cases:
            jobs, command, own = run(name, whole / 3, options.sweep)
            whole = jobs
            ended = f"jobs ended after {jobs:.1f} s, the command after {command:.1f} s"
            print(f"{name}: {ended}; W&B's processes had taken {own:.1f} s by the end of the jobs", flush=True)


def run(name, seconds, sweep):
    """Seconds until the jobs had ended, and until the command had, and W&B's; ``seconds`` until the server fails."""
    with tempfile.TemporaryDirectory() as folder, serving() as server, small_disk(folder, name in FULL):
        mode = name if name in ("disabled", "offline") else FULL.get(name, "online")
        environment = os.environ | {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY, "NO_COLOR": "1"}
        environment.pop("WANDB_MODE", None)
        fault = FAULTS.get(name, "")
        fail = Timer(0 if name == "wrong key" else seconds, lambda: setattr(server, "fault", fault))
        fail.start()
        command = [sys.executable, "-m", "benchmarks.sweep", *sweep, "--wandb", mode, "--out", folder]
        start, begun, since_boot = time.monotonic(), time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
        used = {}
        with tempfile.TemporaryFile("w+") as told:
            process = subprocess.Popen(command, env=environment, stdout=told, stderr=told)
            while process.poll() is None:
                time.sleep(LOOK_S)
                if not have_ended(folder):
                    used |= of_wandb(since_boot)
            took = time.monotonic() - start
            told.seek(0)
            said = told.read()
        fail.cancel()
        server.mend()
        if process.returncode:
            raise RuntimeError(said)
        print("\n".join(line for line in said.splitlines() if "W&B" in line or "sync" in line))
        return json.loads(Path(folder, "progress.json").read_text())["updated"] - begun, took, sum(used.values())


def have_ended(folder):
    """Whether the jobs of the sweep have."""
    path = Path(folder, "progress.json")
    return path.exists() and json.loads(path.read_text())["ended"]


def of_wandb(since_boot):
    """Processor seconds of W&B's processes that began after ``since_boot``, by their numbers: they are nice."""
    found, tick = {}, os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[16]) >= 10 and int(fields[19]) / tick > since_boot:
                found[path.parent.name] = (int(fields[11]) + int(fields[12])) / tick
    return found


@contextmanager
def small_disk(folder, wanted):
    """W&B's folder of a sweep on a disk of its own of the size ``DISK``, where ``wanted``."""
    if not wanted:
        yield
        return
    place = Path(folder, "wandb")
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


if __name__ == "__main__":
    main()
