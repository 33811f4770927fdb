"""The value of a policy from a log of another one, with intervals.

Inverse propensity scoring (IPS) and doubly robust (DR) as in Dudik, Langford and Li (2011) and Dudik, Erhan, Langford
and Li (2014); self-normalised IPS (SNIPS) as in Swaminathan and Joachims (2015). Weights are ``policy / propensity`` of
the action taken, propensities clipped at a stated floor. Standard errors are those of the influence functions (for
SNIPS, the delta method); they take the propensities and the reward model as given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from cst_lightning.errors import InputError, rows_from_0, warn

Floats = NDArray[np.float64]

_SUM_TOLERANCE = 1e-4


@dataclass(frozen=True)
class PolicyValue:
    """An estimate of the mean reward under a policy.

    Attributes:
        value: the estimate. standard_error: of it.
        low, high: interval of that ``level`` (normal approximation).
        effective_sample_size: of the weights, in rows. largest_weight: of one row.
        n_clipped: rows whose propensity lay below ``floor``.
        n_rows: rows with a reward, which the estimate is made of.
    """

    value: float
    standard_error: float
    low: float
    high: float
    level: float
    effective_sample_size: float
    largest_weight: float
    n_clipped: int
    floor: float
    n_rows: int


@dataclass(frozen=True)
class _Log:
    """Checked rows that have a reward: ``[n]``, ``policy`` and ``model`` (expected rewards) ``[n, K]``."""

    reward: Floats
    action: NDArray[np.int64]
    policy: Floats
    model: Floats | None
    weight: Floats
    n_clipped: int


def ips(
    policy: ArrayLike,
    action: ArrayLike,
    reward: ArrayLike,
    propensity: ArrayLike,
    *,
    floor: float = 0.01,
    level: float = 0.95,
) -> PolicyValue:
    """Inverse propensity scoring: the mean of weight times reward; unbiased where nothing is clipped.

    Args:
        policy: what the policy would do: probabilities of all actions ``[N, K]``, or the chosen action ``[N]``.
        action: the action taken, ``[N]``, in ``0..K-1``.
        reward: of the action taken, ``[N]``; rows where it is NaN are left out.
        propensity: probability under the logging policy of the action taken ``[N]``, or of all actions ``[N, K]``.
        floor: least propensity used, in (0, 1); 0 clips nothing.
        level: of the interval.

    Raises:
        InputError: a value is not allowed (the message names it and its row, from 0), or no logged action has a chance
            under the policy.

    Warns:
        UserWarning: the policy takes an action that no row with a reward has.
    """
    log = _check(policy, action, reward, propensity, floor)
    return _value(log.weight * log.reward, log, floor, level)


def snips(
    policy: ArrayLike,
    action: ArrayLike,
    reward: ArrayLike,
    propensity: ArrayLike,
    *,
    floor: float = 0.01,
    level: float = 0.95,
) -> PolicyValue:
    """Self-normalised IPS: the mean reward by weights; a little biased in small logs, and mostly less variable.

    Args:
        policy, action, reward, propensity, floor, level: as for ``ips``.
    """
    log = _check(policy, action, reward, propensity, floor)
    value = (log.weight * log.reward).sum() / log.weight.sum()
    # of a ratio of two means, expanded to first order
    return _value(value + log.weight / log.weight.mean() * (log.reward - value), log, floor, level)


def doubly_robust(
    policy: ArrayLike,
    action: ArrayLike,
    reward: ArrayLike,
    propensity: ArrayLike,
    expected_reward: ArrayLike,
    *,
    floor: float = 0.01,
    level: float = 0.95,
) -> PolicyValue:
    """Doubly robust: a reward model's value of the policy, and its errors on the log by IPS.

    Right where the propensities are right or the model is. The model must not have been fitted on these rows.

    Args:
        policy, action, reward, propensity, floor, level: as for ``ips``.
        expected_reward: a model's expected reward of every action, ``[N, K]``.
    """
    log = _check(policy, action, reward, propensity, floor, expected_reward)
    assert log.model is not None
    of_taken = log.model[np.arange(len(log.model)), log.action]
    return _value((log.policy * log.model).sum(1) + log.weight * (log.reward - of_taken), log, floor, level)


def _value(influence: Floats, log: _Log, floor: float, level: float) -> PolicyValue:
    """The estimate that each row contributes ``influence`` to, ``[n]``: their mean, and its standard error."""
    if not 0 < level < 1:
        raise InputError(f"level={level}: allowed is between 0 and 1, such as 0.95")
    value = float(influence.mean())
    error = float(influence.std(ddof=1) / np.sqrt(len(influence)))
    half = float(norm.ppf((1 + level) / 2)) * error
    return PolicyValue(
        value=value,
        standard_error=error,
        low=value - half,
        high=value + half,
        level=level,
        effective_sample_size=float(log.weight.sum() ** 2 / (log.weight**2).sum()),
        largest_weight=float(log.weight.max()),
        n_clipped=log.n_clipped,
        floor=floor,
        n_rows=len(log.reward),
    )


def _check(
    policy: ArrayLike,
    action: ArrayLike,
    reward: ArrayLike,
    propensity: ArrayLike,
    floor: float,
    expected_reward: ArrayLike | None = None,
) -> _Log:
    """All arguments checked, and the weights of the rows that have a reward."""
    check_floor(floor)
    rewards = _numbers("reward", reward, missing=True)
    n_rows = len(rewards)
    if rewards.ndim != 1:
        raise InputError(f"reward has shape {rewards.shape}: allowed is [N]")
    if (observed := ~np.isnan(rewards)).sum() < 2:
        raise InputError("an outcome was seen in fewer than two rows: give more of them")
    chosen, chance = _numbers("policy", policy), _numbers("propensity", propensity)
    model = None if expected_reward is None else _numbers("expected_reward", expected_reward)
    wide = {"policy": chosen, "propensity": chance} | ({} if model is None else {"expected_reward": model})
    n_actions = _n_actions(wide, n_rows)
    taken = _indices("action", _numbers("action", action), n_rows, n_actions)
    if chosen.ndim == 1:
        places = _indices("policy", chosen, n_rows, n_actions)
        chosen = np.eye(n_actions or int(max(taken.max(), places.max())) + 1)[places]
    else:
        _check_distribution("policy", chosen)
        if n_actions is None or chosen.shape[1] != n_actions:
            raise InputError(f"policy has shape {chosen.shape}: allowed is [N] or [N, K]")
    chance = _of_taken(chance, taken, floor)
    weight = chosen[np.arange(n_rows), taken] / np.maximum(chance, floor)
    if not weight[observed].any():
        raise InputError("no row with an outcome has an action that the policy takes, so the log says nothing of it")
    _warn_without_support(chosen[observed], taken[observed])
    return _Log(
        reward=rewards[observed],
        action=taken[observed],
        policy=chosen[observed],
        model=None if model is None else model[observed],
        weight=weight[observed],
        n_clipped=int((chance[observed] < floor).sum()),
    )


def _warn_without_support(policy: Floats, taken: NDArray[np.int64]) -> None:
    """Of actions that the policy takes, ``[n, K]``, and none of these rows has."""
    never = np.setdiff1d(np.flatnonzero((policy > 0).any(0)), taken)
    if n_rows := int((policy[:, never] > 0).any(1).sum()):
        listed = ", ".join(map(str, never[:20]))
        warn(
            f"in {n_rows} of {len(policy)} rows the policy takes an action that no row with a reward has ({listed}): "
            "these rows say nothing of what it is worth (IPS counts 0, doubly robust its model alone)"
        )


def check_floor(floor: float) -> None:
    """A least propensity that can be divided by, or 0."""
    if not 0 <= floor < 1:
        raise InputError(f"floor={floor}: allowed is from 0, below 1")


def _numbers(name: str, value: ArrayLike, *, missing: bool = False) -> Floats:
    """Finite numbers; NaN where ``missing``."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} holds values that are no numbers: give indices and numbers only") from None
    wrong = ~np.isfinite(array) & ~(np.isnan(array) & missing)
    if wrong.any():
        row = rows_from_0(np.argwhere(wrong)[0][:1])
        raise InputError(f"{name} is {array[wrong][0]} in {row}: only finite numbers are allowed")
    return array


def _n_actions(arrays: dict[str, Floats], n_rows: int) -> int | None:
    """``K`` of those arrays that are ``[N, K]``; None where none is."""
    found: dict[str, int] = {}
    for name, array in arrays.items():
        vector = name != "expected_reward"
        if len(array.shape) not in ((1, 2) if vector else (2,)) or array.shape[0] != n_rows:
            allowed = f"[{n_rows}] or [{n_rows}, K]" if vector else f"[{n_rows}, K]"
            raise InputError(f"{name} has shape {array.shape}: allowed is {allowed}")
        if array.ndim == 2:
            found[name] = array.shape[1]
    if len(set(found.values())) > 1:
        sizes = ", ".join(f"{name} {size}" for name, size in found.items())
        raise InputError(f"the number of actions differs: {sizes}")
    return next(iter(found.values()), None)


def _indices(name: str, array: Floats, n_rows: int, n_actions: int | None) -> NDArray[np.int64]:
    if array.shape != (n_rows,):
        raise InputError(f"{name} has shape {array.shape}: allowed is {(n_rows,)}")
    wrong = (array != array.round()) | (array < 0) | (array >= (np.inf if n_actions is None else n_actions))
    if wrong.any():
        allowed = "0, 1, ..." if n_actions is None else f"0..{n_actions - 1}"
        row = rows_from_0(np.flatnonzero(wrong)[:1])
        raise InputError(f"{name} is {array[wrong][0]:g} in {row}: allowed are {allowed}")
    return array.astype(np.int64)


def _check_distribution(name: str, array: Floats) -> None:
    wrong = ((array < 0) | (array > 1)).any(1) | (abs(array.sum(1) - 1) > _SUM_TOLERANCE)
    if wrong.any():
        rows = rows_from_0(np.flatnonzero(wrong))
        raise InputError(f"{name} is no distribution in {rows}: values in 0..1 that sum to 1 are allowed")


def _of_taken(propensity: Floats, taken: NDArray[np.int64], floor: float) -> Floats:
    """Propensities of the actions taken, ``[N]``."""
    if propensity.ndim == 2:
        _check_distribution("propensity", propensity)
        propensity = propensity[np.arange(len(taken)), taken]
    # an estimate may be 0: the floor mends it, and n_clipped counts it
    low = propensity < 0 if floor else propensity <= 0
    if (wrong := low | (propensity > 1)).any():
        row = rows_from_0(np.flatnonzero(wrong)[:1])
        raise InputError(
            f"propensity is {propensity[wrong][0]:g} in {row}: allowed is "
            f"{'from 0' if floor else 'above 0 (or set a floor such as 0.01)'}, at most 1"
        )
    return propensity
