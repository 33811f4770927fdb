"""The package of example parts: its own tests pass, and the command line finds the parts once it is installed."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "my_parts"


@pytest.fixture
def installed(tmp_path):
    """Environment of a process in which the example is installed: on the path, with its project file's metadata."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "my_parts-0.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, all in groups for line in (f"[{group}]", *(f"{name} = {to}" for name, to in all.items()))]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    path = os.pathsep.join([str(EXAMPLE), str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}


def run(environment, *arguments):
    done = subprocess.run([sys.executable, "-m", *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_examples_own_tests_pass(installed):
    tests = str(EXAMPLE / "tests")
    assert "7 passed" in run(installed, "pytest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), tests)


def test_the_trainer_takes_the_parts_by_the_names_of_their_classes(installed, tmp_path):
    (line,) = re.findall(r"python -m (benchmarks\.train .*)", (EXAMPLE / "README.md").read_text())
    short = ["--trainer.max_epochs", "1", "--trainer.default_root_dir", str(tmp_path), "--trainer.logger", "CSVLogger"]
    run(installed, *line.split(), *short, "--trainer.logger.save_dir", str(tmp_path))
    assert list(tmp_path.rglob("*.ckpt"))


def test_a_sweep_takes_every_part_by_its_name(installed, tmp_path):
    out = tmp_path / "out"
    run(
        installed, "benchmarks.sweep", "--preset", "smoke", "--protocol", "matched",
        "--datasets", "coupons@n_train=100", "--backbones", "clipped_dm", "dm",
        "--methods", "backbone", "pl_cvat", "confident", "--selection", "worst_action", "--cvat-weights", "0.1", "1",
        "--seeds", "0", "--workers", "1", "--out", str(out),
    )  # fmt: skip
    records = [json.loads(path.read_text()) for path in (out / "cells").glob("*.json")]
    assert [record["status"] for record in records] == ["finished"] * 6
    assert all("absolute_error" in record["metrics"] for record in records)
    assert [record["selection"] for record in records].count("worst_action") == 2
