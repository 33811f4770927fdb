import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cst_lightning import MATCHED, RELEASED, WRITTEN, InputError, Protocol, get_protocol
from cst_lightning.protocols import PROTOCOLS


@given(st.sampled_from(sorted(PROTOCOLS)), st.integers(1, 512), st.lists(st.floats(0.01, 10), min_size=1, unique=True))
def test_a_protocol_is_saved_and_loaded(name, hidden, weights):
    protocol = get_protocol(name).replace(hidden=hidden, cvat_weights=weights)
    assert get_protocol(json.loads(json.dumps(protocol.to_dict()))) == protocol
    assert protocol.to_dict()["cvat_weights"] == weights


def test_the_three_protocols_differ_where_the_paper_and_its_code_do():
    assert (WRITTEN.hidden_cst, RELEASED.hidden_cst, MATCHED.hidden_cst) == (128, 8, 128)
    assert (WRITTEN.logging_fraction, RELEASED.logging_fraction, MATCHED.logging_fraction) == (0.05, 0.2, 0.05)
    assert (WRITTEN.stopping, RELEASED.stopping, MATCHED.stopping) == ("converged", "fixed", "early")
    assert (WRITTEN.hsic_kernel, RELEASED.hsic_kernel) == ("rbf", "linear")
    assert [p.selection for p in (WRITTEN, RELEASED, MATCHED)] == ["oracle_hamming", "oracle_hamming", "observed_nll"]
    assert (RELEASED.max_epochs, RELEASED.max_epochs_hsic, RELEASED.max_epochs_udm) == (2000, 1000, 3000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hiden": 3}, "unknown protocol field 'hiden': did you mean hidden"),
        ({"hidden": 0}, "hidden=0: allowed is from 1"),
        ({"hidden": 2.5}, "hidden=2.5: allowed is int"),
        ({"hidden": True}, "hidden=True"),
        ({"shuffle": 1}, "shuffle=1: allowed is bool"),
        ({"dropout": 1}, "dropout=1: allowed is from 0, below 1"),
        ({"labels": "medium"}, "labels='medium': allowed is hard or soft"),
        ({"cvat_weights": []}, "cvat_weights=()"),
        ({"cvat_weights": [0.0]}, "weight 0 is the method pl"),
        ({"cvat_weights": [1.0, 1.0]}, "a weight stands twice"),
        ({"max_epochs_cst": [3, 0]}, "max_epochs_cst=(3, 0)"),
        ({"stopping": "early"}, "stopping=early needs held-out rows"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
    ],
)
def test_impossible_fields_are_named(changes, message):
    with pytest.raises(InputError) as error:
        WRITTEN.replace(**changes)
    assert message in str(error.value)


def test_unknown_and_incomplete_protocols_are_refused():
    with pytest.raises(InputError, match="did you mean matched"):
        get_protocol("mached")
    saved = WRITTEN.to_dict()
    del saved["rounds"]
    with pytest.raises(InputError, match="lacks the field rounds"):
        get_protocol(saved)
    with pytest.raises(InputError, match="unknown protocol field 'extra'"):
        get_protocol(WRITTEN.to_dict() | {"extra": 1})


def test_protocols_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        WRITTEN.hidden = 3
    assert isinstance(WRITTEN, Protocol)
