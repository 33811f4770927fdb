import numpy as np
import pytest
import torch
from sklearn.metrics import hamming_loss, log_loss, roc_auc_score

from cst_lightning import PotentialOutcomes, evaluate
from cst_lightning.distributions import probs
from cst_lightning.metrics import METRICS, reliability
from cst_lightning.testing import check_metric


def problem(m=2, r=2, n=200, k=3):
    g = torch.Generator().manual_seed(m)
    logits = 2 * torch.randn(r, n, k, m - 1, generator=g)
    truth = torch.softmax(torch.randn(r, n, k, m, generator=g, dtype=torch.float64), -1)
    outcomes = torch.distributions.Categorical(truth).sample()
    return logits, PotentialOutcomes(torch.zeros(r, n, 1), outcomes, m, truth)


@pytest.mark.parametrize("m", [2, 3])
def test_agree_with_scikit_learn_over_all_rows_and_actions(m):
    logits, potential = problem(m)
    values = evaluate(logits, potential)
    for replicate in range(2):
        p = probs(logits[replicate].double()).reshape(-1, m).numpy()
        r = potential.outcomes[replicate].flatten().numpy()
        expected = {
            "nll": log_loss(r, p, labels=range(m)),
            "hamming": hamming_loss(r, p.argmax(1)),
            "brier": np.mean(((p - np.eye(m)[r]) ** 2).sum(1)) / 2,
            "auc": roc_auc_score(r, p[:, 1]) if m == 2 else roc_auc_score(np.eye(m)[r].ravel(), p.ravel()),
        }
        for name, value in expected.items():
            assert values[name][replicate].item() == pytest.approx(value, abs=1e-5), name


def test_auc_ranks_saturated_predictions_and_is_unknown_for_one_outcome():
    g = torch.Generator().manual_seed(0)
    outcomes = torch.randint(2, (1, 300, 1), generator=g)
    logits = (25 * (torch.randn(1, 300, 1, generator=g) + 1.4 * outcomes) + 20)[..., None]
    expected = roc_auc_score(outcomes.flatten(), logits.flatten())
    assert evaluate(logits, PotentialOutcomes(torch.zeros(1, 300, 1), outcomes))["auc"].item() == pytest.approx(
        expected
    )
    assert evaluate(logits, PotentialOutcomes(torch.zeros(1, 300, 1), 0 * outcomes))["auc"].isnan().all()


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_keeps_what_is_promised(name):
    check_metric(METRICS[name], of="probabilities" if name in ("regret", "excess_nll") else "outcomes")


@pytest.mark.parametrize("m", [2, 3])
def test_what_needs_the_truth_agrees_with_sums_by_hand(m):
    logits, potential = problem(m, r=1, n=60)
    values = evaluate(logits, potential)
    p, q = potential.probabilities[0].numpy(), probs(logits[0].double()).numpy()
    excess, regret, reward = [], [], []
    for row in range(60):
        best = max(range(3), key=lambda k: sum(r * q[row, k, r] for r in range(m)))
        worth = [sum(r * p[row, k, r] for r in range(m)) for k in range(3)]
        regret.append(max(worth) - worth[best])
        reward.append(int(potential.outcomes[0, row, best]))
        excess += [sum(p[row, k, r] * np.log(p[row, k, r] / q[row, k, r]) for r in range(m)) for k in range(3)]
    for name, value in (("excess_nll", excess), ("regret", regret), ("reward", reward)):
        assert values[name].item() == pytest.approx(np.mean(value), abs=1e-6), name


def test_calibration_error_of_three_outcomes_is_of_the_likeliest():
    logits, potential = problem(3, r=1)
    p, hit = (v.flatten(0, 1) for v in (probs(logits[0]), potential.outcomes[0] == probs(logits[0]).argmax(-1)))
    sure, expected = p.max(-1).values, 0.0
    for low in range(15):
        rows = (sure > low / 15) & (sure <= (low + 1) / 15)
        if rows.any():
            expected += rows.float().mean() * (sure[rows].mean() - hit[rows].float().mean()).abs()
    assert evaluate(logits, potential)["ece"].item() == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("m", [2, 3])
def test_the_truth_has_no_regret_and_no_excess(m):
    _, potential = problem(m)
    log_p = potential.probabilities.log()
    truth = log_p[..., 1:] - log_p[..., :1]
    values = evaluate(truth, potential)
    assert torch.allclose(values["excess_nll"], torch.zeros(2, dtype=torch.float64), atol=1e-7)
    assert torch.equal(values["regret"], torch.zeros(2, dtype=torch.float64))
    assert (values["ece"] < 0.1).all()


def test_reward_is_the_outcome_of_the_best_predicted_action():
    logits = torch.tensor([[[[30.0], [40.0]], [[2.0], [1.0]]]])  # saturated predictions still differ
    potential = PotentialOutcomes(torch.zeros(1, 2, 1), torch.tensor([[[0, 1], [0, 1]]]))
    assert evaluate(logits, potential)["reward"].item() == 0.5


def test_unknown_truth_leaves_its_metrics_out_and_variants_share_outcomes():
    logits, potential = problem()
    bare = PotentialOutcomes(potential.x, potential.outcomes)
    doubled = evaluate(logits.repeat_interleave(2, 0), bare)
    assert set(METRICS) - set(doubled) == {"regret", "excess_nll"}
    assert doubled["nll"].tolist() == evaluate(logits, bare)["nll"].repeat_interleave(2).tolist()


def test_a_single_replicate_keeps_its_axis():
    logits, potential = problem(r=1)
    assert all(value.shape == (1,) for value in evaluate(logits, potential).values())


def test_saturated_predictions_give_finite_losses():
    logits = torch.tensor([[[[200.0], [-200.0]]]])
    potential = PotentialOutcomes(torch.zeros(1, 1, 1), torch.tensor([[[0, 1]]]))
    assert evaluate(logits, potential)["nll"].item() == pytest.approx(200)


def test_reliability_by_hand():
    p = torch.tensor([0.05, 0.08, 0.55, 0.95, 0.95])
    outcomes = torch.tensor([[[0, 1, 1, 1, 0]]]).expand(2, 1, 5)
    logits = torch.logit(p).view(1, 1, 5, 1).expand(2, 1, 5, 1)
    one, other = reliability(logits, outcomes, n_bins=10)
    assert one == other
    assert one["count"] == [2, 0, 0, 0, 0, 1, 0, 0, 0, 2]
    assert one["predicted"] == pytest.approx([0.065, 0, 0, 0, 0, 0.55, 0, 0, 0, 0.95])
    assert one["observed"] == [0.5, 0, 0, 0, 0, 1, 0, 0, 0, 0.5]


def test_reliability_of_three_outcomes_is_of_the_likeliest():
    logits = torch.tensor([2.0, 0.0]).view(1, 1, 1, 2).expand(1, 4, 1, 2)
    (bins,) = reliability(logits, torch.tensor([[[1], [1], [1], [2]]]), n_bins=4)
    likeliest = probs(logits)[0, 0, 0].max().item()
    assert bins["count"] == [0, 0, 0, 4]
    assert bins["predicted"][3] == pytest.approx(likeliest)
    assert bins["observed"][3] == 0.75
