"""Laws over inputs that nobody thought of: configurations, feedback records, data files, histories of a store."""

import bz2
import copy
import json
import math
import os
import shutil
import signal
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from scipy.sparse import csr_matrix
from sklearn.datasets import dump_svmlight_file

from benchmarks import store as store_module
from benchmarks.cutting import cut
from benchmarks.executors.common import Event
from benchmarks.grid import METHODS, PRESETS, Cell, backbones, digest, make_jobs
from benchmarks.job import Settings, run_job
from benchmarks.options import jobs_of, make_parser, save_options, saved_jobs
from benchmarks.parts import Parts
from benchmarks.record_shape import is_record
from benchmarks.report import main as report
from benchmarks.report import write_report
from benchmarks.store import OutputError, Store, _name, is_plain, refuse_links, sealed
from benchmarks.sweep import main
from benchmarks.upkeep import merge
from benchmarks.wandb_runs import untold
from cst_lightning import Feedback, InputError, get_protocol
from cst_lightning.protocols import PROTOCOLS, Protocol
from cst_lightning.selection import RULES
from datamodules.catalogue import DataSpec
from datamodules.files import read_arff, read_libsvm
from tests.test_store_and_tables import cell, record

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


# --- a record -----------------------------------------------------------------------------------------

SOUND = next((Path(__file__).parents[1] / "results" / "released" / "cells").glob("D1-dm-pl_cvat-*.json"))
INSTEAD = (None, "", "x", "\ud800", [], [[]], {}, {"a": 1}, True, -1, 0, 0.5, 2**63, 10**400, 1e308, 1e150, -1e150)
HOW = st.sampled_from(["delete", "halve", "double"]) | st.sampled_from(INSTEAD)


def places(value, place=()):
    """Of all that a record holds; of long lists the ends stand for all."""
    if place:
        yield place
    if isinstance(value, dict):
        inside = value.items()
    else:
        inside = (
            [(n, value[n]) for n in sorted({0, 1, len(value) - 1})] if isinstance(value, list) and value[1:] else ()
        )
    for name, one in inside:
        yield from places(one, (*place, name))


def mutated(content, place, how):
    """``content`` with another value at ``place``; itself where nothing is there."""
    content = copy.deepcopy(content)
    try:
        *before, last = place
        inside = content
        for name in before:
            inside = inside[name]
        if how == "delete":
            del inside[last]
        elif how == "halve":
            inside[last] = inside[last][: len(inside[last]) // 2]
        elif how == "double":
            inside[last] = inside[last] * 2
        else:
            inside[last] = copy.deepcopy(how)
    except (KeyError, IndexError, TypeError):
        pass
    return content


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of what numbers are too large for
@pytest.mark.usefixtures("blank_figures")
def test_whatever_a_sealed_record_holds_it_is_none_or_all_tables_and_figures_come_of_it(tmp_path):
    sound = json.loads(SOUND.read_text())
    of_parts = {}
    for place in places(sound):
        of_parts.setdefault(place[: 1 + (place[0] in ("results", "identity"))], []).append(place)
    # each part of a record as often as any other, however much it holds
    somewhere = st.sampled_from(list(of_parts.values())).flatmap(st.sampled_from)
    refused, taken = [], []

    @settings(max_examples=14, phases=[Phase.generate])
    @given(st.lists(st.tuples(somewhere, HOW), min_size=30, max_size=30))
    def law(mutations):
        content = sound
        for place, how in mutations:
            found = sealed({name: value for name, value in mutated(content, place, how).items() if name != "checksum"})
            (taken if is_record(found) else refused).append((place, how))
            content = found if is_record(found) else content
        shutil.rmtree(tmp_path)
        store = Store(tmp_path)
        path = tmp_path / "cells" / f"{_name(content['identity'])}.json"
        store_module.write_text(path, json.dumps(content))
        assert main(["verify", str(tmp_path)]) == 0
        assert len(store.read_all()) == 1
        write_report(store)

    law()
    assert len(taken) > 100
    assert len(refused) > 100


# --- a store ------------------------------------------------------------------------------------------

CELLS = [cell(method, backbone) for method in ("backbone", "pl") for backbone in ("dm", "udm")]
WHICH = st.integers(0, len(CELLS) - 1)


NO_PROCESS = 2**30  # above every process id that a system gives
STEPS = {
    store_module.os: ["fsync"],
    store_module.Path: ["mkdir", "write_text", "replace", "rename", "unlink"],
    store_module.shutil: ["copyfile"],
}


class Killed(BaseException):
    """Stands for a writer that dies."""


@contextmanager
def killed_at(step, share):
    """The step of that number that the writer takes on the disk, counted from 0, is its last: nothing after it happens.

    A write ends after ``share`` of its text; of any other step it is even or odd, so to say, whether it still happens.
    """
    left = step

    def mortal(do):
        def one_step(*arguments, **options):
            nonlocal left
            left -= 1
            if left >= 0:
                return do(*arguments, **options)
            if left == -1 and do is write_text:
                path, text = arguments
                write_text(path, text[: int(share * len(text))])
            elif left == -1 and share > 0.5:
                do(*arguments, **options)
            raise Killed

        return one_step

    write_text = store_module.Path.write_text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module.os, "getpid", lambda: NO_PROCESS)
        for place, names in STEPS.items():
            for name in names:
                patch.setattr(place, name, mortal(getattr(place, name)))
        yield


class Histories(RuleBasedStateMachine):
    """A store under writes, failures, kills in a write, damage, copies and merges: no finished result is lost."""

    def __init__(self):
        super().__init__()
        self.folder = store_module.Path(store_module.tempfile.mkdtemp(prefix="cst-history-"))
        self.store = Store(self.folder / "main")
        self.finished, self.elsewhere = set(), set()  # in the other store

    def teardown(self):
        store_module.shutil.rmtree(self.folder)

    @rule(number=WHICH)
    def finish(self, number):
        self.store.write(CELLS[number], record(CELLS[number], [number, 1, 2]))
        self.finished.add(number)

    @rule(number=WHICH)
    def fail(self, number):
        self.store.write(CELLS[number], record(CELLS[number], [0, 0, 0], status="failed"))

    @rule(number=WHICH, finishes=st.booleans(), step=st.integers(0, 9), share=st.floats(0, 1))
    def die_in_a_write(self, number, finishes, step, share):
        value = record(CELLS[number], [number, 1, 2], **({} if finishes else {"status": "failed"}))
        with killed_at(step, share), suppress(Killed):
            self.store.write(CELLS[number], value)
        self.look_what_came(number if finishes else None)

    @precondition(lambda self: self.finished)
    @rule(number=WHICH, step=st.integers(0, 40), share=st.floats(0, 1))
    def die_in_a_merge(self, number, step, share):
        other = Store(self.folder / "other")
        other.write(CELLS[number], record(CELLS[number], [number, 1, 2]))
        self.elsewhere.add(number)
        arguments = [str(self.store.folder), str(other.folder), "--out", str(self.store.folder)]
        with killed_at(step, share), suppress(Killed):
            merge(arguments)
        self.look_what_came(*self.elsewhere)

    def look_what_came(self, *numbers):
        """A write that was cut off may have come to its end: then it must be whole, as every result is."""
        for number in numbers:
            found = None if number is None else self.store.read(CELLS[number])
            if found is not None and found["status"] == "finished":
                self.finished.add(number)

    @rule(number=WHICH)
    def write_to_a_full_disk(self, number):
        def full(handle):
            raise OSError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_module.os, "fsync", full)
            with pytest.raises(OutputError):
                self.store.write(CELLS[number], record(CELLS[number], [number, 1, 2]))

    @rule()
    def begin_again(self):
        self.store.check_writable()
        assert not list(self.store.folder.glob("cells/.*"))  # what dead writers left

    @rule(number=WHICH, cut=st.floats(0, 0.99), failed=st.booleans())
    def tear(self, number, cut, failed):
        path = self.store.path(CELLS[number], failed=failed)
        if path.exists():
            content = path.read_bytes()
            path.write_bytes(content[: int(cut * len(content))])
            if not failed:
                self.finished.discard(number)

    @rule(number=WHICH, other=WHICH)
    def copy_over(self, number, other):
        path, target = self.store.path(CELLS[number]), self.store.path(CELLS[other])
        if number != other and path.exists():
            target.write_bytes(path.read_bytes())
            self.finished.discard(other)

    @rule(number=WHICH)
    def copy_beside(self, number):
        path = self.store.path(CELLS[number])
        if path.exists():
            path.with_name(f"copy of {path.name}").write_bytes(path.read_bytes())

    @precondition(lambda self: self.store.faults())
    @rule()
    def set_aside(self):
        n_files = len(list((self.store.folder / "cells").iterdir())) + len(list(self.folder.rglob("set-aside/*")))
        faults = self.store.faults()
        assert len(self.store.set_aside_faults()) == len(faults)
        assert self.store.faults() == []
        after = len(list((self.store.folder / "cells").iterdir())) + len(list(self.folder.rglob("set-aside/*")))
        assert after == n_files  # nothing is deleted

    @precondition(lambda self: self.finished and not self.store.faults())
    @rule(number=WHICH)
    def merge_with_another(self, number):
        other = Store(self.folder / "other")
        other.write(CELLS[number], record(CELLS[number], [number, 1, 2]))
        self.elsewhere.add(number)
        assert merge([str(self.store.folder), str(other.folder), "--out", str(self.store.folder)]) == 0
        self.finished |= self.elsewhere

    @invariant()
    def what_finished_is_there(self):
        for number, one in enumerate(CELLS):
            found = self.store.read(one)
            assert (found is not None and found["status"] == "finished") == (number in self.finished)
            if number in self.finished:
                assert found["results"][0]["metrics"]["nll"] == number
        keys = [digest(found["identity"]) for found in self.store.read_all()]
        assert len(keys) == len(set(keys))
        assert {CELLS[number].key for number in self.finished} <= set(keys)


@pytest.fixture(autouse=True)
def no_tables(monkeypatch):
    monkeypatch.setattr("benchmarks.upkeep.write_tables", lambda store: None)


def test_a_store_loses_nothing_whatever_happens_to_it():
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Histories, settings=settings(max_examples=60, stateful_step_count=25, deadline=None))


def test_backbones_are_there_for_the_fuzzing():
    assert {"dm", "hsic", "udm", "dm_early"} <= set(backbones().found)


# --- a run's folder from elsewhere ----------------------------------------------------------------------

SECRET = "what-stands-elsewhere"
DEEP = "[" * 100_000, '{"a":' * 100_000, "[" * 300 + "]" * 300
STATE = {
    "pid": 1, "host": "h", "device": "cpu", "updated": 1.0, "ended": False, "stopped": False, "jobs": 2, "finished": 1,
    "failed": 0, "share": 0.5, "left": "", "running": [{"job": "D1/dm", "doing": "", "share": 0.5, "mib": 1.0}],
}  # fmt: skip
ASKED = {
    "preset": "paper", "protocol": "matched", "datasets": ["D1", "moons"], "backbones": ["dm"], "methods": ["pl"],
    "seeds": ["0..4", 7], "cvat_weights": [0.1], "selection": "observed_nll", "override": {"hidden": 8},
}  # fmt: skip
NAMED = "\n".join(f"(figures/{name}.svg)" for name in ("a", "settings-1/a", "../a", "settings-1/../../a"))
OF_A_RUN = {
    "progress.json": json.dumps(STATE),
    "sweeps/paper.json": json.dumps(ASKED),
    "report.md": f"# run\n\n![x]{NAMED}\n`rounds.csv`\n",
    "wandb/asked": "0123456789abcdef\n",
    "wandb/sweep-id": "01234567",
    "set-aside/x.json": "{}",
    "records.parquet": "PAR1",
    "figures/settings-1": "",
}
LARGE = json.dumps(["0..99999999999", "9" * 30, "9" * 5000]), "9" * 5000, "1e999", '"\\ud800"', "NaN"
IN_PLACE = st.sampled_from(["link", "link to a folder", "pipe", "folder", "gone"])
CONTENT = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([*DEEP, *LARGE, "a: &a [x, x]\nb: [*a, *a]\n", "config: ELSEWHERE", '{"override": "ELSEWHERE"}']),
)


@st.composite
def spoiled(draw):
    """Of the files that a run's folder has beside its records one, and what becomes of it."""
    name = draw(st.sampled_from(list(OF_A_RUN)))
    sound = {"progress.json": STATE, "sweeps/paper.json": ASKED}.get(name)
    if sound is None or draw(st.integers(0, 3)) == 0:
        return name, draw(IN_PLACE | CONTENT)
    content = sound
    for _ in range(draw(st.integers(1, 3))):
        content = mutated(content, draw(st.sampled_from(list(places(sound)))), draw(HOW))
    if draw(st.booleans()):
        content |= draw(st.sampled_from([{"config": "ELSEWHERE"}, {"trust": ["os"]}, {"seeds": ["0..9999999999"]}]))
    return name, json.dumps(content)


def spoil(run, elsewhere, name, how):
    path = run / name
    if how in ("link", "link to a folder", "pipe", "folder", "gone"):
        path.unlink(missing_ok=True)
    if how == "link":
        path.symlink_to(elsewhere / "secret.txt")
    elif how == "link to a folder":
        path.symlink_to(elsewhere)
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how != "gone":
        content = how if isinstance(how, bytes) else how.replace("ELSEWHERE", str(elsewhere / "secret.txt")).encode()
        path.write_bytes(content)


def tree(folder):
    return {path: path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


def test_whatever_else_a_runs_folder_holds_is_told_in_a_line_or_no_matter(tmp_path, monkeypatch, capsys):
    """No crash, no wait, nothing read or written elsewhere, and the records stand as they were."""
    monkeypatch.setattr("benchmarks.report._drawn", lambda found, entries, folder: [])
    monkeypatch.setattr("benchmarks.report.render", lambda runs: "")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret.txt").write_text(f"{SECRET}: 1\n")
    for name in ("a.svg", "a.pdf", "x.json"):
        (elsewhere / name).write_text("mine")
    kept, run, statuses = tree(elsewhere), tmp_path / "run", []
    commands = {
        "status": lambda: main(["status", str(run)]),
        "verify": lambda: main(["verify", str(run)]),
        "sync": lambda: main(["sync", str(run)]),
        "merge": lambda: main(["merge", str(run), "--out", str(tmp_path / "merged")]),
        "report": lambda: report([str(run)]),
        "untold": lambda: untold(refuse_links(run), []) and 0,
    }

    def hangs(*_):
        pytest.fail("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, hangs)

    @settings(max_examples=120, phases=[Phase.generate])
    @given(spoiled(), st.sampled_from(list(commands)))
    def law(what, command):
        for folder in (run, tmp_path / "merged"):
            shutil.rmtree(folder, ignore_errors=True)
        for name, text in OF_A_RUN.items():
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).write_text(text)
        (run / "figures" / "settings-1").unlink()
        Store(run).write(CELLS[0], record(CELLS[0], [1, 2, 3]))
        written = Store(run).path(CELLS[0]).read_bytes()
        spoil(run, elsewhere, *what)
        capsys.readouterr()
        signal.alarm(20)
        try:
            status = commands[command]() or 0
        except InputError:
            status = 2
        finally:
            signal.alarm(0)
        said = capsys.readouterr()
        assert status in (0, 1, 2)
        statuses.append(status)
        assert "Traceback" not in said.err
        assert SECRET not in said.out + said.err
        assert (status == 0) <= (said.err == "")
        assert len(said.err.splitlines()) <= 1
        assert tree(elsewhere) == kept
        assert Store(run).path(CELLS[0]).read_bytes() == written
        assert not any(SECRET in path.read_text(errors="replace") for path in run.rglob("*") if is_plain(path))

    try:
        law()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert {0, 2} <= set(statuses)


@pytest.fixture(scope="module")
def part_records(tmp_path_factory):
    """Of a job in three parts, by seed."""
    job = make_jobs(
        "smoke", protocol="matched", datasets=["moons"], backbone_names=["dm"], methods=["pl"], seeds=["0..2"],
        overrides={"max_epochs": 2, "max_epochs_cst": [2], "batch_size": 25},
    )[0]  # fmt: skip
    store = Store(tmp_path_factory.mktemp("parts"))
    for part in cut(job, 1):
        run_job(part, store, Settings(device="cpu"), lambda _: None)
    return job, {part.seeds[0]: store.read(part.cells[0]) for part in cut(job, 1)}


def test_parts_from_elsewhere_join_to_a_record_or_are_run_again(tmp_path, part_records):
    job, sound = part_records
    of_parts = {}
    for place in places(sound[1]):
        if place[0] not in ("identity", "checksum"):
            of_parts.setdefault(place[:2], []).append(place)
    somewhere = st.sampled_from(list(of_parts.values())).flatmap(st.sampled_from)
    again, joined = [], []

    @settings(max_examples=60, phases=[Phase.generate])
    @given(st.lists(st.tuples(somewhere, HOW), min_size=1, max_size=4), st.booleans())
    def law(mutations, all_there):
        shutil.rmtree(tmp_path, ignore_errors=True)
        content = {name: value for name, value in sound[1].items() if name != "checksum"}
        for place, how in mutations:
            content = mutated(content, place, how)
        store, there = Store(tmp_path), cut(job, 1)
        inside = Store(tmp_path / "parts")
        inside.write(there[1].cells[0], {**content, "status": content.get("status", "finished")})
        for part in there[2 if all_there else 3 :]:
            inside.write(part.cells[0], sound[part.seeds[0]])
        for _ in range(2):  # what ends in a failure is run again by the same command
            inside.set_aside_faults()
            parts = Parts([job], store, 1, "retry-failed", "cpu")
            parts.begin()
            for part in parts.todo:
                inside.write(part.cells[0], sound[part.seeds[0]])
                parts.take(Event(part, "recorded", "pl"))
                parts.take(Event(part, "finished"))
            found = store.read(job.cells[0])
            assert found is not None
            if found["status"] == "finished":
                break
        (again if len(list(tmp_path.rglob("set-aside/*"))) else joined).append(mutations)
        assert found["status"] == "finished"
        assert is_record(found)
        assert [result["seed"] for result in found["results"]] == [0, 1, 2]
        assert found["results"][0] == sound[0]["results"][0]
        assert list((tmp_path / "parts" / "cells").iterdir()) == []

    law()
    assert len(again) > 10
    assert len(joined) > 10
