"""Laws over what a run's folder may hold: records, parts, histories of a store, folders from elsewhere."""

import copy
import json
import math
import os
import shutil
import signal
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from benchmarks.cutting import cut
from benchmarks.executors.common import Event
from benchmarks.files import OutputError, is_plain, refuse_links
from benchmarks.grid import backbones, digest, make_jobs
from benchmarks.job import Settings, run_job
from benchmarks.parts import Parts
from benchmarks.record_shape import is_record
from benchmarks.report import main as report
from benchmarks.report import write_report
from benchmarks.store import Store, _name, sealed
from benchmarks.sweep import main
from benchmarks.upkeep import merge
from benchmarks.wandb_runs import untold
from cst_lightning import InputError
from tests.test_store_and_tables import cell, record

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
            twice = inside[last] * 2
            inside[last] = inside[last] if twice in (math.inf, -math.inf) else twice  # no record can be sealed with one
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
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
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
    os: ["fsync"],
    Path: ["mkdir", "write_text", "replace", "rename", "unlink"],
    shutil: ["copyfile"],
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

    write_text = Path.write_text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: NO_PROCESS)
        for place, names in STEPS.items():
            for name in names:
                patch.setattr(place, name, mortal(getattr(place, name)))
        yield


class Histories(RuleBasedStateMachine):
    """A store under writes, failures, kills in a write, damage, copies and merges: no finished result is lost."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="cst-history-"))
        self.store = Store(self.folder / "main")
        self.finished, self.elsewhere = set(), set()  # in the other store

    def teardown(self):
        shutil.rmtree(self.folder)

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
            patch.setattr(os, "fsync", full)
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
