import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cst_lightning.streams import Bits, generator, keep_mask, row_order, uniform


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.integers(0, 999), min_size=1, max_size=3, unique=True), st.lists(st.integers(1, 200_000), max_size=4)
)
def test_a_seed_draws_the_same_in_any_company(seeds, sizes):
    together = Bits(seeds, "dropout")
    alone = [Bits([seed], "dropout") for seed in seeds]
    for size in sizes:
        drawn = together.take(size)
        for row, single in zip(drawn, alone, strict=True):
            assert torch.equal(row, single.take(size)[0])


def test_bits_are_uniform_over_all_values():
    drawn = Bits([0], "dropout").take(200_000)[0]
    assert drawn.double().mean().item() == pytest.approx(-0.5, abs=200)
    assert drawn.double().std().item() == pytest.approx(65536 / 12**0.5, rel=0.01)
    for byte in (0, 1, 2, 3):  # every quarter of the 64-bit words, sign bits too
        assert (drawn[byte::4] < 0).double().mean().item() == pytest.approx(0.5, abs=0.01)


def test_purposes_and_seeds_do_not_share_numbers():
    first = {(s, p): torch.rand(1, generator=generator(s, p)).item() for s in (0, 1) for p in ("init", "dropout")}
    assert len(set(first.values())) == 4


@pytest.mark.parametrize("dropout", [0.1, 0.2, 0.5])
def test_masks_keep_the_mean(dropout):
    mask = keep_mask(Bits([0], "dropout").take(400_000), dropout)
    assert (mask == 0).float().mean().item() == pytest.approx(dropout, abs=0.005)
    assert mask.mean().item() == pytest.approx(1, abs=0.01)


def test_a_stream_goes_on_from_its_state():
    stream, again = Bits([1, 2], "cvat"), Bits([1, 2], "cvat")
    stream.take(70_001)
    state = stream.state_dict()
    again.load_state_dict(state)
    for size in (5, 300_000, 17):
        assert torch.equal(stream.take(size), again.take(size))


def test_uniform_is_centred():
    values = uniform(torch.tensor([-32768, 32767], dtype=torch.int16))
    assert values.tolist() == [-0.5 + 0.5 / 65536, 0.5 - 0.5 / 65536]


def test_row_order_is_a_permutation_of_its_own_for_each_seed():
    order = row_order([generator(s, "order") for s in (0, 1)], 9)
    assert order.sort(1).values.tolist() == [list(range(9))] * 2
    assert not torch.equal(order[0], order[1])
