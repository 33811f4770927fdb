"""``python -m benchmarks.soak --minutes 10``: a sweep is killed and resumed over and over, as a person can watch.

A round kills a tiny sweep a few times at random moments (its driver or a worker, by SIGKILL or SIGTERM, at times with
a second sweep beside it in the same folder), lets the same command end, and compares every record with those of a run
that nobody disturbed; every other round cuts the jobs by seeds. No process may outlive the sweep that started it.
Sweeps are forked from this process, which has done the imports, so that a round takes seconds; with ``--executor ray``
each starts a Ray of its own, and it takes a minute. Linux.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import ArgumentError, ArgumentParser

from benchmarks.executors import local
from benchmarks.files import ASIDE, PARTS, OutputError, write_text
from benchmarks.job import Settings, run_job
from benchmarks.machine import measured_here
from benchmarks.options import jobs_of, make_parser
from benchmarks.run import sweep
from benchmarks.store import Store
from cst_lightning import interrupting
from cst_lightning.disk import check_writable
from cst_lightning.errors import InputError
from cst_lightning.texts import counted, printable

_SWEEP = [
    "--datasets", "moons", "D1@n=60,n_test=100,n_validation=50", "--backbones", "dm", "constant", "--methods",
    "backbone", "pl", "--seeds", "0", "1", "--override.max_epochs", "20", "--override.max_epochs_cst", "20",
    "--override.batch_size", "20", "--workers", "2", "--device", "cpu", "--wandb", "disabled",
]  # fmt: skip
#: how rounds take the jobs, in turn
JOBS = {"whole": [], "cut": ["--seeds-per-job", "1"]}
#: what is killed, and how
KINDS = tuple(f"{victim} {sent}" for victim, sent in product(("driver", "worker"), ("SIGKILL", "SIGTERM")))
_SECOND_SWEEP = 0.2  # share of the starts that have a second sweep beside them
_OUTLIVE_S = 120.0  # that a process may take to end after its sweep; agents of a Ray that is gone take a minute
_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Tally:
    """What a soak saw."""

    rounds: Counter[str] = field(default_factory=Counter)  # by what of ``JOBS`` they run
    kills: Counter[str] = field(default_factory=Counter)  # of each of ``KINDS``
    second_sweeps: int = 0
    compared: int = 0
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """The summary."""
        rounds = " and ".join(f"{number} of {name} jobs" for name, number in self.rounds.items())
        kills = ", ".join(f"{number} {kind}" for kind, number in sorted(self.kills.items())) or "none"
        return (
            f"{counted(self.rounds.total(), 'round')} ({rounds or 'none'}); kills: {kills}; {self.second_sweeps} times "
            f"two sweeps at once; {self.compared} records compared with an undisturbed run; differences: "
            f"{len(self.differences)}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, 1 where a record was lost or differs, 2 for bad input."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, at least one round")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    parser.add_argument("--executor", type=Literal["local", "ray"], default="local", help="where the sweeps run")
    parser.add_argument("--json", type=Path | None, default=None, help="write what was seen to this file")
    try:
        options = parser.parse_args(arguments)
    except ArgumentError as error:
        print(f"error: {printable(' '.join(str(error).split()))}; see --help", file=sys.stderr)
        return 2
    if sys.platform != "linux":
        print("error: a soak forks its sweeps, which is safe on Linux alone", file=sys.stderr)
        return 2
    begun, tally = time.monotonic(), Tally()
    try:
        if options.json is not None:
            check_writable(options.json.parent, "--json")
        soak(
            tally,
            lambda: not tally.rounds or time.monotonic() < begun + 60 * options.minutes,
            options.seed,
            options.executor,
            partial(print, flush=True),
        )
    except InputError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"stopped; {tally}")
        return interrupting.INTERRUPTED
    print(tally)
    if options.json is not None:
        command = " ".join(["python -m benchmarks.soak", *arguments])
        seen = summary(tally, command, options.executor, time.monotonic() - begun)
        try:
            write_text(options.json, json.dumps(seen, indent=1) + "\n")
        except OutputError as error:
            print(f"error: {printable(str(error))}", file=sys.stderr)
            return 1
    return 1 if tally.differences else 0


def summary(tally: Tally, command: str, executor: str, seconds: float) -> dict[str, Any]:
    """What was seen and where, in plain values."""
    seen = {
        "command": command,
        "executor": executor,
        "rounds": dict(tally.rounds),
        "kills": {kind: tally.kills[kind] for kind in KINDS},
        "second_sweeps": tally.second_sweeps,
        "records_compared": tally.compared,
        "differences": tally.differences,
        "seconds": round(seconds),
        **measured_here(),
    }
    if executor == "ray":
        seen["versions"] |= {"ray": version("ray")}
    return seen


def soak(tally: Tally, go_on: Callable[[], bool], seed: int, executor: str, tell: Callable[[str], None]) -> None:
    """Rounds of killing and resuming while ``go_on()``; one that shows a difference keeps its folder.

    Raises:
        InputError: Ray is asked for and not installed.
    """
    if executor == "ray" and find_spec("ray") is None:
        raise InputError("--executor ray needs the package ray: pip install 'cst-lightning[ray]'")
    rng = random.Random(seed)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):  # so that no orphan is missed
        raise OSError(ctypes.get_errno(), "this process cannot adopt what its sweeps leave behind")
    with tempfile.TemporaryDirectory(prefix="cst-soak-") as name:
        _warm_up(Path(name, "warm"))
        undisturbed = {}
        for jobs in JOBS:
            folder, begun = Path(name, jobs), time.monotonic()
            sweeps = _Sweeps(folder, executor, jobs)
            sweeps.start().join()
            wanted, span = _values(folder), time.monotonic() - begun
            undisturbed[jobs] = wanted, span
            tell(f"an undisturbed sweep of {jobs} jobs takes {span:.1f} s and writes {len(wanted)} records")
        while go_on():
            jobs = list(JOBS)[tally.rounds.total() % len(JOBS)]
            wanted, span = undisturbed[jobs]
            sweeps = _Sweeps(Path(name, f"round-{tally.rounds.total()}"), executor, jobs)
            kills = [_disturb(sweeps, rng, span, len(wanted), tally) for _ in range(rng.randint(1, 3))]
            found = _difference(sweeps, wanted)
            tally.rounds[jobs] += 1
            tally.compared += len(wanted)
            if found:
                kept = Path(tempfile.mkdtemp(prefix="cst-soak-kept-"))
                shutil.copytree(sweeps.folder, kept, dirs_exist_ok=True)
                tally.differences.append(found)
                found += f" (kept in {kept})"
            end = found or f"{len(wanted)} records, identical"
            tell(f"round {tally.rounds.total()}, {jobs} jobs: {'; '.join(kills)}; resumed: {end}")
            shutil.rmtree(sweeps.folder)


def _warm_up(folder: Path) -> None:
    """Load all that a job needs into this process, which the sweeps are forked from."""
    torch.set_num_threads(1)
    for job in jobs_of(make_parser().parse_args([*_SWEEP, "--out", str(folder)])):
        run_job(job, Store(folder), Settings(device="cpu"), lambda message: None)


@dataclass(frozen=True)
class _Sweeps:
    """The sweeps of a round, all by one command."""

    folder: Path
    executor: str
    jobs: str  # of ``JOBS``

    def start(self) -> BaseProcess:
        process = multiprocessing.get_context("fork").Process(target=self._drive)
        process.start()
        return process

    def _drive(self) -> None:
        """A sweep's driver, whose workers are forked too; what it says goes nowhere."""
        local.start_method = "fork"
        os.environ["RAY_TMPDIR"] = str(self.folder.parent)  # what Rays leave there goes with it
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        sys.exit(sweep([*_SWEEP, *JOBS[self.jobs], "--executor", self.executor, "--out", str(self.folder)]))

    def workers(self, driver: int) -> list[int]:
        """Those of a driver that have a job."""
        found = [pid for pid in local.descendants(driver) if _is_running(pid)]
        if self.executor == "ray":  # which has other processes, and workers without one
            found = [pid for pid in found if (said := _command(pid)).startswith("ray::") and "IDLE" not in said]
        return found


def _disturb(sweeps: _Sweeps, rng: random.Random, span: float, n_wanted: int, tally: Tally) -> str:
    """Start a sweep, kill it or one of its workers at a random moment, and say what was done."""
    before, parts = _values(sweeps.folder), _values(sweeps.folder / PARTS)
    drivers = [sweeps.start()]
    if rng.random() < _SECOND_SWEEP:
        drivers.append(sweeps.start())
        tally.second_sweeps += 1
    moment = rng.uniform(0, span * (1 - len(before) / n_wanted))  # of what is left
    time.sleep(moment)
    kinds = list(KINDS)
    rng.shuffle(kinds)
    kind = min(kinds, key=lambda one: tally.kills[one])  # so that each comes as often
    said = f"ended before {moment:.2f} s"
    if _kill(kind, sweeps, drivers[0], rng):
        tally.kills[kind] += 1
        said = f"{kind} after {moment:.2f} s"
    for driver in drivers:
        driver.join()
    after = _values(sweeps.folder)
    if lost := _lost(before, after) or _lost(parts, _values(sweeps.folder / PARTS), after):
        tally.differences.append(f"{lost} was there before {said}")
        said += f", which took away {lost}"
    return f"{said}{' beside a second sweep' if len(drivers) > 1 else ''} ({len(after)} records)"


def _kill(kind: str, sweeps: _Sweeps, driver: BaseProcess, rng: random.Random) -> bool:
    """Send the signal as soon as there is whom to send it to; whether there was."""
    victim, _, sent = kind.partition(" ")
    while driver.is_alive():
        assert driver.pid is not None
        pids = [driver.pid] if victim == "driver" else sweeps.workers(driver.pid)
        if pids:
            with suppress(ProcessLookupError):  # a worker that has just ended by itself
                os.kill(rng.choice(pids), signal.Signals[sent])
                return True
        time.sleep(0.005)
    return False


def _outlived() -> list[str]:
    """What the sweeps started and is still there some time after they ended, by command; it is ended here."""
    end = time.monotonic() + _OUTLIVE_S
    while left := [pid for pid in local.descendants(os.getpid()) if _is_running(pid)]:
        _reap()  # an orphan that has ended passes for alive with the workers of a Ray whose head it was
        if time.monotonic() > end:
            commands = list(map(_command, left))
            local.end_all(left)
            return commands
        time.sleep(0.05)
    _reap()
    return []


def _reap() -> None:
    """Bury the orphans that this process adopted and that have ended; its own children it has joined."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def _lost(before: dict[str, str], after: dict[str, str], joined: dict[str, str] | None = None) -> str:
    """The first record that is gone or another; parts may go when the records that they are ``joined`` to are there."""
    cells = {_without_seeds(value) for value in (joined or {}).values()}
    changed = (name for name, value in before.items() if after.get(name) != value)
    return next((name for name in changed if name in after or _without_seeds(before[name]) not in cells), "")


def _without_seeds(value: str) -> str:
    return json.dumps(json.loads(value)["identity"] | {"seeds": None}, sort_keys=True)


def _difference(sweeps: _Sweeps, wanted: dict[str, str]) -> str:
    """Let the sweep end; in what it differs from the undisturbed one, if in anything."""
    process = sweeps.start()
    process.join()
    found, stores = _values(sweeps.folder), [Store(sweeps.folder), Store(sweeps.folder / PARTS)]
    if process.exitcode != 0:
        return f"the sweep ended with status {process.exitcode}"
    if left := _outlived():
        return f"{left[0]} outlived a sweep"
    faults = [fault for store in stores for fault in store.faults()]
    faults += [(path, "set aside") for store in stores for path in (store.folder / ASIDE).glob("*")]
    faults += [(path, "is of a part whose cell is there") for path, _ in stores[1].found().values()]
    if faults:
        return f"{faults[0][0].name}: {faults[0][1]}"
    if names := sorted(found.keys() ^ wanted.keys()):
        return f"{names[0]} is lost, or one too many"
    return next((f"{name} differs" for name in wanted if found[name] != wanted[name]), "")


def _values(folder: Path) -> dict[str, str]:
    """The finished records by file name: all but how they were made."""
    found = [(path, record) for path, record in Store(folder).found().values() if record["status"] == "finished"]
    how = ("provenance", "checksum")
    return {
        path.name: json.dumps({name: value for name, value in record.items() if name not in how})
        for path, record in found
    }


if __name__ == "__main__":
    sys.exit(interrupting.run(main))
