"""The random kill-and-resume test, a few rounds of it, in a process of its own since it forks."""

import json
import subprocess
import sys

import pytest

from benchmarks import soak
from tests.sweeps import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")


def test_a_few_rounds_lose_and_change_nothing():
    code = "import json; from benchmarks.soak import soak; t = soak(lambda done: done < 4, 1, print); "
    code += "print(json.dumps([t.rounds, t.kills, t.compared, t.differences]))"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    rounds, kills, compared, differences = json.loads(lines[-1])
    assert (rounds, compared, differences) == (4, 4 * 8, [])
    assert sum(kills.values()) >= 4
    assert {kind.split()[0] for kind in kills} == {"driver", "worker"}
    assert lines[0].endswith("writes 8 records")
    assert all("identical" in line for line in lines[1:-1])


def test_a_lost_a_changed_and_a_damaged_record_would_be_found(tmp_path, monkeypatch):
    class Ended:
        exitcode = 0

        def join(self):
            pass

    monkeypatch.setattr(soak, "_start", lambda folder: Ended())
    monkeypatch.setattr(soak, "_values", lambda folder: {"a": "1", "b": "2"})
    assert soak._difference(tmp_path, {"a": "1", "b": "2"}) == ""
    assert soak._difference(tmp_path, {"a": "1", "b": "3"}) == "b differs"
    assert "c is lost" in soak._difference(tmp_path, {"a": "1", "b": "2", "c": "3"})
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "b").write_text("torn")
    assert "torn or damaged" in soak._difference(tmp_path, {"a": "1", "b": "2"})
    Ended.exitcode = 1
    assert "status 1" in soak._difference(tmp_path, {"a": "1", "b": "2"})


def test_bad_options_are_one_line(capsys):
    assert soak.main(["--minutes", "x"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
