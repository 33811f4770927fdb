"""An output folder at an address: what is there, whatever happens in between."""

import shutil

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from benchmarks.remote import Remote
from benchmarks.report import main as report
from benchmarks.sweep import main
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
    stays = ("wandb", "progress.json")
    files = [path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder).parts[0] not in stays]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_sweep_goes_on_from_what_the_address_holds(memory, here, tmp_path, capsys):
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    assert there(memory) == copied(folder_of(tmp_path))
    assert numbers(folder_of(tmp_path)) == numbers(here)
    assert (folder_of(tmp_path) / "progress.json").exists()
    shutil.rmtree(tmp_path / "results")  # another machine
    memory.rm(next(path for path in memory.find("/bucket/run/cells") if "pl_cvat" in path))
    before = there(memory)
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    assert "2 already recorded" in capsys.readouterr().err
    assert numbers(folder_of(tmp_path)) == numbers(here)
    after = there(memory)
    assert len(after) == len(before) + 1
    assert {name: text for name, text in after.items() if name.startswith("cells/") and name in before} == {
        name: text for name, text in before.items() if name.startswith("cells/")
    }


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

    monkeypatch.setattr(MemoryFileSystem, "put_file", away)
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 1
    err = " ".join(capsys.readouterr().err.split())
    assert "3 finished" in err
    assert (
        "memory://bucket/run lacks a part (the store is away); all of it is in results/runs/memory-bucket-run-" in err
    )
    assert not any(name.startswith("cells/") for name in there(memory))
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MemoryFileSystem, "store", memory.store)
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    assert "3 already recorded" in capsys.readouterr().err
    assert there(memory) == copied(folder_of(tmp_path))


def test_a_torn_file_at_the_address_is_set_aside_on_both_sides(memory, here, tmp_path, capsys):
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    shutil.rmtree(tmp_path / "results")
    torn = next(path for path in memory.find("/bucket/run/cells") if "pl_cvat" in path)
    memory.pipe_file(torn, memory.cat_file(torn)[:1000])
    assert main([*ARGUMENTS, "memory://bucket/run"]) == 0
    err = capsys.readouterr().err
    assert "set aside" in err
    assert "2 already recorded" in err
    assert numbers(folder_of(tmp_path)) == numbers(here)
    assert there(memory) == copied(folder_of(tmp_path))
    assert sum(name.startswith("set-aside/") for name in there(memory)) == 1


def test_what_was_removed_here_is_removed_there(memory, tmp_path):
    remote = Remote("memory://bucket/run", tmp_path)
    remote.folder.mkdir()
    for name in ("a.failed.json", "a.json", ".hidden", "progress.json"):
        (remote.folder / name).write_text("{}")
    remote.push()
    assert set(there(memory)) == {"a.failed.json", "a.json"}
    (remote.folder / "a.failed.json").unlink()
    memory.pipe_file("/bucket/run/of-another-machine.json", b"{}")
    remote.push()
    assert remote.trouble == ""
    assert set(there(memory)) == {"a.json", "of-another-machine.json"}


def test_nothing_is_fetched_to_outside_the_folder(memory, tmp_path, monkeypatch):
    remote = Remote("memory://bucket/run", tmp_path / "results")
    memory.pipe_file("/bucket/run/cells/a.json", b"{}")
    found = {
        "/bucket/run/../../escaped": {"size": 2},
        "/bucket/run/.ssh/key": {"size": 2},
        "/bucket/run/cells/a.json": {"size": 2},
    }
    monkeypatch.setattr(MemoryFileSystem, "find", lambda *arguments, **options: found)
    remote.pull()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.json"]


def test_a_folder_of_another_file_system_works_too(tmp_path, monkeypatch, here):
    monkeypatch.chdir(tmp_path)
    shared = tmp_path / "shared" / "run"
    assert main([*ARGUMENTS, shared.as_uri()]) == 0
    assert numbers(shared) == numbers(here)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nope://bucket/run", "out=nope://bucket/run: Protocol not known: nope"),
        ("sftp://me:secret-of-mine@host/run", "holds no password"),
        ("http://127.0.0.1:9/run", "out=http://127.0.0.1:9/run cannot be"),
    ],
)
def test_an_address_that_cannot_be_used_is_an_error_before_any_work(address, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*ARGUMENTS, address]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "secret-of-mine" not in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.rglob("cells/*"))


def test_no_bucket_is_made(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(MemoryFileSystem, "root_marker", "")
    monkeypatch.setattr(MemoryFileSystem, "_strip_protocol", classmethod(lambda cls, path: path.split("://")[-1]))
    with pytest.raises(InputError, match="out=memory://slip/run cannot be read: there is no slip"):
        Remote("memory://slip/run", tmp_path).pull()


def test_two_addresses_have_two_folders(tmp_path):
    one, other = Remote("memory://a/b-c", tmp_path), Remote("memory://a-b/c", tmp_path)
    assert one.folder != other.folder
    assert one.folder == Remote("memory://a/b-c", tmp_path).folder


def test_an_address_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    remote = Remote((tmp_path / "file").as_uri(), tmp_path / "runs")
    remote.folder.mkdir(parents=True)
    (remote.folder / "a.json").write_text("{}")
    remote.pull()
    with pytest.raises(InputError, match="cannot be written"):
        remote.begin()
    assert (tmp_path / "file").read_text() == ""
