"""Counterfactual classification as a scikit-learn estimator: from a log to the outcome of every action."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from cst_lightning.candidates import AUTO, N_FOLDS, HeldOut, folds, held_out_nll, overlap_of, train_candidates
from cst_lightning.catalogue import backbones, get_method
from cst_lightning.columns import MIN_ROWS
from cst_lightning.encoding import FeatureEncoder, Labels, shown_list
from cst_lightning.errors import InputError, unknown_name, warn
from cst_lightning.estimators import check_searches, learner
from cst_lightning.feedback import Feedback, weights_of_rows
from cst_lightning.fitting import LogDataModule, fit
from cst_lightning.frames import as_frame, warn_of_order
from cst_lightning.idle_options import check_idle
from cst_lightning.label_columns import in_order
from cst_lightning.propensity import whole_propensity
from cst_lightning.protocols import MATCHED, Protocol
from cst_lightning.recommending import allowed_actions, by_row, worth
from cst_lightning.saving import load, save
from cst_lightning.selection import Rule, get_rule, known_rules
from cst_lightning.stacked import StackedModule
from cst_lightning.texts import counted
from cst_lightning.thin_logs import check_classes, warn_of_no_overlap, warn_of_rare

_TOO_GOOD = 0.05  # share of a constant's NLL, below which a feature may give the outcome away
_MANY_ROWS = 20_000  # above: one model, larger minibatches, less patience


class CounterfactualClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Predicts the outcome of *every* action from a log that shows the outcome of the action taken.

    A few models (``n_models``) are trained, each stopped early on another fifth of the rows, and their predictions
    averaged. With ``selection="auto"`` self-training is used only where it lowers the NLL of observed outcomes that
    were held out, beyond doubt: nothing here ever needs an outcome that was not observed.

    Args:
        backbone: ``dm`` (default), ``udm``, ``hsic``, ``s_logistic``, ``s_boosting``, ``t_logistic``, ..., or a class.
        method: what may be trained on top: ``backbone`` (nothing), ``pl`` (self-training on the likeliest outcome),
            ``pl_soft`` (default: on probabilities), or either with the CVAT loss, ``pl_cvat`` and ``pl_soft_cvat``;
            or a student of one's own, by class path or entry point.
        base: a scikit-learn classifier with ``predict_proba``, to use in a network's place. ``backbone`` is then
            ``s_learner`` (default) or ``t_learner``, which has a model of its own for each action.
        selection: ``auto`` or the name of a rule chooses among ``method`` and everything simpler (the backbone alone;
            without CVAT; each CVAT weight). ``auto`` takes the simplest within one standard error of the lowest NLL of
            observed outcomes, less what averaging the models takes from it (``candidates.ambiguity``). The others
            take the lowest mean of single models: ``observed_nll``, ``ipw_nll`` (weighted by inverse propensity),
            ``dr_nll`` (doubly robust), ``cfcv`` (counterfactual cross-validation), or the path of a ``Rule``. None
            trains ``method`` as it is.
        cvat_weights: tried; a single one for ``selection=None``.
        rounds: of self-training.
        n_models: 1 to 5; by default 5, and 1 for more than 20,000 rows.
        hidden: units a layer of the network.
        dropout: share of the units dropped in training.
        learning_rate: of Adam.
        max_epochs: of each model, at most.
        batch_size: rows a step; by default 64, and more for more than 20,000 rows.
        patience: epochs without improvement on the held-out rows; by default 20, and fewer for more than 20,000 rows.
        categorical: columns that are categories besides those of text: names or places.
        missing: ``error``, or ``impute`` (the mean and an indicator; a category of its own).
        propensity_floor: least propensity that is divided by, in ``udm`` and in the rules.
        device: ``auto``, ``cpu`` or ``cuda``.
        random_state: as in scikit-learn.

    Attributes:
        actions_: labels of actions ``[K]``, in the order of predictions; ``action_labels_`` has their indices too.
        classes_: labels of outcomes ``[m]``; ``outcome_labels_`` likewise.
        outcome_counts_: rows of a weight above 0 with each outcome under each action, ``[K, m]``; None in models of
            older versions.
        method_: the method that was chosen.
        cvat_weight_: its CVAT weight, or None.
        candidates_: all that was tried, with scores.
        held_out_: ``HeldOut``: NLL of the observed outcomes that each model held out (and was stopped by), and of a
            constant; None in models of older versions.
        overlap_: ``Overlap`` of the whole log's weights ``1 / pi`` (its own or estimated on it), where the backbone or
            the rule divides by propensities: rows clipped at ``propensity_floor``, effective sample size, largest
            weight; else None.
        module_: the trained ``StackedModule``, one replicate a model.
        encoder_: of the features.
        n_features_in_: as in scikit-learn, like ``feature_names_in_``.
    """

    def __init__(
        self,
        backbone: str | type[StackedModule] | None = None,
        method: str = "pl_soft",
        *,
        base: Any = None,
        selection: str | None = "auto",
        cvat_weights: Sequence[float] = (0.01, 0.1, 1.0, 10.0),
        rounds: int = 2,
        n_models: int | None = None,
        hidden: int = 32,
        dropout: float = 0.2,
        learning_rate: float = 1e-3,
        max_epochs: int = 2000,
        batch_size: int | None = None,
        patience: int | None = None,
        categorical: Sequence[str | int] = (),
        missing: str = "error",
        propensity_floor: float = 0.01,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.backbone = backbone
        self.method = method
        self.base = base
        self.selection = selection
        self.cvat_weights = cvat_weights
        self.rounds = rounds
        self.n_models = n_models
        self.hidden = hidden
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.patience = patience
        self.categorical = categorical
        self.missing = missing
        self.propensity_floor = propensity_floor
        self.device = device
        self.random_state = random_state

    # --- learning --------------------------------------------------------------------------------

    def fit(self, X: Any, action: Any, outcome: Any, propensity: Any = None, sample_weight: Any = None) -> Self:  # noqa: N803
        """Learn from a log.

        Args:
            X: contexts ``[N, columns]``: pandas, polars, Arrow, NumPy, sparse or torch; text columns are categories.
            action: the action taken, ``[N]``, of any labels.
            outcome: the outcome observed, ``[N]``, of any labels; None or NaN where it was not observed.
            propensity: the probability with which the action was taken, ``[N]``, or of each action, ``[N, K]`` in
                the order of ``actions_`` (a table's columns may be named by action); used by ``udm`` and by rules that
                weight by it, estimated by default.
            sample_weight: how much a row counts, ``[N]``.

        Raises:
            InputError: an option, column or row that cannot be worked with.
        """
        part, rule, random = self.check_options()
        warn_of_order(X, action=action, outcome=outcome, propensity=propensity, sample_weight=sample_weight)
        frame = as_frame(X)
        validate_data(self, X, skip_check_array=True)
        self.n_features_in_ = frame.shape[1]
        actions, outcomes = Labels.of("action", action), Labels.of("outcome", outcome)
        log = self._log(part, frame, actions, outcomes, action, outcome, propensity, sample_weight)
        n_models = self.models_for(log.n_rows)
        train, held_out = folds(log, n_models, random)
        first_seed = int(random.randint(2**31 - N_FOLDS))
        seeds = range(first_seed, first_seed + n_models)
        fitter = partial(fit, accelerator="gpu" if self._device() == "cuda" else "cpu", barebones=True)
        data, protocol = LogDataModule(train, held_out), self.protocol(log.n_rows)
        self.module_, self.candidates_, chosen = train_candidates(
            part, self.method, rule, data, seeds, protocol, fitter
        )
        self.method_, self.cvat_weight_ = chosen.method, chosen.cvat_weight
        if bool((self.module_.failed_epoch > 0).any()):
            raise InputError(
                f"training diverged (learning_rate={self.learning_rate}): its loss turned infinite; lower the "
                "learning rate, or look for huge values among the features"
            )
        self.held_out_: HeldOut | None = held_out_nll(self.module_, train, held_out)
        if self.held_out_.nll < _TOO_GOOD * self.held_out_.constant:
            warn(
                f"the NLL of the held-out outcomes is {self.held_out_.nll:.4f}, of a constant "
                f"{self.held_out_.constant:.4f}, which is too good to be true: a feature may give the outcome away "
                "(known only after it); `diagnose` names it"
            )
        self.overlap_ = overlap_of(part, rule, log, protocol)
        self.actions_, self.classes_ = actions.array(), outcomes.array()
        self.action_labels_, self.outcome_labels_ = actions, outcomes
        return self

    def _log(
        self,
        part: type[StackedModule],
        frame: pd.DataFrame,
        actions: Labels,
        outcomes: Labels,
        action: Any,
        outcome: Any,
        propensity: Any,
        weight: Any,
    ) -> Feedback:
        n_rows = len(frame)
        if n_rows < 2 * N_FOLDS:
            raise InputError(
                f"X has n_samples={n_rows}: at least {2 * N_FOLDS} rows are needed, and some hundred to learn"
            )
        if n_rows < MIN_ROWS:
            warn(f"X has {counted(n_rows, 'row')}: fewer than {MIN_ROWS} teach next to nothing")
        taken, seen = actions.index(action), outcomes.index(outcome)
        for role, column in (("action", taken), ("outcome", seen)):
            if len(column) != n_rows:
                raise InputError(f"{role} has {len(column)} rows, X has {n_rows}")
        for labels, column in ((actions, taken), (outcomes, seen)):
            check_classes(labels, int((column >= 0).sum()))
        if weight is not None:
            weight = weights_of_rows("sample_weight", weight, n_rows)
        missing = np.flatnonzero(taken < 0)
        if len(missing):
            raise InputError(
                f"action is missing in row {missing[0]} (from 0): every row needs the action that was taken"
            )
        if not outcomes.values:
            raise InputError("outcome is missing in every row: at least two different ones are needed")
        if len(outcomes.values) < 2:
            raise InputError(
                f"outcome holds {shown_list(outcomes.values)} alone: there is nothing to learn with "
                "fewer than two classes"
            )
        self.encoder_ = FeatureEncoder(self.categorical, self.missing).fit(frame)  # type: ignore[arg-type]  # checked there
        x = self.encoder_.transform(frame)
        n_actions, n_outcomes = len(actions.values), len(outcomes.values)
        propensity = in_order(propensity, actions, "propensity")
        given = None if propensity is None else whole_propensity(propensity, taken, n_actions)
        counts = np.zeros((n_actions, n_outcomes), np.int64)
        known = (seen >= 0) if weight is None else (seen >= 0) & (weight > 0).numpy()
        np.add.at(counts, (taken[known], seen[known]), 1)
        self.outcome_counts_: NDArray[np.int64] | None = counts
        warn_of_rare(actions, outcomes, counts, part, weighted=weight is not None)
        warn_of_no_overlap(x, taken, n_actions)
        return Feedback(x, taken, seen, n_actions, n_outcomes, given, allow_unlogged=True, weight=weight)  # type: ignore[arg-type]

    # --- options ---------------------------------------------------------------------------------

    def check_options(self) -> tuple[type[StackedModule], str | None, np.random.RandomState]:
        """The backbone, the rule and the random numbers that the options ask for; ``fit`` begins with it.

        Raises:
            InputError: an option that no log could be trained with.
        """
        part, rule = self._chosen_part(), self._rule()
        FeatureEncoder(self.categorical, self.missing)  # type: ignore[arg-type]  # checked there
        self.models_for(_MANY_ROWS)
        self.protocol(_MANY_ROWS)
        self._device()
        check_idle(self.get_params(deep=False), CounterfactualClassifier().get_params(), part, rule)
        try:
            return part, rule, check_random_state(self.random_state)
        except ValueError as error:
            raise InputError(f"random_state={self.random_state!r}: allowed are integers from 0") from error

    def _chosen_part(self) -> type[StackedModule]:
        if isinstance(self.method, type):
            name = self.method.__name__
            raise InputError(f"method is the class {name} itself: give its path, as in method='my_package.{name}'")
        method = get_method(str(self.method))
        if self.base is not None:
            if self.backbone not in (None, "s_learner", "t_learner"):
                raise InputError(f"backbone={self.backbone!r} with a base: allowed are s_learner and t_learner")
            part: type[StackedModule] = learner(self.base, per_action=self.backbone == "t_learner", soft=method.soft)
            if self.method != "backbone":
                check_searches(self.base)
        elif self.backbone in ("s_learner", "t_learner"):
            raise InputError(f"backbone={self.backbone!r} needs base=, a scikit-learn classifier")
        elif isinstance(self.backbone, type) and issubclass(self.backbone, StackedModule):
            part = self.backbone
        else:
            part = backbones().get(str(self.backbone or "dm"))
        if (method.cvat or method.student) and not part.has_gradient:
            what = "CVAT" if method.cvat else "a student"
            raise InputError(
                f"method={self.method}: {self.base or self.backbone} has no gradient for {what}; allowed are backbone, "
                "pl, pl_soft"
            )
        if method.cvat and self.selection is None and len(self.cvat_weights) != 1:
            raise InputError(f"cvat_weights={self.cvat_weights}: selection=None chooses nothing, so give a single one")
        return part

    def _rule(self) -> str | None:
        if isinstance(self.selection, Rule):
            raise InputError(
                f"selection is the rule {self.selection.name!r} itself: give its path, as in "
                'selection="my_package.MY_RULE", or its name where it is an entry point'
            )
        honest = [AUTO, *(name for name, known in known_rules().items() if not known.oracle)]
        if self.selection is None or self.selection in honest:
            return self.selection
        if not isinstance(self.selection, str) or "." not in self.selection:
            raise unknown_name("selection", str(self.selection), honest)
        if get_rule(self.selection).oracle:
            raise InputError(f"selection={self.selection}: it is an oracle, and a log has no outcomes of other actions")
        return self.selection

    def models_for(self, n_rows: int) -> int:
        """How many models are trained, each on the rows that another fold leaves: fewer for a log of many rows.

        Raises:
            InputError: ``n_models`` is no number of them.
        """
        n_models = self.n_models if self.n_models is not None else (N_FOLDS if n_rows <= _MANY_ROWS else 1)
        if not isinstance(n_models, int | np.integer) or not 1 <= n_models <= N_FOLDS:
            raise InputError(f"n_models={self.n_models!r}: allowed are 1 to {N_FOLDS}")
        return int(n_models)

    def protocol(self, n_rows: int) -> Protocol:
        """The level field's settings, with larger minibatches and less patience for many rows.

        Raises:
            InputError: an option that is no number, or not in its range.
        """
        if not isinstance(self.cvat_weights, Iterable) or isinstance(self.cvat_weights, str):
            raise InputError(f"cvat_weights={self.cvat_weights!r}: allowed is a list of numbers, such as [0.1, 1.0]")
        n_train = n_rows - n_rows // N_FOLDS
        growth = max(1.0, n_rows / _MANY_ROWS)
        of_size = min(1024, 64 * 2 ** int(np.log2(growth)))
        batch_size = of_size if self.batch_size is None else self.batch_size
        try:
            return MATCHED.replace(
                hidden=self.hidden,
                hidden_udm=self.hidden,
                hidden_cst=self.hidden,
                dropout=self.dropout,
                learning_rate=self.learning_rate,
                learning_rate_hsic=self.learning_rate,
                learning_rate_cst=self.learning_rate,
                max_epochs=self.max_epochs,
                max_epochs_hsic=self.max_epochs,
                max_epochs_udm=self.max_epochs,
                max_epochs_cst=(self.max_epochs,),
                batch_size=min(n_train, batch_size) if isinstance(batch_size, int | np.integer) else batch_size,
                patience=max(2, round(20 / growth)) if self.patience is None else self.patience,
                rounds=self.rounds,
                cvat_weights=tuple(self.cvat_weights),
                propensity_floor=self.propensity_floor,
            )
        except InputError as error:  # an option has the name of the first field that it sets
            raise InputError(str(error).removeprefix("protocol field ")) from None

    def _device(self) -> str:
        if self.device not in ("auto", "cpu", "cuda"):
            raise InputError(f"device={self.device!r}: allowed are auto, cpu and cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("device='cuda': there is no CUDA device here; allowed are auto and cpu")
        return "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"

    # --- predicting ------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Probability of each outcome under each action, ``[n, K, m]``, ordered as ``actions_`` and ``classes_``."""
        check_is_fitted(self)
        frame = as_frame(X)
        try:
            validate_data(self, X, skip_check_array=True, reset=False)
        except ValueError as error:
            said = str(error)
            if "names" in said:  # scikit-learn's own words, which its checks ask for, stand below
                said = f"{_other_columns(list(frame.columns), list(self.feature_names_in_))}\n{said.rstrip()}"
            raise InputError(said) from None
        if frame.shape[1] != self.n_features_in_:
            raise InputError(f"X has {frame.shape[1]} columns, and had {self.n_features_in_} in training")
        if frame.empty:
            return np.empty((0, len(self.actions_), len(self.classes_)))
        x = torch.from_numpy(self.encoder_.transform(frame))
        return np.asarray(self.module_(x).double().mean(0))

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The likeliest outcome under each action, ``[n, K]``, as it was labelled."""
        likeliest = self.predict_proba(X).argmax(-1)
        return np.asarray(self.classes_[likeliest])

    def recommend(self, X: Any, value: Any = None, actions: Any = None) -> NDArray[Any]:  # noqa: N803
        """The action of highest expected value, ``[n]``, as it was labelled.

        Args:
            value: what an outcome is worth: a dict by outcome, of numbers, of ``"action"`` where it is worth the
                number that the action is (a price), or of dicts by action; or numbers ``[m]``, ``[K, m]`` or
                ``[n, K, m]``. By default outcomes that are numbers or booleans are worth themselves.
            actions: those allowed: a list for every row, a list of lists, one a row, or booleans ``[n, K]`` in the
                order of ``actions_``. Lists of booleans are such a mask too, unless the actions are booleans: then
                they are lists of actions.

        Columns of a table that are named by actions or outcomes are matched by name.
        """
        if by_row(actions):
            warn_of_order(X, actions=actions)
        expected = self.expected_value(X, value)
        expected[~allowed_actions(actions, len(expected), self.action_labels_)] = -np.inf
        return np.asarray(self.actions_[expected.argmax(1)])

    def expected_value(self, X: Any, value: Any = None) -> NDArray[np.float64]:  # noqa: N803
        """Expected value of each action, ``[n, K]``; ``value`` as in ``recommend``."""
        p = self.predict_proba(X)
        return np.asarray((p * worth(value, p.shape, self.action_labels_, self.outcome_labels_)).sum(-1))

    def score(self, X: Any, action: Any, outcome: Any = None, sample_weight: Any = None) -> float:  # noqa: N803
        """Mean log-likelihood of the observed outcomes (higher is better): no other outcome is needed."""
        if outcome is None:
            raise InputError(
                "score needs the outcomes beside the actions: for a search or cross-validation call "
                "sklearn.set_config(enable_metadata_routing=True) and "
                "model.set_fit_request(outcome=True).set_score_request(outcome=True)"
            )
        warn_of_order(X, action=action, outcome=outcome, sample_weight=sample_weight)
        p = self.predict_proba(X)
        taken, seen = self.action_labels_.index(action), self.outcome_labels_.index(outcome)
        if (taken < 0).any():
            row = int((taken < 0).argmax())
            raise InputError(f"action is missing in row {row} (from 0): every row needs the action taken")
        if not len(p) == len(taken) == len(seen):
            raise InputError(f"X has {len(p)} rows, action {len(taken)}, outcome {len(seen)}: all must have as many")
        weight = np.ones(len(p))
        if sample_weight is not None:
            weight = weights_of_rows("sample_weight", sample_weight, len(p)).double().numpy()
        weight = weight * (seen >= 0)
        if not weight.sum() > 0:
            raise InputError("outcome is missing in every row that counts: nothing can be scored")
        likelihood = p[np.arange(len(p)), taken, seen].clip(np.finfo(np.float32).tiny)
        return float(np.average(np.log(likelihood), weights=weight))

    # --- keeping ---------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the fitted model to the folder ``path``: see ``cst_lightning.saving``."""
        save(self, path)

    @staticmethod
    def load(path: str | Path, trust: Sequence[str] = ()) -> CounterfactualClassifier:
        """The model that ``save`` wrote; classes of your own only from the packages named in ``trust``."""
        return load(CounterfactualClassifier, path, trust)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.string = tags.input_tags.categorical = True
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.non_deterministic = self.random_state is None
        return tags


def _other_columns(names: list[str], known: list[str]) -> str:
    """In one line: the first column that is another than in training, and what to do."""
    more, lacking = ([n for n in one if n not in other] for one, other in ((names, known), (known, names)))
    if more:
        fault = f"column {more[0]!r} was not there in training"
    elif lacking:
        fault = f"column {lacking[0]!r} of the training is missing"
    else:
        place = next(i for i, name in enumerate(names) if name != known[i])
        fault = f"column {names[place]!r} stands where training had {known[place]!r}"
    return f"{fault}: give the columns of the training in their order, X[list(model.feature_names_in_)]"
