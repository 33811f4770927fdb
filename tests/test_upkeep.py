"""Stores that were damaged, mixed up, written by several, checked and joined."""

import json
import os
import shutil
import subprocess
import threading
import time

import pytest

from benchmarks.cutting import cut
from benchmarks.job import Settings, run_job
from benchmarks.parts import Parts
from benchmarks.report import write_tables
from benchmarks.store import Store, checksum, examine, sealed
from benchmarks.sweep import main
from cst_lightning.disk import this_host
from tests.sweeps import TINY, numbers, records, start
from tests.test_parts import make_job
from tests.test_store_and_tables import cell, record


@pytest.fixture
def run(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def of_method(folder, method):
    (path,) = (folder / "cells").glob(f"*-{method}-*.json")
    return path


def test_every_record_has_the_checksum_of_its_content(whole, capsys):
    for found in records(whole).values():
        assert found["checksum"] == checksum(found)
    assert main(["verify", str(whole)]) == 0
    assert "3 records (0 of cells that failed), 3 with the checksum of their content" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["status", "sync", "verify", "merge"])
def test_every_command_has_its_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: python -m benchmarks.sweep {command} " in capsys.readouterr().out


def torn(path):
    path.write_bytes(path.read_bytes()[:1000])


def emptied(path):
    path.write_bytes(b"")


def changed(path):
    content = json.loads(path.read_text())
    content["results"][0]["metrics"]["nll"] += 1e-12
    path.write_text(json.dumps(content))


def a_zero_block(path):
    content = bytearray(path.read_bytes())
    content[100:200] = bytes(100)
    path.write_bytes(content)


def something_else(path):
    path.write_text('{"name": "cst", "version": 3}')


def of_another_cell(path):
    shutil.copyfile(of_method(path.parent.parent, "backbone"), path)


DAMAGES = {
    torn: "torn or damaged: no whole JSON",
    emptied: "torn or damaged: no whole JSON",
    changed: "damaged: its checksum is not that of its content",
    a_zero_block: "torn or damaged",
    something_else: "no record of a cell",
    of_another_cell: "a copy of moons-dm-backbone",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_named_set_aside_and_only_its_cell_is_run_again(damage, whole, run, capsys):
    path = of_method(run, "pl")
    damage(path)
    content = path.read_bytes()
    others = {file: file.stat().st_mtime_ns for file in (run / "cells").iterdir() if file != path}
    assert main(["verify", str(run)]) == 1
    assert f"{path}: {DAMAGES[damage]}" in capsys.readouterr().out
    assert main([*TINY, "--workers", "1", "--out", str(run)]) == 0
    assert f"({DAMAGES[damage]}" in capsys.readouterr().err
    (aside,) = (run / "set-aside").iterdir()
    assert aside.name.startswith(path.stem)
    assert aside.read_bytes() == content
    assert numbers(run) == numbers(whole)
    assert {file: file.stat().st_mtime_ns for file in others} == others
    assert main(["verify", str(run)]) == 0


def test_copies_and_foreign_files_are_set_aside_and_no_cell_is_run_again(whole, run, capsys):
    path = of_method(run, "pl")
    shutil.copyfile(path, path.with_name("copy-" + path.name))
    shutil.copyfile(path, path.with_name(path.stem + " (copy).json"))
    path.with_name("notes.txt").write_text("mine")
    assert len(Store(run).read_all()) == 3
    assert main(["verify", str(run)]) == 1
    assert main([*TINY, "--workers", "1", "--out", str(run)]) == 0
    assert "3 already recorded" in capsys.readouterr().err
    assert len(list((run / "set-aside").iterdir())) == 3
    assert numbers(run) == numbers(whole)


def test_a_record_without_a_checksum_is_of_an_older_version(run, capsys):
    path = of_method(run, "pl")
    content = json.loads(path.read_text())
    del content["checksum"]
    path.write_text(json.dumps(content))
    assert main(["verify", str(run)]) == 0
    assert "1 of an older version that has none" in capsys.readouterr().out
    assert main([*TINY, "--workers", "1", "--out", str(run)]) == 0
    assert "3 already recorded" in capsys.readouterr().err


def test_a_failure_never_replaces_what_another_sweep_finished(tmp_path):
    store, one = Store(tmp_path), cell()
    store.write(one, record(one, [1, 2, 3]))
    store.write(one, record(one, [1, 2, 3], status="failed") | {"error": "late"})
    assert store.read(one)["status"] == "finished"
    assert [found["status"] for found in store.read_all()] == ["finished"]
    store.write(one, record(one, [1, 2, 3]))
    assert len(list((tmp_path / "cells").iterdir())) == 1


def test_a_failure_is_replaced_by_a_success_wherever_an_older_version_put_it(tmp_path):
    store, one = Store(tmp_path), cell()
    store.write(one, record(one, [1, 2, 3], status="failed"))
    store.path(one, failed=True).rename(store.path(one))
    assert store.read(one)["status"] == "failed"
    store.write(one, record(one, [1, 2, 3]))
    assert store.read(one)["status"] == "finished"
    assert store.faults() == []


def test_a_good_record_that_comes_while_a_bad_one_is_moved_stays(tmp_path, monkeypatch):
    store, one = Store(tmp_path), cell()
    store.write(one, record(one, [1, 2, 3]))
    assert store._set_aside(store.path(one)) is None  # found bad a moment ago, good by now
    assert store.read(one) is not None
    store.path(one).unlink()
    assert store._set_aside(store.path(one)) is None  # moved by the other sweep


def test_a_torn_file_in_a_records_place_is_set_aside_by_the_one_that_is_written(tmp_path):
    store, one = Store(tmp_path), cell()
    store.write(one, record(one, [1, 2, 3]))
    for torn_text in "{[":  # by another machine, while a sweep goes on
        store.path(one).write_text(torn_text)
        store.write(one, record(one, [1, 2, 3]))
    assert {path.read_text() for path in (tmp_path / "set-aside").iterdir()} == {"{", "["}
    assert store.faults() == []


def test_a_record_that_another_sweep_deletes_while_it_is_read_is_no_fault(tmp_path, monkeypatch):
    store, one = Store(tmp_path), cell()
    failure = record(one, [1, 2, 3], status="failed")
    store.write(one, failure)

    def examine_late(path, *arguments):  # the sweep beside this one has finished the cell
        path.unlink(missing_ok=True)
        return examine(path, *arguments)

    monkeypatch.setattr("benchmarks.store.examine", examine_late)
    store.write(one, failure)
    assert not (tmp_path / "set-aside").exists()


@pytest.mark.parametrize("age", [-(10**7), 0, 10**7])
def test_temporary_files_of_dead_writers_go_and_no_others_whatever_their_age(age, tmp_path):
    """Nor those of other machines, of whose processes this one knows nothing."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    ours, theirs = f"{this_host()}.{dead.pid}", f"elsewhere.{dead.pid}"
    kept, gone = [], []
    for name in ("cells/.x.json", "parts/cells/.x.json", "sweeps/.paper.json", ".tables.md", ".records.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        kept += [tmp_path / f"{name}.{writer}.0a1b2c3d" for writer in (f"{this_host()}.{os.getpid()}", theirs)]
        kept += [tmp_path / f"{name}.{ours}.my-notes", tmp_path / f"{name}.swp"]
        gone.append(tmp_path / f"{name}.{ours}.0a1b2c3d")
    for path in kept + gone:
        path.write_text("half")
        os.utime(path, (time.time() - age,) * 2)
    Store(tmp_path).check_writable()
    assert [path.name for path in kept if not path.exists()] == []
    assert [path.name for path in gone if path.exists()] == []


def test_names_of_records_are_no_paths(tmp_path):
    one = cell()
    identity = one.identity | {"dataset": "../../etc/passwd", "backbone": "a\x1b[2J\n/../" + "b" * 500}
    vars(one)["identity"] = identity
    Store(tmp_path).write(one, record(one, [1, 2, 3]) | {"identity": identity})
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path.parent == tmp_path / "cells"
    assert path.name.isprintable()
    assert not path.name.startswith(".")
    assert Store(tmp_path).read(one) is not None


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "NaN", '"\\ud800"', "1" * 5000, "null", "\x00", '{"identity": {"seeds": 1}}'],
)
def test_no_content_of_a_file_is_more_than_a_fault(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    found, fault = examine(path)
    assert found is None
    assert fault


BINS = {"count": [1.0, 1.0], "predicted": [0.2, 0.7], "observed": [0.0, 1.0]}
MIXED = [BINS, BINS, {"count": [2.0], "predicted": [0.5], "observed": [0.5]}]
ROUND = {"stopped_epoch": 1, "objective_start": 1.0, "objective_end": 0.9, "objective_imputed": 0.8, "changed": 0.1}
TRUTH = {"label_error": [[0.1, 0.2]], "bayes_error": [[0.1, 0.2]], "teacher_error": 0.1, "student_error": 0.1}
RAGGED = {"bayes_error": [[0.1], [0.1, 0.2]]}
WIDER = {"label_error": [[0.1, 0.2, 0.3]], "bayes_error": [[0.1, 0.2, 0.3]]}


def test_a_record_with_all_that_there_may_be_is_one(tmp_path):
    """What the damages below begin with is no fault."""
    store, content = Store(tmp_path), record(cell(), [1, 2, 3])
    for result in content["results"]:
        tried = {"0.1": {"nll": 1.0, "hamming": None}}
        result.update(reliability=BINS, rounds=[ROUND | TRUTH, ROUND | TRUTH | {"inconsistency": 0.1}], by_weight=tried)
    content["curves"].append({"epoch": [1, 2], "training_loss": [[1.0, None]] * 3, "validation_nll": None})
    store.write(cell(), content)
    assert store.faults() == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record["provenance"].pop("finished"),
        lambda record: record["protocol"].pop("name"),
        lambda record: record["protocol"].update(selection=1),
        lambda record: record["results"][0]["metrics"].update(nll="x"),
        lambda record: record["results"][0].pop("epochs"),
        lambda record: record["results"].append({}),
        lambda record: record["identity"].update(seeds=["a"]),
        lambda record: record["curves"].append({"epoch": 1}),
        lambda record: record.update(metrics=[["nll"]]),
        lambda record: record.update(metrics=["nll", "nll"]),
        lambda record: record.update(results=[]),
        lambda record: record["identity"].update(seeds=[]),
        lambda record: record["identity"].update(seeds=[0, 1, 2, 3]),
        lambda record: record["identity"].update(seeds=[2, 1, 0]),
        lambda record: (record["identity"].update(seeds=[0] * 3), [one.update(seed=0) for one in record["results"]]),
        lambda record: record["results"][1].update(seed=0),
        lambda record: record["results"][0].update(seed=10**400),
        lambda record: record["results"][0].update(epochs=2**63),
        lambda record: record["results"][0]["metrics"].update(nll=1e200),
        lambda record: record["results"][0].update(metrics={"hamming": 0.5}),
        lambda record: record["results"][0].update(by_weight={"0.1": {"hamming": 0.5}}),
        lambda record: record["results"][0].update(by_weight={"none": {"nll": 1.0, "hamming": 0.5}}),
        lambda record: record["results"][0].update(reliability={"count": [2.0]}),
        lambda record: record["results"][0].update(reliability=BINS | {"observed": [0.5]}),
        lambda record: [one.update(reliability=bins) for one, bins in zip(record["results"], MIXED, strict=True)],
        lambda record: record["results"][0].update(rounds=[ROUND]),
        lambda record: [one.update(rounds=[{"stopped_epoch": 1}]) for one in record["results"]],
        lambda record: [one.update(rounds=[ROUND | {"teacher_error": 0.1}]) for one in record["results"]],
        lambda record: [one.update(rounds=[ROUND | TRUTH | {"bayes_error": 1}]) for one in record["results"]],
        lambda record: [one.update(rounds=[ROUND | TRUTH | RAGGED]) for one in record["results"]],
        lambda record: [one.update(rounds=[ROUND | TRUTH, ROUND | TRUTH | WIDER]) for one in record["results"]],
        lambda record: record["curves"].append({"epoch": [1, 2], "training_loss": [[1.0]] * 3, "validation_nll": None}),
        lambda record: record["curves"].append({"epoch": [1], "training_loss": [[1.0]], "validation_nll": None}),
        lambda record: record["curves"].append({"epoch": [0], "training_loss": [[1.0]] * 3, "validation_nll": None}),
        lambda record: record["data"].update(effective_sample_size=[None] * 3),
        lambda record: record["protocol"].pop("cvat_eps"),
        lambda record: record["protocol"].pop("price_term"),
        lambda record: record["provenance"].update(versions=["1.0"]),
        lambda record: record["provenance"].update(cpu_seconds="1"),
        lambda record: record["provenance"].update(machine="\ud800"),
    ],
)
def test_a_sealed_record_that_lacks_what_tables_need_is_a_fault_and_no_crash(damage, tmp_path):
    store, content = Store(tmp_path), sealed(record(cell(), [1, 2, 3]))
    damage(content)
    for one in (cell(), cell("backbone")):
        store.write(one, record(one, [1, 2, 3]))
    store.path(cell()).write_text(json.dumps(sealed(content)))
    ((path, fault),) = store.faults()
    assert (path, fault) == (store.path(cell()), "no record of a cell that this version knows")
    write_tables(store)


def test_a_pipe_among_the_records_is_set_aside_and_not_waited_for(tmp_path):
    store = Store(tmp_path)
    store.write(cell(), record(cell(), [1, 2, 3]))
    os.mkfifo(tmp_path / "cells" / "pipe.json")
    assert [(path.name, fault) for path, fault in store.faults()] == [("pipe.json", "no file")]
    assert len(store.set_aside_faults()) == 1
    assert store.faults() == []
    assert len(store.read_all()) == 1


def test_a_record_is_replaced_and_never_written_into(tmp_path):
    """Whoever reads the old one meanwhile has all of it."""
    store, one = Store(tmp_path), cell()
    store.write(one, record(one, [1, 2, 3]))
    before = store.path(one).read_bytes()
    with store.path(one).open("rb", buffering=0) as reader:
        reader.read(10)
        store.write(one, record(one, [4, 5, 6]))
        assert reader.read() == before[10:]
    assert store.read(one)["results"][0]["metrics"]["nll"] == 4


def test_a_file_too_large_for_a_record_is_not_read(tmp_path):
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate(1 << 31)  # of which the disk holds nothing
    assert examine(path) == (None, f"too large: {1 << 31:,} bytes")


def test_two_sweeps_at_once_lose_and_mix_nothing(whole, tmp_path):
    arguments = [*TINY, "--workers", "1", "--out", str(tmp_path)]
    both = [start(arguments) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert numbers(tmp_path) == numbers(whole)
    assert main(["verify", str(tmp_path)]) == 0
    assert not (tmp_path / "set-aside").exists()
    assert not list(tmp_path.rglob(".*"))


def test_eight_writers_and_a_reader_that_sets_aside_lose_nothing(tmp_path):
    store = Store(tmp_path)
    cells = [cell(method, backbone) for method in ("backbone", "pl", "pl_cvat") for backbone in ("dm", "udm")]
    errors = []

    def write(number):
        try:
            for one in cells:
                store.write(one, record(one, [1, 2, 3], status="failed" if number % 2 else "finished"))
                store.set_aside_faults()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert {store.read(one)["status"] for one in cells} == {"finished"}
    assert not (tmp_path / "set-aside").exists()


# --- merging ------------------------------------------------------------------------------------------


def stores(tmp_path, **contents):
    """Folders of records: by name, the values of each method (None: it failed)."""
    for name, values in contents.items():
        for method, value in values.items():
            one = cell(method)
            content = record(one, [value] * 3, status="failed" if value is None else "finished")
            Store(tmp_path / name).write(one, content | {"provenance": {"finished": name, "git_commit": None}})
    return [str(tmp_path / name) for name in contents]


def values(folder):
    return {
        found["identity"]["method"]: found["results"][0]["metrics"]["nll"] if found["status"] == "finished" else None
        for found in Store(folder).read_all()
    }


@pytest.fixture
def no_tables(monkeypatch):
    monkeypatch.setattr("benchmarks.upkeep.write_tables", lambda store: None)


def test_stores_of_several_machines_become_one(tmp_path, no_tables):
    folders = stores(tmp_path, a={"backbone": 1.0, "pl": None}, b={"pl": 2.0, "pl_cvat": None})
    assert main(["merge", *folders, "--out", str(tmp_path / "c")]) == 0
    assert values(tmp_path / "c") == {"backbone": 1.0, "pl": 2.0, "pl_cvat": None}
    assert main(["merge", *folders, "--out", folders[0]]) == 0  # into one of them
    assert values(tmp_path / "a") == values(tmp_path / "c")
    assert main(["verify", folders[0]]) == 0
    assert (tmp_path / "a" / "cells" / Store(tmp_path).path(cell("backbone")).name).exists()


@pytest.mark.parametrize("inside", ["cells", "parts/cells", "sweeps", "joined"])
def test_nothing_is_merged_into_a_folder_of_a_source(inside, tmp_path, no_tables, capsys):
    (folder,) = stores(tmp_path, a={"backbone": 1.0})
    before = sorted(tmp_path.rglob("*"))
    assert main(["merge", folder, "--out", f"{folder}/{inside}"]) == 2
    assert f"lies in {folder}, whose files it would mix with" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_parts_of_several_machines_are_joined_too(tmp_path, no_tables, capsys):
    job = make_job("dm")
    folders = [tmp_path / name for name in "ab"]
    for folder, part in zip(folders, cut(job, 2), strict=True):
        run_job(part, Store(folder / "parts"), Settings(device="cpu"), lambda _: None)
    (damaged,) = (folders[1] / "parts" / "cells").glob("*-pl-*.json")
    content = damaged.read_bytes()
    torn(damaged)
    assert main(["verify", str(folders[1])]) == 1
    assert f"{damaged.name}: torn" in capsys.readouterr().out
    damaged.write_bytes(content)
    assert main(["merge", *map(str, folders), "--out", str(tmp_path / "c")]) == 0
    assert "0 records of 2 folders, and 6 of parts are in" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "c")]) == 0
    assert "6 of parts that wait" in capsys.readouterr().out
    parts = Parts([job], Store(tmp_path / "c"), 2, "retry-failed", "cpu")
    assert parts.todo == []
    assert len(parts.begin()) == 3


def test_a_merge_follows_no_link_of_a_folder_from_elsewhere(tmp_path, no_tables):
    folders = stores(tmp_path, a={"pl": 1}, b={"backbone": 2})
    (tmp_path / "secret").write_text("key")
    (tmp_path / "a" / "sweeps").mkdir()
    (tmp_path / "a" / "sweeps" / "x.json").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "a" / "sweeps" / "y.json")
    assert main(["merge", *folders, "--out", str(tmp_path / "c")]) == 0
    assert not list((tmp_path / "c").glob("sweeps/*"))


def test_a_contradiction_is_refused_and_nothing_is_written(tmp_path, no_tables, capsys):
    folders = stores(tmp_path, a={"backbone": 1.0, "pl": 2.0}, b={"backbone": 1.0, "pl": 2.0000001})
    assert main(["merge", *folders, "--out", str(tmp_path / "c")]) == 2
    said = capsys.readouterr().err
    assert "1 cells have two results" in said
    assert "D1/dm/pl, seed 0, nll is 2.0 and 2.0000001" in said
    trained_longer = record(cell("pl"), [2.0] * 3)
    trained_longer["results"][1]["epochs"] += 1
    Store(tmp_path / "b").write(cell("pl"), trained_longer)
    assert main(["merge", *folders, "--out", str(tmp_path / "c")]) == 2
    assert "D1/dm/pl differs in results" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_a_merge_leaves_out_what_is_no_record_and_says_so(tmp_path, no_tables, capsys):
    folders = stores(tmp_path, a={"backbone": 1.0}, b={"pl": 2.0, "pl_cvat": 3.0})
    torn(Store(tmp_path / "b").path(cell("pl")))
    Store(tmp_path / "b").path(cell("pl")).write_text("{")
    assert main(["merge", *folders, "--out", str(tmp_path / "c")]) == 1
    assert "left out, since it is no record" in capsys.readouterr().out
    assert values(tmp_path / "c") == {"backbone": 1.0, "pl_cvat": 3.0}
    assert main(["merge", str(tmp_path / "none"), "--out", str(tmp_path / "d")]) == 2
    assert main(["merge", *folders]) == 2
    assert "error: --out is missing; see --help\n" in capsys.readouterr().err
    assert main(["merge", "--out", str(tmp_path / "d")]) == 2
    assert capsys.readouterr().err.startswith("error: merge wants folders")
    assert main(["merge", *folders, "--oot", "x", "--out", str(tmp_path / "d")]) == 2
    assert capsys.readouterr().err == "error: there is no option --oot: did you mean --out?; see --help\n"


def test_a_merged_run_goes_on_like_any_other(whole, run, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    of_method(run, "pl").unlink()
    of_method(other, "backbone").unlink()
    assert main(["merge", str(run), str(other), "--out", str(tmp_path / "both")]) == 0
    assert numbers(tmp_path / "both") == numbers(whole)
    assert (tmp_path / "both" / "tables.md").read_text() == (whole / "tables.md").read_text()
    assert main([*TINY, "--out", str(tmp_path / "both")]) == 0
    assert "3 already recorded" in capsys.readouterr().err


def test_a_checksum_holds_what_will_be_read():
    content = {"a": (1, 2.5), "b": {"1": None}}
    assert sealed(content)["a"] == [1, 2.5]
    assert sealed(sealed(content)) == sealed(content)
    assert checksum(sealed(content)) == sealed(content)["checksum"]
