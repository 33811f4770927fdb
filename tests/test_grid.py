import dataclasses
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics import Metric

from benchmarks.grid import METHODS, Cell, backbones, make_jobs, parse_seeds
from benchmarks.plan import estimate_seconds
from benchmarks.texts import said
from cst_lightning import InputError, Protocol, StackedModule, get_protocol
from cst_lightning.metrics import NLL, HammingLoss
from cst_lightning.registry import find_parts, with_offered
from datamodules.catalogue import DataSpec, data_modules

OTHER = {
    "price_term": "code", "logging_fraction": 0.07, "holdout": 0.1, "architecture": "released", "depth": 4, "hidden": 5,
    "hidden_udm": 5, "hidden_cst": 5, "dropout": 0.3, "learning_rate": 0.1, "learning_rate_hsic": 0.1,
    "learning_rate_cst": 0.1, "batch_size": 7, "shuffle": True, "max_epochs": 5, "max_epochs_hsic": 5,
    "max_epochs_udm": 5, "max_epochs_cst": (5,), "stopping": "fixed", "patience": 5, "min_improvement": 0.2,
    "keep": "best", "keep_cst": "last", "rounds": 3, "labels": "soft", "teacher_dropout": True, "drop_median": True,
    "warm_start": True, "reduction": "mean", "cvat_weights": (0.3, 1.0), "cvat_xi": 1.0, "cvat_eps": 0.5,
    "cvat_iterations": 1, "cvat_smoothing": 1e-7, "selection": "oracle_nll", "hsic_weights": (0.5,),
    "hsic_kernel": "linear", "hsic_bandwidth": 1.0, "hsic_normalised": True, "propensity_model": "one_vs_rest",
    "propensity_floor": 0.1,
}  # fmt: skip


def cell(backbone="dm", method="pl_cvat", dataset="D1", protocol="written", seeds=(0, 1)):
    return Cell(DataSpec.parse(dataset), backbone, method, seeds, get_protocol(protocol))


def keys(protocol):
    return {
        (dataset, backbone, method): Cell(DataSpec.parse(dataset), backbone, method, (0,), protocol).key
        for dataset in ("D1", "scene")
        for backbone in ("dm", "hsic", "udm")
        for method in METHODS
    }


def test_every_protocol_field_is_part_of_some_identity_and_its_name_of_none():
    written = get_protocol("written")
    before = keys(written)
    assert set(OTHER) == {field.name for field in dataclasses.fields(Protocol)} - {"name"}
    for field, value in OTHER.items():
        assert keys(written.replace(**{field: value})) != before, field
    assert keys(written.replace(name="mine")) == before


@pytest.mark.parametrize(
    ("field", "unaffected"),
    [
        ("cvat_weights", {"backbone", "pl", "pl_soft"}),
        ("cvat_eps", {"backbone", "pl", "pl_soft"}),
        ("labels", {"backbone", "pl_soft", "pl_soft_cvat"}),
        ("rounds", {"backbone"}),
        ("hidden_cst", {"backbone"}),
        ("learning_rate", set()),
    ],
)
def test_a_field_that_a_method_does_not_read_leaves_its_identity_alone(field, unaffected):
    written = get_protocol("written")
    changed = written.replace(**{field: OTHER[field]})
    spec = DataSpec.parse("D1")
    same = {m for m in METHODS if Cell(spec, "dm", m, (0,), written).key == Cell(spec, "dm", m, (0,), changed).key}
    assert same == unaffected


def test_a_backbone_of_ones_own_reads_every_field(monkeypatch):
    path = "tests.parts.Broken"
    monkeypatch.setattr(backbones().get(path), "protocol_fields", None)
    written = get_protocol("written")
    spec = DataSpec.parse("D1")
    identity = Cell(spec, path, "backbone", (0,), written).identity
    assert set(identity["protocol"]) == set(OTHER)


def test_seeds_data_and_backbone_are_part_of_the_identity():
    assert (
        len({cell().key, cell(seeds=(0,)).key, cell(dataset="D1@o=1").key, cell("udm").key, cell(method="pl").key}) == 5
    )


def test_spellings_of_a_data_set_are_one():
    assert str(DataSpec.parse("D1@overlap=1.0,n_prices=4")) == "D1@K=4,o=1"
    assert DataSpec.parse("D1@o=1").make([0], get_protocol("written")).overlap == 1
    assert cell(dataset="D1@K=4,o=1").key == cell(dataset="D1@overlap=1.0,K=4").key


def test_what_a_selection_rule_reads_is_part_of_the_identity():
    protocol = get_protocol("matched").replace(selection="ipw_nll")
    spec = DataSpec.parse("D1")
    keys = {
        Cell(spec, "dm", "pl_cvat", (0,), protocol.replace(propensity_floor=floor)).key for floor in (0.01, 0.02, 0.4)
    }
    assert len(keys) == 3


def test_data_sets_that_differ_in_a_late_digit_are_two():
    assert str(DataSpec.parse("D1@o=0.1234567")) == "D1@o=0.1234567"
    assert str(DataSpec.parse("D1@n=1234567")) == "D1@n=1234567"


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_range_of_seeds(first, count):
    assert parse_seeds([f"{first}..{first + count}"]) == tuple(range(first, first + count + 1))


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        (["9" * 5000], "allowed are 0 to"),
        (["0..99999999999999999999"], "allowed are 0 to"),
        (["53024288"], "allowed are 0 to 53024287"),
        (["0..53024287"], "allowed are 1,000,000 at most"),
        (["0..600000", "600001..1200000"], "allowed are 1,000,000 at most"),
        (["4..0"], "neither a number from 0 nor a range"),
    ],
)
def test_seeds_that_no_memory_holds_are_an_error_at_once(seeds, message):
    with pytest.raises(InputError, match=message):
        parse_seeds(seeds)


def test_filters_keep_the_presets_blocks():
    def pairs(**options):
        return [(str(job.dataset), job.backbone) for job in make_jobs("paper", **options)]

    assert len(pairs()) == 24
    assert pairs(datasets=["D1@o=1", "D2"]) == [("D1@o=1", "dm"), ("D2", "dm"), ("D2", "hsic"), ("D2", "udm")]
    assert pairs(datasets=["D1@o=9"], backbone_names=["udm"]) == [("D1@o=9", "udm")]
    (job,) = make_jobs("paper", datasets=["D1"], backbone_names=["dm"], methods=["pl", "backbone"])
    assert job.methods == ("backbone", "pl")


def test_estimates_grow_with_the_work():
    (small,) = make_jobs("paper", protocol="released", datasets=["D1"], backbone_names=["dm"], methods=["backbone"])
    (large,) = make_jobs("paper", protocol="released", datasets=["D1"], backbone_names=["dm"])
    assert 10 < estimate_seconds(small) < estimate_seconds(large) < 10_000
    assert [said(s) for s in (5, 600, 9000)] == ["5 s", "10 min", "2.5 h"]


def test_methods_are_names_or_class_paths_of_students():
    (job,) = make_jobs(
        "paper", datasets=["D1"], backbone_names=["dm"], methods=["tests.parts.Halved", "pl", "backbone"]
    )
    assert job.methods == ("backbone", "pl", "tests.parts.Halved")
    halved = job.cells[2].identity
    assert halved["protocol"]["labels"] == "soft"
    assert {"cvat_weights", "selection"} <= halved["protocol"].keys()
    for method, message in (
        ("plx", "unknown method 'plx'"),
        ("tests.parts.Nobody", "'tests.parts.Nobody' cannot be imported"),
        ("tests.parts.Plain", "'tests.parts.Plain' is no SelfTraining"),
    ):
        with pytest.raises(InputError, match=message):
            make_jobs("paper", methods=[method])
    with pytest.raises(InputError, match="s_logistic has no gradient for CVAT or a student"):
        make_jobs("paper", backbone_names=["s_logistic"], methods=["tests.parts.Halved"])


def package(tmp_path, monkeypatch, **files):
    folder = tmp_path / "parts_of_a_test"
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    module = types.ModuleType("parts_of_a_test")
    module.__path__ = [str(folder)]
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "parts_of_a_test", module)
    return module


PART = "from cst_lightning import DirectMethod\nclass Part(DirectMethod):\n    name = {!r}\n"


def test_a_part_that_cannot_be_imported_is_listed_with_its_reason(tmp_path, monkeypatch):
    module = package(tmp_path, monkeypatch, good=PART.format("good"), bad="import nothing_of_that_name")
    parts = find_parts("backbone", module, StackedModule, "of.nobody")
    assert set(parts.found) == {"good"}
    with pytest.raises(
        InputError, match=r"bad could not be imported: ModuleNotFoundError: No module named 'nothing_of"
    ):
        parts.get("bad")


def test_two_parts_of_one_name_are_an_error(tmp_path, monkeypatch):
    module = package(tmp_path, monkeypatch, one_=PART.format("same"), two_=PART.format("same"))
    with pytest.raises(InputError, match="two parts are called backbone 'same'"):
        find_parts("backbone", module, StackedModule, "of.nobody")


def offer(tmp_path, monkeypatch, name, group, entries):
    """A distribution on the path that offers ``entries`` under ``group``."""
    folder = tmp_path / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{entry} = {path}" for entry, path in entries.items()]
    (folder / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_an_installed_package_offers_parts_by_entry_points(tmp_path, monkeypatch):
    module = package(tmp_path, monkeypatch, good=PART.format("good"))
    path = tmp_path / "offered_by_a_test.py"
    path.write_text(f"{PART.format('fifth')}class Nameless(Part): pass\n")
    entries = {
        "fifth": "offered_by_a_test:Part", "other": "offered_by_a_test:Nameless", "gone": "nothing_of_that_name:Part",
        "number": "math:pi",
    }  # fmt: skip
    offer(tmp_path, monkeypatch, "offers", "of.one", entries)
    parts = find_parts("backbone", module, StackedModule, "of.one")
    assert set(parts.found) == {"good", "fifth"}
    assert parts.get("fifth").__module__ == "offered_by_a_test"
    with pytest.raises(InputError) as raised:
        parts.get("gone")
    for reason in (
        "entry point gone could not be imported: ModuleNotFoundError: No module named 'nothing_of_that_name'",
        "entry point other could not be imported: Nameless is called nothing",
        "entry point number could not be imported: 3.14",
    ):
        assert reason in str(raised.value)


def test_rules_and_metrics_are_offered_too_and_what_is_none_is_left_out_with_a_warning(tmp_path, monkeypatch):
    entries = {"mine": "cst_lightning.metrics:NLL", "pi": "math:pi", "gone": "nothing_of_that_name:X"}
    offer(tmp_path, monkeypatch, "offers", "of.three", entries)
    with pytest.warns(UserWarning, match="metric left out: entry point") as warned:
        known = with_offered("metric", {"nll": NLL}, Metric, "of.three")
    assert known == {"nll": NLL, "mine": NLL}
    assert {str(w.message).split()[5] for w in warned} == {"pi", "gone"}
    with pytest.raises(InputError, match="two parts are called metric 'mine'"):
        with_offered("metric", {"mine": HammingLoss}, Metric, "of.three")


@pytest.mark.parametrize("taken", ["package", "entry point"])
def test_an_entry_point_of_a_name_that_is_taken_is_an_error(taken, tmp_path, monkeypatch):
    module = package(tmp_path, monkeypatch, good=PART.format("good"))
    name = {"package": "good", "entry point": "sixth"}[taken]
    for number in (1, 2):
        (tmp_path / f"offered_{name}_{number}.py").write_text(PART.format(name))
        offer(tmp_path, monkeypatch, f"offers_{number}", f"of.two.{taken}", {name: f"offered_{name}_{number}:Part"})
    with pytest.raises(InputError, match=f"two parts are called backbone '{name}': .*offered_"):
        find_parts("backbone", module, StackedModule, f"of.two.{taken}")


def test_everything_is_registered():
    networks, learners = (
        {"dm", "hsic", "udm", "dm_early", "dm_scaled", "dm_slow"},
        {"constant", "s_logistic", "t_logistic", "s_boosting"},
    )
    assert set(backbones().found) == networks | learners
    assert set(data_modules().found) == {"D1", "D2", "D3", "D4", "D5", "scene", "yeast", "moons", "multilabel"}
    assert not backbones().failed
    assert not data_modules().failed
