"""Sweeps that go on, were killed, or run beside each other: each W&B run is told once, and whole."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from queue import SimpleQueue
from threading import Event
from types import SimpleNamespace

import pytest
import wandb

from benchmarks import tracking, wandb_log
from benchmarks.files import OutputError
from benchmarks.grid import make_jobs
from benchmarks.options import saved_jobs
from benchmarks.sweep import main as sweep
from benchmarks.tracking import Session
from benchmarks.wandb_runs import ask, lacks_summary, locked, unsynced, untold
from benchmarks.wandb_settings import Tracking
from benchmarks.watching import Point
from tests.sweeps import LOGGED, records, start
from tests.wandb_files import messages, runs


def test_a_finished_sweep_again_logs_nothing_more(logged):
    before = unsynced(logged)
    assert len(before) == 4
    assert sweep([*LOGGED, "--wandb", "offline", "--out", str(logged)]) == 0
    assert unsynced(logged) == before


def cut_off(folder, run_id):
    """Make a run one that was killed, with half of its log."""
    (cut,) = (folder / "wandb").glob(f"offline-run-*-{run_id}")
    (cut / "ended").unlink()
    (log,) = cut.glob("*.wandb")
    log.write_bytes(log.read_bytes()[:200])
    return log


def test_a_sweep_killed_before_its_summary_gets_it_from_the_same_command(logged):
    (summary,) = (logged / "wandb").glob("offline-run-*-summary")
    shutil.rmtree(summary)
    assert sweep([*LOGGED, "--wandb", "offline", "--out", str(logged)]) == 0
    assert len(runs(logged)["summary"]) == 1


def test_a_sweep_killed_in_its_summary_gets_it_from_the_same_command(logged):
    ((_, before, info),) = runs(logged)["summary"]
    cut_off(logged, info.run_id)
    assert sweep([*LOGGED, "--wandb", "offline", "--out", str(logged)]) == 0
    ((_, after, _),) = runs(logged)["summary"]
    assert [row.keys() for row in after] == [row.keys() for row in before]


def test_a_summary_that_failed_is_told_and_comes_from_the_same_command(tmp_path, monkeypatch):
    settings = Tracking("offline", "project", None, (), tmp_path)
    session = Session(settings, "0" * 8, make_jobs("smoke", datasets=["moons"], backbone_names=["dm"]))

    def fail(self, run):
        raise ValueError("no report")

    monkeypatch.setattr(tracking.Session, "_fill_summary", fail)
    ask(tmp_path, [])
    session.finish(complete=True, share=4.0)
    assert "first trouble: no report" in session.said()[0]
    (run,) = unsynced(tmp_path)
    (log,) = run.glob("*.wandb")
    assert [message.exit.exit_code for message in messages(log) if message.HasField("exit")] == [1]
    assert lacks_summary(tmp_path)


def test_a_cell_whose_run_was_cut_off_with_the_sweep_is_logged_by_the_next_one(logged):
    """The record was written; W&B's part was killed before it had the end of the cell's run."""
    before = runs(logged)
    log = cut_off(logged, before["multilabel/dm/pl"][0][2].run_id)
    log.with_name(f"{log.name}.synced").touch()  # what there was of it may have been uploaded
    assert sweep([*LOGGED, "--wandb", "offline", "--out", str(logged)]) == 0
    after = runs(logged)
    assert {len(of_name) for of_name in after.values()} == {1}
    summary, history, _ = after["multilabel/dm/pl"][0]
    assert all(summary[name] == value for name, value in before["multilabel/dm/pl"][0][0].items() if name[0] != "_")
    assert [row["training_loss/mean"] for row in history] == [
        row["training_loss/mean"] for row in before["multilabel/dm/pl"][0][1]
    ]


def test_a_sweep_killed_with_all_its_processes_is_told_whole_by_the_same_command(tmp_path):
    options = [*LOGGED, "--wandb", "offline", "--out", str(tmp_path)]
    options[options.index("--override.max_epochs_cst") + 1] = "150"  # so that cells are left when the first one is done
    process = start(options, start_new_session=True)
    until = time.monotonic() + 120
    while not list(tmp_path.glob("cells/*.json")) and time.monotonic() < until:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert 1 <= len(records(tmp_path)) < 3
    assert sweep(options) == 0
    found = runs(tmp_path)
    assert {len(of_name) for of_name in found.values()} == {1}
    assert len(found) == 4
    for record in records(tmp_path).values():
        ((summary, _, _),) = found[f"multilabel/dm/{record['identity']['method']}"]
        assert [summary[f"nll/seed {r['seed']}"] for r in record["results"]] == [
            r["metrics"]["nll"] for r in record["results"]
        ]


def test_two_sweeps_at_once_log_every_cell_once_and_both_end_well(tmp_path):
    arguments = [*LOGGED, "--override.max_epochs_cst", "60", "--wandb", "offline", "--out", str(tmp_path)]
    both = [start(arguments) for _ in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert not any("W&B failed" in err for _, err in said), said
    assert sweep(arguments) == 0  # what one left to the other is there by now
    found = runs(tmp_path)
    assert {name: len(of_name) for name, of_name in found.items()} == dict.fromkeys(found, 1)
    assert len(found) == 4
    for record in records(tmp_path).values():
        ((summary, _, _),) = found[f"multilabel/dm/{record['identity']['method']}"]
        for result in record["results"]:
            assert summary[f"nll/seed {result['seed']}"] == result["metrics"]["nll"]


def test_a_run_is_locked_by_a_living_process_and_not_by_a_dead_one_that_nobody_collects(tmp_path):
    path = tmp_path / "locks" / "run"
    locked(path).close()
    code = f"import fcntl, time; file = open({str(path)!r}, 'a'); fcntl.flock(file, fcntl.LOCK_EX); "
    other = subprocess.Popen([sys.executable, "-c", f"{code}print('locked', flush=True); time.sleep(60)"], stdout=-1)
    other.stdout.readline()
    assert locked(path) is None
    other.kill()
    time.sleep(0.5)  # not waited for, it is there as the dead are that nobody collects
    locked(path).close()
    other.communicate()


def test_a_cell_that_is_asked_for_again_is_told_again_whatever_it_had_been(logged, tmp_path):
    shutil.copytree(logged, tmp_path / "run")
    (job,) = saved_jobs(tmp_path / "run")[0]
    cells = [(job, cell) for cell in job.cells]
    assert untold(tmp_path / "run", cells) == []
    assert not lacks_summary(tmp_path / "run")
    ask(tmp_path / "run", job.cells[:1])  # and killed
    assert [event.text for event in untold(tmp_path / "run", cells)] == [job.methods[0]]
    assert lacks_summary(tmp_path / "run")


def test_a_run_that_is_logged_again_offline_has_not_ended_before_that_has(tmp_path):
    """Where it is cut off, the run online that W&B ended, of which the server lacks a part, is no proof."""
    jobs = make_jobs("smoke", datasets=["moons"], backbone_names=["dm"])
    online = tmp_path / "wandb" / "run-20260101_000000-00000000-summary"
    online.mkdir(parents=True)
    (online / "ended").touch()
    session = Session(Tracking("offline", "project", None, (), tmp_path), "0" * 8, jobs)
    session._start("summary", "summary", "matched", {})
    assert not (online / "ended").exists()
    session.open["summary"].finish()


def test_a_log_is_whole_at_its_end_and_nowhere_before(logged, tmp_path):
    for run in unsynced(logged):
        assert tracking.is_whole(run)
        (log,) = run.glob("*.wandb")
        content = log.read_bytes()
        for size in [0, 7, *range(50, len(content), 997), len(content) - 1]:
            (tmp_path / log.name).write_bytes(content[:size])
            assert not tracking.is_whole(tmp_path)
        (tmp_path / log.name).unlink()
    assert not tracking.is_whole(tmp_path)


@pytest.mark.parametrize("room", [True, False])
def test_a_run_whose_log_the_disk_cut_off_has_not_ended_and_is_told(room, tmp_path, monkeypatch):
    session = Session(Tracking("offline", "project", None, (), tmp_path), "0" * 8, [])
    session._start("summary", "summary", "matched", {})
    session._end("summary")
    if not room:
        monkeypatch.setattr(tracking, "messages", lambda log: iter([*wandb_log.messages(log)][:-1]))
    session.finish(complete=False, share=4.0)
    (run,) = unsynced(tmp_path)
    assert (run / "ended").exists() == room
    assert session.problems == ([] if room else [f"{run} is not whole (is the disk full?)"])


@pytest.mark.parametrize("where", ["at its start", "after it"])
def test_a_run_that_the_disk_does_not_hold_is_tried_once_and_has_not_ended(where, tmp_path, monkeypatch):
    """Not at every point again, for which W&B would start as many runs."""
    (job,) = make_jobs("smoke", datasets=["moons"], backbone_names=["dm"], methods=["backbone", "pl"])
    session, tried = Session(Tracking("offline", "project", None, (), tmp_path), "0" * 8, [job]), []
    start = wandb.init

    def init(**options):
        tried.append(options["name"])
        if where == "at its start":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return start(**options)

    def full(path, text):
        raise OutputError(f"{path} cannot be written")

    with monkeypatch.context() as broken:
        broken.setattr(wandb, "init", init)
        if where == "after it":
            broken.setattr(tracking, "write_text", full)
        for epoch, method in ((1, "backbone"), (2, "backbone"), (3, "backbone"), (1, "pl"), (2, "pl")):
            point = Point("backbone", [method], epoch, [0], [0.0], [[1.0]], None)
            session.take(job, "point", "", point)
    assert tried == ["moons/dm/backbone", "moons/dm/pl"]
    assert len(session.problems) == 2
    session.finish(complete=False, share=4.0)
    assert not list(tmp_path.glob("wandb/*/ended"))


def test_a_cell_that_is_run_again_leaves_one_run(logged):
    before = runs(logged)["multilabel/dm/backbone"]
    next((logged / "cells").glob("*-pl-*.json")).unlink()
    assert sweep([*LOGGED, "--wandb", "offline", "--out", str(logged)]) == 0
    after = runs(logged)
    assert {len(of_name) for of_name in after.values()} == {1}
    # the backbone is trained again for its student's sake, and its own run is left alone
    assert after["multilabel/dm/backbone"][0][:2] == before[0][:2]
    assert "nll/mean" in after["multilabel/dm/pl"][0][0]


def one_cell(folder, **options):
    (job,) = make_jobs("smoke", datasets=["moons"], backbone_names=["dm"], methods=["backbone"])
    return Session(Tracking("offline", "project", None, (), folder), "0" * 8, [job], **options), job


def test_a_run_online_that_the_disk_does_not_hold_is_handed_over_whole(tmp_path, monkeypatch):
    """And no part of it, from which the other process would make a run that failed."""
    rest = SimpleQueue()
    session, job = one_cell(tmp_path, rest=rest, mode="online")
    ended = []
    run = SimpleNamespace(dir=tmp_path / "run" / "files", path="us/mine/run", finish=ended.append)

    def full(path, text):
        raise OutputError(f"{path} cannot be written")

    monkeypatch.setattr(wandb, "init", lambda **options: run)
    monkeypatch.setattr(tracking, "write_text", full)
    monkeypatch.setattr(tracking, "arrived", lambda run: False)
    points = [Point("backbone", ["backbone"], epoch, [0], [0.0], [[1.0]], None) for epoch in (1, 2, 3)]
    for point in points:
        session.take(job, "point", "", point)
    session.take(job, "recorded", "backbone", None)
    session.finish(complete=False, share=4.0)
    told = [rest.get_nowait() for _ in range(rest.qsize())]
    assert told == [*((job, "point", "", point) for point in points), (job, "recorded", "backbone", None), (False, 4.0)]
    assert ended == [1]
    assert "cannot be written" in session.said()[0]


def test_a_run_whose_end_lasts_longer_than_it_is_waited_for_is_told(tmp_path, monkeypatch):
    session, _ = one_cell(tmp_path, mode="offline")
    held = Event()
    session.open["cell"] = SimpleNamespace(dir=tmp_path / "run" / "files", finish=lambda exit_code: held.wait(60))
    monkeypatch.setattr(tracking, "CLOSE_S", 0)
    session._end("cell")
    session.finish(complete=False, share=0.0)
    held.set()
    assert session.problems == [f"{tmp_path / 'run'} is not whole (is the disk full?)"]


def test_what_went_wrong_is_told_where_the_process_of_wandb_has_died(tmp_path, monkeypatch):
    def die():
        raise ConnectionResetError("Connection lost")

    session, _ = one_cell(tmp_path, mode="offline")
    monkeypatch.setattr(wandb, "teardown", die)
    session.finish(complete=False, share=0.0)
    (said,) = session.said()
    assert "W&B failed, and the sweep is whole; first trouble: Connection lost (ConnectionResetError)" in said


def test_a_curve_that_broke_off_has_the_rest_of_the_record(logged, tmp_path):
    """A stack that is too large for a GPU is trained again in halves, which tell no points."""
    folder = shutil.copytree(logged, tmp_path / "run", ignore=shutil.ignore_patterns("wandb"))
    (job,) = saved_jobs(folder)[0]
    before = runs(logged)["multilabel/dm/backbone"][0][1]
    session = Session(Tracking("offline", "project", None, (), folder), "0" * 8, [job])
    session.take(job, "point", "", Point("backbone", ["backbone"], 1, [0, 1, 2], [0.0], [[1.0], [2.0], [3.0]], None))
    session.take(job, "recorded", "backbone", None)
    session.finish(complete=False, share=4.0)
    assert session.problems == []
    ((_, history, _),) = runs(folder)["multilabel/dm/backbone"]
    assert [row["_step"] for row in history] == [1, 2, 3]
    assert [row["training_loss/mean"] for row in history[1:]] == [row["training_loss/mean"] for row in before[1:]]
