"""An output folder at an address: what is there, whatever happens in between."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from threading import Event, Thread

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from benchmarks.remote import Remote
from benchmarks.report import main as report
from benchmarks.store import Store, sealed
from benchmarks.sweep import main
from cst_lightning.disk import this_host
from cst_lightning.errors import InputError
from tests.sweeps import TINY, numbers

ARGUMENTS = [*TINY, "--workers", "1", "--out"]


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """An empty object store of this process, and a folder to work in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    return fsspec.filesystem("memory")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    assert main([*ARGUMENTS, str(folder)]) == 0
    return folder


def folder_of(tmp_path):
    (folder,) = (tmp_path / "results" / "runs").iterdir()
    return folder


def there(fs, root="/bucket/run"):
    return {path.removeprefix(f"{root}/"): fs.cat_file(path) for path in fs.find(root)}


def copied(folder):
    """The content of what belongs at the address."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {name: text for name, text in names.items() if name.startswith(("cells/", "sweeps/", "tables.", "records."))}


def one_there(fs, method="pl_cvat"):
    return next(path for path in fs.find("/bucket/run/cells") if method in path)


def test_a_sweep_goes_on_from_what_the_address_holds(memory, here, tmp_path, capsys):
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    assert there(memory) == copied(folder_of(tmp_path))
    assert numbers(folder_of(tmp_path)) == numbers(here)
    assert (folder_of(tmp_path) / "progress.json").exists()
    shutil.rmtree(tmp_path / "results")  # another machine
    memory.rm(one_there(memory))
    before = there(memory)
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    assert "2 already recorded" in capsys.readouterr().err
    assert numbers(folder_of(tmp_path)) == numbers(here)
    after = there(memory)
    assert len(after) == len(before) + 1
    assert {name: text for name, text in after.items() if name.startswith("cells/") and name in before} == {
        name: text for name, text in before.items() if name.startswith("cells/")
    }


def test_a_sweep_that_goes_on_elsewhere_goes_on_in_the_same_runs_of_wandb(memory, tmp_path):
    assert main([*ARGUMENTS, "memory://bucket/run", "--wandb", "offline"]) == 0
    named = memory.cat_file("/bucket/run/wandb/sweep-id")
    assert (folder_of(tmp_path) / "wandb" / "sweep-id").read_bytes() == named
    shutil.rmtree(tmp_path / "results")
    memory.rm(one_there(memory))
    assert main([*ARGUMENTS, "memory://bucket/run", "--wandb", "offline"]) == 0
    assert (folder_of(tmp_path) / "wandb" / "sweep-id").read_bytes() == named


def test_a_plan_knows_what_the_address_holds_and_writes_nothing_there(memory, capsys):
    assert main([*ARGUMENTS, "memory://bucket/run", "--plan"]) == 0
    assert "3 to run" in capsys.readouterr().out
    assert there(memory) == {}
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    before = there(memory)
    capsys.readouterr()
    assert main([*ARGUMENTS, "memory://bucket/run", "--plan"]) == 0
    assert "0 to run" in capsys.readouterr().out
    assert there(memory) == before


def test_what_looks_after_records_takes_an_address(memory, here, tmp_path, capsys):
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    shutil.rmtree(tmp_path / "results")
    capsys.readouterr()
    assert main(["verify", "memory://bucket/run"]) == 0
    assert "3 records" in capsys.readouterr().out
    assert main(["merge", "memory://bucket/run", "--out", str(tmp_path / "merged")]) == 0
    assert numbers(tmp_path / "merged") == numbers(here)
    assert main(["merge", "memory://bucket/run", "--out", "memory://bucket/other"]) == 2
    assert "out=memory://bucket/other: allowed is a folder" in capsys.readouterr().err
    assert report(["memory://bucket/run"]) == 0
    assert (folder_of(tmp_path) / "report.html").exists()


def test_an_address_that_fails_in_the_middle_is_told_and_gets_the_rest_later(memory, tmp_path, capsys, monkeypatch):
    put = MemoryFileSystem.put_file

    def away(self, local, path, **options):
        if "/cells/" in path or path.endswith(".md"):
            raise OSError("the store is away")
        return put(self, local, path, **options)

    with monkeypatch.context() as during:
        during.setattr(MemoryFileSystem, "put_file", away)
        assert main([*ARGUMENTS, "memory://bucket/run"]) == 1
    err = " ".join(capsys.readouterr().err.split())
    assert "3 finished" in err
    assert (
        "memory://bucket/run lacks a part (the store is away); all of it is in results/runs/memory-bucket-run-" in err
    )
    assert set(there(memory)) == {"sweeps/paper.json"}
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    assert "3 already recorded" in capsys.readouterr().err
    assert there(memory) == copied(folder_of(tmp_path))
    assert len(there(memory)) == 8


def test_an_address_that_cannot_be_read_at_the_end_is_told(memory, tmp_path, capsys, monkeypatch):
    """The tables, which it takes again, may lack what other machines recorded."""
    begin, listed = Remote.begin, MemoryFileSystem.ls

    def away(self, *arguments, **options):
        raise OSError("the store is away")

    with monkeypatch.context() as during:
        during.setattr(Remote, "begin", lambda self: (begin(self), during.setattr(MemoryFileSystem, "ls", away)))
        assert main([*ARGUMENTS, "memory://bucket/run"]) == 1
    err = " ".join(capsys.readouterr().err.split())
    assert "memory://bucket/run was not read at the end" in err
    assert "the store is away" in err
    assert "lacks a part" not in err
    assert MemoryFileSystem.ls is listed
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    assert there(memory) == copied(folder_of(tmp_path))


def test_a_torn_file_at_the_address_is_named_and_its_cell_alone_is_run_again(memory, here, tmp_path, capsys):
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    memory.pipe_file(one_there(memory), memory.cat_file(one_there(memory))[:1000])
    assert main(["verify", "memory://bucket/run"]) == 1  # though the copy here is whole
    assert "torn or damaged" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "results")
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    err = capsys.readouterr().err
    assert "left out, since it is no record: memory://bucket/run/cells/moons-dm-pl_cvat" in err
    assert "2 already recorded" in err
    assert numbers(folder_of(tmp_path)) == numbers(here)
    assert there(memory) == copied(folder_of(tmp_path))


def test_a_damaged_file_here_never_reaches_the_address(memory, here, tmp_path):
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    before = there(memory)
    torn = next((folder_of(tmp_path) / "cells").glob("*pl_cvat*"))
    torn.write_bytes(b"x" * torn.stat().st_size)
    Remote("memory://bucket/run").finish()  # while a sweep goes on: at its begin it would set the file aside
    assert there(memory) == before
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    assert numbers(folder_of(tmp_path)) == numbers(here)
    cells = {name: text for name, text in before.items() if name.startswith("cells/")}
    assert cells.items() <= there(memory).items()


def test_a_folder_that_vanishes_deletes_nothing_there(memory, tmp_path):
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    before = there(memory)
    remote = Remote("memory://bucket/run")
    remote.pull()
    shutil.rmtree(remote.folder)
    remote.finish()
    assert there(memory) == before


def rewritten(memory, when):
    """One record at the address as another machine wrote it at ``when``."""
    path = one_there(memory)
    other = json.loads(memory.cat_file(path)) | {"note": when}
    other["provenance"]["finished"] = when
    memory.pipe_file(path, json.dumps(sealed(other), indent=1).encode())
    return path


@pytest.mark.parametrize(("when", "kept"), [("2999-01-01T00:00:00+00:00", True), ("2001-01-01T00:00:00+00:00", False)])
def test_of_two_records_of_a_cell_the_later_one_stands_on_both_sides(when, kept, memory, tmp_path):
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    path = rewritten(memory, when)
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    here = (folder_of(tmp_path) / "cells" / path.rpartition("/")[2]).read_bytes()
    assert memory.cat_file(path) == here
    assert ("note" in json.loads(here)) == kept


def test_a_failure_whose_cell_has_finished_is_deleted_there_and_nothing_else(memory, tmp_path):
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    before = there(memory)
    path = one_there(memory)
    failed = json.loads(memory.cat_file(path)) | {"status": "failed", "error": "x"}
    memory.pipe_file(path.replace(".json", ".failed.json"), json.dumps(sealed(failed)).encode())
    memory.pipe_file("/bucket/run/cells/notes.json", b"{}")
    memory.pipe_file("/bucket/run/notes.txt", b"mine")
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    assert set(there(memory)) == {*before, "cells/notes.json", "notes.txt"}


def test_a_record_that_is_written_during_a_push_is_sent_too(memory, tmp_path, monkeypatch):
    assert main([*ARGUMENTS, str(tmp_path / "whole")]) == 0
    remote = Remote("memory://bucket/run")
    put, begun, go_on = MemoryFileSystem.put_file, Event(), Event()

    def slow(self, *arguments, **options):
        begun.set()
        assert go_on.wait(60)
        return put(self, *arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "put_file", slow)
    first, *rest = sorted((tmp_path / "whole" / "cells").iterdir())
    Store(remote.folder).adopt(first)
    remote.push_beside()
    assert begun.wait(60)
    for path in rest:
        Store(remote.folder).adopt(path)
        remote.push_beside()
    go_on.set()
    deadline = time.monotonic() + 60
    while len(there(memory)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert remote.trouble == ""


def test_a_push_that_is_slow_does_not_put_old_tables_over_new_ones(memory, tmp_path, monkeypatch):
    remote = Remote("memory://bucket/run")
    remote.folder.mkdir(parents=True)
    table, read, go_on = remote.folder / "tables.md", Event(), Event()
    table.write_text("old")

    def slow(self, local, path, **options):
        old = Path(local).read_text()
        if not read.is_set():
            read.set()
            assert go_on.wait(60)
        memory.pipe_file(path, old.encode())

    monkeypatch.setattr(MemoryFileSystem, "put_file", slow)
    remote.push_beside()
    assert read.wait(60)
    table.write_text("the new one")
    later = Thread(target=remote.finish)
    later.start()
    later.join(0.3)  # without waiting it would be done by now
    go_on.set()
    later.join(60)
    deadline = time.monotonic() + 60
    while remote._sending:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert memory.cat_file("/bucket/run/tables.md") == b"the new one"


def test_tables_have_what_another_machine_recorded_meanwhile(memory, tmp_path, monkeypatch, capsys):
    other = [argument.replace("moons", "multilabel") for argument in ARGUMENTS]
    assert main([*other, "memory://bucket/other"]) == 0
    cells = {path.rpartition("/")[2]: memory.cat_file(path) for path in memory.find("/bucket/other/cells")}
    begin = Remote.begin

    def begin_and_another(self):
        begin(self)
        for name, content in cells.items():
            memory.pipe_file(f"/bucket/run/cells/{name}", content)

    monkeypatch.setattr(Remote, "begin", begin_and_another)
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    assert b"multilabel" in there(memory)["tables.csv"]
    assert b"moons" in there(memory)["tables.csv"]


def test_an_address_that_hangs_at_the_end_is_told(memory, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.remote._PATIENCE_S", 0.2)
    monkeypatch.setattr(Remote, "_push", lambda self: None)
    release = Event()
    finish = Remote.finish

    def hang(self):
        monkeypatch.setattr(Remote, "_push", lambda self: release.wait(60))
        finish(self)

    monkeypatch.setattr(Remote, "finish", hang)
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 1
    release.set()
    assert "lacks a part (no answer in 0 s)" in " ".join(capsys.readouterr().err.split())


def test_an_address_that_cannot_be_read_is_not_taken_for_an_empty_one(memory, capsys, monkeypatch):
    def denied(self, path, **options):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(MemoryFileSystem, "ls", denied)
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 2
    assert "out=memory://bucket/run cannot be read: Access Denied" in capsys.readouterr().err


def test_nothing_is_fetched_to_outside_the_folder(memory, tmp_path, monkeypatch):
    memory.pipe_file("/bucket/run/sweeps/paper.json", b"{}")
    listed = MemoryFileSystem.ls
    names = ["..", "../../escaped.json", ".hidden.json", "a/../../../x.json", "..json"]

    def hostile(self, path, **options):
        return [*listed(self, path, **options), *(f"{path}/{name}" for name in names)]

    monkeypatch.setattr(MemoryFileSystem, "ls", hostile)
    remote = Remote("memory://bucket/run", tmp_path / "results")
    remote.pull()
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"paper.json", "escaped.json", "x.json"}
    assert all(path.is_relative_to(remote.folder / "sweeps") for path in tmp_path.rglob("*") if path.is_file())


NAMES_THERE = [
    "..json",
    "a\nb.json", "\x1b[31m.json", "c:x.json", "..json", ".hidden.json", "n" * 300 + ".json", "é" * 150 + ".json",
    "-rf.json", "$(touch x).json", "paper.json", "CON.json",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["cells", "sweeps"])
def test_objects_of_any_name_and_content_come_to_no_harm(kind, memory, tmp_path, capsys):
    contents = [b"", b"\xff\xfe", b"null", b"[" * 100_000, b'{"identity": {}}', b"9" * 5000]
    for number, name in enumerate(NAMES_THERE):
        memory.pipe_file(f"/bucket/run/{kind}/{name}", contents[number % len(contents)])
    memory.pipe_file("/bucket/run/wandb/sweep-id", b"../../../elsewhere")
    memory.pipe_file("/bucket/run/cells/../../above.json", b"{}")
    before = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    remote = Remote("memory://bucket/run")
    remote.pull()
    remote.pull()  # what is told once is not told again
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()} - before
    assert [path for path in written if not (tmp_path / path).is_relative_to(tmp_path / remote.folder)] == []
    told = [path.removeprefix(f"memory://bucket/run/{kind}/") for path, _ in remote.faults]
    assert len(told) == len(set(told))
    assert {"a\nb.json", "\x1b[31m.json", "c:x.json", "n" * 300 + ".json", "é" * 150 + ".json"} <= set(told)
    assert list((remote.folder / "cells").glob("*")) == []
    assert main(["verify", "memory://bucket/run"]) in (1, 2)
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "Traceback" not in said.err


def test_what_stands_in_a_files_place_here_is_not_followed_by_what_comes_from_there(memory, tmp_path):
    remote, elsewhere = Remote("memory://bucket/run"), tmp_path / "elsewhere"
    memory.pipe_file("/bucket/run/sweeps/paper.json", b"{}")
    (remote.folder / "sweeps").mkdir(parents=True)
    (remote.folder / "sweeps" / "paper.json").symlink_to(elsewhere)
    remote.pull()
    assert not elsewhere.exists()


def test_status_of_an_address_names_the_folder(memory, capsys):
    assert main(["status", "memory://bucket/run"]) == 2
    assert "name results/runs/memory-bucket-run-" in capsys.readouterr().err


def test_a_folder_of_another_file_system_works_too(tmp_path, monkeypatch, here):
    monkeypatch.chdir(tmp_path)
    shared = tmp_path / "shared" / "run"
    assert main([*ARGUMENTS, shared.as_uri()]) == 0
    assert numbers(shared) == numbers(here)


def test_a_write_to_a_file_system_that_breaks_off_leaves_the_old_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared = tmp_path / "shared" / "run"
    assert main([*ARGUMENTS, shared.as_uri()]) == 0
    before = {path: path.read_bytes() for path in shared.rglob("*.*")}

    def half(self, lpath, rpath, **kwargs):
        Path(rpath).write_bytes(Path(lpath).read_bytes()[:10])
        raise OSError("the connection was lost")

    monkeypatch.setattr(LocalFileSystem, "put_file", half)
    remote = Remote(shared.as_uri())  # which has not looked what is there, and sends all
    remote.finish()
    assert "the connection was lost" in remote.trouble
    assert {path: path.read_bytes() for path in before} == before
    assert all(path in before or path.name.startswith(".") for path in shared.rglob("*.*"))


def test_two_sweeps_write_a_file_at_once_and_what_one_left_that_died_goes(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared, put, others = tmp_path / "shared", LocalFileSystem.put_file, []
    address = shared.as_uri()
    folder = Remote(address).folder
    shutil.copytree(here / "cells", folder / "cells")
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = [shared / "cells" / f".x.json.{this_host()}.{pid}.abc" for pid in (dead.pid, os.getpid())]
    (shared / "cells").mkdir(parents=True)
    for path in left:
        path.write_text("half")

    def slow(self, *arguments, **options):
        put(self, *arguments, **options)
        if not others:
            others.append(Remote(address))
            others[0].finish()

    monkeypatch.setattr(LocalFileSystem, "put_file", slow)
    remote = Remote(address)
    remote.begin()
    assert remote.trouble == others[0].trouble == ""
    assert [path.exists() for path in left] == [False, True]
    left[1].unlink()
    assert copied(shared) == copied(folder)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nope://bucket/run", "out=nope://bucket/run: Protocol not known: nope"),
        ("sftp://me:secret-of-mine@host/run", "without a password"),
        ("sftp://me:secret-of/mine@host/run", "without a password"),
        ("simplecache::sftp://me:secret-of-mine@host/run", "without a password"),
        ("abfs://box/run?sig=secret-of-mine", "without a password"),
        ("s3://[x/run", "out=s3://[x/run"),
        ("http://127.0.0.1:9/run", "out=http://127.0.0.1:9/run cannot be"),
    ],
)
def test_an_address_that_cannot_be_used_is_an_error_before_any_work(address, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*ARGUMENTS, address]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "secret-of" not in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.rglob("cells/*"))


def test_no_bucket_is_made(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(MemoryFileSystem, "_strip_protocol", classmethod(lambda cls, path: path.split("://")[-1]))
    with pytest.raises(InputError, match="out=memory://slip/run cannot be read: slip"):
        Remote("memory://slip/run", tmp_path).pull()


def test_two_addresses_have_two_folders(tmp_path):
    one, other = Remote("memory://a/b-c", tmp_path), Remote("memory://a-b/c", tmp_path)
    assert one.folder != other.folder
    assert one.folder == Remote("memory://a/b-c", tmp_path).folder


def test_an_address_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    remote = Remote((tmp_path / "file").as_uri(), tmp_path / "runs")
    with pytest.raises(InputError, match="cannot be read"):
        remote.pull()
    assert (tmp_path / "file").read_text() == ""


def test_each_record_is_read_once(memory, monkeypatch):
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    remote, read, whole = Remote("memory://bucket/run"), [], MemoryFileSystem.cat_file

    def cat(self, path, *arguments, **options):
        read.append(path)
        return whole(self, path, *arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat)
    remote.pull()
    assert len(read) == 4  # three records, and what was asked for
    memory.pipe_file("/bucket/run/cells/new.json", b"{}")
    remote.refresh()
    assert read[4:] == ["/bucket/run/cells/new.json"]
    assert [path for path, _ in remote.faults] == ["memory://bucket/run/cells/new.json"]
