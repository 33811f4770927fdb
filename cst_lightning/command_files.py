"""Files of ``python -m cst_lightning``: what a model was trained on, contexts to read, answers to write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from cst_lightning.classifier import CounterfactualClassifier
from cst_lightning.columns import Roles
from cst_lightning.disk import check_writable, write_whole
from cst_lightning.encoding import Category
from cst_lightning.errors import InputError
from cst_lightning.log_format import Format
from cst_lightning.logs import read_log
from cst_lightning.saving import OWN, ROLES
from cst_lightning.texts import counted, csv_value

_ROLES, _DIGEST = TypeAdapter(Roles), TypeAdapter(str | None)
_LONGEST_WHY = 300  # characters


def trained_on(model: Path) -> tuple[Roles, str | None]:
    """What the columns of a model's log were for, and the digest of its file; a model saved from Python knows neither.

    Models of older versions have no digest, and the roles alone.
    """
    if not (model / ROLES).exists():
        return Roles(), None
    try:
        kept = json.loads((model / ROLES).read_text(encoding="utf-8"))
        roles = _ROLES.validate_python(vars(Roles(**kept.get("roles", kept))))
        return roles, _DIGEST.validate_python(kept.get("sha256"))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        why = " ".join(str(error).split())[:_LONGEST_WHY]
        raise InputError(f"{model}/{ROLES} cannot be read ({why}): train the model again") from error


def features_of(classifier: CounterfactualClassifier, model: Path) -> Roles:
    """The features of a model; what was a category in training is read as one."""
    if not hasattr(classifier, "feature_names_in_"):
        raise InputError(f"{model} was trained on columns without names: a file's need the names of a data frame")
    names = [str(name) for name in classifier.feature_names_in_]
    kinds = classifier.encoder_.columns
    return Roles(features=names, categorical=[name for name in names if isinstance(kinds[name], Category)])


def read_contexts(
    classifier: CounterfactualClassifier, model: Path, data: Path, keep: Sequence[str], names: list[str], encoding: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The contexts that a model takes, and the columns to write beside its answers, which are called ``names``."""
    clash = [name for name in keep if name in names]
    if clash:
        raise InputError(f"keep={clash[0]}: a column of the answer has this name: rename the column, or leave it out")
    features = features_of(classifier, model)
    own = list(features.features or ())
    kept = [name for name in dict.fromkeys(keep) if name not in own]
    # as it is written: an identifier such as 00123 is no number
    roles = replace(features, categorical=[*features.categorical, *kept], kept=kept)
    log = read_log(data, columns=roles, encoding=encoding)
    beside = log[list(dict.fromkeys(keep))] if keep else pd.DataFrame({"row": np.arange(1, len(log) + 1)})
    return log[own], beside.apply(_whole_numbers).reset_index(drop=True)


def _whole_numbers(column: pd.Series) -> pd.Series:
    """Text as whole numbers where all of it is some, written as they are printed; else as it is."""
    is_text = pd.api.types.infer_dtype(column, skipna=False) == "string"
    return column.astype(np.int64) if is_text and column.str.fullmatch(r"0|-?[1-9]\d{0,17}").all() else column


@contextmanager
def in_file(data: Path) -> Iterator[None]:
    """Within, an error tells of rows of the file ``data``, and names it."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(str(data)):
            raise
        raise InputError(f"{data}: {error}") from error


def check_apart(option: str, out: Path, *read: Path | None) -> None:
    """What is to be written is none of what is read, nor a part of it, nor the folder that it is in."""
    for path in (path.resolve() for path in read if path is not None):
        if path == out.resolve() or path in out.resolve().parents or out.resolve() in path.parents:
            raise InputError(f"{option}={out}: {path} is read, and would be written over: name another place")


def check_out(out: Path, data: Path, model: Path) -> None:
    """Before the work: a file of a kind that can be written."""
    check_apart("out", out, data, *(model / name for name in OWN))
    if out.is_dir():
        raise InputError(f"out={out} is a folder: name a file")
    if out.suffix not in (".csv", ".parquet"):
        raise InputError(f"out={out}: allowed are names that end in .csv or .parquet")
    if not out.absolute().parent.is_dir():
        raise InputError(f"out={out}: there is no folder {out.absolute().parent}")
    check_writable(out.absolute().parent, "--out")


def write_answers(frame: pd.DataFrame, out: Path, of_data: Format) -> None:
    """Answers to a file; a CSV in the form of the contexts', which whoever wrote those can open."""
    if out.suffix == ".csv":
        form = of_data.of_answers()
        shown = frame.map(csv_value).rename(columns=csv_value)
        form_of_file = {
            "sep": form.delimiter,
            "decimal": form.decimal,
            "encoding": "utf-8-sig" if form.bom else "utf-8",
        }
        write, said = partial(shown.to_csv, index=False, **form_of_file), f" ({form})"
    else:
        write, said = partial(frame.to_parquet, index=False), ""
    replaced = replaced_said(out)
    write_whole(out, write)
    print(f"{counted(len(frame), 'row')}: {out}{said}{replaced}")


def replaced_said(path: Path) -> str:
    """For the line that names what was written: whether an older one stood there."""
    return ", replaced" if path.exists() else ""
