"""Sweeps of a second, and what they wrote: shared by the tests of the command line."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.store import _name, sealed

ROOT = Path(__file__).parents[1]
SHORT = ["--override.max_epochs", "2", "--override.max_epochs_cst", "2", "--override.batch_size", "25"]
TINY = ["--datasets", "moons", "--backbones", "dm", "--seeds", "0..1", "--cvat-weights", "0.1", "1", *SHORT]
LOGGED = ["--datasets", "multilabel", "--backbones", "dm", "--seeds", "0..2", "--workers", "1"]
LOGGED += ["--override.max_epochs", "3", "--override.max_epochs_cst", "2", "--cvat-weights", "0.1", "1"]


def records(folder):
    return {path.name: json.loads(path.read_text()) for path in sorted((folder / "cells").glob("*.json"))}


def numbers(folder):
    """What must not depend on how a sweep was run: all of a record but its provenance, and the checksum over both."""
    how = ("provenance", "checksum")
    return {name: {k: v for k, v in record.items() if k not in how} for name, record in records(folder).items()}


def farthest(one, other, path=""):
    """The largest relative difference of two records' numbers; all else must be the same.

    Where a part had ended, its curve has None.
    """
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        return max((farthest(one[key], other[key], f"{path}/{key}") for key in one), default=0.0)
    if isinstance(one, list):
        assert len(one) == len(other), path
        return max((farthest(a, b, path) for a, b in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) / max(abs(one), 1e-3)
    assert one == other or (other is None and path.startswith("/curves")), path
    return 0.0


def start(arguments, **options):
    command = [sys.executable, "-m", "benchmarks.sweep", *arguments]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # tests that run in the background of a shell inherit that Ctrl-C is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **options,
    )


def with_metric(folder, name):
    """Every record has another metric, as if its user had added it: ten times the seed."""
    for path in (folder / "cells").glob("*.json"):
        record = json.loads(path.read_text())
        record["metrics"].append(name)
        for result in record["results"]:
            result["metrics"][name] = 10.0 * result["seed"]
        path.write_text(json.dumps(sealed(record)))


def rewrite(folder, changes, **fields):
    """Every record again, under the name that its identity gives it."""
    for path in list((folder / "cells").glob("*.json")):
        record = json.loads(path.read_text()) | fields
        record["identity"] |= changes
        record["protocol"] |= {"name": changes.get("protocol_name", "written"), "selection": "@SUM(A1)"}
        path.unlink()
        (folder / "cells" / f"{_name(record['identity'])}.json").write_text(json.dumps(sealed(record)))
