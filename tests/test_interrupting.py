"""Ctrl-C before a command has begun, and where it does not take it; the package is imported in parts for that."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cst_lightning
from benchmarks.sweep import main
from cst_lightning.interrupting import run
from tests.sweeps import TINY

ROOT = Path(__file__).parents[1]
GUARD = 'if __name__ == "__main__"'
COMMANDS = ["cst_lightning"] + [
    f"benchmarks.{path.stem}" for path in sorted((ROOT / "benchmarks").glob("*.py")) if GUARD in path.read_text()
]


def python(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=hear_ctrl_c,
    )


def hear_ctrl_c():
    """Which tests that run in the background of a shell inherit that they ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_while_the_imports_of_a_command_run_is_a_line(command, tmp_path):
    for name in ("torch", "numpy", "pandas", "jsonargparse"):  # what a command imports first, in their place
        text = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\n"
        (tmp_path / f"{name}.py").write_text(text + "raise ImportError('as when an import is cut off')\n")
    done = python("-m", command, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (130, "Interrupted\n", "")


def test_a_sweep_is_watched_without_loading_what_trains(tmp_path):
    text = "import sys; from benchmarks.sweep import main; assert main(['status', '.']) == 2; print(*sys.modules)"
    loaded = set(python("-c", text, cwd=tmp_path).stdout.split())
    assert "pydantic" in loaded
    assert not loaded & {"torch", "pytorch_lightning", "sklearn", "pandas", "ray", "wandb"}


def test_ctrl_c_in_a_command_of_ones_own_that_imports_the_benchmarks_is_left_to_it(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").write_text("import benchmarks\n")
    text = (
        "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt:\n    print('taken')\n"
    )
    (tmp_path / "mine/command.py").write_text(text)
    assert python("-m", "mine.command", cwd=tmp_path).stdout == "taken\n"


def test_ctrl_c_is_ignored_where_the_shell_says_so(tmp_path):
    """As of a job in the background of a script."""
    (tmp_path / "numpy.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit(7)\n")
    start = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    start += "os.execv(sys.executable, [sys.executable, '-m', 'benchmarks.toy'])"
    assert python("-c", start, cwd=tmp_path).returncode == 7


def test_ctrl_c_that_a_command_does_not_take_is_a_line_and_other_errors_stay(capsys):
    before = signal.getsignal(signal.SIGINT)
    try:
        hear_ctrl_c()
        assert run(lambda: signal.raise_signal(signal.SIGINT)) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "Interrupted\n"
    assert (run(lambda: 2), run(lambda: None)) == (2, 0)
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 // 0)


def test_the_names_of_the_package_are_imported_when_they_are_asked_for():
    done = python("-c", "import sys, cst_lightning; print('torch' in sys.modules, *dir(cst_lightning))")
    loaded, *names = done.stdout.split()
    assert loaded == "False"
    assert set(cst_lightning.__all__) < set(names)
    assert set(cst_lightning._MODULES) == set(cst_lightning.__all__)
    for name in cst_lightning.__all__:
        found = getattr(cst_lightning, name)
        assert getattr(found, "__module__", "cst_lightning").startswith("cst_lightning"), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cst_lightning.nothing  # noqa: B018


def test_a_second_ctrl_c_does_not_wait_for_tables_and_says_no_untruth(tmp_path, monkeypatch, capsys):
    def again(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.run._train", lambda *_: "interrupted")
    monkeypatch.setattr("benchmarks.run.write_tables", again)
    assert main([*TINY, "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.endswith("\nStopped. The same command goes on from here.\n")
