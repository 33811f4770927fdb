"""The checks of a part of one's own fail for a part that does not keep a promise, and say which."""

import dataclasses

import pytest
import torch
from torch import nn

from cst_lightning import DirectMethod, InputError, PotentialOutcomes, SelfTraining
from cst_lightning.distributions import nll
from cst_lightning.losses import Entries, factual_nll
from cst_lightning.metrics import NLL
from cst_lightning.selection import RULES, Rule
from cst_lightning.testing import (
    RandomLogs,
    check_backbone,
    check_data_module,
    check_method,
    check_metric,
    check_rule,
)
from tests.parts import Coins


def shift(module, value):
    """Move the first weights of a module's network, ``[R, ...]``."""
    first = next(module.network.parameters())
    with torch.no_grad():
        first.add_(value(first))


# --- backbones ------------------------------------------------------------------------------------


class OfTheGlobalGenerator(DirectMethod):
    def prepare(self, feedback):
        shift(self, torch.randn_like)


class OfItsNeighbours(DirectMethod):
    def prepare(self, feedback):
        shift(self, lambda first: first.mean(0, keepdim=True))


class NeverLearned(DirectMethod):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.network.idle = nn.Parameter(torch.zeros(len(self.seeds), 1))


class NoDistribution(DirectMethod):
    def forward(self, x):
        return 2 * super().forward(x)


class NotFinite(DirectMethod):
    def logits(self, x):
        return super().logits(x) / 0


class WithoutWeights(DirectMethod):
    def entries(self, batch, rows):
        return super().entries(dataclasses.replace(batch, weight=None), rows)


class Tied(DirectMethod):
    def batch_loss(self, batch, rows):
        logits = self.network(batch.x, self.bits("dropout", batch.n_rows)).logits
        loss = factual_nll(logits, self.repeat(batch.action), self.repeat(batch.outcome))
        return loss + 0 * loss.sum()


class SelectsAnother(DirectMethod):
    def select(self, variants):
        other = super().select(variants)
        shift(other, torch.ones_like)
        return other


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        (NoDistribution, "NoDistribution: probabilities do not sum to 1"),
        (NotFinite, "NotFinite: the loss of a replicate turned NaN or infinite"),
        (NeverLearned, "NeverLearned: parameter .*idle did not change in an epoch"),
        (OfTheGlobalGenerator, "OfTheGlobalGenerator: two trainings of the same seeds differ"),
        (OfItsNeighbours, "OfItsNeighbours: seed 5 trains otherwise alone or in another order"),
        (WithoutWeights, "WithoutWeights: outcomes of rows of weight 0 change what is learned"),
        (Tied, "Tied: NaN weights of the second of three seeds made others fail too: a loss ties replicates together"),
        (SelectsAnother, "SelectsAnother: select gives a module that predicts otherwise"),
    ],
)
def test_a_backbone_that_breaks_a_promise(backbone, message):
    with pytest.raises(AssertionError, match=message):
        check_backbone(backbone)


@pytest.mark.parametrize("part", ["dm", 3, nn.Linear])
@pytest.mark.parametrize("check", [check_backbone, check_method, check_metric, check_rule])
def test_what_is_no_part_is_told_in_a_line(check, part):
    with pytest.raises(InputError, match=rf"{check.__name__}\(.*\): allowed is a (class, a subclass of|Rule)"):
        check(part)
    with pytest.raises(InputError, match=r"check_data_module\('dm'\): allowed is a class or a function"):
        check_data_module("dm")


# --- methods --------------------------------------------------------------------------------------


class StudentOfTheGlobalGenerator(SelfTraining):
    name = "of_the_global_generator"

    def prepare(self, feedback):
        super().prepare(feedback)
        shift(self, torch.randn_like)


class StudentOfItsNeighbours(SelfTraining):
    name = "of_its_neighbours"

    def entries(self, batch, rows):
        target, weight = super().entries(batch, rows)
        return Entries(target.mean(0, keepdim=True).expand_as(target), weight)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (StudentOfTheGlobalGenerator, "two trainings of the same seeds differ"),
        (StudentOfItsNeighbours, "trains otherwise alone than in a stack"),
    ],
)
def test_a_method_that_breaks_a_promise(method, message):
    with pytest.raises(AssertionError, match=f"{method.__name__}: .*{message}"):
        check_method(method)


# --- data modules ---------------------------------------------------------------------------------


class OneForAll(RandomLogs):
    def __init__(self, seeds):
        super().__init__([0] * len(seeds))
        self.seeds = list(seeds)


class Sorted(RandomLogs):
    def __init__(self, seeds):
        super().__init__(sorted(seeds))


class WithoutTest(RandomLogs):
    def __init__(self, seeds):
        super().__init__(seeds)
        self.test = None


class OtherTruth(RandomLogs):
    def __init__(self, seeds):
        super().__init__(seeds, holdout=False)
        self.train_outcomes = PotentialOutcomes(self.test.x, 1 - self.test.outcomes)


class OtherShape(RandomLogs):
    def __init__(self, seeds):
        super().__init__(seeds)
        self.shape = dataclasses.replace(self.shape, n_features=7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Coins, "Coins: train.x of seed 1 is another alone than beside seed 0"),
        (OneForAll, "seeds 0 and 1 draw the same training rows, so they are no replicates"),
        (Sorted, r"seeds are \[0, 1\], asked for were \[1, 0\]"),
        (WithoutTest, "train or test is missing"),
        (OtherTruth, "train_outcomes are not those of the training rows"),
        (OtherShape, "train has Shape.*, shape says Shape.*7"),
    ],
)
def test_a_data_module_that_breaks_a_promise(make, message):
    with pytest.raises(AssertionError, match=message):
        check_data_module(make)


# --- metrics --------------------------------------------------------------------------------------


class OfAllReplicates(NLL):
    def compute(self):
        return super().compute().mean()


class OfTheLastUpdate(NLL):
    def update(self, logits, outcomes):
        self.total, self.count = torch.zeros(()), torch.zeros(())
        super().update(logits, outcomes)


class AgainstTheOthers(NLL):
    def compute(self):
        value = super().compute()
        return value - value.mean()


class Infinite(NLL):
    def update(self, logits, outcomes):
        p = torch.sigmoid(logits[..., 0].float())
        self._add(-torch.log(1 - p))


class NoDirection(NLL):
    higher_is_better = None


@pytest.mark.parametrize("axes", [(1, 2), (0, 1, 2)])
def test_a_metric_that_takes_the_mean_over_rows_itself_is_told_what_to_mend(axes):
    class OfRows(NLL):
        def update(self, logits, outcomes):
            self._add(nll(logits, outcomes).mean(axes))

    with pytest.raises(InputError, match=r"OfRows adds a value of shape \(.*\): allowed is one for each row, \[R, N\]"):
        check_metric(OfRows)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (OfAllReplicates, r"compute gives \(1,\), allowed is one value a replicate, \(3,\)"),
        (OfTheLastUpdate, "rows in several updates give another value than in one"),
        (AgainstTheOthers, "a replicate alone has another value than beside others"),
        (Infinite, "for large logits, and must be finite"),
        (NoDirection, "set higher_is_better to True or False"),
    ],
)
def test_a_metric_that_breaks_a_promise(metric, message):
    with pytest.raises(AssertionError, match=f"{metric.__name__}.*{message}"):
        check_metric(metric)


# --- selection rules ------------------------------------------------------------------------------


def of_observed(change):
    """The rule ``observed_nll``, its scores changed."""
    score = RULES["observed_nll"].score
    return Rule("changed", oracle=False, score=lambda *given: change(score(*given)))


@pytest.mark.parametrize("name", RULES)
def test_every_rule_keeps_its_promises(name):
    check_rule(RULES[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda score: score.mean(), r"score gives \(\), allowed is one value a replicate, \(4,\)"),
        (lambda score: score / 0, "allowed are finite values"),
        (lambda score: score - score.mean(), "a variant scores otherwise alone than beside others"),
        (lambda score: -score, "the true probabilities do not score lower than the opposite ones"),
    ],
)
def test_a_rule_that_breaks_a_promise(change, message):
    with pytest.raises(AssertionError, match=f"rule changed.* {message}"):
        check_rule(of_observed(change))
