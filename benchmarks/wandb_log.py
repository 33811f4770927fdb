"""Reading what W&B writes of a run on this machine: a ``.wandb`` file, a LevelDB log after a header of seven bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 32768
_HEADER = 7  # of the file, and of each part of a message: a checksum, its size, its kind
_WHOLE, _LAST = 1, 4  # kinds of parts with which a message ends


def messages(path: Path) -> Iterator[bytes]:
    """The messages of a log, as W&B's protocol buffers.

    Raises:
        ValueError: the log is cut off.
    """
    content, place, message = path.read_bytes(), _HEADER, b""
    while place < len(content):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:  # no part begins there
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", content[place : place + _HEADER].ljust(_HEADER, b"\0"))
        place += _HEADER + size
        if place > len(content) or not kind:
            break
        message += content[place - size : place]
        if kind in (_WHOLE, _LAST):
            yield message
            message = b""
    if place != len(content) or message:
        raise ValueError(f"{path} is cut off")
