"""W&B online, against a server on loopback: what it is told, and what becomes of a sweep when it fails."""

import getpass
import json
import shutil
import time
from types import SimpleNamespace

import pytest
import wandb

from benchmarks import tracking
from benchmarks.executors.common import Event
from benchmarks.options import saved_jobs
from benchmarks.sweep import main as sweep
from benchmarks.tracker import Tracker
from benchmarks.wandb_runs import lock_of, locked, unsynced
from benchmarks.wandb_settings import Tracking
from tests.wandb_server import KEY, serving

SWEEP = ["--datasets", "multilabel", "--backbones", "dm", "--seeds", "0..1", "--workers", "1"]
SWEEP += ["--override.max_epochs", "3", "--override.max_epochs_cst", "2", "--cvat-weights", "0.1", "1"]
FAST = [*SWEEP, "--wandb", "online"]
NAMES = {f"multilabel/dm/{method}" for method in ("backbone", "pl", "pl_cvat")} | {"summary"}


@pytest.fixture
def server(monkeypatch):
    with serving() as started:
        monkeypatch.delenv("WANDB_MODE", raising=False)
        monkeypatch.setenv("WANDB_BASE_URL", started.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_INIT_TIMEOUT", "3")
        yield started
        wandb.teardown()  # what W&B has found out of this server must not serve another test


@pytest.fixture(scope="module")
def logged_offline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("offline") / "run"
    assert sweep([*SWEEP, "--methods", "backbone", "--wandb", "offline", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def waiting(logged_offline, tmp_path):
    """The folder of a sweep of one cell whose two runs wait for a server."""
    return shutil.copytree(logged_offline, tmp_path / "waiting")


def check_against_records(server, folder, names=NAMES):
    """Each run is there once, and has the records' numbers and every point of its curve once."""
    assert sorted(run.name for run in server.runs.values()) == sorted(names)
    cells = {run.name: run for run in server.runs.values()}
    for path in (folder / "cells").glob("*.json"):
        record = json.loads(path.read_text())
        identity = record["identity"]
        run = cells[f"multilabel/dm/{identity['method']}"]
        assert run.config["identity"] == identity
        assert run.config["protocol"] == record["protocol"]
        for metric in record["metrics"]:
            values = [result["metrics"][metric] for result in record["results"]]
            assert [run.summary[f"{metric}/seed {seed}"] for seed in (0, 1)] == values
            assert run.summary[f"{metric}/mean"] == pytest.approx(sum(values) / 2, rel=1e-15)
            assert run.summary[f"{metric}/n"] == 2
        assert sorted(run.history) == ([1, 2, 3] if identity["method"] == "backbone" else [1, 2, 3, 4])
        assert all(any(key.startswith("training_loss") for key in row) for row in run.history.values())
        assert run.exit_code == 0


def test_the_server_has_what_the_records_say(server, tmp_path, capsys):
    assert sweep([*FAST, "--wandb-project", "mine", "--wandb-tags", "a", "b", "--out", str(tmp_path / "run")]) == 0
    check_against_records(server, tmp_path / "run")
    assert "records" in [kind for run in server.runs.values() for kind in run.artifacts.values()]
    assert "W&B failed" not in capsys.readouterr().err
    for run in server.runs.values():
        assert (run.tags, run.job_type) == (["a", "b"], "written")
        assert run.group.startswith("run-")
    assert unsynced(tmp_path / "run") == []
    # the same command again sends nothing
    asked = len(server.seen)
    assert sweep([*FAST, "--out", str(tmp_path / "run")]) == 0
    assert len(server.seen) == asked


def fail_at(server, monkeypatch, name, fault):
    """The server fails when it is told of the run ``name``."""
    plain = server.upsert

    def upsert(given):
        if given["displayName"] == name:
            server.fault = fault
        return plain(given)

    monkeypatch.setattr(server, "upsert", upsert)


@pytest.mark.parametrize("fault", ["500", "hang"])
def test_an_outage_in_the_middle_is_told_and_all_is_there_after_a_sync(server, fault, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "run"
    fail_at(server, monkeypatch, "multilabel/dm/pl", fault)
    assert sweep([*FAST, "--out", str(folder)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("W&B failed, and the sweep is whole") == 1
    assert said.count(f"python -m benchmarks.sweep sync {folder}") == 1
    assert server.refused > 0
    assert len(list((folder / "cells").glob("*.json"))) == 3
    waiting = [run.name for run in unsynced(folder)]
    assert waiting
    ids = set(server.runs)

    monkeypatch.undo()
    server.mend()
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert sweep(["sync", str(folder)]) == 0
    assert ", ".join(waiting) in capsys.readouterr().out
    assert ids <= set(server.runs)
    check_against_records(server, folder)
    assert unsynced(folder) == []


def until(condition):
    end = time.monotonic() + 120
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    assert condition()


@pytest.mark.parametrize("fault", ["500", "hang"])
def test_a_server_that_comes_back_within_a_sweep_gets_its_later_cells_without_a_sync(server, fault, tmp_path, capsys):
    assert sweep([*SWEEP, "--wandb", "disabled", "--out", str(tmp_path)]) == 0
    (job,) = saved_jobs(tmp_path)[0]
    tracker = Tracker([job], Tracking("online", "mine", None, (), tmp_path))
    tracker.tell(Event(job, "recorded", "backbone"))
    until(lambda: any(run.exit_code == 0 for run in server.runs.values()) and not unsynced(tmp_path))
    server.fault = fault
    tracker.tell(Event(job, "recorded", "pl"))
    until(lambda: list(tmp_path.glob("wandb/offline-run-*/ended")))  # while the outage lasts
    server.mend()
    asked = len(server.seen)
    until(lambda: sum("viewer" in query for query in server.seen[asked:]) >= 2)  # the key, and whose it is
    time.sleep(1)  # for the answer to get there
    tracker.tell(Event(job, "recorded", "pl_cvat"))
    tracker.end(complete=True)
    said = " ".join(tracker.close())
    assert "W&B failed, and the sweep is whole; first trouble: " in said
    assert "logged offline; 1 run is in" in said
    there = {run.name for run in server.runs.values() if run.exit_code == 0}
    assert there == NAMES - {"multilabel/dm/pl"}
    (waiting,) = unsynced(tmp_path)
    assert waiting.name.startswith("offline-")
    assert sweep(["sync", str(tmp_path)]) == 0
    check_against_records(server, tmp_path)
    assert unsynced(tmp_path) == []


def test_a_server_in_trouble_is_asked_less_and_less_often_until_a_run_starts(monkeypatch):
    pauses, answers = [], iter([False] * 9 + [True, True, True])
    monkeypatch.setattr(tracking, "time", SimpleNamespace(sleep=pauses.append))
    monkeypatch.setattr(tracking, "answers", lambda: next(answers))
    server = tracking._Server()
    server.well = False
    server._ask()
    assert server.well
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    server.well = False  # it answers, and no run can be started
    server._ask()
    server.started()
    server.well = False
    server._ask()
    assert pauses[-2:] == [300, 2]


@pytest.mark.parametrize("again", ["online", "offline"])
def test_a_run_of_which_the_server_has_a_part_is_told_again_and_stands_there_once(server, again, tmp_path):
    options = [*SWEEP, "--methods", "backbone", "--out", str(tmp_path), "--on-existing", "force"]
    assert sweep(options) == 0
    (run,) = [run for run in server.runs.values() if run.name != "summary"]
    last = run.history.pop(3)
    run.exit_code = None
    assert sweep([*options, "--wandb", again]) == 0
    if again == "offline":
        assert sweep(["sync", str(tmp_path)]) == 0
    check_against_records(server, tmp_path, {"multilabel/dm/backbone", "summary"})
    assert run.history[3]["training_loss/mean"] == last["training_loss/mean"]


def test_a_wrong_key_is_told_and_harms_nothing(server, tmp_path, capsys):
    server.fault = "401"
    assert sweep([*FAST, "--out", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "W&B failed, and the sweep is whole" in said
    assert "first trouble: user is not logged in" in said
    assert said.count("benchmarks.sweep sync") == 1
    assert server.runs == {}
    assert len(list((tmp_path / "cells").glob("*.json"))) == 3
    assert {path.name.split("-")[0] for path in unsynced(tmp_path)} == {"offline"}


def test_a_server_that_comes_back_gets_the_rest_of_the_sweep_in_the_same_runs(server, tmp_path):
    folder = tmp_path / "run"
    server.fault = "401"
    assert sweep([*FAST, "--methods", "backbone", "--out", str(folder)]) == 0
    server.mend()
    assert sweep([*FAST, "--out", str(folder)]) == 0
    assert {run.name for run in server.runs.values()} == NAMES - {"multilabel/dm/backbone"}
    assert sweep(["sync", str(folder)]) == 0
    check_against_records(server, folder)


@pytest.mark.parametrize("fault", ["401", "stream"])
def test_a_sync_that_the_server_refused_says_so_and_the_next_one_sends_all(server, fault, waiting, capsys, monkeypatch):
    monkeypatch.setattr(tracking, "_ASKS", 1)
    runs = unsynced(waiting)
    assert len(runs) == 2
    server.fault = fault
    assert sweep(["sync", str(waiting)]) == 1
    assert server.refused > 0
    assert not any(run.history for run in server.runs.values())
    assert f"2 of 2 runs did not arrive whole: {', '.join(run.name for run in runs)}" in capsys.readouterr().out
    assert unsynced(waiting) == runs
    server.mend()
    assert sweep(["sync", str(waiting)]) == 0
    check_against_records(server, waiting, {"multilabel/dm/backbone", "summary"})
    assert unsynced(waiting) == []


@pytest.mark.parametrize("fault", ["files", "artifact"])
def test_tables_figures_and_the_artifact_that_the_server_refused_are_told_and_sent_by_the_next_sync(
    server, fault, waiting, capsys, monkeypatch
):
    monkeypatch.setattr(tracking, "_ASKS", 1)
    (summary,) = [run for run in unsynced(waiting) if run.name.endswith("-summary")]
    server.fault = fault
    assert sweep(["sync", str(waiting)]) == 1
    assert server.refused > 0
    assert f"1 of 2 runs did not arrive whole: {summary.name}. " in capsys.readouterr().out
    assert unsynced(waiting) == [summary]
    server.mend()
    assert sweep(["sync", str(waiting)]) == 0
    check_against_records(server, waiting, {"multilabel/dm/backbone", "summary"})
    (run,) = [run for run in server.runs.values() if run.name == "summary"]
    media = [path for path in summary.glob("files/media/**/*") if path.is_file()]
    assert len(media) > 3
    assert {
        str(path.relative_to(summary / "files")): path.stat().st_size for path in media
    }.items() <= run.files.items()
    assert "records" in run.artifacts.values()


def test_a_sweep_whose_figures_the_server_refused_says_so(server, tmp_path, capsys):
    server.fault = "files"
    assert sweep([*FAST, "--methods", "backbone", "--out", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "first trouble: its server did not take everything in time" in said
    (waiting,) = unsynced(tmp_path)
    assert waiting.name.endswith("-summary")


def test_a_sync_takes_a_time_for_wandbs_start_that_is_none_as_a_sweep_does(server, waiting, monkeypatch):
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "20s")
    assert sweep(["sync", str(waiting)]) == 0
    check_against_records(server, waiting, {"multilabel/dm/backbone", "summary"})


def test_a_sync_writes_to_no_link_beside_its_runs(server, waiting, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (waiting / "wandb" / f"debug-cli.{getpass.getuser()}.log").symlink_to(elsewhere)
    assert sweep(["sync", str(waiting)]) == 0
    check_against_records(server, waiting, {"multilabel/dm/backbone", "summary"})
    assert not elsewhere.exists()


def test_what_wandb_cannot_read_of_the_environment_is_told_in_a_line(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "ofline")
    assert sweep([*SWEEP, "--out", str(tmp_path)]) == 2
    assert "WANDB_MODE=ofline: allowed are online, offline, disabled" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    (tmp_path / "wandb/offline-run-1-2-summary").mkdir(parents=True)
    (tmp_path / "wandb/offline-run-1-2-summary/run.wandb").touch()
    monkeypatch.setenv("WANDB_SILENT", "perhaps")
    assert sweep(["sync", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert told.out.startswith(f"1 W&B run waits in {tmp_path / 'wandb'}: offline-run-1-2-summary")
    (line,) = told.err.splitlines()
    assert line.startswith("error: W&B does not start: ")
    assert "silent" in line


@pytest.mark.parametrize("marked", [True, False])
def test_a_sync_of_a_log_that_was_cut_off_says_so_until_the_sweep_has_logged_it_again(
    marked, server, waiting, capsys, monkeypatch
):
    """W&B sends what there is of it, as of a run that failed; where its end is not marked, that is no proof either."""
    monkeypatch.setattr(tracking, "_ASKS", 1)
    (run,) = [run for run in unsynced(waiting) if not run.name.endswith("-summary")]
    (log,) = run.glob("*.wandb")
    log.write_bytes(log.read_bytes()[:-300])
    if not marked:
        (run / "ended").unlink()
    assert sweep(["sync", str(waiting)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert f"1 of 2 runs did not arrive whole: {run.name}" in said
    assert f"The logs of {run.name} are cut off: the sweep's own command, given again, logs these runs whole" in said
    assert unsynced(waiting) == [run]
    if not marked:
        assert sweep([*SWEEP, "--methods", "backbone", "--wandb", "offline", "--out", str(waiting)]) == 0
        assert sweep(["sync", str(waiting)]) == 0
        check_against_records(server, waiting, {"multilabel/dm/backbone", "summary"})


def test_a_sweep_that_was_killed_online_and_goes_on_leaves_nothing_to_sync(server, tmp_path, capsys):
    options = [*SWEEP, "--methods", "backbone", "--wandb", "online", "--out", str(tmp_path)]
    assert sweep(options) == 0
    (killed,) = [run for run in tmp_path.glob("wandb/run-*") if not run.name.endswith("-summary")]
    (log,) = killed.glob("*.wandb")
    log.write_bytes(log.read_bytes()[:-300])
    for name in ("ended", f"{log.name}.synced"):
        (killed / name).unlink()
    (run,) = [run for run in server.runs.values() if run.name != "summary"]
    run.exit_code = None
    del run.history[3]
    assert unsynced(tmp_path) == [killed]
    capsys.readouterr()
    assert sweep(options) == 0
    assert "W&B failed" not in capsys.readouterr().err
    assert unsynced(tmp_path) == []
    check_against_records(server, tmp_path, {"multilabel/dm/backbone", "summary"})


def test_a_sync_leaves_what_a_sweep_still_writes(server, waiting, capsys):
    (run,) = [run for run in unsynced(waiting) if not run.name.endswith("-summary")]
    with locked(lock_of(waiting, run.name.split("-", 3)[3], "offline")):
        assert sweep(["sync", str(waiting)]) == 1
    assert "1 run left out, which a sweep still writes" in capsys.readouterr().out
    assert unsynced(waiting) == [run]
    assert {run.name for run in server.runs.values()} == {"summary"}
    assert sweep(["sync", str(waiting)]) == 0
    check_against_records(server, waiting, {"multilabel/dm/backbone", "summary"})


def test_a_cell_that_failed_is_told_online_and_leaves_nothing_to_sync(server, tmp_path, capsys):
    options = ["--datasets", "multilabel", "--backbones", "tests.parts.Broken", *FAST[4:], "--methods", "backbone"]
    assert sweep([*options, "--out", str(tmp_path)]) == 1
    assert "W&B failed" not in capsys.readouterr().err
    ended = {run.name: run.exit_code for run in server.runs.values()}
    assert ended == {"multilabel/tests.parts.Broken/backbone": 1, "summary": 0}
    assert unsynced(tmp_path) == []
