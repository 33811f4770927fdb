"""A log file for any backbone: in memory, or in chunks where it is larger than memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from cst_lightning.columns import (
    MIN_ROWS,
    Roles,
    add_tallies,
    check_present,
    check_rows,
    check_taken,
    check_values,
    describe_columns,
    kind_of,
    labels_of,
    propensities_of,
    rows_text,
    tallies_of,
    time_order,
)
from cst_lightning.encoding import FeatureEncoder, Labels
from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback, Shape
from cst_lightning.fitting import whole
from cst_lightning.logs import read_batches, read_log
from cst_lightning.propensity import whole_propensity
from cst_lightning.stacked import StackedModule
from cst_lightning.thin_logs import check_classes, warn_of_no_overlap, warn_of_rare

Mask = NDArray[np.bool_]
Split = Literal["row", "group", "time"]


class LoggedDataModule(pl.LightningDataModule):
    """A log file, encoded and split once into rows to train on and rows held out.

    With ``chunk_rows`` the file is read anew in every pass and only so many rows are in memory. An epoch of the Trainer
    is then one chunk, in the order of the file, its rows shuffled as the protocol says: ``max_epochs`` counts chunks,
    and a pass has ``n_chunks`` of them. What needs the whole log before its first step (``udm`` without propensities in
    the log, scikit-learn's learners) cannot be trained so; students of self-training can. Numbers are standardised, and
    categories known, by a sample of ``chunk_rows``.

    Args:
        path, encoding, delimiter, rows: see ``logs.read_log``.
        action, outcome, features, categorical, kept: columns, see ``columns.Roles``.
        propensity: the column of the taken action's probability, or a column for each action: named by the actions,
            or in the order of the sorted actions.
        holdout: share of the rows held out, in [0, 1).
        split: which rows those are: ``row``: drawn; ``group``: all rows of the groups drawn from the column ``group``;
            ``time``: the last rows by the column ``time``, which holds numbers or dates (as text: ISO dates alone).
        group, time: columns to split by; they are no features.
        missing: features, see ``encoding.FeatureEncoder``.
        chunk_rows: stream the file in chunks of so many rows; at most so many are held out, and are in memory too.
        seed: of the split.

    Attributes:
        train, validation: the rows (None where they are streamed; validation None for ``holdout=0``).
        actions, outcomes: ``Labels``: what the indices mean. encoder: the fitted ``FeatureEncoder``.
        description: ``columns.describe_columns`` of the file (of a sample of it where it is streamed).
        n_rows: of the file. n_chunks: of a pass, 1 in memory.

    Warns:
        UserWarning: an action has too little to learn from, hardly any label of text comes twice, or the features tell
            the action (not looked at where the file is streamed).
    """

    actions: Labels
    outcomes: Labels
    encoder: FeatureEncoder
    description: pd.DataFrame
    n_rows: int
    n_chunks: int

    def __init__(
        self,
        path: str | Path,
        action: str,
        outcome: str,
        *,
        propensity: str | Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        categorical: Sequence[str] = (),
        kept: Sequence[str] = (),
        holdout: float = 0.2,
        split: Split = "row",
        group: str | None = None,
        time: str | None = None,
        rows: int | None = None,
        missing: Literal["error", "impute"] = "error",
        chunk_rows: int | None = None,
        seed: int = 0,
        encoding: str = "utf-8",
        delimiter: str | None = None,
    ) -> None:
        if not 0 <= holdout < 1:
            raise InputError(f"holdout={holdout}: allowed is from 0, below 1")
        if split not in ("row", "group", "time"):
            raise InputError(f"split={split!r}: allowed are row, group and time")
        for name, column in (("group", group), ("time", time)):
            if (split == name) != (column is not None):
                lacks = f"needs {name}=, the column to split by"
                raise InputError(
                    f"split={split!r} {lacks if column is None else f'goes without {name}={column!r}'}: allowed are "
                    f"split={name!r} with {name}=COLUMN, or neither"
                )
        if chunk_rows is not None and (chunk_rows < MIN_ROWS or rows is not None):
            raise InputError(
                f"chunk_rows={chunk_rows}, rows={rows}: allowed is chunk_rows from {MIN_ROWS}, without rows"
            )
        super().__init__()
        by = [column for column in (group, time) if column is not None]
        self.path, self.holdout, self.split, self.by = Path(path), holdout, split, by[0] if by else ""
        self.roles = Roles(action, outcome, propensity, features, categorical, kept, group, time)
        self.rows, self.missing, self.chunk_rows, self.seed = rows, missing, chunk_rows, seed
        self.encoding, self.delimiter = encoding, delimiter
        self._train: Feedback | None = None
        self._validation: Feedback | None = None
        self._chunks: Callable[[], Iterator[Feedback]] | None = None
        self._read = self._reading = False

    @override
    def setup(self, stage: str | None = None) -> None:
        """Read once; Lightning calls this again before every stage."""
        if self._read or self._reading:
            return
        self._reading = True
        try:
            if self.chunk_rows is None:
                self._setup_in_memory()
            else:
                self._setup_chunks(self.chunk_rows)
        finally:
            self._reading = False
        self._read = True

    def __getattr__(self, name: str) -> Any:
        """What the file says is there when it is asked for, as ``train`` is."""
        if name in LoggedDataModule.__annotations__ and not (self._read or self._reading):
            self.setup()
            return getattr(self, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def shape(self) -> Shape:
        """Sizes of the problem."""
        self.setup()
        n_columns = self.encoder.transform(self._few[self._features]).shape[1]
        return Shape(n_columns, len(self.actions.values), len(self.outcomes.values))

    @property
    def train(self) -> Feedback:
        """The rows to train on, which must be in memory."""
        self.setup()
        if self._train is None:
            raise InputError("chunk_rows: the rows to train on are not in memory; leave it out where all are needed")
        return self._train

    @property
    def validation(self) -> Feedback | None:
        """The rows held out; None for ``holdout=0``."""
        self.setup()
        return self._validation

    @override
    def train_dataloader(self) -> DataLoader[Any]:
        module = None if self.trainer is None else self.trainer.lightning_module
        if isinstance(module, StackedModule) and self.chunk_rows is not None:
            self._check_batches(module, self.chunk_rows)  # what is known before the file is read
        self.setup()
        if self._chunks is None:
            return whole(self.train)
        if isinstance(module, StackedModule):
            module.check_streams(self._feedback(self._few, allow_unlogged=True))
            self._check_batches(module, self._fewest)
        trainer, n_chunks = self.trainer, self.n_chunks
        # each fit begins with the first chunk, and one that is resumed where it was
        begin = (lambda: 0) if trainer is None else (lambda: (trainer.fit_loop.total_batch_idx + 1) % n_chunks)
        return DataLoader(_OneByOne(self._chunks, begin), batch_size=None)

    @override
    def val_dataloader(self) -> Any:
        return whole(self.validation) if self.validation is not None else []

    @override
    def test_dataloader(self) -> Any:
        raise InputError(
            "a log holds the outcome of the action taken alone, and a test wants those of all: use val_dataloader, or "
            "`python -m cst_lightning evaluate`"
        )

    @override
    def predict_dataloader(self) -> Any:
        """The contexts held out; of all rows for ``holdout=0``."""
        rows = self.validation or self.train
        return whole(rows.x)

    # --- in memory --------------------------------------------------------------------------------

    def _setup_in_memory(self) -> None:
        frame = read_log(
            self.path, columns=self.roles, rows=self.rows, encoding=self.encoding, delimiter=self.delimiter
        )
        self._check_features(frame, 0)
        self.n_rows, self.n_chunks, self.description = len(frame), 1, describe_columns(frame, self.roles)
        held_out = self._held_out(frame)
        if self.holdout and not held_out.any():
            raise self._nothing_held_out()
        train = frame[~held_out]
        labels = {role: frame[name].dropna() for role, name in self._label_columns.items()}
        self._take_labels({role: (found.unique(), len(found)) for role, found in labels.items()})
        unseen = set(self.actions.values) - set(train[self.roles.action])
        if unseen:
            raise InputError(
                f"{self.path}: action {sorted(unseen)[0]!r} is in no row to train on, all its rows are held out: leave "
                "them out of the log, or choose another holdout, split or seed"
            )
        self._warn_of_rare(self._pairs(frame))
        self._fit_encoder(train)
        self._train = self._feedback(train)
        warn_of_no_overlap(self._train.x[0].numpy(), self._train.action[0].numpy(), len(self.actions.values))
        if held_out.any():
            self._validation = self._feedback(frame[held_out], allow_unlogged=True)

    def _held_out(self, frame: pd.DataFrame) -> Mask:
        """Which rows are held out, ``[N]``."""
        n_held_out = round(self.holdout * len(frame))
        order: NDArray[Any] = np.random.default_rng(self.seed).permutation(len(frame))
        if self.split == "time":
            self._check_present(frame, 0)
            times = time_order(frame[self.by].reset_index(drop=True), str(self.path))
            order = times.sort_values(kind="stable").index.to_numpy()[::-1]
        elif self.split == "group":
            self._check_present(frame, 0)
            place = self._group_place(frame)
            groups = np.sort(np.unique(place))
            n_groups = min(max(1, round(self.holdout * len(groups))), len(groups) - 1) if self.holdout else 0
            if self.holdout and not n_groups:
                raise InputError(f"{self.path}: column {self.by!r} holds one group alone: split by row or time")
            return np.isin(place, groups[:n_groups])
        held_out = np.zeros(len(frame), dtype=bool)
        held_out[order[:n_held_out]] = True
        return held_out

    def _check_present(self, frame: pd.DataFrame, first: int) -> None:
        if (missing := frame[self.by].isna().to_numpy()).any():
            raise InputError(f"{self.path}: column {self.by!r} is missing in {rows_text(missing, first)}: fill it in")

    def _check_features(self, frame: pd.DataFrame, first: int) -> None:
        """Here the rows of the file are known; where it is split or streamed, they are not."""
        if self.missing == "error":
            check_present(frame, self.roles.feature_names(list(frame.columns)), str(self.path), first)

    def _nothing_held_out(self) -> InputError:
        return InputError(
            f"{self.path}: holdout={self.holdout} of {self.n_rows} rows holds out none: give a larger share, or 0"
        )

    def _group_place(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """A number in 0..1 for each row, drawn by its group alone, ``[N]``."""
        names = frame[self.by].astype(str).to_numpy(dtype=object)
        return np.asarray(pd.util.hash_array(names, hash_key=f"{self.seed:016d}"[:16]) / 2.0**64)

    # --- in chunks --------------------------------------------------------------------------------

    def _setup_chunks(self, chunk_rows: int) -> None:
        """A pass that checks and counts, then one that takes the rows held out."""
        sample = self._survey(chunk_rows)
        self.description = describe_columns(sample, self.roles)
        share = min(self.holdout, chunk_rows / self.n_rows)
        n_last = round(share * self.n_rows) if self.split == "time" else 0
        self.n_chunks = -(-(self.n_rows - n_last) // chunk_rows)
        size = -(-(self.n_rows - n_last) // self.n_chunks)  # no chunk is much smaller than the others
        self._fewest = self.n_rows - n_last - (self.n_chunks - 1) * size  # rows of the smallest chunk to train on
        self._fit_encoder(sample)

        def held_out(frame: pd.DataFrame, number: int) -> Mask:
            first = number * size
            if self.split == "time":
                return np.arange(first, first + len(frame)) >= self.n_rows - n_last
            if self.split == "group":
                return self._group_place(frame) < share
            return np.random.default_rng([self.seed, number]).random(len(frame)) < share

        def chunks() -> Iterator[Feedback]:
            for number, frame in zip(range(self.n_chunks), self._batches(size), strict=False):
                train = frame[~held_out(frame, number)]
                if len(train):
                    yield self._feedback(train, allow_unlogged=True)

        if share or len(self.roles.propensities) > 1:
            kept = self._checked_held_out(size, held_out)
            if share and kept.empty:
                raise self._nothing_held_out()
            self._validation = self._feedback(kept, allow_unlogged=True) if share else None
        self._chunks = chunks

    def _check_batches(self, module: StackedModule, n_rows: int) -> None:
        """A chunk of ``n_rows`` rows to train on makes a minibatch."""
        size = module.protocol.batch_size
        if n_rows < size and module.has_gradient:
            raise InputError(
                f"chunk_rows={self.chunk_rows}: a chunk has {n_rows} rows to train on, fewer than batch_size={size}: "
                "give a larger chunk_rows, or take a protocol with smaller batches"
            )

    def _checked_held_out(self, size: int, held_out: Callable[[pd.DataFrame, int], Mask]) -> pd.DataFrame:
        """The rows held out, in a pass that checks what can be checked only once all actions are known."""
        parts, left = [], []
        for number, frame in enumerate(self._batches(size)):
            check_taken(frame, self.roles, self.actions, str(self.path), number * size)
            parts.append(frame[held_out(frame, number)])
            left.append(len(frame) - len(parts[-1]))
        self._fewest = min((n_rows for n_rows in left if n_rows), default=0)
        return pd.concat(parts)

    def _batches(self, n_rows: int) -> Iterator[pd.DataFrame]:
        return read_batches(self.path, n_rows, columns=self.roles, encoding=self.encoding, delimiter=self.delimiter)

    def _survey(self, chunk_rows: int) -> pd.DataFrame:
        """Check the whole file, take its labels, and draw at most ``chunk_rows`` of its rows."""
        rng, share, where = np.random.default_rng(self.seed), 1.0, str(self.path)
        sample, tallies, last, n_rows, pairs = pd.DataFrame(), None, None, 0, pd.Series(dtype=np.int64)
        for frame in self._batches(chunk_rows):
            check_rows(frame, self.roles, where, n_rows)
            self._check_features(frame, n_rows)
            of_frame = tallies_of(frame, self.roles, n_rows)
            pairs = self._pairs(frame) if tallies is None else pairs.add(self._pairs(frame), fill_value=0)
            tallies = of_frame if tallies is None else add_tallies(tallies, of_frame)
            if self.by:
                self._check_present(frame, n_rows)
            if self.split == "time":
                times = time_order(frame[self.by], where, n_rows)
                if not times.is_monotonic_increasing or (last is not None and times.iloc[0] < last):
                    raise InputError(
                        f"{where}: column {self.by!r} does not grow: sort the file by it to stream it by time"
                    )
                last = times.iloc[-1]
            sample = pd.concat([sample, frame[rng.random(len(frame)) < share]], ignore_index=True)
            while len(sample) > chunk_rows:
                sample, share = sample[rng.random(len(sample)) < 0.5].reset_index(drop=True), share / 2
            n_rows += len(frame)
        if tallies is None or n_rows < MIN_ROWS:
            raise InputError(f"{where}: {n_rows} rows: a log needs at least {MIN_ROWS}")
        check_values(tallies, self.roles, where)
        for name in self.roles.feature_names(list(sample.columns)):
            if sample[name].isna().all():
                raise InputError(
                    f"{where}: column {name!r} has a value in data row {tallies[name]['row'].min() + 1}, and none in "
                    f"the {len(sample)} rows that scales and categories are taken from: leave it out of the features, "
                    "or give a larger chunk_rows"
                )
        labels = {role: tallies[name] for role, name in self._label_columns.items()}
        self._take_labels({role: (found.index, int(found["count"].sum())) for role, found in labels.items()})
        self._warn_of_rare(pairs)
        self.n_rows = n_rows
        return sample

    # --- encoding ---------------------------------------------------------------------------------

    @property
    def _label_columns(self) -> dict[str, str]:
        assert self.roles.action is not None
        assert self.roles.outcome is not None
        return {"action": self.roles.action, "outcome": self.roles.outcome}

    def _take_labels(self, values: dict[str, tuple[Any, int]]) -> None:
        """By role the different values, and in how many rows there is one."""
        self.actions, self.outcomes = (labels_of(role, found, str(self.path)) for role, (found, _) in values.items())
        for labels in (self.actions, self.outcomes):
            try:
                check_classes(labels, values[labels.role][1])
            except InputError as error:
                raise InputError(f"{self.path}: {error}") from None

    def _pairs(self, frame: pd.DataFrame) -> pd.Series:
        """How often each outcome was seen of each action, by both."""
        return frame[list(self._label_columns.values())].value_counts()

    def _warn_of_rare(self, pairs: pd.Series) -> None:
        counts = np.zeros((len(self.actions.values), len(self.outcomes.values)), np.int64)
        action, outcome = (pairs.index.get_level_values(level).to_series() for level in (0, 1))
        counts[self.actions.index(action), self.outcomes.index(outcome)] = pairs
        warn_of_rare(self.actions, self.outcomes, counts)

    def _fit_encoder(self, frame: pd.DataFrame) -> None:
        self._features = self.roles.feature_names(list(frame.columns))
        self._few = frame[:1]
        # text that the whole file says is categories stays so, whatever these rows of it hold
        text = [name for name in self._features if kind_of(frame[name]) in ("text", "mixed")]
        written = [name for name in self.roles.categorical if name in self._features]
        self.encoder = FeatureEncoder([*written, *text], self.missing).fit(frame[self._features])

    def _feedback(self, frame: pd.DataFrame, *, allow_unlogged: bool = False) -> Feedback:
        columns = self._label_columns
        with warnings.catch_warnings():
            if self.chunk_rows is not None:  # the same in every chunk
                warnings.filterwarnings("ignore", message=".*(which training had not|all that training had).*")
            x = self.encoder.transform(frame[self._features])
        taken, propensity = self.actions.index(frame[columns["action"]]), None
        given = propensities_of(frame, self.roles, self.actions)
        if given is not None:
            propensity = whole_propensity(given, taken, len(self.actions.values))
        return Feedback(
            torch.from_numpy(x),
            torch.from_numpy(taken),
            torch.from_numpy(self.outcomes.index(frame[columns["outcome"]])),
            len(self.actions.values),
            len(self.outcomes.values),
            propensity=propensity,
            allow_unlogged=allow_unlogged,
        )


class _OneByOne(IterableDataset[Feedback]):
    """Hands out one chunk each time it is gone through: the next one, and after the last the first.

    Args:
        begin: gives the number of the first one, when it is asked for.
    """

    def __init__(self, chunks: Callable[[], Iterator[Feedback]], begin: Callable[[], int]) -> None:
        self._make, self._begin = chunks, begin
        self._left: Iterator[Feedback] | None = None

    @override
    def __iter__(self) -> Iterator[Feedback]:
        self._left = islice(self._make(), self._begin(), None) if self._left is None else self._left
        chunk = next(self._left, None)
        if chunk is None:
            self._left = self._make()
            chunk = next(self._left)
        yield chunk
