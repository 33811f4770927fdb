"""A selection rule: a score for each replicate, lower is better."""

from __future__ import annotations

import torch

from cst_lightning import Feedback, Protocol
from cst_lightning.losses import factual_nll
from cst_lightning.selection import Rule


def worst_action(logits: torch.Tensor, rows: Feedback, train: Feedback, protocol: Protocol) -> torch.Tensor:
    """The NLL of the action with the highest one, ``[R]``."""
    of_action = [
        factual_nll(logits, rows.action, rows.outcome.masked_fill(rows.action != action, -1))
        for action in range(rows.n_actions)
    ]
    return torch.stack(of_action).amax(0)


WORST_ACTION = Rule("worst_action", oracle=False, score=worst_action)
