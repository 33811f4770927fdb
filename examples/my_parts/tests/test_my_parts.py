"""Every part keeps what the project promises of its kind."""

import pytest
from my_parts.backbone import ClippedDM
from my_parts.data_set import Coupons
from my_parts.method import Confident
from my_parts.metric import AbsoluteError
from my_parts.rule import WORST_ACTION

from cst_lightning.testing import check_backbone, check_data_module, check_method, check_metric, check_rule


@pytest.mark.parametrize("n_outcomes", [2, 3])
def test_backbone(n_outcomes):
    check_backbone(ClippedDM, n_outcomes=n_outcomes)


@pytest.mark.parametrize("n_outcomes", [2, 3])
def test_method(n_outcomes):
    check_method(Confident, n_outcomes=n_outcomes)


def test_data_set():
    check_data_module(Coupons)


def test_metric():
    check_metric(AbsoluteError)


def test_rule():
    check_rule(WORST_ACTION)
