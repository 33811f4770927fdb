"""Counterfactual self-training (Algorithm 1): impute outcomes of the actions not taken, retrain, repeat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from typing_extensions import override

from cst_lightning.compiled import Cvat, logits_with_dropout
from cst_lightning.distributions import positive_probs
from cst_lightning.engines import overrides
from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback, PotentialOutcomes
from cst_lightning.fitting import LogDataModule, fit
from cst_lightning.labels import at_median, counted_entries, pseudo_labels, with_factual
from cst_lightning.losses import Entries, cvat, rows_last
from cst_lightning.minibatches import put_rows, runs, take_rows
from cst_lightning.networks import OutcomeNetwork
from cst_lightning.protocols import Protocol
from cst_lightning.rounds import Round, describe
from cst_lightning.stacked import StackedModule
from cst_lightning.streams import uniform, whole_words


class SelfTraining(StackedModule):
    """The student of one round: factual and imputed outcomes together, plus CVAT.

    The grid holds the CVAT weight; a variant of weight 0 is trained with pseudo-labels alone (PL), so
    one stack trains both methods. Give it a teacher (``teach``) before ``fit``; a checkpoint predicts
    without one.
    """

    name = "cst"
    protocol_fields = ()  # beyond those of every self-training
    takes_weights = True
    #: of a method of one's own: the teacher's probabilities as labels, and the protocol's CVAT weights
    soft: ClassVar[bool] = False
    cvat: ClassVar[bool] = False
    _counterfactual: Tensor  # the row's weight at actions not taken, else 0, [S, N, K]
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
            raise InputError(
                "SelfTraining has no teacher: call teach(teacher) before fit, or self_train(backbone, data), which does"
            )
        teacher = self._teacher[0].to(self.device)
        self.reduction, self._labelled = self.protocol.reduction, False
        self._counterfactual = (~feedback.taken).float()
        if feedback.weight is not None:
            self._counterfactual *= feedback.weight[..., None]
        if not self.protocol.teacher_dropout:
            labels = pseudo_labels(teacher.logits(feedback.x), self.protocol.labels)
            weight = counted_entries(feedback)
            weight = weight.repeat_interleave(len(labels) // len(weight), 0)
            self._entries = Entries(with_factual(labels, feedback), weight)

    @override
    def prepares_by_row(self, log: Feedback) -> bool:
        return not overrides(self, SelfTraining, ("prepare",))

    @override
    @torch.no_grad()
    def new_epoch(self, feedback: Feedback, order: Tensor | None, bounds: Sequence[int]) -> None:
        """Under ``teacher_dropout``, label anew by a pass of the teacher with dropout on (``train_selfdm``)."""
        if not self.protocol.teacher_dropout:
            return
        logits = self._teacher_logits(feedback, order, bounds)
        weight = counted_entries(feedback)
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
    student: type[StackedModule] | None = None,
) -> StackedModule:
    """Algorithm 1: train one student for each CVAT weight of each seed, all in one stack.

    Args:
        backbone: a trained backbone with one variant a seed; it is the first teacher. A scikit-learn
            learner's students are learners of its kind, any other's ``SelfTraining`` modules.
        data: a data module, or the log itself. One that streams its log has no ``train``, which ``on_round`` needs.
        cvat_weights: one student each; 0 is PL.
        rounds: by default the protocol's.
        audit: the potential outcomes of the training rows, used for what ``Round`` says of errors alone.
        network: a plain ``nn.Module`` factory for the students (see ``LiftedNetwork``); by default the backbone's.
        fitter: called as ``fitter(module, data, max_epochs=...)``.
        on_round: called with the student and what its round did.
        protocol: of the students; by default the backbone's.
        student: their class; by default the backbone's ``student_class``, or ``SelfTraining``.

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
    network = network or backbone.factory
    make = student or backbone.student_class or SelfTraining
    teacher = backbone
    log: Feedback | None = None if on_round is None else data.train  # type: ignore[attr-defined]  # of a log's data module
    for number in range(n_rounds):
        trained = make(backbone.shape, backbone.seeds, protocol, cvat_weights, network, number + 1)
        trained.teach(teacher)
        fitter(trained, data, max_epochs=trained.max_epochs)
        if on_round is not None and log is not None:
            on_round(trained, describe(teacher, trained, log.expand(len(trained.seeds)), audit))
        teacher = trained
    return teacher
