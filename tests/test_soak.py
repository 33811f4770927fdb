"""The random kill-and-resume test, a few rounds of it, in a process of its own since it forks."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks import soak
from tests.sweeps import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")

ROUNDS = """
import json
from benchmarks.soak import KINDS, Tally, soak
t = Tally()
soak(t, lambda: t.rounds.total() < 6 or len(t.kills) < len(KINDS), 1, "local", print)
print(json.dumps([t.rounds, t.kills, t.compared, t.differences]))
"""


def test_a_few_rounds_lose_and_change_nothing():
    process = subprocess.run([sys.executable, "-c", ROUNDS], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    rounds, kills, compared, differences = json.loads(lines[-1])
    assert rounds.keys() == soak.JOBS.keys()
    assert (min(rounds.values()) >= 3, compared, differences) == (True, sum(rounds.values()) * 8, [])
    assert kills.keys() == set(soak.KINDS)
    assert min(kills.values()) >= 1
    assert all(line.endswith("writes 8 records") for line in lines[:2])
    assert all("identical" in line for line in lines[2:-1])


class Ended:
    exitcode = 0

    def join(self):
        pass


def test_a_lost_a_changed_and_a_damaged_record_would_be_found(tmp_path, monkeypatch):
    monkeypatch.setattr(soak._Sweeps, "start", lambda self: Ended())
    monkeypatch.setattr(soak, "_values", lambda folder: {"a": "1", "b": "2"})
    monkeypatch.setattr(soak, "_outlived", lambda: [])
    sweeps = soak._Sweeps(tmp_path, "local", "whole")
    assert soak._difference(sweeps, {"a": "1", "b": "2"}) == ""
    assert soak._difference(sweeps, {"a": "1", "b": "3"}) == "b differs"
    assert "c is lost" in soak._difference(sweeps, {"a": "1", "b": "2", "c": "3"})
    for cells in ("cells", "parts/cells"):
        (tmp_path / cells).mkdir(parents=True)
        (tmp_path / cells / "b").write_text("torn")
        assert "torn or damaged" in soak._difference(sweeps, {"a": "1", "b": "2"})
        (tmp_path / cells / "b").unlink()
    monkeypatch.setattr(soak, "_outlived", lambda: ["gcs_server"])
    assert soak._difference(sweeps, {"a": "1", "b": "2"}) == "gcs_server outlived a sweep"
    monkeypatch.setattr(Ended, "exitcode", 1)
    assert "status 1" in soak._difference(sweeps, {"a": "1", "b": "2"})


def test_a_record_that_a_kill_took_away_would_be_found():
    def value(seeds, nll, dataset="D1"):
        return json.dumps({"identity": {"dataset": dataset, "seeds": seeds}, "nll": nll})

    whole, part = value([0, 1], 1), value([0], 2)
    assert soak._lost({"w": whole}, {"w": whole, "more": part}) == ""
    assert soak._lost({"w": whole}, {}) == "w"
    assert soak._lost({"w": whole}, {"w": value([0, 1], 3)}) == "w"
    assert soak._lost({"p": part}, {}, {}) == "p"
    assert soak._lost({"p": part}, {}, {"w": value([0, 1], 1, "D2")}) == "p"
    assert soak._lost({"p": part}, {}, {"w": whole}) == ""  # joined, and cleared
    assert soak._lost({"p": part}, {"p": value([0], 9)}, {"w": whole}) == "p"


def test_a_process_that_outlives_its_sweep_is_named_and_ended(monkeypatch):
    monkeypatch.setattr(soak, "_OUTLIVE_S", 0.0)
    left = subprocess.Popen(["sleep", "600"])
    while not soak._command(left.pid):  # it is just being loaded
        pass
    monkeypatch.setattr(soak.local, "descendants", lambda pid: [left.pid] if pid == os.getpid() else [])
    assert soak._outlived() == ["sleep 600"]
    assert left.wait() < 0


def test_what_was_seen_is_written(tmp_path, monkeypatch, capsys):
    def seen(tally, go_on, seed, executor, tell):
        while go_on():
            tally.rounds["whole"] += 1
            tally.kills["worker SIGTERM"] += seed
            tally.compared += 8

    monkeypatch.setattr(soak, "soak", seen)
    file = tmp_path / "made" / "soak.json"
    assert soak.main(["--minutes", "0", "--seed", "7", "--json", str(file)]) == 0
    assert "1 round (1 of whole jobs); kills: 7 worker SIGTERM" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert found["command"] == f"python -m benchmarks.soak --minutes 0 --seed 7 --json {file}"
    assert (found["rounds"], found["records_compared"], found["differences"]) == ({"whole": 1}, 8, [])
    assert found["kills"] == dict.fromkeys(soak.KINDS, 0) | {"worker SIGTERM": 7}
    assert found["machine"]
    assert found["versions"]["torch"]


def test_the_page_has_the_figures_of_the_committed_soaks():
    here, on_ray = (json.loads((ROOT / "results" / "soak" / f"{name}.json").read_text()) for name in ("local", "ray"))
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    for seen in (here, on_ray):
        assert seen["differences"] == []
        assert seen["rounds"].keys() == soak.JOBS.keys()
        assert seen["kills"].keys() == set(soak.KINDS)
        assert min(seen["kills"].values()) >= 1
        rounds, kills = seen["rounds"], seen["kills"]
        assert (
            f"{sum(rounds.values())} rounds ({rounds['whole']} of whole jobs, {rounds['cut']} of cut ones), "
            f"{sum(kills.values())} kills ({kills['driver SIGKILL']} and {kills['driver SIGTERM']} of drivers, "
            f"{kills['worker SIGKILL']} and {kills['worker SIGTERM']} of workers, by SIGKILL and SIGTERM), "
            f"{seen['records_compared']} records compared"
        ) in page
    assert min(sum(seen["rounds"].values()) for seen in (here, on_ray)) >= 50
    assert f"{here['second_sweeps'] + on_ray['second_sweeps']} of the starts above had a second sweep beside" in page


@pytest.mark.parametrize(
    "arguments", [["--minutes", "x"], ["--executor", "sl\x1b[2Jurm"], ["--json", "/proc/sys/kernel/soak.json"]]
)
def test_bad_options_are_one_line_before_any_work(arguments, monkeypatch, capsys):
    monkeypatch.setattr(soak, "soak", lambda *_: pytest.fail("it has begun"))
    assert soak.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert line.isprintable()


def test_without_ray_the_remedy_is_named(monkeypatch, capsys):
    monkeypatch.setattr(soak, "find_spec", lambda name: None)
    assert soak.main(["--executor", "ray"]) == 2
    assert capsys.readouterr().err == "error: --executor ray needs the package ray: pip install 'cst-lightning[ray]'\n"
