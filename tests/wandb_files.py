"""What W&B's offline files hold."""

import json

from wandb.proto import wandb_internal_pb2

from benchmarks import wandb_log


def messages(path):
    """The records of a .wandb file."""
    return [wandb_internal_pb2.Record.FromString(message) for message in wandb_log.messages(path)]


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
