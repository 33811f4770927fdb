"""What ``python -m cst_lightning`` does, each command a function: fit, predict, recommend, evaluate, diagnose."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cst_lightning.candidates import AUTO
from cst_lightning.classifier import CounterfactualClassifier
from cst_lightning.columns import (
    Roles,
    check_names,
    check_propensities,
    check_taken,
    describe_columns,
    propensities_of,
    rows_text,
)
from cst_lightning.command_files import (
    check_apart,
    check_out,
    features_of,
    in_file,
    read_contexts,
    replaced_said,
    trained_on,
    write_answers,
)
from cst_lightning.cross_fitting import explained_share, feature_matrix, held_out_probabilities
from cst_lightning.diagnosis import compared_roles, diagnose
from cst_lightning.disk import check_writable, write_whole
from cst_lightning.encoding import Labels, written
from cst_lightning.errors import InputError, warn
from cst_lightning.evaluation import (
    beside_constant,
    calibration,
    check_enough,
    fit_of,
    value_not_known,
    value_of_recommendations,
)
from cst_lightning.findings import EXPLAINED
from cst_lightning.log_format import digest_of, find_format
from cst_lightning.logs import column_names, read_log
from cst_lightning.policy_value import check_floor
from cst_lightning.propensity import whole_propensity
from cst_lightning.recommending import allowed_actions, worth
from cst_lightning.saving import ROLES, check_target
from cst_lightning.texts import counted
from cst_lightning.typed_labels import as_labels, by_label, with_never_taken

_SHOWN = 10  # outcomes that a line lists


def fit(
    classifier: CounterfactualClassifier,
    data: Path,
    action: str,
    outcome: str,
    out: Path,
    propensity: str | list[str] | None = None,
    features: list[str] | str | None = None,
    categorical: list[str] | str | None = None,
    keep: list[str] | str | None = None,
    rows: int | None = None,
    encoding: str = "utf-8",
) -> None:
    """Train on a log file and save the model.

    Args:
        classifier: not fitted yet.
        data: CSV, Parquet (a file or a folder) or Arrow.
        action: column of the action taken.
        outcome: column of the outcome seen; empty where it was not.
        out: folder to save the model to.
        propensity: column of the probability with which the action was taken, or one column an action: named by the
            actions, or in the order of the sorted actions.
        features: columns of the context; by default all others.
        categorical: features that are categories although they are written as numbers.
        keep: columns that are no features, such as an identifier.
        rows: use only the first so many.
        encoding: of a CSV file.
    """
    roles = Roles(action, outcome, _given(propensity), _list(features) or None, _list(categorical), _list(keep))
    check_target(out)
    check_writable(out.absolute().parent, "--out")
    check_apart("out", out, data)
    part, _, _ = classifier.check_options()
    digest = digest_of(data)
    log = read_log(data, columns=roles, rows=rows, encoding=encoding)
    print(f"{data}: {log.attrs['format']}, {counted(len(log), 'row')}")
    print(f"{describe_columns(log, roles).to_string(index=False)}\n")
    names = roles.feature_names(list(log.columns))
    classifier.set_params(categorical=[name for name in roles.categorical if name in names])
    on_top = "" if classifier.method == "backbone" else f", then {classifier.method} on top"
    models = counted(classifier.models_for(len(log)), "model")
    print(f"training {part.name}{on_top}: {models} on {counted(len(log), 'row')}; this can take minutes", flush=True)
    with in_file(data):
        labels = Labels.of("action", log[action])
        classifier.fit(log[names], log[action], log[outcome], propensities_of(log, roles, labels))
    simple = ""
    if classifier.selection == AUTO and len(classifier.module_.seeds) > 1:  # of one model nothing says how sure it is
        simple = "; the simplest within a standard error of the lowest is kept"
    print(f"held-out score of what was tried (lower is better{simple}):")
    for candidate in classifier.candidates_:
        weight = "" if candidate.cvat_weight is None else f", CVAT weight {candidate.cvat_weight:g}"
        score = "not scored" if candidate.score is None else f"{candidate.score:.4f}"
        taken = (candidate.method, candidate.cvat_weight) == (classifier.method_, classifier.cvat_weight_)
        print(f"  {score}  {candidate.method}{weight}{'   <- kept' if taken else ''}")
    assert classifier.held_out_ is not None
    cut_off = bool((classifier.module_.stopped_epoch >= classifier.max_epochs).any())
    print(beside_constant(classifier.held_out_, classifier.max_epochs if cut_off else None))
    if classifier.overlap_ is not None:
        given = "" if roles.propensity else ", estimated on the whole log"
        print(
            f"weights 1 / propensity{given}: clipped at {classifier.propensity_floor} in rows: "
            f"{classifier.overlap_.n_clipped[0]}; effective sample size "
            f"{classifier.overlap_.effective_sample_size[0]:.0%} of the rows; largest weight "
            f"{classifier.overlap_.largest_weight[0]:.1f}"
        )
    replaced = replaced_said(out)
    classifier.save(out)
    about = json.dumps({"roles": asdict(roles), "sha256": digest}, indent=1)
    write_whole(out / ROLES, lambda temporary: temporary.write_text(about, encoding="utf-8"))
    print(
        f"saved to {out}{replaced}; next: "
        f"python -m cst_lightning predict --model {out} --data NEW --out predictions.csv"
    )


def predict(
    model: Path,
    data: Path,
    out: Path,
    keep: list[str] | str | None = None,
    trust: list[str] | str | None = None,
    encoding: str = "utf-8",
) -> None:
    """Write the probability of each outcome under each action, a row for each row of ``data``.

    Args:
        model: folder that ``fit`` wrote.
        data: contexts, with the columns that the model was trained on.
        out: CSV or Parquet file to write; CSV with the separator and decimal sign of ``data``.
        keep: columns of ``data`` to write beside, such as an identifier.
        trust: packages of your own whose classes the model may name.
        encoding: of a CSV file.
    """
    check_out(out, data, model)
    classifier = CounterfactualClassifier.load(model, _list(trust))
    names = [f"p({outcome} | {action})" for action in classifier.actions_ for outcome in classifier.classes_]
    frame, beside = read_contexts(classifier, model, data, _list(keep), names, encoding)
    with in_file(data):
        p = classifier.predict_proba(frame)
    answers = pd.concat([beside, pd.DataFrame(p.reshape(len(p), -1), columns=names)], axis=1)
    write_answers(answers, out, find_format(data, encoding))


def recommend(
    model: Path,
    data: Path,
    out: Path,
    value: dict[str, float | dict[str, float | str] | str] | None = None,
    actions: list[str | int | float | bool] | None = None,
    keep: list[str] | str | None = None,
    trust: list[str] | str | None = None,
    encoding: str = "utf-8",
) -> None:
    """Write the action of highest expected value, a row for each row of ``data``.

    Args:
        model: folder that ``fit`` wrote.
        data: contexts, with the columns that the model was trained on.
        out: CSV or Parquet file to write; CSV with the separator and decimal sign of ``data``.
        value: what each outcome is worth: a number, or ``action`` for the number that the action is (a price), as in
            --value.yes action --value.no 0, or a number by action, as in --value.yes '{"9,90 EUR": 9.9, "gift": 0}'; by
            default numeric outcomes are worth themselves.
        actions: those allowed; all by default.
        keep: columns of ``data`` to write beside, such as an identifier.
        trust: packages of your own whose classes the model may name.
        encoding: of a CSV file.
    """
    check_out(out, data, model)
    classifier = CounterfactualClassifier.load(model, _list(trust))
    worths, allowed = by_label(value, classifier.classes_, classifier.actions_), as_labels(actions, classifier.actions_)
    _check_worth(worths, classifier)
    frame, beside = read_contexts(classifier, model, data, _list(keep), ["action", "expected_value"], encoding)
    with in_file(data):
        expected = classifier.expected_value(frame, worths)
    _say_worth(value, classifier)
    expected[~allowed_actions(allowed, len(frame), classifier.action_labels_)] = -np.inf
    if len(classifier.actions_) == 1:
        known = classifier.action_labels_.values[0]
        warn(
            f"{model}: the model knows of no action but {known!r}, which is recommended in every row for want of others"
        )
    chosen, expected = classifier.actions_[expected.argmax(1)], expected.max(1)
    write_answers(beside.assign(action=chosen, expected_value=expected), out, find_format(data, encoding))


def evaluate(
    model: Path,
    data: Path,
    action: str | None = None,
    outcome: str | None = None,
    propensity: str | list[str] | None = None,
    value: dict[str, float | dict[str, float | str] | str] | None = None,
    actions: list[str | int | float | bool] | None = None,
    floor: float = 0.01,
    trust: list[str] | str | None = None,
    encoding: str = "utf-8",
) -> None:
    """Say how well a model predicts logged rows it was not trained on, and what its recommendations would be worth.

    Args:
        model: folder that ``fit`` wrote.
        data: a log like that of the training.
        action: column of the action taken, by default that of the training.
        outcome: column of the outcome seen, by default that of the training.
        propensity: as in ``fit``; by default the columns of the training where they are there.
        value: what each outcome is worth: a number, or ``action`` for the number that the action is (a price), as in
            --value.yes action --value.no 0, or a number by action, as in --value.yes '{"9,90 EUR": 9.9, "gift": 0}'; by
            default numeric outcomes are worth themselves.
        actions: those that may be recommended; all by default.
        floor: least propensity divided by.
        trust: packages of your own whose classes the model may name.
        encoding: of a CSV file.
    """
    check_floor(floor)
    classifier, (trained, digest) = CounterfactualClassifier.load(model, _list(trust)), trained_on(model)
    action, outcome = action or trained.action, outcome or trained.outcome
    if action is None or outcome is None:
        raise InputError(f"{model} was saved from Python, without the names of these columns: give action and outcome")
    worths, allowed = by_label(value, classifier.classes_, classifier.actions_), as_labels(actions, classifier.actions_)
    logged = _given(propensity) or trained.propensity
    roles = Roles(action, outcome, logged)
    names = column_names(data, encoding)
    if propensity is None and (lacking := [name for name in roles.propensities if name not in names]):
        warn(f"{data}: the column {lacking[0]!r} of the model's propensities is not there: they are estimated")
        roles = Roles(action, outcome)
    # not a log to train on: it may be small, and need not hold every action and outcome
    labels = [name for columns in roles.others().values() for name in columns]
    features = features_of(classifier, model)
    check_names(names, replace(roles, features=features.features), str(data))  # below, they are kept columns
    texts = [*features.categorical, *_text_labels(classifier, action, outcome)]
    log = read_log(data, columns=replace(features, categorical=texts, kept=labels), encoding=encoding)
    if digest and digest == digest_of(data):
        warn(f"{data}: the model was trained on this file: its NLL and the values below are too good; give later rows")
    with in_file(data):
        taken = _index(classifier.action_labels_, log, action)
        if (taken < 0).any():
            raise InputError(
                f"action {action!r} is missing in {rows_text(taken < 0)}: every row needs the action taken"
            )
        seen = _index(classifier.outcome_labels_, log, outcome)
        check_propensities(log, roles, str(data))
        check_taken(log, roles, classifier.action_labels_, str(data))
        frame = log[list(features.features or ())]
        p = classifier.predict_proba(frame)
        print(fit_of(p, taken, seen, classifier))
        print(calibration(p, taken, seen, classifier))
    try:
        check_enough(seen)
        _check_worth(worths, classifier)
        given = propensities_of(log, roles, classifier.action_labels_)
        if given is None:
            told = frame.columns[frame.notna().any()]  # the others tell nothing of the action
            categorical = [name for name in features.categorical if name in told]
            given = _estimated(feature_matrix(log, told, categorical), taken, classifier, floor)
        else:
            given = whole_propensity(given, taken, len(classifier.actions_)).numpy()
    except InputError as error:
        print(value_not_known(error))
        return
    _say_worth(value, classifier)
    print(value_of_recommendations(classifier, p, taken, seen, given, worths, allowed, floor))


def _estimated(
    x: NDArray[np.float64], taken: NDArray[np.int64], classifier: CounterfactualClassifier, floor: float
) -> NDArray[np.float64]:
    """Propensities ``[N, K]`` of a log that has none, by its contexts ``[N, d]``, and a word on them.

    Raises:
        InputError: the contexts tell the action.
    """
    chances, source = held_out_probabilities(x, taken, len(classifier.actions_), 0)
    if explained_share(chances, taken) > EXPLAINED:
        raise InputError("the features tell the action in these rows, so none shows what another one would have done")
    print(
        f"propensities estimated on these rows, cross-fitted ({source}); "
        f"each below the floor of {floor} (--floor) counts as {floor}"
    )
    return chances


def look(
    data: Path,
    action: str,
    outcome: str,
    propensity: str | list[str] | None = None,
    features: list[str] | str | None = None,
    categorical: list[str] | str | None = None,
    keep: list[str] | str | None = None,
    rows: int | None = None,
    encoding: str = "utf-8",
    validation: Path | None = None,
    actions: list[str | int | float | bool] | None = None,
    page: Path | None = None,
) -> None:
    """Look at a log file before anything is trained on it: overlap, leaks, drift, and what to do about them.

    Args:
        data: CSV, Parquet (a file or a folder) or Arrow.
        action: column of the action taken.
        outcome: column of the outcome seen; empty where it was not.
        propensity: column of the probability with which the action was taken, or one column an action: named by the
            actions, or in the order of the sorted actions.
        features: columns of the context; by default all others.
        categorical: features that are categories although they are written as numbers.
        keep: columns that are no features, such as an identifier.
        rows: look only at the first so many.
        encoding: of a CSV file.
        validation: a later or held-out log to compare with, which needs no columns of ``keep`` or ``propensity``; by
            default the first half is compared with the second.
        actions: all that there are, where some were never taken; by default those in the log.
        page: HTML file to write the same to, with figures.
    """
    roles = Roles(action, outcome, _given(propensity), _list(features) or None, _list(categorical), _list(keep))
    if page is not None and not page.absolute().parent.is_dir():
        raise InputError(f"page={page}: there is no folder {page.absolute().parent}")
    if page is not None:
        check_apart("page", page, data, validation)
        check_writable(page.absolute().parent, "--page")
    log = read_log(data, columns=roles, rows=rows, encoding=encoding, all_taken=not actions)
    compared = compared_roles(roles, list(log.columns))
    held_out = None if validation is None else read_log(validation, columns=compared, encoding=encoding)
    labels = with_never_taken(actions or (), log[action])
    with in_file(data):
        found = diagnose(log, roles, validation=held_out, actions=labels)
    print(found.text())
    if page is not None:
        replaced = replaced_said(page)
        write_whole(page, lambda temporary: temporary.write_text(found.page(), encoding="utf-8"))
        print(f"the page: {page}{replaced}")


#: by the name of the command
COMMANDS: dict[str, Callable[..., None]] = {
    "fit": fit,
    "predict": predict,
    "recommend": recommend,
    "evaluate": evaluate,
    "diagnose": look,
}


# --- what options and columns say ---------------------------------------------------------------------


def _given(propensity: str | Sequence[str] | None) -> str | Sequence[str] | None:
    """A list of one column is that column."""
    return propensity[0] if isinstance(propensity, list) and len(propensity) == 1 else propensity


def _list(given: Sequence[str] | str | None) -> tuple[str, ...]:
    """One name, or several."""
    return (given,) if isinstance(given, str) else tuple(given or ())


def _index(labels: Labels, log: pd.DataFrame, column: str) -> NDArray[np.int64]:
    try:
        return labels.index(log[column])
    except InputError as error:
        raise InputError(f"column {column!r}: {error}") from None


def _text_labels(classifier: CounterfactualClassifier, action: str, outcome: str) -> list[str]:
    """Of the two columns those whose labels were text in training."""
    both = ((action, classifier.action_labels_), (outcome, classifier.outcome_labels_))
    return [name for name, labels in both if isinstance(labels.values[0], str)]


def _check_worth(value: dict[Any, Any] | None, classifier: CounterfactualClassifier) -> None:
    """Before any row is read: what outcomes are worth; where some of them lack it, an error says how to type it."""
    actions, outcomes = classifier.action_labels_, classifier.outcome_labels_
    try:
        worth(value, (0, len(actions.values), len(outcomes.values)), actions, outcomes)
    except InputError as error:
        by_action = isinstance(actions.values[0], str) and "action" in (value or {}).values()
        complete = set(value or ()) == set(outcomes.values)
        if complete and not by_action:
            raise
        names = [written(label) for label in outcomes.values]
        if complete:
            asked = {written(outcome): worth for outcome, worth in (value or {}).items()}
            numbers = dict.fromkeys(actions.values, 0)
            filled = {name: numbers if asked[name] == "action" else asked[name] for name in names}
            raise InputError(f"{error}: {_typed(filled)}") from None
        typed = " ".join(f"--value.{name} NUMBER" for name in names)
        if not all(re.fullmatch(r"[\w-]+", name) for name in names):  # a dot or a blank
            typed = _typed(dict.fromkeys(names, 0))
        raise InputError(f"{error}: {typed} (`action` for a number: what the action is, such as a price)") from None


def _typed(value: Mapping[str, Any]) -> str:
    return f"--value {shlex.quote(json.dumps(value, ensure_ascii=False))}, with your numbers"


def _say_worth(value: object, classifier: CounterfactualClassifier) -> None:
    """What was not asked for: outcomes that are numbers are worth themselves."""
    if value is None:
        labels = classifier.outcome_labels_.values
        shown = [f"{label} is {float(label):g}" for label in labels[:_SHOWN]] + ["..."] * (len(labels) > _SHOWN)
        print(f"value of an outcome, without --value: {', '.join(shown)}")
