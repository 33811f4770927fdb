"""Any scikit-learn classifier as a backbone: one estimator a seed (or one a seed and action)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection._search import BaseSearchCV  # of all searches, and public nowhere
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor, nn
from typing_extensions import override

from cst_lightning.engines import count_step
from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback
from cst_lightning.labels import counted_entries, pseudo_labels, with_factual
from cst_lightning.learner_files import from_bytes, skops_io, to_bytes
from cst_lightning.losses import Entries, observed_entries
from cst_lightning.protocols import Protocol
from cst_lightning.stacked import StackedModule
from cst_lightning.threads import few_threads

_LEAST_PROBABILITY = 1e-7
_LEARNERS = "learners"  # in a checkpoint
_FOLDS = 5


class SmoothedFrequencies(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The share of each outcome, whatever the features, with one more of each: ``(n_k + 1) / (n + m)``."""

    def __init__(self, n_outcomes: int = 2) -> None:
        self.n_outcomes = n_outcomes

    def fit(self, x: Any, y: NDArray[np.int64], sample_weight: NDArray[np.float64] | None = None) -> Self:
        """Count."""
        counts = np.bincount(y, sample_weight, self.n_outcomes) + 1
        self.classes_ = np.arange(self.n_outcomes)
        self.shares_ = counts / counts.sum()
        return self

    def predict_proba(self, x: Any) -> NDArray[np.float64]:
        """``[n, m]``."""
        return np.tile(self.shares_, (len(x), 1))


class EstimatorBackbone(StackedModule):
    """A scikit-learn classifier in a backbone's place.

    It is fitted once on the whole log, in one epoch of one step, whatever the protocol's epochs. As a
    student it is fitted to the observed outcomes and the pseudo-labels of every other action
    together, with the settings that its teacher's search chose on observed rows. It has no gradient,
    so it has no CVAT. A checkpoint keeps its models with skops, an extra; where they are of another
    package than scikit-learn, name it in ``trust``, since reading a model back calls what the file names.

    ``per_action=False`` (an S-learner) gives the estimator the contexts and, as the last column, the
    action's index; ``True`` (a T-learner) gives each action an estimator of its own.
    """

    has_gradient = False
    per_action = False
    trust: tuple[str, ...] = ()  # packages that a checkpoint's models may be of, besides scikit-learn's estimators
    base: Any = None  # the classifier that ``learner`` was given
    _unseen: Tensor  # probability of an outcome that the estimator never saw
    protocol_fields = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.n_variants > 1 or self.factory is not None:
            raise InputError(f"{type(self).__name__} takes neither a network nor a grid of more than one value")
        self.fitted: list[list[Any]] = []  # by seed, and by action for a T-learner
        self.register_buffer("_unseen", torch.zeros((), dtype=torch.float64))

    @override
    def prepares_by_row(self, log: Feedback) -> bool:
        return False

    def make_estimator(self, seed: int) -> Any:
        """A new scikit-learn classifier.

        A search, alone or as the last step of a pipeline, is made on observed rows and never on pseudo-labels; one
        whose ``cv`` is None gets stratified folds, five or as many as the rarest outcome has rows. One anywhere else,
        such as in a ``VotingClassifier``, is made as scikit-learn does, and cannot be trained on pseudo-labels.
        """
        raise NotImplementedError(f"{type(self).__name__} must define make_estimator")

    # --- what the stack asks ---------------------------------------------------------------------

    @override
    @classmethod
    def epochs(cls, protocol: Protocol) -> int:
        return 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.student_class = cls  # its students are of its own kind

    @override
    def _make_network(self, factory: Callable[[], nn.Module] | None) -> Any:
        self.factory = factory
        return nn.Identity()

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        # of nothing: Lightning counts steps by it, and keeps no checkpoint before the first
        return torch.optim.SGD([torch.zeros((), requires_grad=True)], lr=0.0)

    @override
    def configure_callbacks(self) -> list[pl.Callback]:
        return []

    @override
    def select(self, variants: Any) -> Self:
        return self

    @override
    def training_step(self, feedback: Feedback, batch_idx: int) -> None:
        feedback = self._aligned(feedback).to("cpu")
        entries = self.entries(feedback, slice(None))
        target, weight = (t.double().numpy() for t in entries)
        self._unseen.fill_(1 / (feedback.n_rows + self.shape.n_outcomes))
        # weights go to a pipeline's last step by name, whatever a user has set for models of his own
        with config_context(enable_metadata_routing=False), few_threads(feedback.n_rows):
            self.fitted = [
                self._fit_seed(place, feedback.x[place].double().numpy(), target[place], weight[place])
                for place in range(len(self.seeds))
            ]
        self.stopped_epoch.fill_(1)
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        count_step(optimizer)

    @override
    def validation_step(self, feedback: Feedback, batch_idx: int) -> None:
        if self.fitted:  # a Trainer may look before it trains
            super().validation_step(feedback, batch_idx)

    @override
    def entries(self, batch: Feedback, rows: slice | Tensor) -> Entries:
        if self._teacher is None:
            return observed_entries(batch)
        labels = pseudo_labels(self._teacher[0].logits(batch.x).cpu(), self.protocol.labels)
        return Entries(with_factual(labels, batch), counted_entries(batch))

    @override
    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        if not self.fitted:
            raise InputError(
                f"{type(self).__name__} is not fitted: fit it, or load a checkpoint (--ckpt_path) of one that was"
            )
        x = self._contexts(x).cpu()
        with few_threads(x.shape[1]):
            rows = [self._logits_of(models, part.double().numpy()) for models, part in zip(self.fitted, x, strict=True)]
        return torch.from_numpy(np.stack(rows)).float().to(self.device)

    # --- one seed --------------------------------------------------------------------------------

    def _fit_seed(
        self, place: int, x: NDArray[np.float64], target: NDArray[np.float64], weight: NDArray[np.float64]
    ) -> list[Any]:
        """Estimators of a seed from targets ``[N, K, m-1]`` and weights ``[N, K]``."""
        row, action = weight.nonzero()
        positive = target[row, action]
        shares = np.concatenate([(1 - positive.sum(1, keepdims=True)).clip(0), positive], 1)
        entry, outcome = shares.nonzero()  # a soft label is one sample an outcome
        sample_weight = weight[row, action][entry] * shares[entry, outcome]
        row, action = row[entry], action[entry]
        if not self.per_action:
            features = _with_action(x[row], action)
            return [self._fit_one(place, 0, features, outcome, sample_weight)]
        return [
            self._fit_one(place, k, x[row[mine]], outcome[mine], sample_weight[mine])
            for k in range(self.shape.n_actions)
            for mine in [action == k]
        ]

    def _fit_one(self, place: int, number: int, x: Any, outcome: NDArray[np.int64], weight: NDArray[np.float64]) -> Any:
        counts = np.bincount(outcome, minlength=1)
        counts = counts[counts > 0]
        if len(counts) < 2:  # nothing to tell apart
            return SmoothedFrequencies(self.shape.n_outcomes).fit(x, outcome, weight)
        chosen = self._settled(place, number)
        if chosen is None:
            chosen = self.make_estimator(self.seeds[place])
        search = _search_in(chosen)
        if search is not None:
            own_folds = search.cv is not None  # a user's: enough of two outcomes will do
            least = int(np.sort(counts)[-2] if own_folds else counts.min())
            if least < 2:  # no fold to score on
                return SmoothedFrequencies(self.shape.n_outcomes).fit(x, outcome, weight)
            if not own_folds:
                search.cv = StratifiedKFold(min(_FOLDS, least), shuffle=True, random_state=self.seeds[place])
        parameters = {_weight_name(chosen): weight} if np.ptp(weight) else {}
        if parameters and not takes_weights(chosen):
            raise InputError(f"{_said(chosen)} takes no sample weights: leave them out, and use method='pl'")
        try:
            return chosen.fit(x, outcome, **parameters)
        except Exception as error:  # whatever a classifier finds wrong with the rows
            seen = ", ".join(map(str, counts))
            raise InputError(
                f"{_said(chosen)} cannot be fitted to {len(x)} rows, with {seen} of the outcomes in them: "
                f"{' '.join(str(error).split())}"
            ) from error

    def _settled(self, place: int, number: int) -> Any:
        """An estimator with the teacher's settings, not yet fitted; None where there is none to take over."""
        if self._teacher is None or not isinstance(self._teacher[0], EstimatorBackbone):
            return None
        settled = clone(_found(self._teacher[0].fitted[place][number]))
        check_searches(settled)
        return settled

    def _logits_of(self, models: list[Any], x: NDArray[np.float64]) -> NDArray[np.float64]:
        """``[N, K, m-1]``."""
        n_actions, n_outcomes = self.shape.n_actions, self.shape.n_outcomes
        p = np.full((len(x), n_actions, n_outcomes), float(self._unseen))
        for k in range(n_actions):
            model = models[k] if self.per_action else models[0]
            features = x if self.per_action else _with_action(x, np.full(len(x), k))
            p[:, k, model.classes_] = model.predict_proba(features)
        p = np.log(p.clip(_LEAST_PROBABILITY))
        return np.asarray(p[..., 1:] - p[..., :1])

    # --- checkpoints -----------------------------------------------------------------------------

    def found(self) -> list[list[Any]]:
        """The fitted models, by seed, and by action for a T-learner; of a search the best one alone."""
        return [[_found(model) for model in models] for models in self.fitted]

    @override
    def on_fit_start(self) -> None:
        if self.trainer.checkpoint_callback is not None:
            try:
                skops_io()  # now, and not when all is trained
            except InputError as error:
                raise InputError(f"{error}, or give the Trainer enable_checkpointing=False") from error
        super().on_fit_start()

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        # as tensors, which torch reads without unpickling anything else
        checkpoint[_LEARNERS] = [
            [torch.frombuffer(bytearray(to_bytes(model, self.trust)), dtype=torch.uint8) for model in models]
            for models in self.found()
        ]

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        n_models = self.shape.n_actions if self.per_action else 1
        kept, place = checkpoint.get(_LEARNERS, []), f"the checkpoint of {type(self).__name__}"
        if [len(models) for models in kept] not in ([], [n_models] * len(self.seeds)):
            raise InputError(f"{place} does not hold {n_models} models for each of {len(self.seeds)} seeds")
        self.fitted = [[from_bytes(part.numpy().tobytes(), self.trust, place) for part in models] for models in kept]


def learner(base: Any, *, per_action: bool, soft: bool) -> type[EstimatorBackbone]:
    """A backbone of any scikit-learn classifier: an S-learner (contexts and indicators of the action), or a T-learner.

    Args:
        base: cloned for each fit, with a random state of its own where it has one that is None.
        soft: whether it is to learn from probabilities, each a weighted sample an outcome.

    Raises:
        InputError: it has no ``predict_proba``, or is to learn from probabilities and takes no sample weights.
    """
    name = type(base).__name__
    wanted = ("fit", "get_params") if isinstance(base, StackingClassifier) else ("fit", "get_params", "predict_proba")
    if isinstance(base, type) or not all(hasattr(base, method) for method in wanted):
        raise InputError(f"base={base!r}: allowed is a scikit-learn classifier with predict_proba, not fitted yet")
    if soft and not takes_weights(base):
        raise InputError(f"base={name} takes no sample weights, which soft pseudo-labels need; use method='pl'")

    class Learner(EstimatorBackbone):
        def __reduce_ex__(self, _: Any) -> Any:
            return _remake, (base, per_action, dict(self.hparams)), self.__dict__  # a class of a function has no name

        def make_estimator(self, seed: int) -> Any:
            model = clone(base)
            free = [key for key, value in model.get_params().items() if key.endswith("random_state") and value is None]
            model.set_params(**dict.fromkeys(free, seed))
            return model if per_action else make_pipeline(self._with_indicators(), model)

        def _with_indicators(self) -> ColumnTransformer:
            place = [self.shape.n_features]
            one_hot = OneHotEncoder(categories=[np.arange(self.shape.n_actions)], sparse_output=False)
            return ColumnTransformer([("action", one_hot, place)], remainder="passthrough")

    Learner.name, Learner.per_action, Learner.base = name, per_action, base
    return Learner


def action_columns(n_features: int, n_actions: int) -> ColumnTransformer:
    """Standardised contexts and the action, the last column, as ``K`` indicators: features for a linear S-learner."""
    one_hot = OneHotEncoder(categories=[np.arange(n_actions)], sparse_output=False)
    return ColumnTransformer([("action", one_hot, [n_features])], remainder=StandardScaler())


def _with_action(x: NDArray[np.float64], action: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.column_stack([x, action])


def _remake(base: Any, per_action: bool, hparams: dict[str, Any]) -> EstimatorBackbone:
    return learner(base, per_action=per_action, soft=False)(**hparams)


def _search_in(estimator: Any) -> Any:
    """The search that an estimator is, or that is a pipeline's last step; else None."""
    while isinstance(estimator, Pipeline):
        estimator = estimator.steps[-1][1]
    return estimator if isinstance(estimator, BaseSearchCV) else None


def check_searches(estimator: Any) -> None:
    """Of every search in an estimator that is to learn from pseudo-labels, the settings found can be handed on.

    Raises:
        InputError: one stands in another estimator than a pipeline or a search, which may make it several times over.
    """
    reached, inner = [], estimator
    while (search := _search_in(inner)) is not None:
        reached.append(search)
        inner = search.estimator
    for name, value in estimator.get_params().items():
        if isinstance(value, BaseSearchCV) and not any(value is search for search in reached):
            search, outer = type(value).__name__, type(estimator).__name__
            raise InputError(
                f"{outer} has a {search} inside ({name}), which would be made again on pseudo-labels: put it around, "
                f"as in {search}({outer}(...), {{'{name}__...': [...]}}), or take method='backbone'"
            )


def _found(model: Any) -> Any:
    """A fitted model with the best one in place of a search."""
    if isinstance(model, BaseSearchCV):
        return _found(model.best_estimator_)
    if not isinstance(model, Pipeline):
        return model
    found, (*before, (name, last)) = copy.copy(model), model.steps
    found.steps = [*before, (name, _found(last))]
    return found


def _inner(estimator: Any) -> list[Any]:
    """The estimators whose ``fit`` gets the weights that this one is given, where it hands them on."""
    if isinstance(estimator, BaseSearchCV):
        return [estimator.estimator]
    if isinstance(estimator, Pipeline):
        return [estimator.steps[-1][1]]
    joins = isinstance(estimator, VotingClassifier | StackingClassifier)
    return [one for _, one in estimator.estimators] if joins else []


def takes_weights(estimator: Any) -> bool:
    """Whether ``fit`` takes a weight for each sample."""
    inner = _inner(estimator)
    return all(map(takes_weights, inner)) if inner else bool(has_fit_parameter(estimator, "sample_weight"))


def _said(estimator: Any) -> str:
    """The name of the classifier that a user knows."""
    while isinstance(estimator, BaseSearchCV | Pipeline) and (inner := _inner(estimator)):
        (estimator,) = inner
    return type(estimator).__name__


def _weight_name(estimator: Any) -> str:
    """How ``fit`` wants sample weights: a pipeline hands them to its last step by name."""
    inner = estimator.estimator if isinstance(estimator, BaseSearchCV) else estimator
    steps = getattr(inner, "steps", None)
    return f"{steps[-1][0]}__{_weight_name(steps[-1][1])}" if steps else "sample_weight"
