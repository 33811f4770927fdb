"""``python -m benchmarks.soak --minutes 10``: a sweep is killed and resumed over and over, as a person can watch.

A round kills a tiny sweep a few times at random moments (its driver or a worker, by SIGKILL or SIGTERM, at times with
a second sweep beside it in the same folder), lets the same command end, and compares every record with those of a run
that nobody disturbed. Sweeps are forked from this process, which has done the imports: a round takes seconds. Linux.
"""

from __future__ import annotations

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
from itertools import product
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentError, ArgumentParser

from benchmarks.executors import local
from benchmarks.job import Settings, run_job
from benchmarks.options import jobs_of, make_parser
from benchmarks.store import ASIDE, Store
from benchmarks.sweep import main as sweep

_SWEEP = [
    "--datasets", "moons", "D1@n=60,n_test=100,n_validation=50", "--backbones", "dm", "constant", "--methods",
    "backbone", "pl", "--seeds", "0", "1", "--override.max_epochs", "20", "--override.max_epochs_cst", "20",
    "--override.batch_size", "20", "--workers", "2", "--device", "cpu", "--wandb", "disabled",
]  # fmt: skip
_SECOND_SWEEP = 0.2  # share of the starts that have a second sweep beside them


@dataclass
class Tally:
    """What a soak saw."""

    rounds: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    second_sweeps: int = 0
    compared: int = 0
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """The summary."""
        kills = ", ".join(f"{number} {kind}" for kind, number in sorted(self.kills.items())) or "none"
        return (
            f"{self.rounds} rounds; kills: {kills}; {self.second_sweeps} times two sweeps at once; "
            f"{self.compared} records compared with an undisturbed run; differences: {len(self.differences)}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, 1 where a record was lost or differs, 2 for bad input."""
    parser = ArgumentParser(prog="python -m benchmarks.soak", description=__doc__, exit_on_error=False)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, at least one round")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    try:
        options = parser.parse_args(arguments)
    except ArgumentError as error:
        print(f"error: {' '.join(str(error).split())}; see --help", file=sys.stderr)
        return 2
    if sys.platform != "linux":
        print("error: a soak forks its sweeps, which is safe on Linux alone", file=sys.stderr)
        return 2
    end = time.monotonic() + 60 * options.minutes
    tally = soak(lambda done: time.monotonic() < end or not done, options.seed, lambda text: print(text, flush=True))
    print(tally)
    return 1 if tally.differences else 0


def soak(go_on: Callable[[int], bool], seed: int, tell: Callable[[str], None]) -> Tally:
    """Rounds of killing and resuming while ``go_on(rounds done)``; one that shows a difference keeps its folder."""
    rng, tally = random.Random(seed), Tally()
    with tempfile.TemporaryDirectory(prefix="cst-soak-") as name:
        _warm_up(Path(name, "warm"))
        begun = time.monotonic()
        process = _start(Path(name, "undisturbed"))
        process.join()
        wanted, span = _values(Path(name, "undisturbed")), time.monotonic() - begun
        tell(f"an undisturbed sweep takes {span:.1f} s and writes {len(wanted)} records")
        while go_on(tally.rounds):
            folder = Path(name, f"round-{tally.rounds}")
            kills = [_disturb(folder, rng, span, tally) for _ in range(rng.randint(1, 3))]
            found = _difference(folder, wanted)
            tally.rounds += 1
            tally.compared += len(wanted)
            if found:
                kept = Path(tempfile.mkdtemp(prefix="cst-soak-kept-"))
                shutil.copytree(folder, kept, dirs_exist_ok=True)
                tally.differences.append(found)
                found += f" (kept in {kept})"
            tell(f"round {tally.rounds}: {'; '.join(kills)}; resumed: {found or f'{len(wanted)} records, identical'}")
            shutil.rmtree(folder)
    return tally


def _warm_up(folder: Path) -> None:
    """Load all that a job needs into this process, which the sweeps are forked from."""
    torch.set_num_threads(1)
    for job in jobs_of(make_parser().parse_args([*_SWEEP, "--out", str(folder)])):
        run_job(job, Store(folder), Settings(device="cpu"), lambda message: None)


def _start(folder: Path) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=_drive, args=(folder,))
    process.start()
    return process


def _drive(folder: Path) -> None:
    """A sweep's driver, whose workers are forked too; what it says goes nowhere."""
    local.start_method = "fork"
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    sys.exit(sweep([*_SWEEP, "--out", str(folder)]))


def _disturb(folder: Path, rng: random.Random, span: float, tally: Tally) -> str:
    """Start a sweep, kill it or one of its workers at a random moment, and say what was done."""
    before = _values(folder)
    drivers = [_start(folder)]
    if rng.random() < _SECOND_SWEEP:
        drivers.append(_start(folder))
        tally.second_sweeps += 1
    moment = rng.uniform(0, span)
    time.sleep(moment)
    kinds = list(product(("driver", "worker"), (signal.SIGKILL, signal.SIGTERM)))
    rng.shuffle(kinds)
    kind, sent = min(kinds, key=lambda one: tally.kills[f"{one[0]} {one[1].name}"])  # so that each comes as often
    workers = local.descendants(drivers[0].pid)
    victim = rng.choice(workers) if kind == "worker" and workers else drivers[0].pid
    kind = "worker" if victim in workers else "driver"
    if drivers[0].is_alive() and victim is not None:
        with suppress(ProcessLookupError):  # a worker that has just ended by itself
            os.kill(victim, sent)
        tally.kills[f"{kind} {sent.name}"] += 1
        said = f"{kind} {sent.name} after {moment:.2f} s"
    else:
        said = f"ended before {moment:.2f} s"
    for driver in drivers:
        driver.join()
    after = _values(folder)
    if lost := [name for name, value in before.items() if after.get(name) != value]:
        tally.differences.append(f"{lost[0]} was there before {said}")
    return f"{said}{' beside a second sweep' if len(drivers) > 1 else ''} ({len(after)} records)"


def _difference(folder: Path, wanted: dict[str, Any]) -> str:
    """Let the sweep end; in what it differs from the undisturbed one, if in anything."""
    process = _start(folder)
    process.join()
    found, store = _values(folder), Store(folder)
    if process.exitcode != 0:
        return f"the sweep ended with status {process.exitcode}"
    if faults := store.faults() or [(path, "set aside") for path in (folder / ASIDE).glob("*")]:
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
    sys.exit(main())
