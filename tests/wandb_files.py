"""What W&B's offline files hold."""

import json
import struct

from wandb.proto import wandb_internal_pb2

_BLOCK = 32768


def messages(path):
    """The records of a .wandb file, which is a LevelDB log after a header of seven bytes."""
    content, place, whole, out = path.read_bytes(), 7, b"", []
    while place < len(content):
        left = _BLOCK - place % _BLOCK
        if left < 7:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", content[place : place + 7])
        whole += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            out.append(wandb_internal_pb2.Record.FromString(whole))
            whole = b""
    return out


def runs(folder):
    """Name of each offline run: its summary, the rows of its history, and what it says of itself."""
    found = {}
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        name, summary, history, info = "", {}, [], None
        for message in messages(path):
            if message.WhichOneof("record_type") == "run":
                info = message.run
                name = info.display_name
            for item in message.summary.update:
                summary["/".join([*item.nested_key] or [item.key])] = json.loads(item.value_json)
            if message.WhichOneof("record_type") == "history":
                items = message.history.item
                history.append({"/".join([*i.nested_key] or [i.key]): json.loads(i.value_json) for i in items})
        found.setdefault(name, []).append((summary, history, info))
    return found
