"""What Weights & Biases is told, read back from its offline files."""

import errno
import json
import multiprocessing.process
import multiprocessing.queues
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
from queue import SimpleQueue

import pytest
from scipy import stats

from benchmarks import tracker, tracking, wandb_settings, watching
from benchmarks.entries import paper_results
from benchmarks.grid import make_jobs
from benchmarks.sweep import main as sweep
from benchmarks.tracker import Tracker
from benchmarks.wandb_runs import locked, unsynced
from benchmarks.wandb_settings import Tracking
from benchmarks.watching import Point
from tests.sweeps import LOGGED, ROOT, records
from tests.wandb_files import messages, runs


def test_every_cell_has_one_run_with_the_records_numbers_to_the_last_digit(logged):
    found = runs(logged)
    assert set(found) == {"multilabel/dm/backbone", "multilabel/dm/pl", "multilabel/dm/pl_cvat", "summary"}
    assert {len(of_name) for of_name in found.values()} == {1}
    for path in (logged / "cells").glob("*.json"):
        record = json.loads(path.read_text())
        names = record["identity"]
        summary, _, info = found[f"{names['dataset']}/{names['backbone']}/{names['method']}"][0]
        for metric in record["metrics"]:
            values = [result["metrics"][metric] for result in record["results"]]
            assert summary[f"{metric}/mean"] == pytest.approx(sum(values) / 3, rel=1e-15)
            assert summary[f"{metric}/standard_error"] == stats.sem(values)
            assert summary[f"{metric}/n"] == 3
            assert [summary[f"{metric}/seed {seed}"] for seed in range(3)] == values
        assert (info.entity, info.project, list(info.tags), info.job_type) == ("us", "mine", ["a", "b"], "written")
        assert info.run_group.startswith("run-")


def test_curves_hold_every_seed_and_their_mean(logged):
    found = runs(logged)
    _, history, _ = found["multilabel/dm/backbone"][0]
    assert [row["epoch"] for row in history] == [1, 2, 3]
    for row in history:
        seeds = [row[f"training_loss/seed {seed}"] for seed in range(3)]
        assert row["training_loss/mean"] == pytest.approx(sum(seeds) / 3)
        assert row["training_loss/standard_error"] == pytest.approx(stats.sem(seeds))
    _, history, _ = found["multilabel/dm/pl_cvat"][0]
    assert [(row["stage"], row["epoch"], row["_step"]) for row in history] == [
        ("round 1", 1, 1), ("round 1", 2, 2), ("round 2", 1, 3), ("round 2", 2, 4),
    ]  # fmt: skip
    assert "training_loss/weight 0.1/mean" in history[0]
    assert "training_loss/weight 1.0/seed 2" in history[0]


def test_a_cell_cut_by_seeds_has_the_curves_of_its_record(tmp_path):
    options = ["--methods", "backbone", "pl_cvat", "--seeds-per-job", "2", "--wandb", "offline"]
    assert sweep([*LOGGED, *options, "--out", str(tmp_path)]) == 0
    for name, steps in (("backbone", [1, 2, 3]), ("pl_cvat", [1, 2, 3, 4])):
        ((_, history, _),) = runs(tmp_path)[f"multilabel/dm/{name}"]
        assert [row["_step"] for row in history] == steps
        (record,) = (
            record
            for path in (tmp_path / "cells").glob("*.json")
            if (record := json.loads(path.read_text()))["identity"]["method"] == name
        )
        curves = [seed for curve in record["curves"] for seed in zip(*curve["training_loss"], strict=True)]
        for row, losses in zip(history, curves, strict=True):
            assert [row[f"training_loss/seed {seed}"] for seed in range(3)] == list(losses)
            assert row["training_loss/standard_error"] == stats.sem(losses)


def test_the_summary_has_tables_figures_report_and_records(logged):
    ((_, history, _),) = runs(logged)["summary"]
    keys = {key for row in history for key in row}
    for part in ("tables/nll", "tables/hamming", "figures/", "report"):
        assert any(key.startswith(part) for key in keys), part
    (path,) = (logged / "wandb").glob("offline-run-*-summary/*.wandb")
    artifacts = [m.request.log_artifact.artifact for m in messages(path) if m.request.HasField("log_artifact")]
    artifacts += [m.artifact for m in messages(path) if m.WhichOneof("record_type") == "artifact"]
    assert "records" in {artifact.type for artifact in artifacts}
    (table,) = path.parent.glob("files/media/table/tables/nll_*.table.json")
    rows = json.loads(table.read_text())
    at = {name: place for place, name in enumerate(rows["columns"])}
    by_method = {row[at["method"]]: row for row in rows["data"]}
    assert {"backbone", "pl", "pl_cvat"} <= set(by_method)
    assert by_method["pl_cvat"][at["oracle"]] is True
    assert by_method["pl"][at["status"]] == "finished"
    record = next(json.loads(p.read_text()) for p in (logged / "cells").glob("*-pl-*.json"))
    mean = sum(result["metrics"]["nll"] for result in record["results"]) / 3
    assert by_method["pl"][at["ours"]] == pytest.approx(mean, rel=1e-12)


def test_the_papers_numbers_stand_beside_ours_and_every_record_is_in_the_artifact(tmp_path):
    options = ["--datasets", "D1", "--backbones", "dm", "--methods", "backbone", "--seeds", "0..1", "--workers", "1"]
    options += ["--override.max_epochs", "1", "--wandb", "offline", "--out", str(tmp_path)]
    assert sweep(options) == 0
    (path,) = (tmp_path / "wandb").glob("offline-run-*-summary/*.wandb")
    (table,) = path.parent.glob("files/media/table/tables/nll_*.table.json")
    rows = json.loads(table.read_text())
    (row,) = [dict(zip(rows["columns"], data, strict=True)) for data in rows["data"]]
    assert (row["paper_mean"], row["paper_standard_error"]) == paper_results()["D1", "dm", "backbone", "nll"]
    assert row["difference"] == pytest.approx(row["ours"] - row["paper_mean"])
    found = [m.request.log_artifact.artifact for m in messages(path) if m.request.HasField("log_artifact")]
    found += [m.artifact for m in messages(path) if m.WhichOneof("record_type") == "artifact"]
    (artifact,) = [one for one in found if one.type == "records"]
    held = {entry.path for entry in artifact.manifest.contents}
    assert held == {"records.parquet", *(f"cells/{file.name}" for file in (tmp_path / "cells").iterdir())}
    _, history, _ = runs(tmp_path)["summary"][0]
    keys = {name for one in history for name in one}
    assert any(key.startswith("figures/calibration_dm") for key in keys)


def test_without_a_key_it_says_that_it_logs_offline_and_where(tmp_path, monkeypatch, capsys):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert sweep([*LOGGED, "--methods", "backbone", "--out", str(tmp_path / "run")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("logged offline (no key was found)") == 1
    assert f"python -m benchmarks.sweep sync {tmp_path / 'run'}" in said


@pytest.mark.parametrize("what", ["queue", "second process"])
def test_a_machine_that_cannot_start_wandbs_part_is_told_and_harms_nothing(what, tmp_path, monkeypatch, capsys):
    arguments = [*LOGGED, "--methods", "backbone", "--out", str(tmp_path)]
    started, start = [], multiprocessing.process.BaseProcess.start

    def full(self, *arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def start_one(process):
        if process._target is tracker._track and started:
            full(process)
        start(process)
        started.append(process)

    with monkeypatch.context() as broken:
        if what == "queue":
            broken.setattr(multiprocessing.queues.Queue, "__init__", full)
        else:
            broken.setattr(multiprocessing.process.BaseProcess, "start", start_one)
        assert sweep([*arguments, "--wandb", "online"]) == 0
    assert not any(process.is_alive() for process in started)
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("W&B could not be started, and the sweep is whole: No space left on device") == 1
    assert len(records(tmp_path)) == 1
    assert sweep([*arguments, "--wandb", "offline"]) == 0
    assert set(runs(tmp_path)) == {"multilabel/dm/backbone", "summary"}


@pytest.mark.parametrize("text", ["20s", "nan", "0", ""])
def test_a_time_for_wandbs_start_that_is_none_is_the_usual_one(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", text)
    assert wandb_settings.init_timeout() == 20
    if text == "20s":
        assert sweep([*LOGGED, "--methods", "backbone", "--wandb", "offline", "--out", str(tmp_path)]) == 0
        assert "W&B failed" not in capsys.readouterr().err
        assert set(runs(tmp_path)) == {"multilabel/dm/backbone", "summary"}


def test_variables_of_wandb_neither_break_the_runs_nor_mix_them_up(tmp_path, monkeypatch, capsys):
    """What is of one run alone is passed over; what W&B refuses would cost the first point of a run."""
    given = {"HTTP_TIMEOUT": "soon", "CONSOLE": "loud", "SILENT": "false", "RUN_ID": "abc", "RESUME": "must"}
    given |= {"NAME": "mine", "JOB_TYPE": "mine", "RUN_GROUP": "mine", "DIR": str(tmp_path / "elsewhere")}
    given |= {"NOTES": "by night", "TAGS": "a,b", "PROJECT": "prices", "ENTITY": "us"}
    for name, value in given.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    options = ["--methods", "backbone", "pl", "--wandb", "offline", "--out", str(tmp_path / "run")]
    assert sweep([*LOGGED, *options]) == 0
    said = capsys.readouterr().err
    assert "W&B: WANDB_CONSOLE, WANDB_HTTP_TIMEOUT left out: no value that it takes" in said
    assert "W&B failed" not in said
    found = runs(tmp_path / "run")
    assert {name: len(of_name) for name, of_name in found.items()} == {
        "multilabel/dm/backbone": 1, "multilabel/dm/pl": 1, "summary": 1,
    }  # fmt: skip
    _, history, info = found["multilabel/dm/backbone"][0]
    assert [row["epoch"] for row in history] == [1, 2, 3]
    assert (info.job_type, info.notes, list(info.tags)) == ("written", "by night", ["a", "b"])
    assert (info.project, info.entity) == ("prices", "us")
    assert info.run_group.startswith("run-")
    assert info.run_id != "abc"
    assert not (tmp_path / "elsewhere").exists()


def test_a_project_of_the_environment_that_is_none_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_PROJECT", "prices/spring")
    options = ["--methods", "backbone", "--wandb", "offline", "--out", str(tmp_path)]
    assert sweep([*LOGGED, *options]) == 0
    said = capsys.readouterr().err
    assert "W&B: WANDB_PROJECT left out: no value that it takes" in said
    assert "W&B failed" not in said
    found = runs(tmp_path)
    assert set(found) == {"multilabel/dm/backbone", "summary"}
    assert found["summary"][0][2].project == "cst-lightning"


@pytest.mark.parametrize(
    ("option", "value", "fault"),
    [
        ("project", "prices/spring", "wandb_project='prices/spring': allowed are 1 to 128 letters, and none of / "),
        ("project", "p" * 129, "allowed are 1 to 128 letters"),
        ("project", "", "wandb_project='': allowed are 1 to 128 letters"),
        ("entity", "us/them", "wandb_entity='us/them': allowed are 1 to 128 letters"),
        ("tags", "t" * 65, "allowed are tags of 1 to 64 letters"),
        ("tags", " ", "wandb_tags=' ': allowed are tags of 1 to 64 letters"),
    ],
)
def test_a_name_that_wandb_takes_for_none_is_refused_before_any_work(option, value, fault, tmp_path, capsys):
    assert sweep([*LOGGED, f"--wandb-{option}", value, "--wandb", "offline", "--out", str(tmp_path / "run")]) == 2
    assert fault in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_nothing_is_said_to_wait_for_an_upload_where_nothing_was_logged(tmp_path):
    settings = Tracking("offline", "project", None, (), tmp_path)
    session = tracking.Session(settings, "token", [], mode="offline", problems=["no room"])
    (said,) = session.said()
    assert said.startswith(
        "W&B failed, and the sweep is whole; first trouble: no room. The same command, given again, "
    )


def test_a_server_of_ones_own_whose_address_is_wrong_is_not_replaced_by_wandbs(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "our server")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert sweep([*LOGGED, "--methods", "backbone", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert "W&B failed, and the sweep is whole" in said
    assert "logged offline; 2 runs are in" in said
    _, history, _ = runs(tmp_path)["multilabel/dm/backbone"][0]
    assert len(history) == 3


def test_a_sweep_is_named_on_a_file_system_without_links(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "wandb").mkdir()
    token = tracker._token(tmp_path)
    assert re.fullmatch("[0-9a-f]{8}", token)
    assert tracker._token(tmp_path) == token
    assert [path.name for path in (tmp_path / "wandb").iterdir()] == ["sweep-id"]


def test_disabled_leaves_nothing(tmp_path):
    assert sweep([*LOGGED, "--methods", "backbone", "--wandb", "disabled", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "wandb").exists()


def test_a_server_that_is_not_there_is_told_at_the_end_and_stops_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "2")
    assert sweep([*LOGGED, "--methods", "backbone", "--wandb", "online", "--out", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "W&B" in said
    assert "sweep sync" in said
    assert len(list((tmp_path / "cells").glob("*.json"))) == 1
    assert unsynced(tmp_path)


def hang(*arguments):
    time.sleep(600)


def test_a_hang_is_left_after_a_bounded_time(tmp_path, monkeypatch):
    monkeypatch.setattr(tracker, "_WRITE_S", 1)
    monkeypatch.setattr(tracker, "_track", hang)
    jobs = make_jobs("smoke", datasets=["moons"], backbone_names=["dm"])
    left = Tracker(jobs, Tracking("offline", "x", None, (), tmp_path))
    left.end(complete=True)
    (said,) = left.close()
    assert "did not end in time" in said
    assert "nothing of the results is lost" in said
    assert not left._processes[0].is_alive()


def track_and_hold(place, inboxes, outbox, jobs, settings, environment):
    """W&B's part, with a file that is locked for as long as it lives."""
    held = locked(settings.folder / "lives")
    tracker._ORPHAN_S = 0.5
    (settings.folder / "started").touch()
    tracker._track(place, inboxes, outbox, jobs, settings, environment)
    held.close()


def be_killed_in_a_message(folder):
    """A sweep of whose last message W&B's part gets the beginning."""
    tracker._track = track_and_hold
    left = Tracker([], Tracking("offline", "x", None, (), folder))
    while not (folder / "started").exists():
        time.sleep(0.02)
    os.write(left._inboxes[0]._writer.fileno(), struct.pack("!i", 10_000) + b"half")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_sweep_killed_in_the_middle_of_a_message_leaves_no_process(tmp_path):
    code = "import sys, pathlib, tests.test_tracking as t; t.be_killed_in_a_message(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    until = time.monotonic() + 60
    while (file := locked(tmp_path / "lives")) is None and time.monotonic() < until:
        time.sleep(0.1)
    assert file is not None
    file.close()


def test_what_a_point_adds_to_each_method():
    point = Point("round 1", ["pl", "pl_cvat"], 4, [3, 8], [0.0, 1.0], [[1.0, 5.0], [3.0, 7.0]], None)
    assert watching.logged("backbone", point) == {}
    pl, cvat = watching.logged("pl", point), watching.logged("pl_cvat", point)
    assert (pl["training_loss/mean"], pl["training_loss/standard_error"], pl["training_loss/seed 8"]) == (2, 1, 3)
    assert (cvat["training_loss/weight 1.0/mean"], cvat["training_loss/weight 1.0/seed 3"]) == (6, 5)
    assert not any("weight" in name for name in pl)
    assert "training_loss/mean" not in cvat


def test_sync_wants_a_folder_with_runs(tmp_path, capsys):
    assert sweep(["sync", str(tmp_path)]) == 2
    assert "no W&B run" in capsys.readouterr().err
    assert sweep(["sync"]) == 2


def test_a_sync_of_what_was_sent_before_ends_well(tmp_path, capsys):
    run = tmp_path / "wandb" / "offline-run-20260101_000000-0123abcd-summary"
    run.mkdir(parents=True)
    for name in ("run.wandb", "run.wandb.synced"):
        (run / name).touch()
    assert sweep(["sync", str(tmp_path)]) == 0
    assert "nothing to upload: the server has every run of" in capsys.readouterr().out


def test_a_cell_that_failed_has_a_run_that_says_so_and_is_not_told_again(tmp_path, capsys):
    options = ["--methods", "backbone", "pl", "--wandb", "offline", "--out", str(tmp_path / "run")]
    arguments = ["--datasets", "multilabel", "--backbones", "tests.parts.Broken", *LOGGED[4:]]
    assert sweep([*arguments, *options]) == 1
    found = runs(tmp_path / "run")
    assert set(found) == {"multilabel/tests.parts.Broken/backbone", "multilabel/tests.parts.Broken/pl", "summary"}
    summary, _, _ = found["multilabel/tests.parts.Broken/pl"][0]
    assert summary["error"] == "InputError: this backbone is broken on purpose"
    capsys.readouterr()
    assert sweep([*arguments, *options, "--on-existing", "skip"]) == 1
    assert "W&B failed" not in capsys.readouterr().err


def test_a_folder_that_wandb_cannot_write_is_told_and_harms_nothing(tmp_path, capsys):
    (tmp_path / "wandb").write_text("not a folder")
    assert sweep([*LOGGED, "--methods", "backbone", "--wandb", "offline", "--out", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "W&B could not log, and the sweep is whole" in said
    assert "Traceback" not in said
    assert len(list((tmp_path / "cells").glob("*.json"))) == 1


def test_a_full_disk_under_wandb_is_told_and_harms_nothing_and_the_same_command_logs_the_rest(tmp_path):
    """A file system of 60 kB is mounted on its folder, in a namespace of its own, and grows after the sweep."""
    (tmp_path / "wandb").mkdir()
    arguments = [*LOGGED, "--wandb", "offline", "--out", str(tmp_path)]
    command = shlex.join([sys.executable, "-m", "benchmarks.sweep", *arguments])
    place, kept = shlex.quote(str(tmp_path / "wandb")), shlex.quote(str(tmp_path / "kept"))
    mounted = f"mount -t tmpfs -o size=60k tmpfs {place}"
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "sh", "-c", mounted], check=False).returncode:
        pytest.skip("needs user namespaces that may mount")
    again = f"mount -o remount,size=50m {place} && {command} && mkdir {kept} && cp -r {place} {kept}"
    script = f"{mounted} && {command} && echo AGAIN >&2 && {again}"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, later = done.stderr.split("AGAIN")
    assert "W&B failed, and the sweep is whole; first trouble: " in said
    assert "No space left on device" in said
    assert "Traceback" not in said + later
    assert "W&B failed" not in later
    assert len(list((tmp_path / "cells").glob("*.json"))) == 3
    found = runs(tmp_path / "kept")
    assert set(found) == {"multilabel/dm/backbone", "multilabel/dm/pl", "multilabel/dm/pl_cvat", "summary"}
    assert {len(of_name) for of_name in found.values()} == {1}


class Pending:
    """The end of a run that the server does not take."""

    def is_alive(self):
        return True

    def join(self, timeout):
        self.waited = timeout


@pytest.mark.parametrize(
    ("well", "since", "seconds"), [(True, 0, 20), (False, 0, 0), (True, 30, 4)], ids=["well", "unreachable", "slow"]
)
def test_a_server_in_trouble_is_waited_for_a_share_of_the_sweep_alone(well, since, seconds, tmp_path):
    ending, rest = Pending(), SimpleQueue()
    session = tracking.Session(Tracking("online", "project", None, (), tmp_path), "token", [], rest, "online")
    session.server.well, session.kept = well, {"cell": ["a point", "recorded"]}
    session.ending.append((time.monotonic() - since, ending))
    session.finish(complete=since > 0 or not well, share=4.0)
    assert ending.waited == pytest.approx(seconds, abs=1)
    told = [rest.get_nowait() for _ in range(rest.qsize())]
    assert told == ["a point", "recorded", (since > 0 or not well, 4.0)]  # and the summary, where it is not sent
    assert "first trouble: its server did not take everything in time" in session.said()[0]


def one_after_the_other(place, inboxes, outbox, *arguments):
    if place == 1:
        time.sleep(3)
    outbox.put((place, [f"said by {place}"]))


def test_a_process_that_ends_before_it_is_listened_to_is_heard_and_the_other_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(tracker, "_track", one_after_the_other)
    jobs = make_jobs("smoke", datasets=["moons"], backbone_names=["dm"])
    both = Tracker(jobs, Tracking("online", "x", None, (), tmp_path))
    both.end(complete=True)
    both._processes[0].join()
    assert both.close() == ["said by 0", "said by 1"]


def end_at_once(*arguments):
    pass


def test_a_process_that_ends_without_a_word_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(tracker, "_track", end_at_once)
    jobs = make_jobs("smoke", datasets=["moons"], backbone_names=["dm"])
    (said,) = Tracker(jobs, Tracking("offline", "x", None, (), tmp_path)).close()
    assert "W&B's part ended early and was left" in said
