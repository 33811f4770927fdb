"""Where minibatches start, and taking their rows."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cst_lightning.minibatches import batch_bounds, put_rows, runs, take_rows


@pytest.mark.parametrize("n_rows", [1, 2, 64, 65, 128, 129, 130])
def test_every_row_is_in_one_minibatch_and_none_is_alone(n_rows):
    bounds = batch_bounds(n_rows, min(64, n_rows))
    assert (bounds[0], bounds[-1]) == (0, n_rows)
    assert n_rows == 1 or all(1 < stop - start <= 65 for start, stop in pairwise(bounds))


@given(st.integers(1, 500), st.integers(1, 64), st.integers(1, 1 << 24))
def test_runs_hold_every_minibatch_once(n_rows, batch_size, row_bytes):
    bounds = batch_bounds(n_rows, min(batch_size, n_rows))
    found = list(runs(bounds, row_bytes))
    assert [batch for run in found for batch in pairwise(run)] == list(pairwise(bounds))


@given(st.integers(1, 20), st.integers(1, 3), st.integers(0, 99))
def test_rows_that_were_taken_are_put_back(n_rows, n_variants, seed):
    source = torch.Generator().manual_seed(seed)
    tensor = torch.rand(2 * n_variants, n_rows, 3, generator=source)
    order = torch.stack([torch.randperm(n_rows, generator=source) for _ in range(2)])
    taken = take_rows(tensor, order)
    assert torch.equal(taken[-1], tensor[-1, order[-1]])
    assert torch.equal(put_rows(taken, order), tensor)
