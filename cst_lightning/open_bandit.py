"""A log as the dictionary of bandit feedback that Open Bandit Pipeline works with, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from cst_lightning.errors import InputError, rows_from_0
from cst_lightning.feedback import MISSING, Feedback, as_tensor
from cst_lightning.propensity import whole_propensity


def to_open_bandit(feedback: Feedback) -> dict[str, Any]:
    """The log of one replicate as Open Bandit Pipeline's dictionary; outcome 1 of two is the reward 1.

    Returns:
        ``n_rounds``, ``n_actions``, ``context`` ``[N, d]``, ``action`` and ``reward`` ``[N]``, ``pi_b`` ``[N, K, 1]``
        and ``pscore`` ``[N]`` (None without propensities), ``action_context`` (the identity, ``[K, K]``), ``position``
        and ``expected_reward`` (None: there is one position, and expected rewards are not known).

    Raises:
        InputError: several replicates, more than two outcomes, missing outcomes, or weights.
    """
    if feedback.n_replicates != 1:
        raise InputError(f"the log has {feedback.n_replicates} replicates: allowed is one")
    if feedback.n_outcomes != 2:
        raise InputError(f"the log has {feedback.n_outcomes} outcomes: allowed are two, which are the rewards 0 and 1")
    if feedback.weight is not None:
        raise InputError("the log has weights, and Open Bandit Pipeline has no place for them: leave them out")
    if n_missing := int(feedback.n_missing[0]):
        row = int((feedback.outcome[0] == MISSING).nonzero()[0])
        raise InputError(f"outcome is missing in {n_missing} rows, the first of them row {row}: leave them out")
    action = feedback.action[0].cpu().numpy()
    policy = None if feedback.propensity is None else feedback.propensity[0].double().cpu().numpy()
    return {
        "n_rounds": feedback.n_rows,
        "n_actions": feedback.n_actions,
        "context": feedback.x[0].double().cpu().numpy(),
        "action": action,
        "position": None,
        "reward": feedback.outcome[0].double().cpu().numpy(),
        "expected_reward": None,
        "pi_b": None if policy is None else policy[..., None],
        "pscore": None if policy is None else policy[np.arange(len(action)), action],
        "action_context": np.eye(feedback.n_actions),
    }


def from_open_bandit(bandit: Mapping[str, Any], *, allow_unlogged: bool = False) -> Feedback:
    """Open Bandit Pipeline's dictionary of bandit feedback as a log of one replicate.

    Of ``pi_b`` come the propensities, or of ``pscore``, which is of the action taken alone: that is kept, and the other
    actions share the rest evenly (nothing here looks at theirs). ``action_context`` and ``expected_reward`` have no
    place in a log: the one is not used, the other is known in simulations only.

    Args:
        bandit: with ``n_actions``, ``context``, ``action`` and ``reward``.
        allow_unlogged: see ``Feedback``.

    Raises:
        InputError: a key is missing, a reward is not 0 or 1, a score is 0 or above 1, or rows are of several positions.
    """
    missing = [key for key in ("n_actions", "context", "action", "reward") if bandit.get(key) is None]
    if missing:
        raise InputError(f"bandit feedback lacks {', '.join(map(repr, missing))}; it has: {', '.join(bandit)}")
    if bandit.get("position") is not None and len(np.unique(bandit["position"])) > 1:
        positions = ", ".join(map(str, np.unique(bandit["position"])))
        raise InputError(f"bandit feedback has rows of positions {positions}: choose those of one")
    reward = as_tensor("reward", bandit["reward"])
    if (wrong := (reward != 0) & (reward != 1)).any():
        row = int(wrong.nonzero()[0])
        raise InputError(
            f"reward is {float(reward[row]):g} in {rows_from_0([row])}: allowed are 0 and 1, the two outcomes"
        )
    policy = bandit.get("pi_b")
    if policy is not None:
        policy = as_tensor("pi_b", policy)
        if policy.ndim != 3 or policy.shape[2] != 1:
            raise InputError(f"pi_b has shape {tuple(policy.shape)}: allowed is [N, K, 1], one position")
        policy = policy[..., 0]
    elif bandit.get("pscore") is not None:
        policy = whole_propensity(bandit["pscore"], np.asarray(bandit["action"]), int(bandit["n_actions"])).float()
    return Feedback(
        as_tensor("context", bandit["context"]),
        as_tensor("action", bandit["action"]),
        reward.to(torch.int64),
        int(bandit["n_actions"]),
        propensity=policy,
        allow_unlogged=allow_unlogged,
    )
