"""What a round of self-training did: the quantities of Proposition 1 and Theorem 1, measured on the log."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from cst_lightning.distributions import log_probs, mode
from cst_lightning.feedback import Feedback, PotentialOutcomes
from cst_lightning.labels import counted_entries, label_error, pseudo_labels, with_factual
from cst_lightning.losses import mean_objective
from cst_lightning.stacked import StackedModule

_ROWS = 2048  # at a time


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
            perturbation of length ``cvat_eps`` that moves its margin most: ``R_B(f)`` of Theorem 1, from below.
            None for a student without gradients.
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


@torch.no_grad()
def describe(
    teacher: StackedModule, student: StackedModule, feedback: Feedback, audit: PotentialOutcomes | None
) -> Round:
    """What the round of ``student`` did: see ``Round``.

    Args:
        feedback: the log, ``[S, N, ...]``. audit: its potential outcomes, where they are known.
    """
    by_teacher, by_student = teacher.logits(feedback.x).cpu(), student.logits(feedback.x).cpu()
    by_teacher = by_teacher.repeat_interleave(len(by_student) // len(by_teacher), 0)
    feedback = feedback.to("cpu")
    labels = student.protocol.labels
    old, new = (with_factual(pseudo_labels(logits, labels), feedback) for logits in (by_teacher, by_student))
    counterfactual = (~feedback.taken).float()
    counterfactual, counted = (student.repeat(t) for t in (counterfactual, counted_entries(feedback)))
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

    Each (row, action) moves by ``eps`` along the gradient of its own margin, the log-odds of the likeliest outcome
    against the second, towards that one.

    Args:
        x: contexts ``[S, N, d]``.
    """
    if not module.has_gradient:
        return None
    x = module.repeat(x.to(module.device))
    changed = torch.zeros(x.shape[:1], device=x.device)
    starts = range(0, x.shape[1], _ROWS)
    for action, start in product(range(module.shape.n_actions), starts):
        at = x[:, start : start + _ROWS].detach().requires_grad_()
        with torch.enable_grad():
            log_p = log_probs(module.network(at, track=False).logits[:, :, action])
            likeliest, second = log_p.topk(2, -1).values.unbind(-1)
            (gradient,) = torch.autograd.grad((likeliest - second).sum(), at)
        step = eps * gradient / gradient.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        moved = log_probs(module.network(at - step, track=False).logits[:, :, action])
        changed += (moved.argmax(-1) != log_p.argmax(-1)).float().sum(1)
    return (changed / (module.shape.n_actions * x.shape[1])).tolist()
