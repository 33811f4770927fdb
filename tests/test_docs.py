"""Every code block of the documentation runs."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import cst_lightning
from benchmarks import choosing, soak
from benchmarks.grid import backbones
from benchmarks.options import make_parser
from benchmarks.report import main as report
from benchmarks.sweep import main as sweep
from benchmarks.train import main as train
from cst_lightning import fit, self_train
from cst_lightning.__main__ import main as log_main
from cst_lightning.metrics import METRICS, evaluate
from cst_lightning.selection import RULES
from cst_lightning.testing import check_method
from tests.conftest import TinyDataModule, tiny_protocol

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
COMMANDS = {"benchmarks.sweep": sweep, "benchmarks.report": report, "benchmarks.train": train}


def run_python(page):
    """Run the page's blocks one after the other; the names that they leave."""
    names = {"__name__": page.stem}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
    return names


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    before = [(table, dict(table)) for table in (METRICS, RULES)]
    yield
    for table, content in before:
        table.clear()
        table.update(content)


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if "```python" in p.read_text() and p.stem != "lightning"],
    ids=lambda page: page.stem,
)
def test_every_block_of_python_runs(page):
    run_python(page)


def test_the_real_case_comes_out_as_its_page_says(capsys):
    page = DOCS / "how-to" / "real-case.md"
    run_python(page)
    said, text = capsys.readouterr().out, page.read_text(encoding="utf-8")
    earned = {name: float(value) for name, value in re.findall(r"(old rule|recommended) ([\d.]+)", said)}
    assert f"recommended earn {earned['recommended']:.2f} a visit" in text
    assert f"old rule's {earned['old rule']:.2f}" in text
    held = re.search(r"intervals that hold the true value: (.*)", said)
    assert held[1] == "['IPS', 'SNIPS', 'doubly robust']"


@pytest.mark.parametrize("page", [p for p in PAGES if "```sh" in p.read_text()], ids=lambda page: page.stem)
def test_every_command_runs(page, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            python, option, module, *arguments = shlex.split(line)
            assert (python, option) == ("python", "-m")
            monkeypatch.setattr("sys.argv", [module])
            assert COMMANDS[module](arguments) == 0, line


LINES = [
    (page.stem, command, line)
    for page in [DOCS.parent / "README.md", *PAGES]
    for command, line in re.findall(r"^    python -m ([\w.]+) ?(.*?)(?:  +#.*)?$", page.read_text(), re.MULTILINE)
]
SWEEPS = [(page, shlex.split(line)) for page, command, line in LINES if command == "benchmarks.sweep"]
ON_FOLDERS = [line for _, line in SWEEPS if line and line[0] in ("sync", "status", "verify", "merge")]
SHOWN = [(page, line) for page, line in SWEEPS if line not in ON_FOLDERS]


def test_the_commands_shown_are_of_these_modules():
    modules = {"benchmarks.sweep", "benchmarks.report", "benchmarks.choosing", "benchmarks.soak", "cst_lightning"}
    assert {command for _, command, _ in LINES} == modules


@pytest.mark.parametrize(("page", "line"), SHOWN, ids=lambda part: part if isinstance(part, str) else " ".join(part))
def test_every_sweep_that_is_only_shown_can_start(page, line, monkeypatch, capsys):
    """It is planned, which looks at every option, part and file; what it needs of other machines is left to them."""
    if "--device" in line or any("s3://" in argument for argument in line):
        make_parser().parse_args(line)
        return
    if page == "method":
        monkeypatch.setitem(sys.modules, "my_package", SimpleNamespace(**run_python(DOCS / "how-to" / "method.md")))
    status, said = sweep([*line, "--plan"]), "".join(capsys.readouterr())
    assert status == 0, said
    assert re.search(r"\d+ cells? in \d+ jobs?", said)


@pytest.mark.parametrize("line", ON_FOLDERS, ids=" ".join)
def test_every_command_on_a_sweeps_folder_runs(line, capsys):
    for folder in ("A", "B", "results/runs/quick-matched", "results/runs/paper-matched"):
        cell = ["--datasets", "multilabel", "--backbones", "constant", "--seeds", "0", "--wandb", "disabled"]
        assert sweep([*cell, "--out", folder]) == 0
    assert sweep(line) == (2 if line[0] == "sync" else 0)
    if line[0] == "sync":
        assert "holds no W&B run" in capsys.readouterr().err


def test_other_commands_take_their_options(monkeypatch, capsys):
    """What they train is left out: tests of their own have that."""
    tried = [{"seed": s, "method": m, "nll": 0.5, "ambiguity": 0.0} for s in (0, 1) for m in ("backbone", "pl_soft")]
    scores = {rule: [0.5, 0.6] for rule in ("observed_nll", "ipw_nll", "dr_nll", "cfcv")}
    monkeypatch.setattr(choosing, "try_candidates", lambda *_: [one | scores for one in tried])
    monkeypatch.setattr(soak, "soak", lambda *_: None)
    for command, line in [(command, shlex.split(line)) for _, command, line in LINES]:
        if command == "benchmarks.choosing":
            choosing.main(line)
            assert "method=pl_soft" in capsys.readouterr().out
        elif command == "benchmarks.soak":
            assert soak.main(line) == 0, capsys.readouterr().err
        elif command == "benchmarks.report":
            assert all((DOCS.parent / folder / "records.parquet").exists() for folder in line)


def test_the_commands_for_a_log_run_one_after_the_other(capsys):
    rng = np.random.default_rng(0)
    for name, n_rows in (("sales", 200), ("new", 20), ("later", 50)):
        log = pd.DataFrame({"age": rng.normal(40, 9, n_rows), "town": rng.choice(["Bern", "Chur"], n_rows)})
        log = log.assign(price=rng.choice([9.5, 14.5], n_rows), bought=rng.choice(["yes", "no"], n_rows))
        log.assign(customer=np.arange(n_rows)).to_csv(f"{name}.csv", index=False)
    lines = [line for _, command, line in LINES if command == "cst_lightning"]
    assert len(lines) == 11
    for line in lines:
        fewer = ["--max_epochs", "3"] if line.startswith("fit") else []
        assert log_main([*shlex.split(line), *fewer]) == 0, (line, capsys.readouterr().err)
    assert {"diagnosis.html", "predictions.csv", "actions.csv"} <= {path.name for path in Path().iterdir()}
    assert "customer" in Path("predictions.csv").read_text().splitlines()[0]


def test_the_backbone_of_the_how_to_trains():
    part = run_python(DOCS / "how-to" / "backbone.md")["Wide"]
    data = TinyDataModule([0, 1])
    module = part(data.shape, data.seeds, tiny_protocol())
    fit(module, data)
    assert module.engine == "compiled"
    assert torch.isfinite(module.training_loss).all()


def test_the_method_of_the_how_to_keeps_its_promises_and_leaves_labels_out():
    confident = run_python(DOCS / "how-to" / "method.md")["Confident"]
    check_method(confident)
    data = TinyDataModule([0, 1])
    teacher = backbones().get("dm")(data.shape, data.seeds, tiny_protocol(labels="soft"))
    student, plain = (self_train(teacher, data, student=kind) for kind in (confident, None))
    assert student.engine == "compiled"
    weight, plain_weight = (s.entries(data.train, slice(None)).weight for s in (student, plain))
    assert weight.sum() < plain_weight.sum()


def test_the_learner_metric_and_rule_of_the_how_tos():
    data = TinyDataModule([0, 1])
    bayes = run_python(DOCS / "how-to" / "backbone.md")["NaiveBayes"](data.shape, data.seeds)
    fit(bayes, data)
    run_python(DOCS / "how-to" / "metric-and-rule.md")
    values = evaluate(bayes.logits(data.test.x), data.test, ["absolute_error"])["absolute_error"]
    assert ((values > 0) & (values < 1)).all()
    score = RULES["worst_action"].score(bayes.logits(data.train.x), data.train, data.train, tiny_protocol())
    assert score.shape == (2,)


def test_loggers_and_callbacks_leave_what_the_page_says(tmp_path):
    names = run_python(DOCS / "how-to" / "lightning.md")
    assert all(Path(checkpoint.best_model_path).is_file() for checkpoint in names["checkpoints"])
    assert len(names["checkpoints"]) == 2
    assert "val_nll" in (tmp_path / "logs/csv/version_0/metrics.csv").read_text().splitlines()[0]
    assert "lr-Adam" in (tmp_path / "logs/round_2/version_0/metrics.csv").read_text().splitlines()[0]
    assert list((tmp_path / "logs/tensorboard").rglob("events.out.tfevents.*"))
    assert list((tmp_path / "logs/wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.parametrize("page", [DOCS.parent / "README.md", *PAGES], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_reference_has_every_public_name():
    text = (DOCS / "reference.md").read_text()
    constants = {"MATCHED", "RELEASED", "WRITTEN"}  # which Protocol describes
    names = set(cst_lightning.__all__) - constants
    assert {name for name in names if f"cst_lightning.{name}\n" not in text} == set()


def test_the_batch_job_for_slurm_starts_a_head_workers_and_the_sweep_beside_them(tmp_path):
    """As bash runs it, with Slurm's commands, Ray's and the sweep as stubs that write down how they were called."""
    text = (DOCS / "how-to" / "cluster.md").read_text()
    (script,) = re.findall(r"^    (#!/bin/bash\n(?:    .*\n)+)", text, re.MULTILINE)
    (tmp_path / "job.sh").write_text(re.sub("^    ", "", script, flags=re.MULTILINE))
    stubs = tmp_path / "bin"
    stubs.mkdir()
    calls = tmp_path / "calls"
    for name, does in (
        ("scontrol", "printf 'n1\\nn2\\nn3\\nn4\\n'"),
        ("srun", f'echo "srun $*" >> {calls}'),
        ("python", f'echo "python $*" >> {calls}'),
        ("sleep", "n=$((n + 1)); while [ $(wc -l < " + str(calls) + ") -lt $n ]; do /bin/sleep 0.05; done"),
    ):
        # a sleep lasts until what was started in the background before it has written
        counted = f"n=$(cat {stubs}/n 2>/dev/null || echo 0); " if name == "sleep" else ""
        after = f"; echo $n > {stubs}/n" if name == "sleep" else ""
        (stubs / name).write_text(f"#!/bin/bash\n{counted}{does}{after}\n")
        (stubs / name).chmod(0o755)
    calls.touch()
    environment = {"PATH": f"{stubs}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_SUBMIT_DIR": "/home/me"}
    subprocess.run(["bash", "-eu", "job.sh"], cwd=tmp_path, env=environment, check=True, timeout=30)
    head, workers, swept = calls.read_text().splitlines()
    assert "-w n1 ray start --head --port=6379" in head
    assert "--exclude n1 ray start --address n1:6379" in workers
    assert "--ray-address auto" in swept
    assert swept.endswith("--out /home/me/run")


def test_ray_knows_the_options_that_are_shown_for_it():
    start = pytest.importorskip("ray.scripts.scripts").start
    text = (DOCS / "how-to" / "cluster.md").read_text()
    lines = re.findall(r"^    .*?\bray start (.*?)(?: &|  +#.*)?$", text, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        with start.make_context("start", shlex.split(line.replace("$head", "HEAD"))) as context:
            assert context.params["head"] != bool(context.params["address"])


def test_the_packages_shown_for_installing_are_this_ones_extras_or_known_by_name():
    extras = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shown = [
        argument
        for page in [DOCS.parent / "README.md", *PAGES]
        for line in re.findall(r"pip install (.*?)(?:  +#.*|`.*)?$", page.read_text(), re.MULTILINE)
        for argument in shlex.split(line)
    ]
    assert shown
    for name in shown:
        extra = re.fullmatch(r"cst-lightning\[(\w+)\]", name)
        assert extra[1] in extras if extra else name in ("s3fs", "."), name
