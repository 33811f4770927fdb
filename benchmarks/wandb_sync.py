"""Sends the W&B runs that are on this machine alone, and asks the server whether it has them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.plan import counted
from benchmarks.wandb_runs import ENDED, is_being_written, unsynced
from cst_lightning.errors import InputError

ADDRESS = "address.txt"  # in a run's folder: entity/project/id, or project/id of the key's own entity
INIT_S = 20  # that W&B may take to answer before a run is given up; WANDB_INIT_TIMEOUT replaces it
_ASKS = 3  # times, a second apart: a server may take a moment to say that a run has ended


def sync(folder: Path) -> int:
    """Upload what was logged offline (or not to its end); 0 where the server has all of it then, else 1."""
    runs = unsynced(folder)
    if not runs:
        raise InputError(f"{folder} holds no W&B run that is not uploaded yet (wandb/*run-*)")
    print(f"{len(runs)} W&B runs wait in {folder / 'wandb'}: {', '.join(run.name for run in runs)}")
    if found_mode() == "offline":
        raise InputError("sync needs a W&B key: run `wandb login`, or set WANDB_API_KEY")
    open_ = [run for run in runs if is_being_written(folder, run)]
    there = [run for run in runs if run not in open_ and not _is_offline(run) and mark_if_uploaded(run)]
    left = [run for run in runs if run not in open_ and run not in there]
    missing = [run.name for run in left if not _sent(run)]
    if not left and not open_:
        print(f"nothing to upload: the server has every run of {folder}")
    if open_:
        print(f"{counted(len(open_), 'run')} left out, which a sweep still writes: call sync again when it has ended")
    if missing:
        print(
            f"{len(missing)} of {counted(len(left), 'run')} did not arrive whole: {', '.join(missing)}. Call sync "
            "again when the key and the server are well; what was cut off is logged again by its sweep's own command"
        )
    return 1 if missing or open_ else 0


def _sent(run: Path) -> bool:
    """Send a run, and whether the server says that it has it: W&B's exit status and mark do not tell."""
    try:
        # one by one: W&B stops at the first whose log was cut off
        subprocess.run([sys.executable, "-m", "wandb", "sync", "--include-online", str(run)], check=False)
    finally:
        for mark in run.glob("*.synced"):
            mark.unlink()
    for again in range(_ASKS):
        if again:
            time.sleep(1)
        if mark_if_uploaded(run):
            return True
    return False


def mark_if_uploaded(run: Path) -> bool:
    """Ask the server whether it has a run whole, and mark it as ``wandb sync`` does; sent again it is doubled.

    That ``Run.finish`` or ``wandb sync`` returns is no proof: they do so too where the server refused a part. The end
    of a run is the last that is sent of its curves and summary.
    """
    import wandb

    try:
        address = (run / ADDRESS).read_text(encoding="utf-8")
        found = wandb.Api(timeout=INIT_S).run(address)
        if (run / ENDED).exists():
            whole = found.state == "finished" and bool(found.summary_metrics)
        else:
            whole = found.state in ("finished", "failed")
    except (OSError, ValueError, wandb.Error):  # no address; not on the server; no answer
        return False
    if whole:
        for log in run.glob("*.wandb"):
            log.with_name(log.name + ".synced").touch()
    return whole


def found_mode() -> str:
    """Online where W&B finds a key."""
    import wandb

    wandb.setup(settings=wandb.Settings(silent=True))
    return "online" if wandb.api.api_key else "offline"


def _is_offline(run: Path) -> bool:
    return run.name.startswith("offline-")
