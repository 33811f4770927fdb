"""Faults of a machine: hangs, signals, a full disk, a clock that jumps; and what is tried again."""

import errno
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.files import OutputError
from benchmarks.store import Store
from benchmarks.sweep import main
from tests.sweeps import ROOT, SHORT, TINY, numbers, records
from tests.test_store_and_tables import cell, record
from tests.test_sweep_faults import alive

ONE = ["--methods", "backbone", *SHORT, "--workers", "2"]


def by_backbone(folder):
    return {found["identity"]["backbone"]: found for found in records(folder).values()}


def test_a_job_that_hangs_is_killed_with_its_children_and_recorded(tmp_path, capsys):
    told = Path(tempfile.gettempdir(), "cst-child-4711")
    told.unlink(missing_ok=True)
    options = ["--datasets", "moons", "--backbones", "tests.parts.Parent", "constant", "--seeds", "4711", *ONE]
    # the limit leaves the other job the time that a busy machine may need
    assert main([*options, "--timeout", "25", "--out", str(tmp_path)]) == 1
    found = by_backbone(tmp_path)
    assert found["constant"]["status"] == "finished"
    assert found["tests.parts.Parent"]["status"] == "failed"
    assert found["tests.parts.Parent"]["error"] == "timeout: not done after 25 s, so its worker was killed"
    assert [alive(int(child)) for child in told.read_text().split()] == [False, False]
    told.unlink()
    assert "timeout: not done after 25 s" in capsys.readouterr().err


def test_a_worker_that_is_killed_once_is_tried_again_and_its_record_says_why(tmp_path, capsys):
    token = str(abs(hash(str(tmp_path))) % 10**9)
    options = ["--datasets", f"tests.parts.FlakyCoins@token={token}", "--backbones", "dm", "--seeds", "0", *ONE]
    assert main([*options, "--retries", "2", "--out", str(tmp_path)]) == 0
    Path(tempfile.gettempdir(), f"cst-flaky-{token}").unlink()
    (found,) = records(tmp_path).values()
    assert found["status"] == "finished"
    assert found["provenance"]["failures_before"] == ["the worker process died (signal 9) without an exception"]
    assert "is tried again: the worker process died (signal 9)" in capsys.readouterr().err


def test_what_fails_each_time_is_recorded_with_every_reason_and_bad_input_once(tmp_path):
    parts = [f"tests.parts.{name}" for name in ("Killed", "Terminated", "Buggy", "Broken")]
    options = ["--datasets", "moons", "--backbones", *parts, "--seeds", "0", *ONE]
    assert main([*options, "--retries", "2", "--out", str(tmp_path)]) == 1
    found = by_backbone(tmp_path)
    for name, reason in zip(parts, ("signal 9", "SIGTERM", "ZeroDivisionError", "on purpose"), strict=True):
        before = found[name]["provenance"]["failures_before"]
        assert reason in found[name]["error"]
        assert found[name]["provenance"]["device"] == "cpu"
        assert len(before) == (0 if name == "tests.parts.Broken" else 2)
        assert all(reason in text for text in before)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--timeout", "0", "timeout=0: allowed are seconds above 0"),
        ("--timeout", "1e400", "timeout=inf: allowed are seconds above 0"),
        ("--retries", "-1", "retries=-1: allowed is from 0"),
    ],
)
def test_limits_that_make_no_sense_are_errors(option, value, message, tmp_path, capsys):
    assert main([*TINY, option, value, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# --- the disk -----------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_old_record_and_no_part_of_the_new(tmp_path, monkeypatch):
    store, one = Store(tmp_path), cell()
    store.write(one, record(one, [1, 2, 3]))

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=rf"{tmp_path}/cells cannot be written \(No space left on device\)"):
        store.write(one, record(one, [4, 5, 6]))
    assert store.read(one)["results"][0]["metrics"]["nll"] == 1
    assert len(list((tmp_path / "cells").iterdir())) == 1


def test_a_sweep_whose_disk_is_full_ends_with_one_line_and_goes_on_later(tmp_path):
    assert main([*TINY, "--workers", "1", "--out", str(tmp_path / "whole")]) == 0
    arguments = [*TINY, "--workers", "1", "--out", str(tmp_path / "run")]
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.sweep", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300,
        # no file may grow beyond this: its write fails in the middle, as on a full disk
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)),
    )  # fmt: skip
    assert process.returncode == 1
    last = process.stderr.splitlines()[-1]
    assert last.startswith(f"error: {tmp_path / 'run' / 'cells'} cannot be written (File too large)")
    assert "give the same command again" in last
    assert "Traceback" not in process.stderr
    assert list((tmp_path / "run" / "cells").iterdir()) == []
    assert main(arguments) == 0
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")


def test_a_read_only_folder_is_an_error_before_any_work(capsys):
    assert main([*TINY, "--out", "/proc/sys/kernel/run"]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: output folder /proc/sys/kernel/run cannot be written")
    assert out == ""


# --- the clock ----------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_and_files_from_the_future_change_nothing(tmp_path, monkeypatch, capsys):
    assert main([*TINY, "--workers", "1", "--out", str(tmp_path / "whole")]) == 0
    run = tmp_path / "run"
    assert main([*TINY, "--methods", "backbone", "--workers", "1", "--out", str(run)]) == 0
    for path in run.rglob("*"):
        os.utime(path, (2**33, 2**33))
    now = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))  # an hour earlier each time somebody looks
    assert main([*TINY, "--workers", "1", "--timeout", "600", "--out", str(run)]) == 0
    assert "1 already recorded" in capsys.readouterr().err
    assert main(["status", str(run)]) == 0
    assert numbers(run) == numbers(tmp_path / "whole")


# --- a replicate --------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_marks_its_seed_and_leaves_the_others_alone(tmp_path):
    def results(backbone):
        options = ["--datasets", "moons", "--backbones", backbone, "--seeds", "0..2", *ONE]
        assert main([*options, "--out", str(tmp_path / backbone)]) == 0
        return next(iter(records(tmp_path / backbone).values()))["results"]

    sound, found = results("tests.parts.Plain"), results("tests.parts.OneNaN")
    assert [result["status"] for result in found] == ["finished", "non_finite", "finished"]
    assert found[1]["failed_in"] == "backbone, epoch 2"
    assert found[1]["metrics"] == {}
    assert [found[0], found[2]] == [sound[0], sound[2]]
