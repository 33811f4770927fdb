"""Counterfactual self-training (Algorithm 1): impute outcomes of the actions not taken, retrain, repeat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from typing_extensions import override

from cst_lightning.compiled import Cvat, logits_with_dropout
from cst_lightning.distributions import mode, one_hot, positive_probs
from cst_lightning.errors import InputError
from cst_lightning.feedback import MISSING, Feedback, PotentialOutcomes
from cst_lightning.fitting import LogDataModule, fit
from cst_lightning.losses import Entries, cvat, mean_objective, rows_last
from cst_lightning.minibatches import put_rows, runs, take_rows
from cst_lightning.networks import OutcomeNetwork
from cst_lightning.protocols import Protocol
from cst_lightning.stacked import StackedModule, overrides
from cst_lightning.streams import uniform, whole_words

_ROWS = 2048  # at a time, in what describes a round


class SelfTraining(StackedModule):
    """The student of one round: factual and imputed outcomes together, plus CVAT.

    The grid holds the CVAT weight; a variant of weight 0 is trained with pseudo-labels alone (PL), so
    one stack trains both methods. Give it a teacher (``teach``) before ``fit``; a checkpoint predicts
    without one.
    """

    name = "cst"
    protocol_fields = ()  # beyond those of every self-training
    _counterfactual: Tensor  # 1 at actions not taken, [S, N, K]
    _entries: Entries  # factual outcomes and pseudo-labels of the whole log

    @override
    @classmethod
    def hidden_units(cls, protocol: Protocol) -> int:
        return protocol.hidden_cst

    @override
    @classmethod
    def rate(cls, protocol: Protocol) -> float:
        return protocol.learning_rate_cst

    @override
    @classmethod
    def epochs(cls, protocol: Protocol) -> int:
        return protocol.cst_epochs(0)

    @property
    @override
    def max_epochs(self) -> int:
        return self.protocol.cst_epochs(max(0, self.stage - 1))

    @override
    def kept(self) -> Literal["last", "best"]:
        return self.protocol.keep_cst

    @override
    def on_fit_end(self) -> None:
        """Lightning takes the student back to the CPU; the hidden teacher must go with it."""
        assert self._teacher is not None
        self._teacher[0].cpu()

    @override
    def teach(self, teacher: StackedModule) -> None:
        """Take pseudo-labels from ``teacher``: one variant for all of the student's, or one for each."""
        if teacher.seeds != self.seeds or teacher.n_variants not in (1, self.n_variants):
            raise InputError(
                f"teacher has seeds {teacher.seeds} and {teacher.n_variants} variants, the student "
                f"{self.seeds} and {self.n_variants}: the seeds must agree, and one variant or as many"
            )
        if self.protocol.drop_median and self.shape.n_outcomes != 2:
            raise InputError("protocol field drop_median=True: allowed for two outcomes only")
        super().teach(teacher)
        if self.protocol.warm_start:
            self._start_from(teacher)

    @override
    def prepare(self, feedback: Feedback) -> None:
        if self._teacher is None:
            raise RuntimeError("call teach(teacher) before fit: self-training needs a source of pseudo-labels")
        teacher = self._teacher[0].to(self.device)
        self.reduction, self._labelled = self.protocol.reduction, False
        self._counterfactual = (~feedback.taken).float()
        if not self.protocol.teacher_dropout:
            labels = pseudo_labels(teacher.logits(feedback.x), self.protocol.labels)
            weight = self._counted(feedback)
            weight = weight.repeat_interleave(len(labels) // len(weight), 0)
            self._entries = Entries(with_factual(labels, feedback), weight)

    def _counted(self, feedback: Feedback) -> Tensor:
        """1 where an entry counts: everywhere but at outcomes that are missing."""
        missing = (feedback.outcome == MISSING)[..., None]
        return torch.where(missing, self._counterfactual, 1)

    @override
    @torch.no_grad()
    def new_epoch(self, feedback: Feedback, order: Tensor | None, bounds: Sequence[int]) -> None:
        """Under ``teacher_dropout``, label anew by a pass of the teacher with dropout on (``train_selfdm``)."""
        if not self.protocol.teacher_dropout:
            return
        logits = self._teacher_logits(feedback, order, bounds)
        weight = self._counted(feedback)
        if self.protocol.drop_median:
            tied = at_median(positive_probs(logits)[..., 0], bounds)
            tied = tied if order is None else put_rows(tied, order)
            n_labellings = len(logits) // len(weight)
            taken, weight = (t.repeat_interleave(n_labellings, 0) for t in (feedback.taken, weight))
            weight = weight.masked_fill(tied & ~taken, 0)
        logits = logits if order is None else put_rows(logits, order)
        target = with_factual(pseudo_labels(logits, self.protocol.labels), feedback)
        if self.engine == "graphs" and self._labelled:
            for place, fresh in zip(self._entries, (target, weight), strict=True):
                place.copy_(fresh)  # a recorded step reads where the first epoch's lay
        else:
            self._entries, self._labelled = Entries(target, weight), True

    def _teacher_logits(self, feedback: Feedback, order: Tensor | None, bounds: Sequence[int]) -> Tensor:
        """With dropout, ``[S or R, N, K, m-1]`` in the order of the epoch."""
        assert self._teacher is not None
        network = self._teacher[0].network
        compiled = self.compiled and type(network) is OutcomeNetwork and self.shape.n_outcomes == 2
        parts = []
        for run in runs(bounds, (2 * network.n_bits(1) + 4 * self.shape.n_features) * len(self.seeds)):
            rows = slice(run[0], run[-1]) if order is None else order[:, run[0] : run[-1]]
            x, own = take_rows(feedback.x, rows), [stop - run[0] for stop in run]
            if compiled and isinstance(network, OutcomeNetwork) and x.device.type == "cpu":
                n_bits = sum(whole_words(network.n_bits(stop - start)) for start, stop in pairwise(run))
                parts.append(logits_with_dropout(network, x, self.random("teacher", n_bits), own))
            else:
                parts += [
                    network(x[:, start:stop], self.random("teacher", network.n_bits(stop - start)), track=False).logits
                    for start, stop in pairwise(own)
                ]
        return self._teacher[0].calibrate(torch.cat(parts, 1))

    @override
    def entries(self, batch: Feedback, rows: slice | Tensor) -> Entries:
        return Entries(*(take_rows(tensor, rows) for tensor in self._entries))

    @override
    def batch_loss(self, batch: Feedback, rows: slice | Tensor) -> Tensor:
        protocol, n_rows = self.protocol, batch.n_rows
        logits = self.network(batch.x, self.bits("dropout", n_rows)).logits
        loss = self.entry_loss(logits, batch, rows)
        if not self._has_cvat():
            return loss
        start = uniform(self.random("cvat", batch.x[0].numel())).view(batch.x.shape)
        smoothness = cvat(
            lambda x: self.network(x, self.bits("cvat", n_rows), track=False).logits,
            logits,
            batch.x,
            start,
            rows_last(self.repeat(take_rows(self._counterfactual, rows))),
            xi=protocol.cvat_xi,
            eps=protocol.cvat_eps,
            iterations=protocol.cvat_iterations,
            reduction=self.reduction,
            smoothing=protocol.cvat_smoothing,
        )
        return loss + self.hyperparameter * smoothness

    @override
    def can_compile(self) -> bool:
        return not overrides(self, SelfTraining, ("batch_loss",)) and self._passes_over_nothing()

    @override
    def compiled_cvat(self, rows: slice | Tensor, sizes: Sequence[int]) -> Cvat | None:
        if not self._has_cvat():
            return None
        protocol = self.protocol
        passes = protocol.cvat_iterations + 1
        n_bits = (whole_words(n * self.shape.n_features) + passes * whole_words(self.network.n_bits(n)) for n in sizes)
        return Cvat(
            self.hyperparameter,
            take_rows(self._counterfactual, rows),
            self.random("cvat", sum(n_bits)),
            protocol.cvat_xi,
            protocol.cvat_eps,
            protocol.cvat_iterations,
            protocol.cvat_smoothing,
        )

    def _has_cvat(self) -> bool:
        return any(any(row) for row in self.grid)

    @torch.no_grad()
    def _start_from(self, teacher: StackedModule) -> None:
        source = teacher.replicate_state()
        for name, value in self.replicate_state().items():
            given = source.get(name)
            if given is None or given.shape[1:] != value.shape[1:]:
                raise InputError("warm_start=True: teacher and student must have the same network (hidden, depth)")
            value.copy_(given if len(given) == len(value) else self.repeat(given))


@dataclass(frozen=True)
class Round:
    """What one round of self-training did; lists hold one value a replicate (``[R]``).

    Attributes:
        objective_start: objective of the teacher with its own labels (factual and imputed NLL a row, without
            CVAT's term). A student that starts from fresh weights need not end below it.
        objective_end: objective of the student with the same labels.
        objective_imputed: objective of the student once it has imputed anew; for hard labels never
            above ``objective_end`` (step 1 of Proposition 1).
        changed: share of pseudo-labels that the student would give otherwise than its teacher.
        stopped_epoch: epochs trained. failed_epoch: epoch in which the loss turned non-finite, else 0.
        inconsistency: share of (row, action) entries whose likeliest outcome the student changes under the
            perturbation of length ``cvat_eps`` that moves its logit most: ``R_B(f)`` of Theorem 1, from below.
            None for a student without gradients or with more than two outcomes.
        label_error: where potential outcomes are known, the share of wrong pseudo-labels among the
            entries of each action and true outcome, ``[R][K][m]`` (None where there is no such entry).
        bayes_error: the same against the Bayes classifier ``f*`` (``PotentialOutcomes.likeliest``): its largest
            entry is the ``alpha`` that Theorem 1 wants below 0.2.
        teacher_error, student_error: share of all entries of the log at which teacher and student differ
            from ``f*``: ``Err`` of Theorem 1.
    """

    objective_start: list[float]
    objective_end: list[float]
    objective_imputed: list[float]
    changed: list[float]
    stopped_epoch: list[int]
    failed_epoch: list[int]
    inconsistency: list[float] | None
    label_error: list[list[list[float | None]]] | None
    bayes_error: list[list[list[float | None]]] | None
    teacher_error: list[float] | None
    student_error: list[float] | None


def self_train(
    backbone: StackedModule,
    data: pl.LightningDataModule | Feedback,
    *,
    cvat_weights: Sequence[float] = (0.0,),
    rounds: int | None = None,
    audit: PotentialOutcomes | None = None,
    network: Callable[[], nn.Module] | None = None,
    fitter: Callable[..., None] = fit,
    on_round: Callable[[StackedModule, Round], None] | None = None,
    protocol: Protocol | None = None,
) -> StackedModule:
    """Algorithm 1: train one student for each CVAT weight of each seed, all in one stack.

    Args:
        backbone: a trained backbone with one variant a seed; it is the first teacher. A scikit-learn
            learner's students are learners of its kind, any other's ``SelfTraining`` modules.
        data: a data module whose ``train`` is the log, or the log itself.
        cvat_weights: one student each; 0 is PL.
        rounds: by default the protocol's.
        audit: the potential outcomes of the training rows, used for what ``Round`` says of errors alone.
        network: a plain ``nn.Module`` factory for the students (see ``LiftedNetwork``); by default the backbone's.
        fitter: called as ``fitter(module, data, max_epochs=...)``.
        on_round: called with the student and what its round did.
        protocol: of the students; by default the backbone's.

    Returns:
        The student of the last round, ``S * len(cvat_weights)`` replicates.
    """
    protocol = protocol or backbone.protocol
    if not all(0 <= weight < math.inf for weight in cvat_weights):
        raise InputError(f"cvat_weights={list(cvat_weights)}: allowed are finite weights from 0")
    if any(cvat_weights) and not backbone.has_gradient:
        raise InputError(f"cvat_weights={list(cvat_weights)}: {backbone.name} has no gradient for CVAT; allowed is 0")
    n_rounds = protocol.rounds if rounds is None else rounds
    if n_rounds < 1:
        raise InputError(f"rounds={rounds}: allowed is from 1")
    data = LogDataModule(data) if isinstance(data, Feedback) else data
    feedback: Feedback = data.train  # type: ignore[attr-defined]  # every data module of a log has it
    network = network or backbone.factory
    student_class = backbone.student_class or SelfTraining
    teacher = backbone
    for number in range(n_rounds):
        student = student_class(backbone.shape, backbone.seeds, protocol, cvat_weights, network, number + 1)
        student.teach(teacher)
        fitter(student, data, max_epochs=student.max_epochs)
        if on_round is not None:
            on_round(student, _describe(teacher, student, feedback.expand(len(student.seeds)), audit))
        teacher = student
    return student


def pseudo_labels(logits: Tensor, labels: str) -> Tensor:
    """Targets ``[R, N, K, m-1]`` from a teacher's logits: its likeliest outcome (``hard``) or its distribution."""
    if labels == "soft":
        return positive_probs(logits)
    return one_hot(mode(logits), logits.shape[-1] + 1, logits.dtype)


def with_factual(target: Tensor, feedback: Feedback) -> Tensor:
    """Targets ``[S or R, N, K, m-1]`` with the observed outcome at the action taken (where it is not missing)."""
    observed = one_hot(feedback.outcome, feedback.n_outcomes, target.dtype)
    here = (feedback.taken & (feedback.outcome != MISSING)[..., None])[..., None]
    n_labellings = len(target) // len(here)
    observed, here = (t.repeat_interleave(n_labellings, 0) for t in (observed, here))
    return torch.where(here, observed[:, :, None], target)


def label_error(labels: Tensor, feedback: Feedback, truth: Tensor, n_outcomes: int) -> Tensor:
    """Share of wrong pseudo-labels by action and true outcome, ``[R, K, m]`` (NaN where there is no entry).

    Args:
        labels: outcome indices of every action, ``[R, N, K]``; only actions not taken are counted.
        truth: the right ones, ``[S, N, K]``.
    """
    n_labellings = len(labels) // len(feedback.action)
    truth, taken = (t.repeat_interleave(n_labellings, 0) for t in (truth, feedback.taken))
    of_class = torch.nn.functional.one_hot(truth, n_outcomes).bool() & ~taken[..., None]
    wrong = (labels != truth)[..., None] & of_class
    return wrong.sum(1) / of_class.sum(1)


def at_median(p: Tensor, bounds: Sequence[int]) -> Tensor:
    """Whether a value is exactly the median of its action in its minibatch, bool ``[R, N, K]``.

    The median of an even number lies between the middle two, so it is a value where they are the same.
    """
    parts: list[Tensor] = []
    sizes = [stop - start for start, stop in pairwise(bounds)]
    for size, alike in groupby(sizes):  # all minibatches of one size at once
        start = sum(part.shape[1] for part in parts)
        part = p[:, start : start + size * len(list(alike))]
        batches = part.reshape(len(p), -1, size, p.shape[2]).transpose(2, 3)
        middle = batches.contiguous().sort(-1).values[..., [(size - 1) // 2, size // 2]]
        tied = (batches == middle[..., :1]) & (batches == middle[..., 1:])
        parts.append(tied.transpose(2, 3).flatten(1, 2))
    return torch.cat(parts, 1)


@torch.no_grad()
def _describe(
    teacher: StackedModule, student: StackedModule, feedback: Feedback, audit: PotentialOutcomes | None
) -> Round:
    by_teacher, by_student = teacher.logits(feedback.x).cpu(), student.logits(feedback.x).cpu()
    by_teacher = by_teacher.repeat_interleave(len(by_student) // len(by_teacher), 0)
    feedback = feedback.to("cpu")
    labels = student.protocol.labels
    old, new = (with_factual(pseudo_labels(logits, labels), feedback) for logits in (by_teacher, by_student))
    counterfactual = (~feedback.taken).float()
    counted = torch.where((feedback.outcome == MISSING)[..., None], counterfactual, 1.0)
    counterfactual, counted = (student.repeat(t) for t in (counterfactual, counted))
    changed = (mode(by_teacher) != mode(by_student)).float() * counterfactual
    errors = dict.fromkeys(("label_error", "bayes_error", "teacher_error", "student_error"))
    if audit is not None:
        errors = _errors(mode(by_teacher), mode(by_student), feedback, audit.to("cpu").expand(len(student.seeds)))
    return Round(
        objective_start=mean_objective(by_teacher, old, counted).tolist(),
        objective_end=mean_objective(by_student, old, counted).tolist(),
        objective_imputed=mean_objective(by_student, new, counted).tolist(),
        changed=(changed.sum((1, 2)) / counterfactual.sum((1, 2)).clamp(min=1)).tolist(),
        stopped_epoch=student.stopped_epoch.tolist(),
        failed_epoch=student.failed_epoch.tolist(),
        inconsistency=inconsistency(student, feedback.x, student.protocol.cvat_eps),
        **errors,
    )


def _errors(by_teacher: Tensor, by_student: Tensor, feedback: Feedback, audit: PotentialOutcomes) -> dict[str, Any]:
    truth = audit.likeliest()
    by_class = {"label_error": audit.outcomes, "bayes_error": truth}
    shares = {name: label_error(by_teacher, feedback, of, audit.n_outcomes) for name, of in by_class.items()}
    plain = {
        name: [[[None if v != v else v for v in row] for row in r] for r in s.tolist()] for name, s in shares.items()
    }
    truth = truth.repeat_interleave(len(by_student) // len(truth), 0)
    differs = {"teacher_error": by_teacher != truth, "student_error": by_student != truth}
    return plain | {name: wrong.float().mean((1, 2)).tolist() for name, wrong in differs.items()}


def inconsistency(module: StackedModule, x: Tensor, eps: float) -> list[float] | None:
    """Share of entries whose likeliest outcome changes within ``eps`` of their context, a lower bound; ``[R]``.

    Each (row, action) moves by ``eps`` along the gradient of its own logit, towards the other outcome.

    Args:
        x: contexts ``[S, N, d]``.
    """
    if not module.has_gradient or module.shape.n_outcomes != 2:
        return None
    x = module.repeat(x.to(module.device))
    changed = torch.zeros(x.shape[:1], device=x.device)
    starts = range(0, x.shape[1], _ROWS)
    for action, start in product(range(module.shape.n_actions), starts):
        at = x[:, start : start + _ROWS].detach().requires_grad_()
        with torch.enable_grad():
            logit = module.network(at, track=False).logits[:, :, action, 0]
            (gradient,) = torch.autograd.grad(logit.sum(), at)
        step = eps * gradient / gradient.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        moved = module.network(at - torch.where(logit > 0, 1, -1)[..., None] * step, track=False)
        changed += ((moved.logits[:, :, action, 0] > 0) != (logit > 0)).float().sum(1)
    return (changed / (module.shape.n_actions * x.shape[1])).tolist()
