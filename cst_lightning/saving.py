"""Keeping a trained ``CounterfactualClassifier``: a folder of JSON and safetensors, of which nothing is ever run.

``model.json`` says what the model is, ``model.safetensors`` holds a network's weights, and ``learners/*.skops`` a
scikit-learn learner's models.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from sklearn.utils.validation import check_is_fitted

from cst_lightning.candidates import Candidate, HeldOut
from cst_lightning.encoding import FeatureEncoder, Labels, Number
from cst_lightning.errors import InputError
from cst_lightning.estimators import EstimatorBackbone, learner
from cst_lightning.learner_files import from_bytes, to_bytes
from cst_lightning.propensity import Overlap
from cst_lightning.registry import check_trusted, class_at, path_of
from cst_lightning.stacked import StackedModule
from cst_lightning.version import VERSION

if TYPE_CHECKING:
    from cst_lightning.classifier import CounterfactualClassifier

_FORMAT = 1
_OURS = "cst_lightning"
_LONGEST_WHY = 300
#: in a model's folder: what the columns of its log were for, where a command trained it
ROLES = "log.json"
#: what a model's folder has of its own
OWN = ("model.json", "model.safetensors", "learners", ROLES)


def save(classifier: CounterfactualClassifier, path: str | Path) -> None:
    """Write a fitted classifier to the folder ``path``, whole or not at all; an older model there is replaced.

    What else was in its folder stays there.

    Raises:
        InputError: ``path`` is something else than a model, or the classifier holds what cannot be kept.
    """
    check_is_fitted(classifier)
    path = Path(path)
    check_target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as temporary:
        new, old = Path(temporary) / "new", Path(temporary) / "old"
        new.mkdir()
        (new / "model.json").write_text(json.dumps(_description(classifier), indent=1, allow_nan=False))
        _write_module(classifier.module_, new)
        if path.exists():
            path.rename(old)
        new.rename(path)
        for file in old.iterdir() if old.exists() else ():
            if file.name not in OWN:
                file.rename(path / file.name)


def check_target(path: Path) -> None:
    """A model can be saved to ``path``: nothing is there, or an older model."""
    if path.exists() and not (path / "model.json").is_file():
        raise InputError(f"{path} is there and is no model: name a new folder, or one that a model was saved to")


def load(kind: type[CounterfactualClassifier], path: str | Path, trust: Sequence[str] = ()) -> CounterfactualClassifier:
    """The classifier that ``save`` wrote; it predicts the same, bit for bit on one machine.

    Args:
        kind: of the classifier.
        trust: packages of your own whose classes the model may name; of no other package anything is imported.

    Raises:
        InputError: the folder holds no whole model, or one of a class that is not trusted.
    """
    path = Path(path)
    kept = _read(path)
    try:
        parameters = kept["parameters"]
        if kept["base"] is not None:
            parameters["base"] = _read_learner(path / "learners" / "base.skops", trust)
        if parameters["backbone"] is not None and "." in parameters["backbone"]:
            parameters["backbone"] = class_at(parameters["backbone"], StackedModule, (_OURS, *trust))
        for name in ("method", "selection"):  # which another fit would import
            if "." in str(parameters[name]):
                check_trusted(parameters[name], (_OURS, *trust))
        classifier = kind(**parameters)
        classifier.action_labels_ = Labels("action", tuple(kept["actions"]))
        classifier.outcome_labels_ = Labels("outcome", tuple(kept["outcomes"]))
        classifier.actions_, classifier.classes_ = classifier.action_labels_.array(), classifier.outcome_labels_.array()
        counts = kept.get("outcome_counts")  # models of older versions have none, nor what follows them
        classifier.outcome_counts_ = None if counts is None else np.array(counts, np.int64)
        classifier.encoder_ = FeatureEncoder.from_dict(kept["encoder"])
        classifier.candidates_ = [Candidate(**candidate) for candidate in kept["candidates"]]
        classifier.method_, classifier.cvat_weight_ = kept["method"], kept["cvat_weight"]
        held_out, overlap = kept.get("held_out"), kept.get("overlap")
        classifier.held_out_ = None if held_out is None else HeldOut(**held_out)
        classifier.overlap_ = None if overlap is None else Overlap(**overlap)
        classifier.n_features_in_ = kept["n_features_in"]
        if kept["feature_names_in"] is not None:
            classifier.feature_names_in_ = np.array(kept["feature_names_in"], dtype=object)
        classifier.module_ = _read_module(classifier, kept["module"], path, trust)
        _try(classifier)
    except Exception as error:  # whatever a file from elsewhere holds
        if isinstance(error, InputError):
            raise
        why = " ".join(str(error).split())[:_LONGEST_WHY]
        raise InputError(f"{path} holds a damaged model ({type(error).__name__}: {why})") from error
    return classifier


def _read(path: Path) -> dict[str, Any]:
    """What ``model.json`` says."""
    if not (path / "model.json").is_file():
        why = "there is no model.json in it" if path.is_dir() else "there is no such folder"
        raise InputError(f"{path} holds no model: {why}")
    try:
        kept = json.loads((path / "model.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} holds no model: model.json cannot be read ({error})") from error
    if not isinstance(kept, dict) or kept.get("format") != _FORMAT:
        raise InputError(f"{path}/model.json is of no format that this version ({VERSION}) reads: allowed is {_FORMAT}")
    return kept


def _try(classifier: CounterfactualClassifier) -> None:
    """Have a model that was read predict a row, so that what does not fit together shows before it is used."""
    shape = classifier.module_.shape
    for labels, n in ((classifier.action_labels_, shape.n_actions), (classifier.outcome_labels_, shape.n_outcomes)):
        plain = all(isinstance(label, str | int | float | bool) for label in labels.values)
        if not plain or not len(labels.values) == len(set(labels.values)) == n:
            raise ValueError(f"{labels.role}s are {labels.values}, and it was trained on {n}")
    counts = classifier.outcome_counts_
    if counts is not None and counts.shape != (shape.n_actions, shape.n_outcomes):
        raise ValueError(f"outcome_counts are {counts.tolist()}")
    columns = classifier.encoder_.columns
    row = pd.DataFrame(
        {
            name: [kind.mean if isinstance(kind, Number) else next(filter(None, kind.values or ()), "")]
            for name, kind in columns.items()
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            classifier.predict_proba(row)
        except InputError as error:
            raise ValueError(str(error)) from error


def _description(classifier: CounterfactualClassifier) -> dict[str, Any]:
    parameters = classifier.get_params(deep=False)
    base, backbone = parameters.pop("base"), parameters["backbone"]
    if isinstance(backbone, type):
        parameters["backbone"] = path_of(backbone)
    if not isinstance(parameters["random_state"], int | None):
        parameters["random_state"] = None  # a stream that has run on: there is nothing to begin it with again
    for name in ("cvat_weights", "categorical"):
        given = parameters[name]
        parameters[name] = [given] if isinstance(given, str) else list(given)
    module, names = classifier.module_, getattr(classifier, "feature_names_in_", None)
    return {
        "format": _FORMAT,
        "version": VERSION,
        "parameters": {name: _plain(value) for name, value in parameters.items()},
        "base": None if base is None else type(base).__name__,
        "module": {"class": None if base is not None else path_of(type(module)), "hparams": dict(module.hparams)},
        "actions": [_plain(label) for label in classifier.action_labels_.values],
        "outcomes": [_plain(label) for label in classifier.outcome_labels_.values],
        "outcome_counts": None if classifier.outcome_counts_ is None else classifier.outcome_counts_.tolist(),
        "encoder": classifier.encoder_.to_dict(),
        "candidates": [asdict(candidate) for candidate in classifier.candidates_],
        "method": classifier.method_,
        "cvat_weight": classifier.cvat_weight_,
        "held_out": None if classifier.held_out_ is None else asdict(classifier.held_out_),
        "overlap": None if classifier.overlap_ is None else asdict(classifier.overlap_),
        "n_features_in": classifier.n_features_in_,
        "feature_names_in": None if names is None else list(names),
    }


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _write_module(module: StackedModule, folder: Path) -> None:
    weights = to_safetensors({name: value.contiguous() for name, value in module.state_dict().items()})
    (folder / "model.safetensors").write_bytes(weights)  # save_file's own is for nobody else to read
    if not isinstance(module, EstimatorBackbone):
        return
    (folder / "learners").mkdir()
    for place, models in enumerate(module.found()):
        for number, model in enumerate(models):
            (folder / "learners" / f"{place}-{number}.skops").write_bytes(to_bytes(model))
    if module.base is not None:
        (folder / "learners" / "base.skops").write_bytes(to_bytes(module.base))


def _read_module(
    classifier: CounterfactualClassifier, kept: dict[str, Any], path: Path, trust: Sequence[str]
) -> StackedModule:
    if classifier.base is None:
        part = class_at(kept["class"], StackedModule, (_OURS, *trust))
    else:
        part = learner(classifier.base, per_action=classifier.backbone == "t_learner", soft=False)
    module = part(**kept["hparams"])
    module.load_state_dict(load_file(path / "model.safetensors"))
    if isinstance(module, EstimatorBackbone):
        n_models = module.shape.n_actions if module.per_action else 1
        module.fitted = [
            [_read_learner(path / "learners" / f"{place}-{number}.skops", trust) for number in range(n_models)]
            for place in range(len(module.seeds))
        ]
    return module


def _read_learner(file: Path, trust: Sequence[str]) -> Any:
    return from_bytes(file.read_bytes(), trust, file)
