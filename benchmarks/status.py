"""How a sweep stands, of the file that it keeps: it loads nothing heavy, so that a sweep can be watched at no cost."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Annotated, NotRequired

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from benchmarks.files import is_alive, read_plain
from benchmarks.record_shape import Count
from benchmarks.texts import said
from cst_lightning.errors import InputError
from cst_lightning.texts import counted, printable

_LARGEST_STATE = 1 << 24  # bytes
_SILENT_S = 60.0  # after which a sweep that did not say that it ended is taken for dead
Amount = Annotated[float, Field(ge=0, le=2**53)]
Share = Annotated[float, Field(ge=0, le=1 + 1e-6)]  # a sum of many rounds


class _Running(TypedDict):
    job: str
    doing: str
    share: Share
    mib: Amount


class _State(TypedDict):
    """Of ``progress.json``, which may come from elsewhere."""

    pid: int
    host: str
    device: NotRequired[str]  # of an older version it is not
    updated: Amount
    ended: bool
    stopped: NotRequired[bool]
    jobs: Count
    finished: Count
    failed: Count
    share: Share
    left: str
    running: list[_Running]


_STATE = TypeAdapter(_State)


def show_status(folder: Path) -> str:
    """What the sweep that writes ``folder`` is doing, or how it stood when it ended or was last heard of."""
    try:
        state = _STATE.validate_json(read_plain(folder / "progress.json", _LARGEST_STATE), strict=True)
        return _status_said(state)
    except OSError:
        raise InputError(
            f"{folder} holds no progress.json: no sweep ever wrote there, or one has not begun its first job"
        ) from None
    except (ValueError, OverflowError):  # whatever stands in it
        raise InputError(f"{folder}/progress.json is none that a sweep wrote: delete it") from None


def _status_said(state: _State) -> str:
    age = max(0.0, time.time() - state["updated"])
    if state["ended"]:
        lines = [f"{'stopped by Ctrl-C' if state.get('stopped') else 'ended'} {said(age)} ago"]
    elif age > _SILENT_S:
        lines = [f"not heard of for {said(age)}: killed, or its machine ({state['host']}) is down"]
    elif state["host"] == platform.node() and not is_alive(state["pid"]):
        lines = [f"killed (process {state['pid']} on {state['host']})"]
    else:
        device = f"{state['device']}, " if "device" in state else ""  # of an older version it is not
        where = f"running on {state['host']} ({device}process {state['pid']})"
        lines = [f"{where}, {state['left'] or 'just begun'}"]
    counts = f"{state['finished']} of {counted(state['jobs'], 'job')} finished, {state['failed']} failed"
    lines[0] += f"; {counts}, {100 * state['share']:.0f} % done"
    for job in () if state["ended"] else state["running"]:
        memory = f", {job['mib']:.0f} MiB" if job["mib"] else ""
        lines.append(f"  {job['job']}: {100 * job['share']:.0f} %, {job['doing']}{memory}")
    return "\n".join(map(printable, lines))
