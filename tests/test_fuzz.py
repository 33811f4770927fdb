"""Laws over inputs that nobody thought of: configurations, feedback records, data files."""

import bz2
import json
import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.datasets import dump_svmlight_file

from benchmarks.grid import METHODS, PRESETS, Cell, digest
from benchmarks.options import jobs_of, make_parser, save_options, saved_jobs
from benchmarks.sweep import main
from cst_lightning import Feedback, InputError, get_protocol
from cst_lightning.protocols import PROTOCOLS, Protocol
from cst_lightning.selection import RULES
from datamodules.catalogue import DataSpec
from datamodules.files import read_arff, read_libsvm

# --- configurations -----------------------------------------------------------------------------------

NAMES = ["D1", "D3", "D5@K=4,o=2", "D1@n=100,unlogged=1", "scene", "yeast", "moons", "multilabel"]
OVERRIDES = {
    "hidden": st.integers(1, 500), "dropout": st.floats(0, 0.99), "learning_rate": st.floats(1e-6, 1.0),
    "batch_size": st.integers(2, 1000), "shuffle": st.booleans(), "max_epochs": st.integers(1, 10**6),
    "stopping": st.sampled_from(["fixed", "converged"]), "rounds": st.integers(1, 9), "cvat_eps": st.floats(0.01, 10),
    "labels": st.sampled_from(["hard", "soft"]), "holdout": st.floats(0.01, 0.9), "propensity_floor": st.floats(0, 0.5),
    "depth": st.integers(2, 9),
}  # fmt: skip
VALID = st.fixed_dictionaries(
    {
        "preset": st.sampled_from(sorted(PRESETS)),
        "protocol": st.sampled_from(sorted(PROTOCOLS)),
        "datasets": st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
        "backbones": st.lists(st.sampled_from(["dm", "hsic", "udm", "dm_early"]), min_size=1, max_size=2, unique=True),
        "methods": st.lists(st.sampled_from(sorted(METHODS)), min_size=1, unique=True),
        "seeds": st.lists(st.integers(0, 10**6), min_size=1, max_size=4, unique=True),
        "cvat-weights": st.lists(st.floats(1e-3, 100), min_size=1, max_size=3, unique=True),
        "selection": st.sampled_from(sorted(RULES)),
        "override": st.fixed_dictionaries({}, optional=OVERRIDES),
    }
)


def command(given):
    """As a person would type it."""
    words = []
    for name, value in given.items():
        if name == "override":
            words += [word for field, v in value.items() for word in (f"--override.{field}", said(v))]
        else:
            words += [f"--{name}", *(map(said, value) if isinstance(value, list) else [said(value)])]
    return words


def said(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_a_valid_configuration_plans_is_saved_and_comes_back_the_same(tmp_path_factory):
    taken = []

    @settings(max_examples=40)
    @given(VALID)
    def law(given_options):
        try:
            options = make_parser().parse_args(command(given_options))
            jobs = jobs_of(options)
        except InputError as error:  # a combination that the checks refuse: one line that says what is allowed
            refused = str(error)
            taken.append(False)
            assert "\n" not in refused
            return
        taken.append(True)
        comes_back_the_same(tmp_path_factory.mktemp("configuration"), options, jobs)

    law()
    assert sum(taken) > len(taken) / 4


def comes_back_the_same(folder, options, jobs):
    save_options(options, folder)
    again, problems = saved_jobs(folder)
    assert problems == []
    assert [cell.key for job in again for cell in job.cells] == [cell.key for job in jobs for cell in job.cells]
    for job in jobs:
        assert str(DataSpec.parse(str(job.dataset))) == str(job.dataset)
        for one in job.cells:
            identity = json.loads(json.dumps(one.identity))
            assert (identity, digest(identity)) == (one.identity, one.key)
            protocol = Protocol(**{**one.protocol.to_dict(), "max_epochs_cst": tuple(one.protocol.max_epochs_cst)})
            protocol = get_protocol(json.loads(json.dumps(protocol.to_dict())))
            assert Cell(one.dataset, one.backbone, one.method, one.seeds, protocol).key == one.key


TEXT = st.text(max_size=12) | st.sampled_from(
    ["D1@", "D1@o=", "@", "dm.", ".", "-1", "nan", "1e999", "0..", "null", "{}", "[", "\x00"]
)
FIELDS = sorted(set(Protocol.__dataclass_fields__) - {"name"})
INVALID = st.one_of(
    st.tuples(
        st.sampled_from(["--datasets", "--backbones", "--methods", "--preset", "--protocol", "--selection"]), TEXT
    ),
    st.tuples(st.sampled_from(["--seeds", "--cvat-weights", "--workers", "--timeout", "--retries", "--device"]), TEXT),
    st.tuples(
        st.sampled_from(FIELDS).map("--override.{}".format), TEXT | st.floats().map(str) | st.integers().map(str)
    ),
)


def test_any_other_configuration_is_a_clear_error_before_any_work(tmp_path_factory, capsys):
    folder, refused = tmp_path_factory.getbasetemp() / "never-made", []

    @settings(max_examples=150)
    @given(st.lists(INVALID, min_size=1, max_size=3))
    def law(words):
        arguments = [word for pair in words for word in pair]
        capsys.readouterr()
        try:
            status = main([*arguments, "--plan", "--out", str(folder)])
        except SystemExit as stop:  # a text that asks for help, such as -h
            status = stop.code
        said = capsys.readouterr().err
        assert status in (0, 2)
        refused.append(status == 2)
        if status == 2:
            (line,) = said.splitlines()
            assert line.startswith("error: ")
        assert not folder.exists()

    law()
    assert sum(refused) > len(refused) / 2


def test_a_feedback_record_of_sound_arrays_is_taken():
    """What the law below refuses it must not refuse always."""
    log = Feedback(np.zeros((4, 2)), np.array([0, 1, 1, 0]), np.array([1, 0, -1, 1]), 2, 2)
    assert log.n_rows == 4


# --- records of data ----------------------------------------------------------------------------------

ARRAYS = st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 4))
VALUES = st.sampled_from([0, 1, 2, 3, -1, -2, 0.5, math.nan, math.inf, -math.inf, 1e300, 2**40])


@settings(max_examples=150)
@given(ARRAYS, st.data())
def test_a_feedback_record_is_whole_or_an_error(sizes, data):
    n_seeds, n_rows, n_features = sizes
    lead = (n_seeds,) if n_seeds else ()

    def array(*shape):
        values = data.draw(st.lists(VALUES, min_size=1, max_size=5))
        return np.resize(np.array(values, dtype=float), shape)

    x = array(*lead, n_rows, n_features) if data.draw(st.booleans()) else np.ones((*lead, n_rows, n_features))
    action, outcome = array(*lead, n_rows), array(*lead, data.draw(st.sampled_from([n_rows, n_rows + 1])))
    n_actions, n_outcomes = data.draw(st.integers(-1, 4)), data.draw(st.integers(-1, 4))
    try:
        log = Feedback(x, action, outcome, n_actions, n_outcomes)
    except InputError:
        return
    assert torch.isfinite(log.x).all()
    assert ((log.action >= 0) & (log.action < n_actions)).all()
    assert (log.outcome < n_outcomes).all()
    assert log.x.shape[:2] == log.action.shape == log.outcome.shape


# --- data files ---------------------------------------------------------------------------------------

TOKENS = st.sampled_from(
    ["0", "1", "3", "0,2", ",", "1:1", "2:0.5", "3:-1e3", "4:1", "1:", ":1", "1:nan", "1:inf", "#", "1:1:1", "x", "1_0",
     "\x00", "1e400", "0x1", "٣", "\u2028", "-0", "1.0", "9" * 400, "1:" + "9" * 5000]
)  # fmt: skip
LINES = st.lists(st.lists(TOKENS, max_size=6).map(" ".join), max_size=6).map("\n".join)


@settings(max_examples=300)
@given(LINES.map(str.encode) | st.binary(max_size=200))
def test_the_libsvm_reader_reads_or_says_why_not(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzz.svm"
    for name, written in (
        (path, content),
        (path.with_suffix(".bz2"), bz2.compress(content)),
        (path.with_suffix(".gz"), content),
    ):
        name.write_bytes(written)
        try:
            x, y = read_libsvm(name, n_features=3, n_labels=4)
        except InputError as error:
            refused = str(error)
            assert name.name in refused
            continue
        assert x.shape[1:] == (3,)
        assert y.shape == (len(x), 4)
        assert np.isfinite(x).all()
        assert np.isin(y, (0, 1)).all()


SMALL = st.integers(1, 4).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, 3), st.integers(0, 2**31)))


@settings(max_examples=60)
@given(SMALL)
def test_what_is_written_is_read_back_by_both_readers(tmp_path_factory, sizes):
    n_rows, n_labels, seed = sizes
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((n_rows, 3)) < 0.3, 0, rng.normal(size=(n_rows, 3)).round(4))
    y = rng.integers(2, size=(n_rows, n_labels))
    path = tmp_path_factory.getbasetemp() / "written.svm"
    dump_svmlight_file(x, csr_matrix(y), str(path), zero_based=False, multilabel=True)
    found, labels = read_libsvm(path, n_features=3, n_labels=n_labels)
    assert np.allclose(found, x)
    assert np.array_equal(labels, y)
    names = [f"l{k}" for k in range(n_labels)]
    head = ["@relation r", *(f"@attribute f{i} numeric" for i in range(3)), *(f"@attribute {n} {{0,1}}" for n in names)]
    rows = [",".join(map(str, [*a.tolist(), *b.tolist()])) for a, b in zip(x, y, strict=True)]
    path = path.with_suffix(".arff")
    path.write_text("\n".join([*head, "@data", *rows]))
    found, labels = read_arff(path, labels=names)
    assert np.allclose(found, x)
    assert np.array_equal(labels, y)


ARFF_LINES = st.sampled_from(
    ["@relation r", "@RELATION", "@attribute a numeric", "@attribute 'b c' {0,1}", "@attribute l {0,1}",
     "@attribute l {TRUE,FALSE}",
     "@attribute d date 'yyyy'", "@attribute s string", "@attribute", "@attribute l", "@attribute l {", "@data", "@end",
     "1,0", "1,0,1", "?,1", "{0 1}", "nan,1", "1e999,0", "'1',0", "%", "", "\x00", "a,b", "TRUE",
     "1,TRUE", "@attribute r relational"]
)  # fmt: skip
ARFF = st.lists(ARFF_LINES, max_size=12).map("\n".join)


@settings(max_examples=300)
@given(ARFF.map(str.encode) | st.binary(max_size=200))
def test_the_arff_reader_reads_or_says_why_not(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzz.arff"
    path.write_bytes(content)
    try:
        x, y = read_arff(path, labels=["l"])
    except InputError as error:
        refused = str(error)
        assert "fuzz.arff" in refused
        return
    assert len(x) == len(y) > 0
    assert np.isfinite(x).all()
    assert np.isin(y, (0, 1)).all()
