"""The W&B runs of a folder: which are there, which the server lacks, and which cells W&B was never told of."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import IO

from benchmarks.executors.common import Event
from benchmarks.files import read_plain
from benchmarks.grid import Cell, Job
from benchmarks.store import Store
from benchmarks.texts import shell_word

try:
    import fcntl
except ImportError:  # Windows: two sweeps at once are told apart by nothing there
    fcntl = None  # type: ignore[assignment]

SWEEP_ID = "wandb/sweep-id"  # names a sweep's runs among all of a project's
_ASKED = "wandb/asked"  # keys of cells, a line each
_LARGEST_ASKED = 1 << 26  # bytes
ENDED = "ended"  # in the folder of a run that W&B wrote to its end


def unsynced(folder: Path) -> list[Path]:
    """Folders of W&B runs that are on this machine alone."""
    runs = [run for run in _runs(folder) if any(run.glob("*.wandb"))]
    runs.sort(key=lambda run: (run.name.startswith("offline-"), run.name))
    last = {_id_of(run): run for run in runs}  # of several of one id, which holds all of it: it was told whole again
    return sorted(run for run in last.values() if not any(run.glob("*.synced")))


def lacks_summary(folder: Path) -> bool:
    """Whether a sweep logged cells to W&B and was cut off before its summary was written to its end."""
    return (folder / _ASKED).exists() and not any(_key_of(run) == "summary" for run in _ended(folder))


def ask(folder: Path, cells: Iterable[Cell]) -> None:
    """Remember that W&B is to be told of these cells by a sweep of this machine, which may be cut off."""
    keys = [cell.key for cell in cells]
    (folder / _ASKED).parent.mkdir(parents=True, exist_ok=True)
    with (folder / _ASKED).open("a", encoding="utf-8") as file:
        file.writelines(f"{key}\n" for key in keys)
    unended(folder, {*keys, "summary"})


def unended(folder: Path, keys: Container[str]) -> None:
    """Forget that runs were written to their end: they are to be told more."""
    for run in _ended(folder):
        if _key_of(run) in keys:
            (run / ENDED).unlink(missing_ok=True)


def untold(folder: Path, cells: Sequence[tuple[Job, Cell]]) -> list[Event]:
    """Which of these recorded cells W&B was to be told of and was not: its part was killed with an earlier sweep."""
    try:
        asked = set(read_plain(folder / _ASKED, _LARGEST_ASKED).split())
    except (OSError, ValueError):  # none, or not as ``ask`` wrote it
        asked = set[str]()
    asked -= {_key_of(run) for run in _ended(folder)}  # one that was cut off may be uploaded too
    left = [(job, cell, Store(folder).read(cell)) for job, cell in cells if cell.key in asked]
    return [Event(job, "recorded", cell.method) for job, cell, r in left if r is not None and r["status"] == "finished"]


def is_being_written(folder: Path, run: Path) -> bool:
    """Whether a sweep that lives has this run open, or had it."""
    mode = "offline" if run.name.startswith("offline-") else "online"
    file = locked(lock_of(folder, _id_of(run), mode))
    if file is not None:
        file.close()
    return file is None


def lock_of(folder: Path, run_id: str, mode: str) -> Path:
    """The file that is locked while a run is written."""
    return folder / "wandb" / "locks" / f"{run_id}.{mode}"


def locked(path: Path) -> IO[str] | None:
    """The file, locked for this process until it ends, however it does; None where another one has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a", encoding="utf-8")
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:  # a file system without locks: nothing is known of others there
        pass
    return file


def _runs(folder: Path) -> list[Path]:
    return [run for run in (folder / "wandb").glob("*run-*-*") if run.is_dir() and not run.is_symlink()]


def _ended(folder: Path) -> list[Path]:
    return [run for run in _runs(folder) if (run / ENDED).exists()]


def _id_of(run: Path) -> str:
    """``run-DATE_TIME-ID`` and ``offline-run-DATE_TIME-ID``."""
    return run.name.removeprefix("offline-").split("-", 2)[2]


def _key_of(run: Path) -> str:
    """Of its cell, or ``summary``."""
    return _id_of(run).rpartition("-")[2]


def how_to_sync(folder: Path) -> str:
    """The command, in words."""
    return f"Upload later with: python -m benchmarks.sweep sync {shell_word(folder)}"
