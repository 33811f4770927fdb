"""Sends the W&B runs that are on this machine alone, and asks the server whether it has them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.files import refuse_link
from benchmarks.tracking import answers, arrived, found_mode, is_whole
from benchmarks.wandb_runs import is_being_written, unsynced
from benchmarks.wandb_settings import settle_environment
from cst_lightning.errors import InputError
from cst_lightning.texts import PrintableStream, counted, printable

_OF_WANDB = Path("logs", "debug-core.log")  # a link in each run of W&B's own making, which its upload does not follow


def sync(folder: Path) -> int:
    """Upload what was logged offline (or not to its end); 0 where the server has all of it then, else 1."""
    runs = unsynced(folder)
    nothing = f"nothing to upload: the server has every run of {printable(str(folder))}"
    if not runs and any(folder.glob("wandb/*run-*-*/*.synced")):
        print(nothing)
        return 0
    if not runs:
        raise InputError(f"{folder} holds no W&B run (wandb/*run-*)")
    for run in runs:
        _refuse_links_in(run)
    wait = "waits" if len(runs) == 1 else "wait"
    print(f"{counted(len(runs), 'W&B run')} {wait} in {printable(str(folder / 'wandb'))}: {_named(runs)}")
    settle_environment()
    if _mode() == "offline":
        raise InputError("sync needs a W&B key: run `wandb login`, or set WANDB_API_KEY")
    open_ = [run for run in runs if is_being_written(folder, run)]
    there = [run for run in runs if run not in open_ and not _is_offline(run) and arrived(run, asks=1)]
    left = [run for run in runs if run not in open_ and run not in there]
    well = not left or answers()  # W&B itself would try for hours
    if not well:
        print("W&B's server does not answer, or refuses the key")
    missing = [run for run in left if not (well and _sent(run))]
    if not left and not open_:
        print(nothing)
    if open_:
        print(f"{counted(len(open_), 'run')} left out, which a sweep still writes: call sync again when it has ended")
    if missing:
        cut = [run for run in missing if not is_whole(run)]
        again = ". Call sync again when the key and the server are well" if len(cut) < len(missing) else ""
        print(f"{len(missing)} of {counted(len(left), 'run')} did not arrive whole: {_named(missing)}{again}")
        if cut:
            print(f"The logs of {_named(cut)} are cut off: the sweep's own command, given again, logs these runs whole")
    return 1 if missing or open_ else 0


def _named(runs: Sequence[Path]) -> str:
    return printable(", ".join(run.name for run in runs))


def _refuse_links_in(run: Path) -> None:
    """W&B uploads what a link among a run's files leads to, and writes some of the files anew."""
    for place, folders, files in os.walk(run):
        for name in sorted([*folders, *files]):
            path = Path(place, name)
            if path.relative_to(run) != _OF_WANDB:
                refuse_link(path)


def _sent(run: Path) -> bool:
    """Send a run, and whether the server says that it has it: W&B's exit status and mark do not tell."""
    try:
        with tempfile.TemporaryDirectory() as own:  # W&B's log would follow a link in the folder
            Path(own, "wandb").mkdir()
            # one by one: W&B stops at the first whose log was cut off
            command = [sys.executable, "-m", "wandb", "sync", "--include-online", str(run)]
            environment, pipe = os.environ | {"WANDB_DIR": own}, subprocess.PIPE
            with subprocess.Popen(
                command, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True, errors="replace"
            ) as process:
                assert process.stdout is not None
                PrintableStream(sys.stderr).writelines(process.stdout)  # it shows names of the folder as they are
    finally:
        for mark in run.glob("*.synced"):
            mark.unlink()
    return arrived(run)


def _mode() -> str:
    try:
        return found_mode()
    except Exception as error:  # a variable or a settings file of W&B's that it cannot read
        raise InputError(f"W&B does not start: {' '.join(str(error).split())}") from error


def _is_offline(run: Path) -> bool:
    return run.name.startswith("offline-")
