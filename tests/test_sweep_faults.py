"""What goes wrong while a sweep runs: kills, Ctrl-C, jobs that fail or die."""

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.sweep import main
from tests.sweeps import SHORT, TINY, numbers, records, start


def test_a_sweep_killed_anywhere_ends_with_the_same_records(tmp_path):
    arguments = [
        "--datasets", "moons", "multilabel", "--backbones", "dm", "udm", "--seeds", "0..1", *SHORT, "--workers", "2",
    ]  # fmt: skip
    assert main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    broken = tmp_path / "broken"
    for n_cells in (1, 7):
        process = start([*arguments, "--out", str(broken)], start_new_session=True)
        deadline = time.monotonic() + 120
        while process.poll() is None and len(list(broken.glob("cells/*.json"))) < n_cells:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert main([*arguments, "--out", str(broken)]) == 0
    assert numbers(broken) == numbers(tmp_path / "whole")


def test_workers_die_with_their_driver(tmp_path):
    """Of a job that says nothing, since a worker ends too where it finds nobody to talk to; with what it started."""
    told = Path(tempfile.gettempdir(), "cst-child-4712")
    told.unlink(missing_ok=True)
    parent = ["--datasets", "moons", "--backbones", "tests.parts.Parent", "--seeds", "4712", *SHORT]
    process = start([*parent, "--out", str(tmp_path)])
    deadline = time.monotonic() + 120
    while not told.exists() or len(told.read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    left = [pid for pid, _ in descendants(process.pid)]
    assert {int(child) for child in told.read_text().split()} < set(left)
    told.unlink()
    process.kill()
    process.wait()
    while any(alive(pid) for pid in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in left if alive(pid)]
    process.communicate()


def test_status_tells_how_a_sweep_stands(tmp_path, capsys, monkeypatch):
    options = ["--datasets", "moons", "--backbones", "dm", "tests.parts.Slow", "--seeds", "0", *SHORT]
    process = start([*options, "--workers", "1", "--out", str(tmp_path)])
    deadline = time.monotonic() + 120
    while "1 of 2 jobs finished" not in (said := status(tmp_path, capsys)):
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    assert "running on" in said
    assert "(cpu, process" in said
    assert "moons/tests.parts.Slow" in said
    process.kill()
    process.communicate()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 300)
    assert "not heard of for 5 min" in status(tmp_path, capsys)
    monkeypatch.undo()
    assert main([*TINY, "--out", str(tmp_path)]) == 0
    assert main([*TINY, "--out", str(tmp_path)]) == 0
    said = status(tmp_path, capsys).splitlines()[-1]
    assert said.startswith("ended ")
    assert said.endswith("1 of 1 job finished, 0 failed, 100 % done")
    assert main(["status", str(tmp_path / "none")]) == 2
    assert "no sweep ever wrote there" in capsys.readouterr().err


def status(folder, capsys):
    main(["status", str(folder)])
    return capsys.readouterr().out


def descendants(pid):
    """(process id, command) of all processes below ``pid``."""
    found, open_ids = [], [pid]
    while open_ids:
        parent = open_ids.pop()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.append((int(folder.name), (folder / "cmdline").read_text()))
                    open_ids.append(int(folder.name))
            except OSError:
                continue
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(tmp_path, capsys):
    arguments = [
        "--datasets",
        "moons",
        "--backbones",
        "dm",
        "tests.parts.Slow",
        "--seeds",
        "0",
        "--methods",
        "backbone",
    ]
    arguments += [*SHORT, "--workers", "1", "--out", str(tmp_path)]
    process = start(arguments)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("cells/moons-dm*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The same command goes on from here." in err
    assert "Traceback" not in err
    assert "missing" in out
    assert (tmp_path / "records.parquet").exists()
    assert main(["status", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("stopped by Ctrl-C")


@pytest.mark.parametrize(("send", "wandb"), [(os.killpg, "disabled"), (os.kill, "offline")])
def test_ctrl_c_while_the_processes_of_a_sweep_start_is_a_line(send, wandb, tmp_path):
    """Typed, all of them get it."""
    process = start([*TINY, "--wandb", wandb, "--out", str(tmp_path)], start_new_session=True)
    first = process.stderr.readline()
    assert "0 already recorded" in first
    time.sleep(1)  # a server imports what all of them need
    send(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("Stopped")


def test_a_failing_and_a_dying_job_are_recorded_and_the_rest_goes_on(tmp_path, capsys):
    arguments = ["--datasets", "moons", "--backbones", "tests.parts.Broken", "tests.parts.Buggy"]
    arguments += ["tests.parts.KilledParent", "dm", "--seeds", "0"]
    arguments += [*SHORT, "--methods", "backbone", "pl", "--out", str(tmp_path)]
    assert main(arguments) == 1
    found = {name.split("-")[1]: record for name, record in records(tmp_path).items()}
    assert found["tests.parts.Broken"]["error"] == "InputError: this backbone is broken on purpose"
    assert "Traceback" in found["tests.parts.Buggy"]["error"]
    assert "died (signal 9)" in found["tests.parts.KilledParent"]["error"]
    orphan = Path(tempfile.gettempdir(), "cst-orphan-0")
    assert not alive(int(orphan.read_text()))
    assert found["dm"]["status"] == "finished"
    out, err = capsys.readouterr()
    assert "failed: moons/tests.parts.Broken/pl: InputError: this backbone is broken" in err
    assert "failed" in out
    assert main([*arguments, "--on-existing", "skip"]) == 1
    assert "8 already recorded" in capsys.readouterr().err
    assert main([*arguments, "--on-existing", "retry-failed"]) == 1
    assert "2 already recorded" in capsys.readouterr().err
    orphan.unlink()


def test_a_replicate_whose_predictions_are_not_finite_takes_nobody_with_it(tmp_path):
    options = ["--datasets", "multilabel", "--backbones", "dm", "--seeds", "0..1", "--override.batch_size", "200"]
    options += [*SHORT[:4], "--override.learning_rate", "1e30", "--workers", "1", "--out", str(tmp_path)]
    main(options)
    found = records(tmp_path)
    assert len(found) == 3
    assert {record["status"] for record in found.values()} == {"finished"}
    for record in found.values():
        assert {result["status"] for result in record["results"]} == {"non_finite"}
        assert all(result["failed_in"] and not result["metrics"] for result in record["results"])
