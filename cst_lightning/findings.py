"""What a diagnosis says of what it measured: how grave it is, what it means, what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from cst_lightning.columns import Roles, kind_of
from cst_lightning.cross_fitting import explained_share, is_numeric
from cst_lightning.encoding import MAX_CATEGORIES, N_HASHED, Labels, shown_list
from cst_lightning.label_columns import in_order
from cst_lightning.text_faults import dates_as_numbers, sentinels
from cst_lightning.texts import counted, spelt_alike

if TYPE_CHECKING:
    from cst_lightning.diagnosis import Diagnosis

Severity = Literal["problem", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "info")

#: cross-fitted AUC above which one feature determines a label
DETERMINED = 0.99
#: rows of an action below which it is logged rarely, and hardly at all
FEW_ROWS, VERY_FEW_ROWS = 50, 10
#: share of the observed outcomes below which one is rare
RARE = 0.01
#: share of the rows without an outcome that is a warning
MANY_MISSING = 0.2
#: effective sample size, as a share of the rows, below which weights are a warning and a problem
LOW_ESS, VERY_LOW_ESS = 0.3, 0.1
#: share of the rows with almost no chance of some action that is a warning and a problem
UNCOVERED, VERY_UNCOVERED = 0.05, 0.5
#: share of what guessing the commonest action leaves that the features explain, from which they determine the action
EXPLAINED = 0.95
#: different labels, as a share of the rows, above which they are continuous, or an identifier
CONTINUOUS = 0.5
#: AUC of telling two parts apart that is a warning and a problem
DRIFT, LARGE_DRIFT = 0.6, 0.8
#: rows of a part below which drift is not judged
FEWEST_FOR_DRIFT = 100
#: standard errors that a difference must have
SIGNIFICANT = 4.0
_LISTED = 5
_TELLING = 3  # features that are listed
#: of a forgotten propensity: how far off the mean of its inverse may be, and its rank correlation with the estimate
_OFF, _TIED = 0.15, 0.3

#: (feature, role, label, AUC)
Measured = tuple[str, str, Any, float]


@dataclass(frozen=True)
class Finding:
    """What was found, what it means and what to do about it."""

    severity: Severity
    title: str
    meaning: str
    advice: str


def outcomes(found: Diagnosis, column: pd.Series) -> Iterator[Finding]:
    """Of outcomes that are missing, rare, or all alike under an action."""
    missing = int(column.isna().sum())
    if missing:
        share = missing / found.n_rows
        yield Finding(
            "warning" if share > MANY_MISSING else "info",
            f"{counted(missing, 'row')} ({percent(share)}) {'has' if missing == 1 else 'have'} no outcome",
            "They are left out of every observed loss. If whether it was seen depends on the outcome (a sale that is "
            "still pending), what is learned is off.",
            "Find out why they are missing, and wait until outcomes are final.",
        )
    rare = found.outcomes[found.outcomes["share"] < RARE].sort_values("rows", kind="stable")
    if len(rare) > _LISTED:
        listed = [f"{outcome!r} ({rows})" for outcome, rows in zip(rare["outcome"], rare["rows"], strict=True)]
        yield Finding(
            "warning",
            f"{len(rare)} outcomes are rare, below {percent(RARE)} each: {first_few(listed)}",
            "What leads to each of them is learned from few rows, and accuracy hardly tells.",
            "Join outcomes that mean the same for what you decide; judge a model by its NLL and its calibration.",
        )
    else:
        for outcome, rows, share in rare.itertuples(index=False):
            yield Finding(
                "warning",
                f"Outcome {outcome!r} is rare: {counted(rows, 'row')} ({percent(share)})",
                f"To say that it never happens is right in {percent(1 - share)} of the rows: accuracy says nothing.",
                "Judge a model by its NLL and by its calibration for each action, and do not take a constant for a "
                "success; more rows help more than another model.",
            )
    yield from _one_sided(found)


def _one_sided(found: Diagnosis) -> Iterator[Finding]:
    """Of actions with a single outcome."""
    labels, shares = found.outcomes["outcome"].tolist(), found.actions[[f"P({o})" for o in found.outcomes["outcome"]]]
    alike = (found.actions["observed"] >= VERY_FEW_ROWS) & (shares.max(axis=1) == 1)
    onlys = [labels[place] for place in shares[alike].to_numpy().argmax(1)]
    rows = found.actions[alike].to_dict("records")
    if len(rows) > _LISTED:
        listed = [f"{row['action']!r} by {only!r} ({row['observed']})" for row, only in zip(rows, onlys, strict=True)]
        yield Finding(
            "warning",
            f"{len(rows)} actions were only ever followed by a single outcome: {first_few(listed)}",
            "What leads to another outcome under such an action cannot be learned from this log.",
            "A true share of up to 3 / rows is still possible: take their predictions for bounds, or log them more.",
        )
    else:
        for row, only in zip(rows, onlys, strict=True):
            yield Finding(
                "warning",
                f"Action {row['action']!r} was only ever followed by {only!r} ({row['observed']} rows)",
                "What leads to another outcome under this action cannot be learned from this log.",
                f"A true share of up to {percent(3 / row['observed'])} is still possible (3 / rows): take its "
                "predictions for a bound, or log it more.",
            )


def actions(found: Diagnosis) -> Iterator[Finding]:
    """Of actions that were logged rarely or never."""
    seen = found.actions.loc[found.actions["rows"] > 0, "action"].tolist()  # as Python's own numbers
    if len(seen) == 1:
        yield Finding(
            "problem",
            f"Only one action was ever taken: {seen[0]!r}",
            "Nothing can be said about another action.",
            "Log at least two actions for contexts that are alike.",
        )
    rows, observed = found.actions["rows"], found.actions["observed"]
    logged = (rows > 0) & (observed > 0)
    nothing = "There is nothing to learn about such an action; its predictions would be guesses."
    little = "Predictions of such an action rest on very little, and it may be missing from a part that is held out."
    log_more = "Leave these rows out, join it with a like action, or log it more."
    kinds: list[tuple[Severity, pd.Series, str, str, str]] = [
        (
            "problem", rows == 0, "never logged", nothing,
            "Leave it out of what may be recommended, or try it for a share of the contexts first.",
        ),
        (
            "problem", (rows > 0) & (observed == 0), "logged without any observed outcome", nothing,
            "Leave it out of what may be recommended, or wait for its outcomes.",
        ),
        ("problem", logged & (rows < VERY_FEW_ROWS), f"logged in fewer than {VERY_FEW_ROWS} rows", little, log_more),
        (
            "warning", logged & (rows >= VERY_FEW_ROWS) & (rows < FEW_ROWS), f"logged in fewer than {FEW_ROWS} rows",
            little, log_more,
        ),
    ]  # fmt: skip
    for severity, these, what, meaning, advice in kinds:
        group = found.actions[these].sort_values("rows", kind="stable")
        listed = [f"{row.action!r} ({row.rows})" if row.rows else repr(row.action) for row in group.itertuples()]
        if len(group) == 1:
            yield Finding(severity, f"Action {listed[0]} was {what}", meaning, advice)
        elif listed:
            yield Finding(severity, f"{len(listed)} actions were {what}: {first_few(listed)}", meaning, advice)


def spellings(log: pd.DataFrame, columns: Roles, names: Sequence[str]) -> Iterator[Finding]:
    """Of actions, outcomes and categories that differ only in blanks or in upper and lower case."""
    roles = {columns.action: "the action", columns.outcome: "the outcome"}
    for column in (columns.action, columns.outcome, *names):
        is_text = isinstance(log[column].dtype, pd.CategoricalDtype) or kind_of(log[column]) in ("text", "mixed")
        if is_text and (listed := spelt_alike(log[column].unique())):
            yield Finding(
                "warning",
                f"Values of {roles.get(column, 'column')} {column!r} differ only in blanks or upper and lower "
                f"case: {first_few(listed)}",
                "Each spelling counts as a value of its own, and what is learned of one is not known of another.",
                "Write each value in one way, unless they are meant to be different.",
            )


def overlap(found: Diagnosis, measured: Sequence[Measured]) -> Iterator[Finding]:
    """Of how far the actions taken can be compared; ``measured`` as for ``leaks``."""
    if len(found.actions) < 2:
        return
    telling = sorted(((auc, name) for name, role, _, auc in measured if role == "action" and auc > DRIFT), reverse=True)
    listed = ", ".join(f"{name!r} {_auc(auc)}" for auc, name in telling[:_TELLING])
    most = f" Features that alone tell an action best, by AUC: {listed}." if listed else ""
    if explained_share(found.propensity, found.taken) > EXPLAINED:
        right = float((found.propensity.argmax(1) == found.taken).mean())
        yield Finding(
            "problem",
            f"The action is a function of the features: they tell it in {percent(right)} of the rows",
            "No two contexts that are alike got different actions, so nothing in this log separates what the action "
            f"does from what the context does.{most}",
            "Leave out features that were made from the action; if the policy was such a rule, log a share of random "
            "actions before comparing any.",
        )
    elif found.model == "shares":
        yield Finding(
            "info",
            "No model told the action from the features better than the shares of the actions do",
            "A log of random actions looks so, the best case: all actions can be compared everywhere. In a small log "
            "a weak policy looks the same.",
            "Nothing to do.",
        )
    yield from _weights(found)
    yield from _uncovered(found, most)


def _weights(found: Diagnosis) -> Iterator[Finding]:
    share = found.overlap["effective"]
    if share < LOW_ESS:
        yield Finding(
            "problem" if share < VERY_LOW_ESS else "warning",
            f"Weights to make the actions comparable leave {percent(share)} of the rows",
            f"Rows that got an unlikely action weigh up to {found.overlap['largest']:.0f} times as much as others, so "
            "estimates of another policy's value rest on few of them.",
            "Read the intervals of such estimates, not the estimates alone; compare policies close to the logged one.",
        )
    if found.overlap["clipped"]:
        yield Finding(
            "info",
            f"{found.overlap['clipped']:.0f} of {found.n_modelled} rows had an action of less than 1 % chance",
            "Their weights are cut at 100, which makes estimates by weights stabler and a little off.",
            "Look at these rows: they may be exceptions that a person decided.",
        )


def _uncovered(found: Diagnosis, most: str) -> Iterator[Finding]:
    share, threshold = found.overlap["no chance"], found.overlap["threshold"]
    seen = found.actions[(found.actions["no chance"] > 0) & (found.actions["rows"] >= VERY_FEW_ROWS)]
    if not len(seen):
        return
    worst = seen.sort_values("no chance", ascending=False, kind="stable")[:_LISTED]
    listed = ", ".join(f"{a!r} {percent(s)}" for a, s in zip(worst["action"], worst["no chance"], strict=True))
    yield Finding(
        "problem" if share > VERY_UNCOVERED else "warning" if share > UNCOVERED else "info",
        f"{percent(share)} of the rows had almost no chance (below {percent(threshold)}) of some action: {listed}",
        f"For these contexts the outcome of that action is a guess from other contexts.{most}",
        "Allow such contexts only the actions that were logged for them: recommend(X, value, actions) takes those "
        "allowed in each row, `recommend --actions` those of a whole file, so give it such rows alone; or try the "
        "others there first.",
    )


def forgotten_propensity(
    found: Diagnosis, sample: pd.DataFrame, names: Sequence[str], measured: Sequence[Measured]
) -> Iterator[Finding]:
    """Of a feature that looks like the chance of the action taken; of the rows ``sample`` that propensities are of."""
    if found.model == "the log's own" or len(found.actions) < 2:
        return
    auc_of = {name: auc for name, role, _, auc in measured if role == "action"}
    of_taken = pd.Series(found.propensity[np.arange(len(found.taken)), found.taken])
    for name in names:
        if kind_of(sample[name]) not in ("number", "whole number") or sample[name].nunique() < 2:
            continue
        chance = pd.Series(sample[name].to_numpy(dtype=float, na_value=np.nan))
        if not ((chance > 0) & (chance <= 1)).all():
            continue
        tied = of_taken.corr(chance, method="spearman") if of_taken.nunique() > 1 else 0.0
        weight = 1 / chance
        off = abs(weight.mean() - int((found.actions["rows"] > 0).sum()))
        # the mean of 1 / pi(a | x) is the number of actions that have a chance
        fits = off <= max(SIGNIFICANT * weight.sem(), _OFF * len(found.actions))
        if fits and (tied > _TIED or auc_of.get(name, 0.5) > DRIFT):
            yield Finding(
                "warning",
                f"Column {name!r} may be the propensity: all its values lie in 0..1, and go with the action",
                "As a feature, the chance that the action taken had tells the action, and takes the overlap away.",
                f"If it is, name it as the propensity (propensity={name!r}, --propensity {name}); if it was known "
                "before the action was chosen, keep it.",
            )


def logged_propensities(log: pd.DataFrame, columns: Roles, labels: Sequence[Any]) -> Iterator[Finding]:
    """Of propensities in the log that do not fit the actions in it."""
    given = columns.propensities
    if len(given) > 1:
        given = list(in_order(log[given][:0], Labels("action", tuple(labels)), "propensity").columns)
    wrong = ""
    if len(given) == 1:
        weight = 1 / log[given[0]].to_numpy(dtype=float)
        mean, error = weight.mean(), weight.std(ddof=1) / np.sqrt(len(weight))
        # the mean of 1 / pi(a | x) is the number of actions that have a chance
        if abs(mean - len(labels)) > SIGNIFICANT * max(error, 1e-3 * len(labels)):
            wrong = f"the mean of 1 / propensity is {mean:.2f} ± {error:.2f}, and should be {len(labels)}"
    elif given:
        for name, label in zip(given, labels, strict=True):
            difference = (log[columns.action] == label).astype(float) - log[name]
            error = difference.std(ddof=1) / np.sqrt(len(log))
            if abs(difference.mean()) > SIGNIFICANT * max(error, 1e-6):
                taken = (log[columns.action] == label).mean()
                wrong = f"action {label!r} has {percent(taken)} of the rows and a mean of {percent(log[name].mean())}"
    if wrong:
        yield Finding(
            "problem",
            f"The logged propensities do not fit the actions: {wrong}",
            "Estimates by weights would be off by as much; propensities of another policy or in another order do this.",
            "Check which policy they belong to and, with a column for each action, their names or order (of the sorted "
            f"actions: {', '.join(map(str, labels[:20]))}).",
        )


def rows_and_constants(found: Diagnosis, log: pd.DataFrame, columns: Roles, names: Sequence[str]) -> Iterator[Finding]:
    """Of rows that stand several times and of features that say nothing."""
    repeated = int(log[[*names, columns.action, columns.outcome]].duplicated().sum())
    if repeated:
        contexts = len(log) - int(log[list(names)].duplicated().sum())
        # where few contexts are different, rows are bound to be alike
        few = contexts < len(log) / 2
        yield Finding(
            "info" if few else "warning",
            f"{counted(repeated, 'row')} ({percent(repeated / len(log))}) {'repeats' if repeated == 1 else 'repeat'} "
            "another row exactly",
            "There are few different contexts, so this may be right."
            if few
            else "A row that stands in both training and held-out rows makes every score look better than it is.",
            "Check that no row was exported twice; split by a group (a customer, a visit) and not by row.",
        )
    table = found.columns.set_index("column").loc[list(names)]
    constant = list(table.index[table["distinct"] + (table["missing"] > 0) == 1])
    if constant:
        yield Finding(
            "warning",
            f"{_names(constant)} {'is' if len(constant) == 1 else 'are'} the same in every row",
            "A constant says nothing, and with another value in new data a prediction would be a guess.",
            "Leave it out of the features." if len(constant) == 1 else "Leave them out of the features.",
        )


def missing_features(found: Diagnosis, names: Sequence[str]) -> Iterator[Finding]:
    """Of features that are not known in every row."""
    missing = found.columns.set_index("column").loc[list(names), "missing"]
    missing = missing[missing > 0].sort_values(ascending=False, kind="stable")
    if not len(missing):
        return
    listed = ", ".join(f"{name!r} {percent(n / found.n_rows)}" for name, n in missing[:_LISTED].items())
    more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
    yield Finding(
        "warning",
        f"Features are missing in some rows: {listed}{more}",
        "Training stops at a missing value unless it is told what to do with one.",
        "Fill them in, leave the columns out, or train with missing='impute' (--missing impute), which takes the mean "
        "and tells the model that it did.",
    )


def kinds_of_features(found: Diagnosis, log: pd.DataFrame, columns: Roles, names: Sequence[str]) -> Iterator[Finding]:
    """Of numbers that are dates or stand for no number, and of more categories than columns are made of."""
    distinct = found.columns.set_index("column")["distinct"]
    for name in names:
        if not is_numeric(log[name], columns.categorical):
            if distinct[name] > MAX_CATEGORIES:
                yield Finding(
                    "warning",
                    f"Column {name!r} has {distinct[name]} categories",
                    f"More than {MAX_CATEGORIES} are hashed into {N_HASHED} columns: some share one, and a category of "
                    "few rows teaches nothing.",
                    "Leave it out if it is an identifier; join rare categories; or write as numbers what is a number.",
                )
        elif (what := dates_as_numbers(log[name].dropna().to_numpy(dtype=float))) is not None:
            yield Finding(
                "warning",
                f"Column {name!r} holds {what}",
                "A model takes them for quantities: new rows lie beyond all that it has seen.",
                "Turn them into numbers that mean something (days since, weekday, month), or leave the column out.",
            )
        elif codes := sentinels(log[name].dropna().to_numpy(dtype=float)):
            listed = " and ".join(f"{code:g} in {counted(int((log[name] == code).sum()), 'row')}" for code in codes)
            yield Finding(
                "warning",
                f"Column {name!r} holds {listed}, far from all else",
                "Such a number often stands for a value that is not known, and a model takes it for a quantity.",
                "If so, leave these cells empty, and train with missing='impute' (--missing impute).",
            )


def continuous(found: Diagnosis) -> Iterator[Finding]:
    """Of labels of which hardly any comes twice."""
    for role, table in (("action", found.actions), ("outcome", found.outcomes)):
        labels, n_rows = table.loc[table["rows"] > 0, role], int(table["rows"].sum())
        if len(labels) <= max(2, CONTINUOUS * n_rows):
            continue
        meaning = "Each of them would be a class of its own, seen once or twice."
        if isinstance(labels.iloc[0], str):
            yield Finding(
                "warning",
                f"The {role} holds {len(labels)} different texts in {n_rows} rows",
                meaning,
                "Take another column if it is an identifier; join what means the same for what you decide.",
            )
        else:
            yield Finding(
                "problem",
                f"The {role} is continuous or an identifier: {len(labels)} different numbers in {n_rows} rows",
                meaning,
                "Cut it into a few classes, such as ranges of a price; take another column if it is an identifier.",
            )


def leaks(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Of features that alone determine an outcome or an action; ``measured`` are (feature, role, label, AUC)."""
    for name, role, label, auc in measured:
        if auc <= DETERMINED:
            continue
        if role == "outcome":
            meaning = (
                "A feature that tells the outcome so well was most likely written after it (a refund, an invoice), and "
                "will not be known when an action is to be chosen."
            )
            advice = "Leave it out of the features, unless it is known before the action is taken."
        else:
            meaning = (
                "A feature that tells the action so well was made from it or by the rule that chose it: a model cannot "
                "tell the two apart, and predictions for other actions are guesses."
            )
            advice = "Leave it out if it was made from the action; otherwise there is no overlap along it."
        title = f"Column {name!r} alone tells the {role} {label!r} (AUC {_auc(auc)})"
        yield Finding("problem", title, meaning, advice)


def giveaways(found: Sequence[tuple[str, str, int, Any]], measured: Sequence[Measured]) -> Iterator[Finding]:
    """Of values that all go with one outcome: (feature, which rows, how many, outcome).

    ``measured`` as for ``leaks``, whose features are not told twice.
    """
    told = {name for name, role, _, auc in measured if role == "outcome" and auc > DETERMINED}
    for name, which, n_rows, outcome in found:
        if name not in told:
            yield Finding(
                "warning",
                f"All {n_rows} rows in which column {name!r} is {which} have the outcome {outcome!r}",
                "A value that comes with one outcome alone was often written after it (a refund, a delivery), and will "
                "not be known when an action is to be chosen: what is learned from it then misleads.",
                "Leave the column out of the features, unless it is known before the action is taken.",
            )


def drift(found: Diagnosis, n_rows: int, in_order: Sequence[str]) -> Iterator[Finding]:
    """Of two parts that can be told apart; ``n_rows`` of the smaller one, ``in_order`` the features that rise or fall.

    Those are of a file's own two halves: which of them a file sorted by one of its columns has apart, says nothing.
    """
    if n_rows < FEWEST_FOR_DRIFT:
        return
    auc = found.drift_auc
    error = np.sqrt((2 * n_rows + 1) / (12 * n_rows**2))  # of an AUC of parts that are alike
    moved = found.drift[found.drift["auc"] > max(DRIFT, 0.5 + SIGNIFICANT * error)]
    listed = ", ".join(f"{name!r} {_auc(value)}" for name, value in moved[:_LISTED].itertuples(index=False))
    if auc > max(DRIFT, 0.5 + SIGNIFICANT * error) or len(moved):
        largest = max(auc, moved["auc"].max() if len(moved) else 0)
        most = f"; most by {listed}" if listed else ""
        if in_order:
            by = " and ".join(map(repr, in_order))
            yield Finding(
                "warning",
                f"The rows are sorted by {by}, and so the first and the second half differ (AUC {_auc(auc)}{most})",
                "If that is the order of time, what held in one half need not hold in the other; else it says nothing.",
                "In order of time, hold out the latest rows (split by time); else shuffle the rows and look again.",
            )
            return
        yield Finding(
            "problem" if largest > LARGE_DRIFT else "warning",
            f"{found.drift_parts[0].upper()}{found.drift_parts[1:]} differ (AUC {_auc(auc)} by all features{most})",
            "What held in one part need not hold in the other; a counter, a date or an identifier does this too.",
            "Leave out columns that only count on; hold out the latest rows (split by time), and train on recent ones.",
        )


def unknown_labels(
    validation: pd.DataFrame | None, columns: Roles, actions: Sequence[Any], outcomes: Sequence[Any]
) -> Iterator[Finding]:
    """Of actions and outcomes that stand in the validation rows alone."""
    for name, known, role in ((columns.action, actions, "action"), (columns.outcome, outcomes, "outcome")):
        seen = pd.Series([], dtype=object) if validation is None else validation[name].dropna()
        new = seen[~seen.isin(list(known))]
        if len(new):
            yield Finding(
                "problem",
                f"{len(new)} of {len(seen)} validation rows have an {role} that is in no training row: "
                f"{shown_list(sorted(new.unique(), key=str))}",
                "Nothing can be predicted for it, and these rows cannot be scored.",
                f"Write the {role}s the same way in both, or train on rows that have it.",
            )


def percent(share: float) -> str:
    """A share in words, with digits enough that some is never shown as none, nor nearly all as all."""
    if share == 0 or share >= 1:
        return f"{100 * share:.0f} %"
    digits = next((d for d in (0, 1, 2, 3) if (d or share >= 0.1) and 0 < float(f"{100 * share:.{d}f}") < 100), 4)
    return f"{100 * share:.{digits}f} %"


def first_few(listed: Sequence[str]) -> str:
    """The first few."""
    return ", ".join(listed[:_LISTED]) + (f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else "")


def _auc(value: float) -> str:
    return f"{value:.3f}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    plural = "Column" if len(names) == 1 else "Columns"
    return f"{plural} {', '.join(map(repr, names[:_LISTED]))}{more}"
