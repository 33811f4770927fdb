import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from benchmarks.statistics import holm, paired_difference, rank_methods

losses = st.lists(st.floats(-100, 100), min_size=2, max_size=8)


@given(losses, losses)
def test_a_paired_difference_is_scipys_and_changes_sign_with_its_sides(one, other):
    first, second = dict(enumerate(one)), dict(enumerate(other))
    difference, back = paired_difference(first, second), paired_difference(second, first)
    n = min(len(one), len(other))
    assert difference.n == n
    assert difference.mean == pytest.approx(-back.mean)
    assert (difference.low, difference.high) == pytest.approx((-back.high, -back.low))
    assert difference.low <= difference.mean <= difference.high
    if difference.standard_error > 1e-9:
        assert difference.p == pytest.approx(stats.ttest_rel(one[:n], other[:n]).pvalue, rel=1e-6, abs=1e-12)


def test_only_common_seeds_are_paired():
    difference = paired_difference({0: 1.0, 1: 2.0, 2: 9.0}, {1: 1.0, 0: 0.5, 7: 0.0})
    assert (difference.n, difference.mean) == (2, 0.75)
    assert paired_difference({0: 1.0}, {0: 2.0}) is None
    assert paired_difference({0: 1.0, 1: 1.0}, {2: 2.0, 3: 2.0}) is None


def test_a_difference_that_never_varies():
    same = paired_difference({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert (same.mean, same.p) == (0, 1)
    shifted = paired_difference({0: 2.0, 1: 3.0}, {0: 1.0, 1: 2.0})
    assert (shifted.mean, shifted.standard_error, shifted.p) == (1, 0, 0)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


@settings(max_examples=20)  # statsmodels takes its time
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_never_makes_a_p_value_smaller_nor_changes_their_order(p):
    adjusted = holm(p)
    assert all(a >= b - 1e-12 for a, b in zip(adjusted, p, strict=True))
    assert [a for _, a in sorted(zip(p, adjusted, strict=True))] == sorted(adjusted)


def test_ranks_of_a_clear_order():
    frame = pd.DataFrame(
        {"good": [1.0] * 8, "middling": [2.0] * 8, "bad": [3.0] * 8, "missing": [math.nan] + [0.0] * 7}
    )
    ranks = rank_methods(frame)
    assert ranks.mean.to_dict() == {"good": 1, "middling": 2, "bad": 3}
    assert ranks.friedman_p < 0.001
    assert ranks.pairwise_p.loc["good", "bad"] < 0.01 < ranks.pairwise_p.loc["good", "middling"]
    assert rank_methods(frame[["good", "bad"]]) is None
    assert rank_methods(frame.head(1)) is None
