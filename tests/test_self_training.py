from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.separate_passes import SeparatePasses
from cst_lightning import DirectMethod, Feedback, InputError, PotentialOutcomes, SelfTraining, Shape, fit, self_train
from cst_lightning.distributions import mode
from cst_lightning.labels import at_median, label_error, pseudo_labels, with_factual
from cst_lightning.minibatches import put_rows
from cst_lightning.rounds import inconsistency
from cst_lightning.streams import Bits
from datamodules.pricing import PricingDataModule
from tests.conftest import TinyDataModule, tiny_protocol


def trained(protocol, data):
    module = DirectMethod(data.shape, data.seeds, protocol)
    fit(module, data)
    return module


@settings(max_examples=6)
@given(st.sampled_from(["written", "released", "matched"]), st.integers(2, 3), st.integers(1, 3))
def test_imputing_never_raises_the_objective(protocol_name, n_outcomes, rounds):
    if protocol_name == "released":
        n_outcomes = 2
    protocol = tiny_protocol(protocol_name)
    data = TinyDataModule([0, 1], protocol.holdout, m=n_outcomes)
    seen = []
    self_train(
        trained(protocol, data),
        data,
        cvat_weights=[0.0, 1.0],
        rounds=rounds,
        on_round=lambda _, done: seen.append(done),
    )
    assert len(seen) == rounds
    for done in seen:
        assert all(new <= old + 1e-6 for new, old in zip(done.objective_imputed, done.objective_end, strict=True))
        assert all(0 <= share <= 1 for share in done.changed)
    for before, after in pairwise(seen):
        assert after.objective_start == pytest.approx(before.objective_imputed, rel=1e-5)


def test_labels_are_the_teachers_and_factual_outcomes_stay():
    logits = torch.tensor([[[[3.0], [-1.0]], [[0.5], [2.0]]]])
    feedback = Feedback(torch.zeros(1, 2, 1), [[1, 0]], [[1, -1]], 2)
    hard = pseudo_labels(logits, "hard")
    assert hard[..., 0].tolist() == [[[1, 0], [1, 1]]]
    assert torch.allclose(pseudo_labels(logits, "soft"), torch.sigmoid(logits))
    target = with_factual(hard, feedback)
    assert target[..., 0].tolist() == [[[1, 1], [1, 1]]]  # row 0, action 1 observed 1; row 1 observed nothing


def test_a_missing_outcome_does_not_count_but_its_other_actions_do():
    protocol = tiny_protocol(batch_size=4)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1, 8, 2, generator=g)
    feedback = Feedback(x, [[0, 1] * 4], [[0, 1, -1, 1, 0, -1, 1, 1]], 2)
    student = SelfTraining(feedback.shape, [0], protocol)
    student.teach(DirectMethod(feedback.shape, [0], protocol))
    student.prepare(feedback)
    assert student._entries.weight.sum().item() == 14
    assert student._entries.weight[0, 2].tolist() == [0, 1]
    assert student._counterfactual.sum().item() == 8


def test_label_error_counts_actions_not_taken_by_class():
    feedback = Feedback(torch.zeros(1, 4, 1), [[0, 0, 1, 1]], [[0, 0, 0, 0]], 2)
    potential = PotentialOutcomes(torch.zeros(1, 4, 1), torch.tensor([[[0, 1], [0, 1], [1, 0], [0, 0]]]))
    labels = torch.tensor([[[1, 1], [1, 0], [1, 1], [1, 1]]])
    error = label_error(labels, feedback, potential.outcomes, potential.n_outcomes)
    assert error[0].nan_to_num(-1).tolist() == [[1.0, 0.0], [-1.0, 0.5]]


def test_a_teacher_with_dropout_labels_anew_and_medians_are_left_out():
    protocol = tiny_protocol("released", batch_size=16)
    data = TinyDataModule([0])
    student = SelfTraining(data.shape, [0], protocol)
    student.teach(trained(protocol, data))
    student.prepare(data.train)
    student.streams = {purpose: Bits([0], purpose) for purpose in ("dropout", "teacher", "cvat")}
    taken = torch.nn.functional.one_hot(data.train.action, 3).bool()
    order = torch.randperm(48, generator=torch.Generator().manual_seed(0))[None]
    bounds = [0, 15, 48]  # odd numbers, so the median is one of the values
    drawn = []
    for compiled in (True, True, False):
        if not compiled:  # the first pass again, the other way
            student.streams["teacher"] = Bits([0], "teacher")
        student.compiled = compiled
        student.new_epoch(data.train, order, bounds)
        drawn.append(student._entries)
        assert torch.equal(student._entries.target[taken][:, 0], data.train.outcome[0].float())
    assert not torch.equal(drawn[0].target, drawn[1].target)
    assert torch.equal(drawn[0].target, drawn[2].target)
    student.streams["teacher"] = Bits([0], "teacher")
    tied = put_rows(at_median(student._teacher_logits(data.train, order, bounds)[..., 0].sigmoid(), bounds), order)
    assert tied.sum() >= 6  # one of each action in each minibatch
    for entries in (drawn[0], drawn[2]):
        assert torch.equal(entries.weight == 0, tied & ~taken)


def test_only_a_value_that_is_the_median_is_at_the_median():
    p = torch.tensor([[0.1, 0.5, 0.5, 0.9, 0.2, 0.7, 0.8, 0.3, 0.4, 0.1, 0.3]]).view(1, 11, 1)
    found = at_median(p, [0, 4, 8, 11])  # tied middle, middle of two, odd
    assert found.flatten().nonzero().flatten().tolist() == [1, 2, 10]


def test_pl_and_cvat_differ_and_weight_zero_is_pl():
    protocol = tiny_protocol(max_epochs_cst=[10])
    data = TinyDataModule([0])
    student = self_train(trained(protocol, data), data, cvat_weights=[0.0, 1e-12, 1.0])
    logits = student.logits(data.test.x)
    assert torch.allclose(logits[0], logits[1], atol=1e-4)
    assert not torch.allclose(logits[0], logits[2], atol=1e-3)


@pytest.mark.parametrize("warm", [False, True])
def test_a_round_starts_fresh_or_from_the_teacher(warm):
    protocol = tiny_protocol(warm_start=warm)
    data = TinyDataModule([0, 1])
    teacher = trained(protocol, data)
    student, untaught = (SelfTraining(data.shape, [0, 1], protocol, [0.0, 1.0]) for _ in range(2))
    student.teach(teacher)
    expected = teacher.network.linear[0].weight.repeat_interleave(2, 0) if warm else untaught.network.linear[0].weight
    assert torch.equal(student.network.linear[0].weight, expected)


def test_warm_start_needs_the_same_network():
    protocol = tiny_protocol(warm_start=True, hidden_cst=9)
    data = TinyDataModule([0])
    with pytest.raises(InputError, match="warm_start"):
        SelfTraining(data.shape, [0], protocol).teach(trained(protocol, data))


def test_a_student_needs_a_teacher_of_its_seeds():
    data = TinyDataModule([0, 1])
    protocol = tiny_protocol()
    student = SelfTraining(data.shape, [0, 1], protocol)
    with pytest.raises(InputError, match="has no teacher"):
        fit(student, data)
    with pytest.raises(InputError, match="teacher has seeds"):
        student.teach(DirectMethod(data.shape, [0, 2], protocol))


def test_one_action_leaves_nothing_to_impute_and_no_cvat():
    protocol = tiny_protocol()
    data = TinyDataModule([0], k=1)
    student = self_train(trained(protocol, data), data, cvat_weights=[0.0, 10.0])
    logits = student.logits(data.test.x)
    assert torch.isfinite(logits).all()
    assert torch.allclose(logits[0], logits[1])


def test_every_round_draws_anew():
    protocol, data = tiny_protocol(hidden_cst=6), TinyDataModule([0])
    modules = [SelfTraining(data.shape, [0], protocol, stage=stage) for stage in (0, 1, 2)]
    first = [module.network.linear[0].weight for module in modules]
    assert not any(torch.equal(first[i], first[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("weights", [[-1.0], [float("nan")], [float("inf")]])
def test_impossible_weights_are_an_error(weights):
    protocol, data = tiny_protocol(), TinyDataModule([0])
    with pytest.raises(InputError, match="cvat_weights"):
        self_train(trained(protocol, data), data, cvat_weights=weights)


@pytest.mark.parametrize("rounds", [0, -1])
def test_no_round_is_an_error(rounds):
    protocol, data = tiny_protocol(), TinyDataModule([0])
    with pytest.raises(InputError, match="rounds"):
        self_train(trained(protocol, data), data, rounds=rounds)


def test_rounds_take_their_own_epochs():
    protocol = tiny_protocol(stopping="fixed", max_epochs_cst=[4, 2])
    data = TinyDataModule([0])
    epochs = []
    self_train(trained(protocol, data), data, rounds=3, on_round=lambda _, done: epochs.append(done.stopped_epoch))
    assert epochs == [[4], [2], [2]]


def test_self_training_repairs_labels_where_classes_are_separated():
    # one feature decides, actions are logged at random: the student must not lose what the teacher knows
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1, 400, 2, generator=g)
    outcomes = (x[..., :1] > 0).long().expand(1, 400, 2)
    action = torch.randint(2, (1, 400), generator=g)

    class Separated(TinyDataModule):
        def draw(self):
            drawn = super().draw()
            log = Feedback(x, action, outcomes[..., 0], 2)
            return type(drawn)(log, None, None, PotentialOutcomes(x, outcomes))

    protocol = tiny_protocol(max_epochs=40, max_epochs_cst=[40], learning_rate=1e-2, learning_rate_cst=1e-2)
    data = Separated([0])
    student = self_train(trained(protocol, data), data, cvat_weights=[0.0])
    wrong = ((student.logits(x)[..., 0] > 0).long() != outcomes).float().mean().item()
    assert wrong < 0.05


def linear(weight, bias):
    """A module class of one action whose logits are linear: weights ``[m - 1, d]``, biases ``[m - 1]``."""

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(len(weight[0]), len(weight))
            with torch.no_grad():
                self.layer.weight.copy_(torch.tensor(weight))
                self.layer.bias.copy_(torch.tensor(bias))

        def forward(self, x):
            return self.layer(x).view(len(x), 1, len(weight))

    return Linear


def test_inconsistency_of_a_linear_model_is_how_many_lie_near_its_boundary():
    distance = torch.tensor([-3.0, -0.4, 0.2, 0.9, 1.1, 5.0])
    x = distance[:, None] * torch.tensor([0.6, 0.8])
    module = DirectMethod(Shape(2, 1), [0], network=linear([[3.0, 4.0]], [0.0]))
    assert inconsistency(module, x[None], 1.0) == pytest.approx([0.5])
    assert inconsistency(module, x[None], 0.3) == pytest.approx([1 / 6])


def test_inconsistency_of_three_outcomes_is_how_many_lie_near_the_next_ones_boundary():
    # logits of outcomes 1 and 2 against 0 are x and 2 x - 3: 0 below x = 0, 1 up to x = 3, then 2
    x = torch.tensor([-2.0, -0.4, 0.2, 1.4, 2.9, 3.4, 6.0])[:, None]
    module = DirectMethod(Shape(1, 1, 3), [0], network=linear([[1.0], [2.0]], [0.0, -3.0]))
    assert inconsistency(module, x[None], 0.3) == pytest.approx([2 / 7])
    assert inconsistency(module, x[None], 0.5) == pytest.approx([4 / 7])


def test_errors_against_the_bayes_classifier_and_the_outcomes_drawn():
    data = PricingDataModule("D1", [0], n_train=150, n_test=300, n_validation=60)
    protocol = tiny_protocol(rounds=1)
    rounds = []
    self_train(trained(protocol, data), data, audit=data.train_outcomes, on_round=lambda _, done: rounds.append(done))
    (done,) = rounds
    teacher = trained(protocol, data)
    wrong = mode(teacher.logits(data.train.x)) != data.train_outcomes.likeliest()
    assert done.teacher_error == pytest.approx([wrong.float().mean().item()])
    counterfactual = wrong & ~data.train.taken
    for action in range(5):
        for outcome in range(2):
            entries = (data.train_outcomes.likeliest()[0, :, action] == outcome) & ~data.train.taken[0, :, action]
            share = done.bayes_error[0][action][outcome]
            if share is not None:
                assert share == pytest.approx(counterfactual[0, entries, action].float().mean().item())


def test_separate_passes_draw_dropout_twice_and_are_pl_without_it():
    data = TinyDataModule([0, 1])
    loss = {}
    for dropout in (0.0, 0.5):
        protocol = tiny_protocol(dropout=dropout)
        teacher = trained(protocol, data)
        for kind in (SelfTraining, SeparatePasses):
            student = self_train(teacher, data, rounds=1, student=kind)
            loss[dropout, kind] = student.training_loss
    assert torch.allclose(loss[0.0, SelfTraining], loss[0.0, SeparatePasses], rtol=1e-4)
    assert not torch.allclose(loss[0.5, SelfTraining], loss[0.5, SeparatePasses], rtol=1e-2)
