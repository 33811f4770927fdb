"""A look at a log before anything is trained on it: what it can tell, and what would mislead."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from cst_lightning import findings as findings_of
from cst_lightning.columns import (
    Roles,
    check_log,
    check_names,
    check_taken,
    describe_columns,
    kind_of,
    propensities_of,
)
from cst_lightning.cross_fitting import (
    Codes,
    Floats,
    area_under_curve,
    auc_of_feature,
    feature_matrix,
    held_out_probabilities,
    is_numeric,
)
from cst_lightning.encoding import Labels
from cst_lightning.errors import InputError
from cst_lightning.findings import Finding

#: rows that models are fitted on, at most: drawn without replacement
MODELLED_ROWS = 10_000
#: least propensity used in a weight
PROPENSITY_FLOOR = 0.01
#: of values that all go with one outcome: share of the rows that one value of the feature has, where all others are
#: looked at; values that a feature has at most, where each is; rows there are at least; how likely it may be by chance
_COMMON, _FEW_VALUES, _GIVEAWAY_ROWS, _CHANCE = 0.2, 50, 20, 1e-8


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What ``diagnose`` found.

    Attributes:
        n_rows, n_modelled: rows of the log, and of the sample that models were fitted on.
        columns: ``columns.describe_columns`` of the log.
        actions: a row for each action: ``action``, ``rows``, ``share`` of the rows, ``observed`` outcomes, the share
            of each outcome among those (``P(outcome)``); of the weights 1 / propensity of the rows that took it
            ``stands for``, their sum as a share of all rows (1 where every row had a chance of it), and ``largest``;
            ``no chance``, the share of all rows that had almost none.
        outcomes: a row for each outcome: ``outcome``, ``rows``, ``share`` of the observed.
        overlap: ``effective`` (sample size as a share of the rows), ``largest`` weight, ``clipped`` rows, ``no chance``
            (share of the rows with almost no chance of some action that is not very rare), ``threshold`` of "almost".
        model: where propensities come from.
        propensity: of every action, ``[n_modelled, K]``; taken: index of the action taken, ``[n_modelled]``.
        drift: a row for each column, ``column`` and ``auc`` of telling the two parts apart by it alone.
        drift_auc: of telling them apart by all features. drift_parts: what the parts are.
        findings: the worst first.
    """

    n_rows: int
    n_modelled: int
    columns: pd.DataFrame
    actions: pd.DataFrame
    outcomes: pd.DataFrame
    overlap: dict[str, float]
    model: str
    propensity: Floats
    taken: Codes
    drift: pd.DataFrame
    drift_auc: float
    drift_parts: str
    findings: list[Finding] = field(default_factory=list)

    def text(self) -> str:
        """The diagnosis for a terminal."""
        from cst_lightning.diagnosis_report import render_text

        return render_text(self)

    def page(self) -> str:
        """The diagnosis as one HTML page that needs nothing else; needs the ``report`` extra."""
        from cst_lightning.diagnosis_report import render_page

        return render_page(self)


def log_of_arrays(
    x: ArrayLike, action: ArrayLike, outcome: ArrayLike, propensity: ArrayLike | None = None
) -> tuple[pd.DataFrame, Roles]:
    """Arrays as a log: contexts ``[N, d]``, actions ``[N]``, outcomes ``[N]``, propensities ``[N]`` or ``[N, K]``."""
    contexts = np.asarray(x)
    if contexts.ndim != 2:
        raise InputError(f"x has shape {contexts.shape}: allowed is [N, d]")
    frame = pd.DataFrame(contexts, columns=[f"x{i}" for i in range(contexts.shape[1])])
    given = {"action": np.asarray(action), "outcome": np.asarray(outcome)}
    logged: str | list[str] | None = None
    if propensity is not None:
        values = np.asarray(propensity)
        of_each = values.T if values.ndim == 2 else values[None]
        names = [f"propensity{i}" for i in range(len(of_each))] if values.ndim == 2 else ["propensity"]
        given |= dict(zip(names, of_each, strict=True))
        logged = names if values.ndim == 2 else "propensity"
    for name, column in given.items():
        if column.shape != (len(frame),):
            raise InputError(f"{name} has shape {column.shape}: x has {len(frame)} rows")
        frame[name] = column
    return frame, Roles(action="action", outcome="outcome", propensity=logged)


def diagnose(
    log: pd.DataFrame,
    columns: Roles,
    *,
    validation: pd.DataFrame | None = None,
    actions: Sequence[Any] = (),
    random_state: int = 0,
) -> Diagnosis:
    """Look at a log: outcomes, overlap, features that leak, drift; every finding says what to do.

    Args:
        log: as ``read_log`` gives it; of arrays, ``diagnose(*log_of_arrays(x, action, outcome))``.
        columns: with an action and an outcome.
        validation: rows to compare with the log's; by default its first half is compared with its second.
        actions: all actions that there are, where some may never have been logged.
        random_state: of the sample and the folds.

    Raises:
        InputError: the log cannot be used at all.
    """
    if columns.action is None or columns.outcome is None:
        raise InputError("diagnose needs a column for the action and one for the outcome")
    log = log.to_pandas() if hasattr(log, "to_pandas") else log
    check_log(log, columns, all_taken=not len(actions))
    if validation is not None:
        validation = validation.to_pandas() if hasattr(validation, "to_pandas") else validation
        compared = compared_roles(columns, list(log.columns))
        check_names(list(validation.columns), compared, "the validation rows")
        _check_kinds(log, validation, compared)
    # models so small are many times slower with several threads where the other cores are busy
    with threadpool_limits(1), warnings.catch_warnings():
        # that a label is continuous is a finding
        warnings.filterwarnings("ignore", message="The number of unique classes is greater than")
        return _diagnose(log, columns, validation, actions, random_state)


def compared_roles(columns: Roles, names: Sequence[str]) -> Roles:
    """What validation rows must have of a log with columns ``names``: its features and labels, and nothing else."""
    features = columns.feature_names(names)
    categorical = [name for name in columns.categorical if name in features]
    return Roles(columns.action, columns.outcome, features=features, categorical=categorical)


def _check_kinds(log: pd.DataFrame, validation: pd.DataFrame, columns: Roles) -> None:
    """Text stands in the validation rows only where it does in the log."""
    for name in columns.feature_names(list(log.columns)):
        one, other = kind_of(log[name]), kind_of(validation[name])
        if one in ("number", "whole number") and other in ("text", "mixed") and name not in columns.categorical:
            value = validation[name].dropna()
            raise InputError(
                f"the validation rows: column {name!r} holds {other}, such as {value.iloc[0]!r}, and in the log "
                "numbers: mend it, or name it in categorical"
            )


def _diagnose(
    log: pd.DataFrame, columns: Roles, validation: pd.DataFrame | None, actions: Sequence[Any], random_state: int
) -> Diagnosis:
    assert columns.action is not None
    assert columns.outcome is not None
    names = columns.feature_names(list(log.columns))
    log = log.reset_index(drop=True)
    sample = _sample(log, MODELLED_ROWS, random_state)
    labels = _all_actions(log[columns.action], actions)
    outcome_labels = list(Labels.of("outcome", log[columns.outcome]).values)
    taken = _index(sample[columns.action], labels)
    check_taken(sample, columns, Labels("action", tuple(labels)), "the log")
    propensity, model = _propensities(sample, columns, names, taken, labels, random_state)
    counted = _count(log, columns, labels, outcome_labels)
    table, overlap = _overlap(sample, columns, propensity, taken, counted["rows"].to_numpy())
    counted = counted.assign(**table)
    outcomes = log[columns.outcome].value_counts().reindex(outcome_labels)
    parts = _parts(log, validation, random_state)
    drift, drift_auc = _drift(*parts[:2], columns, names, random_state)
    alone = _leaks(sample, columns, names, labels, outcome_labels, random_state)
    found = Diagnosis(
        n_rows=len(log),
        n_modelled=len(sample),
        columns=describe_columns(log, columns),
        actions=counted,
        outcomes=pd.DataFrame(
            {"outcome": outcome_labels, "rows": outcomes.to_numpy(), "share": (outcomes / outcomes.sum()).to_numpy()}
        ),
        overlap=overlap,
        model=model,
        propensity=propensity,
        taken=taken,
        drift=drift,
        drift_auc=drift_auc,
        drift_parts=parts[2],
    )
    findings = [
        *findings_of.outcomes(found, log[columns.outcome]),
        *findings_of.actions(found),
        *findings_of.spellings(log, columns, names),
        *findings_of.overlap(found, alone),
        *findings_of.forgotten_propensity(found, sample, names, alone),
        *findings_of.logged_propensities(log, columns, labels),
        *findings_of.continuous(found),
        *findings_of.missing_features(found, names),
        *findings_of.kinds_of_features(found, log, columns, names),
        *findings_of.rows_and_constants(found, log, columns, names),
        *findings_of.leaks(alone),
        *findings_of.giveaways(_giveaways(sample, columns, names), alone),
        *findings_of.drift(found, min(len(parts[0]), len(parts[1])), _in_order(log, names, validation)),
        *findings_of.unknown_labels(validation, columns, labels, outcome_labels),
    ]
    findings.sort(key=lambda finding: findings_of.SEVERITIES.index(finding.severity))
    found.findings.extend(findings)
    return found


# --- measuring ----------------------------------------------------------------------------------


def _sample(frame: pd.DataFrame, n_rows: int, random_state: int) -> pd.DataFrame:
    """At most ``n_rows`` rows, in their order."""
    if len(frame) <= n_rows:
        return frame
    rows = np.random.default_rng(random_state).choice(len(frame), n_rows, replace=False)
    return frame.iloc[np.sort(rows)].reset_index(drop=True)


def _all_actions(column: pd.Series, given: Sequence[Any]) -> list[Any]:
    """Labels of the actions that are logged or could be."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        given = [*given, *column.cat.categories]
    return list(Labels.of("action", pd.Series([*column.unique(), *given], dtype=object)).values)


def _index(column: pd.Series, labels: Sequence[Any]) -> Codes:
    """Places of the values among ``labels``; -1 where they are missing."""
    return np.asarray(pd.Index(labels).get_indexer(column), dtype=np.int64)


def _count(log: pd.DataFrame, columns: Roles, labels: Sequence[Any], outcomes: Sequence[Any]) -> pd.DataFrame:
    """The first columns of ``Diagnosis.actions``."""
    action, outcome = _index(log[columns.action], labels), _index(log[columns.outcome], outcomes)
    seen = outcome >= 0
    pairs = np.zeros((len(labels), len(outcomes)), dtype=np.int64)
    np.add.at(pairs, (action[seen], outcome[seen]), 1)
    rows, observed = np.bincount(action, minlength=len(labels)), pairs.sum(1)
    table = pd.DataFrame({"action": labels, "rows": rows, "share": rows / len(log), "observed": observed})
    shares = np.where(observed[:, None] > 0, pairs / observed.clip(1)[:, None], np.nan)
    return pd.concat([table, pd.DataFrame(shares, columns=[f"P({label})" for label in outcomes])], axis=1)


def _propensities(
    sample: pd.DataFrame, columns: Roles, names: Sequence[str], taken: Codes, labels: Sequence[Any], random_state: int
) -> tuple[Floats, str]:
    """Of every action, ``[n, K]``: the log's own where it has them, else cross-fitted."""
    given = propensities_of(sample, columns, Labels("action", tuple(labels)))
    if given is not None and given.ndim == 2:
        return given, "the log's own"
    x = feature_matrix(sample, names, columns.categorical)
    return held_out_probabilities(x, taken, len(labels), random_state)


def _overlap(
    sample: pd.DataFrame, columns: Roles, propensity: Floats, taken: Codes, rows: Codes
) -> tuple[dict[str, Floats], dict[str, float]]:
    """The last columns of ``Diagnosis.actions``, and ``Diagnosis.overlap``; ``rows`` of each action in the log."""
    n_rows, n_actions = propensity.shape
    of_taken = propensity[np.arange(n_rows), taken]
    if len(columns.propensities) == 1:
        of_taken = sample[columns.propensities[0]].to_numpy(dtype=float)
    weight = 1 / of_taken.clip(PROPENSITY_FLOOR)
    # with many actions each has little chance, and a tenth of an even share is what is hardly any
    threshold = min(0.01, 0.1 / n_actions)
    none = propensity < threshold
    often = rows >= findings_of.VERY_FEW_ROWS  # of the others there is a finding
    of_action = [weight[taken == a] for a in range(n_actions)]
    table = {
        "stands for": np.array([w.sum() / n_rows for w in of_action]),
        "largest": np.array([w.max() if len(w) else np.nan for w in of_action]),
        "no chance": none.mean(0),
    }
    return table, {
        "effective": float(weight.sum() ** 2 / (weight**2).sum() / n_rows),
        "largest": float(weight.max()),
        "clipped": float((of_taken < PROPENSITY_FLOOR).sum()),
        "no chance": float(none[:, often].any(1).mean()),
        "threshold": threshold,
    }


def _parts(
    log: pd.DataFrame, validation: pd.DataFrame | None, random_state: int
) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Two parts of at most half the sample's rows each, and what they are."""
    if validation is None:
        half = len(log) // 2
        one, other, name = log.iloc[:half], log.iloc[half:], "the first and the second half"
    else:
        one, other, name = log, validation, "the training and the validation rows"
    return _sample(one, MODELLED_ROWS // 2, random_state), _sample(other, MODELLED_ROWS // 2, random_state), name


def _drift(
    one: pd.DataFrame, other: pd.DataFrame, columns: Roles, names: Sequence[str], random_state: int
) -> tuple[pd.DataFrame, float]:
    """How well a classifier tells the parts apart: by each column alone, and by all features together."""
    both = pd.concat([one, other], ignore_index=True)
    part = np.repeat([0, 1], [len(one), len(other)])
    x = feature_matrix(both, names, columns.categorical)
    together, _ = area_under_curve(held_out_probabilities(x, part, 2, random_state)[0], part)
    labels = [name for name in (columns.action, columns.outcome) if name is not None and name in both]
    categorical = [*columns.categorical, *labels]
    alone = [(name, auc_of_feature(both[name], categorical, part, 2, random_state)[0]) for name in [*names, *labels]]
    return pd.DataFrame(alone, columns=["column", "auc"]).sort_values("auc", ascending=False, kind="stable"), together


def _leaks(
    sample: pd.DataFrame,
    columns: Roles,
    names: Sequence[str],
    actions: Sequence[Any],
    outcomes: Sequence[Any],
    random_state: int,
) -> list[tuple[str, str, Any, float]]:
    """For each feature, how well it alone tells an outcome and an action: (feature, role, label, AUC)."""
    assert columns.action is not None
    assert columns.outcome is not None
    found = []
    for role, column, labels in (("outcome", columns.outcome, outcomes), ("action", columns.action, actions)):
        label = _index(sample[column], labels)
        seen = label >= 0
        for name in names:
            feature = sample[name][seen]
            auc, which = auc_of_feature(feature, columns.categorical, label[seen], len(labels), random_state)
            found.append((name, role, labels[which], auc))
    return found


def _giveaways(sample: pd.DataFrame, columns: Roles, names: Sequence[str]) -> list[tuple[str, str, int, Any]]:
    """Values of a feature that all go with one outcome, beyond chance: (feature, which rows, how many, outcome).

    They are each value of a feature that has few, and all but the commonest one, such as a refund that is not 0.
    """
    assert columns.outcome is not None
    seen = sample[columns.outcome].notna()
    outcome = sample.loc[seen, columns.outcome]
    share = outcome.value_counts(normalize=True)
    found = []
    for name in names:
        code, values = pd.factorize(sample.loc[seen, name])  # -1 where it is missing
        counts = np.bincount(code + 1)
        mode = int(counts.argmax()) - 1
        said = "missing" if mode < 0 else repr(values[mode].item() if hasattr(values[mode], "item") else values[mode])
        tries = [(f"not {said}", code != mode)] if counts[mode + 1] >= _COMMON * len(code) else []
        if len(values) <= _FEW_VALUES:
            tries += [(repr(value), code == place) for place, value in enumerate(values) if place != mode]
        for which, rows in tries:
            n_rows, of_rows = int(rows.sum()), outcome[rows].unique()
            if n_rows >= _GIVEAWAY_ROWS and len(of_rows) == 1 and share[of_rows[0]] ** n_rows < _CHANCE:
                found.append((name, which, n_rows, of_rows[0]))
                break
    return found


def _in_order(log: pd.DataFrame, names: Sequence[str], validation: pd.DataFrame | None) -> list[str]:
    """Features by which the file is sorted; none where other rows are compared with it."""
    if validation is not None:
        return []
    found = []
    for name in names:
        values = log[name].dropna()
        values = values if is_numeric(log[name], ()) else values.astype(str)
        is_sorted = values.is_monotonic_increasing or values.is_monotonic_decreasing
        if len(values) and is_sorted and values.iloc[0] != values.iloc[-1]:
            found.append(name)
    return found
