"""What files and names of unknown origin can do: nothing but be shown, as text."""

import ast
import json
import os
import pickle
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from benchmarks.remote import Remote
from benchmarks.report import main as report
from benchmarks.sweep import main
from benchmarks.train import main as train
from cst_lightning import DirectMethod
from cst_lightning.__main__ import main as log_main
from tests.classifiers import make_log
from tests.sweeps import ROOT, TINY, rewrite

SOURCES = sorted(
    path for name in ("cst_lightning", "datamodules", "benchmarks") for path in (ROOT / name).rglob("*.py")
)
BLOCKS = [
    block
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
]
EXECUTES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


# --- our own code -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_unpickles_evaluates_or_calls_a_shell(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not {name.name.partition(".")[0] for name in node.names} & EXECUTES
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in EXECUTES
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert name not in ("eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load")
            assert not name.endswith("read_pickle")
            assert given.get("shell", "False") == "False"
            assert given.get("allow_pickle", "False") == "False"


@pytest.mark.parametrize(
    "text", [*(path.read_text() for path in [*SOURCES, *Path(__file__).parent.glob("*.py")]), *BLOCKS]
)
def test_everything_that_loads_a_checkpoint_says_weights_only(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("torch.load", ".load_from_checkpoint")):
            assert {word.arg: ast.unparse(word.value) for word in node.keywords}["weights_only"] == "True"


# --- files that are read ------------------------------------------------------------------------------


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_a_checkpoint_executes_nothing(evil, tmp_path):
    torch.save({"state_dict": {}, "hyper_parameters": Payload(tmp_path / "marker")}, tmp_path / "model.ckpt")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(Payload(tmp_path / "marker")))
    for name in ("_instantiator", "_class_path"):
        asks = {"state_dict": {}, "hyper_parameters": {name: "evil_parts.Part", "shape": {}}}
        torch.save(asks | {"pytorch-lightning_version": "2.6.6"}, tmp_path / f"{name}.ckpt")
        with suppress(Exception):
            DirectMethod.load_from_checkpoint(tmp_path / f"{name}.ckpt", weights_only=True)
        assert not evil.exists()
    for name in ("model.ckpt", "plain.ckpt"):
        with pytest.raises(pickle.UnpicklingError):
            DirectMethod.load_from_checkpoint(tmp_path / name, weights_only=True)
    assert not (tmp_path / "marker").exists()


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A package that leaves a mark when it is imported."""
    folder = tmp_path / "importable"
    (folder / "evil_parts").mkdir(parents=True)
    code = f"from pathlib import Path\nPath({str(tmp_path / 'marker')!r}).touch()\n"
    code += "from cst_lightning import DirectMethod\nclass Part(DirectMethod):\n    name = 'part'\n"
    (folder / "evil_parts" / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    yield tmp_path / "marker"
    sys.modules.pop("evil_parts", None)


@pytest.mark.parametrize("kind", ["backbones", "datasets", "methods", "selection"])
@pytest.mark.parametrize("more", ["", "trust: [evil_parts]\n"])
def test_a_configuration_file_imports_nothing_that_nobody_typed(kind, more, evil, tmp_path, capsys):
    file = tmp_path / "sweep=evil_parts.Part=.yaml"
    part = "evil_parts.Part" if kind == "selection" else "[evil_parts.Part]"
    file.write_text(f"{kind}: {part}\n{more}")
    for config in (["--config", str(file)], [f"--config={file}"]):
        assert main([*config, "--plan", "--out", str(tmp_path / "run")]) == 2
        assert ("trusted on the command line" if more else "add --trust evil_parts") in capsys.readouterr().err
    assert not evil.exists()


def test_a_package_that_the_user_names_is_imported(evil, tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text("datasets: [moons]\nbackbones: [evil_parts.Part]\n")
    assert main(["--config", str(file), "--trust", "evil_parts", "--plan"]) == 0
    assert evil.exists()


def test_a_class_path_that_is_typed_is_the_users_own_word(evil):
    assert main(["--datasets", "moons", "--backbones=evil_parts.Part", "--plan"]) == 0
    assert evil.exists()


@pytest.mark.parametrize("more", ["", "trust: [evil_parts]\n"])
@pytest.mark.parametrize("name", ["backbone", "method", "selection"])
def test_a_configuration_file_of_the_commands_for_a_log_imports_nothing_either(name, more, evil, tmp_path, capsys):
    x, action, outcome = make_log()
    x.assign(price=action, bought=outcome).to_csv(tmp_path / "log.csv", index=False)
    file = tmp_path / "fit.yaml"
    file.write_text(f"{name}: evil_parts.Part\n{more}")
    call = ["fit", "--data", str(tmp_path / "log.csv"), "--action", "price", "--outcome", "bought", "--max_epochs", "1"]
    call += ["--out", str(tmp_path / "m")]
    assert log_main([*call, "--config", str(file)]) == 2
    said = capsys.readouterr().err
    assert ("trust" if more else "add --trust evil_parts") in said
    assert not evil.exists()
    if not more:
        log_main([*call, "--config", str(file), "--trust", "evil_parts"])
        assert evil.exists()


def test_a_configuration_file_cannot_say_whom_to_trust(evil, tmp_path, capsys):
    file = tmp_path / "predict.yaml"
    file.write_text("trust: [evil_parts]\n")
    call = ["predict", "--model", str(tmp_path), "--data", "new.csv", "--out", str(tmp_path / "p.csv")]
    assert log_main([*call, "--config", str(file)]) == 2
    assert "trust=evil_parts: packages are trusted on the command line, not in a file" in capsys.readouterr().err
    assert not evil.exists()


@pytest.mark.parametrize(
    "text",
    [
        "model: '{class_path: evil_parts.Part}'",
        "model: nested.csv",
        "model:\n  class_path: evil_parts.Part\ntrainer:\n  default_root_dir: 2024-13-45",
        "model:\n  class_path: DirectMethod\n  init_args:\n    network: evil_parts.Part",
        "trainer:\n  callbacks: evil_parts.Part",
        "trainer:\n  callbacks: !!set {evil_parts.Part}",
        "data: evil_parts.Part",
        "optimizer: evil_parts.Part",
    ],
)
def test_no_way_of_writing_a_configuration_leads_around_it(text, evil, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("nested.csv").write_text("class_path: evil_parts.Part\n")
    Path("evil_parts.Part").write_text("a file of that name beside it")
    Path("train.yaml").write_text(text + "\n")
    model = [] if text.startswith("model") else ["--model", "DirectMethod"]
    data = [] if text.startswith("data") else ["--data", "MoonsDataModule"]
    with suppress(SystemExit):
        train(["fit", "--config", "train.yaml", *model, *data, "--print_config"])
    assert not evil.exists(), capsys.readouterr()


def test_a_date_that_is_none_does_not_hide_a_class_path(evil, tmp_path, capsys):
    x, action, outcome = make_log()
    x.assign(price=action, bought=outcome).to_csv(tmp_path / "log.csv", index=False)
    file = tmp_path / "fit.yaml"
    file.write_text("backbone: evil_parts.Part\nencoding: 2024-13-45\n")
    call = ["fit", "--data", str(tmp_path / "log.csv"), "--action", "price", "--outcome", "bought"]
    assert log_main([*call, "--config", str(file), "--encoding", "utf-8", "--out", str(tmp_path / "m")]) == 2
    assert "add --trust evil_parts" in capsys.readouterr().err
    assert not evil.exists()


@pytest.mark.parametrize("name", ["train.yaml", "options", "options.csv"])
@pytest.mark.parametrize("nested", ["", "model.yaml", "model"])
def test_a_configuration_file_of_the_trainer_imports_nothing_either(nested, name, evil, tmp_path, capsys):
    file = tmp_path / name
    model = "class_path: evil_parts.Part\n"
    (tmp_path / (nested or "none")).write_text(model)
    file.write_text(f"model: {nested}\n" if nested else f"model:\n  {model}")
    call = ["fit", "--data", "MoonsDataModule", "--trainer.max_epochs", "1", "--config", str(file)]
    assert train([*call, "--print_config"]) == 2
    assert "add --trust evil_parts" in capsys.readouterr().err
    assert not evil.exists()
    with pytest.raises(SystemExit):
        train([*call, "--trust", "evil_parts", "--print_config"])
    assert evil.exists()


def test_a_checkpoint_given_to_the_trainer_executes_nothing_and_is_a_file_of_this_machine(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    options = ["--model", "DirectMethod", "--data", "SyntheticMultiLabelDataModule", "--trainer.logger", "false"]
    marker = tmp_path / "marker"

    class Payload:
        def __reduce__(self):
            return Path.touch, (marker,)

    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.0.0", "evil": Payload()}, tmp_path / "evil.ckpt")
    assert train(["test", *options, "--ckpt_path", str(tmp_path / "evil.ckpt")]) == 2
    assert "evil.ckpt is no checkpoint that can be read (UnpicklingError)" in capsys.readouterr().err
    assert not marker.exists()
    assert train(["test", *options, "--ckpt_path", "http://127.0.0.1:9/evil.ckpt"]) == 2
    assert "ckpt_path=http://127.0.0.1:9/evil.ckpt: allowed is a file of this machine" in capsys.readouterr().err


def test_yaml_makes_no_objects(tmp_path, capsys):
    file = tmp_path / "sweep.yaml"
    file.write_text(f"out: !!python/object/apply:os.mkdir ['{tmp_path / 'marker'}']\n")
    assert main(["--config", str(file), "--plan"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "marker").exists()


def test_a_runs_folder_imports_nothing(whole, evil, tmp_path, capsys):
    shutil.copytree(whole, tmp_path / "run")
    asked = tmp_path / "run" / "sweeps" / "paper.json"
    asked.write_text(json.dumps(json.loads(asked.read_text()) | {"backbones": ["evil_parts.Part"]}))
    rewrite(tmp_path / "run", {"dataset": "evil_parts.Data", "backbone": "evil_parts.Part"})
    assert report([str(tmp_path / "run")]) == 0
    assert not evil.exists()
    assert "add --trust evil_parts" in (tmp_path / "run" / "report.md").read_text()
    assert report([str(tmp_path / "run"), "--trust", "evil_parts"]) == 0
    assert evil.exists()


LINKED = ["cells", "parts", "set-aside", "sweeps", "figures", "wandb", "parts/cells", "parts/set-aside", "wandb/asked"]
LINKED += ["figures/settings-1"]


@pytest.mark.parametrize("name", LINKED)
def test_a_runs_folder_leads_nowhere_else(name, whole, tmp_path, capsys):
    run, sound, elsewhere = tmp_path / "run", tmp_path / "sound", tmp_path / "elsewhere"
    for folder in (run, sound):
        shutil.copytree(whole, folder)
    elsewhere.mkdir()
    (elsewhere / "notes.txt").write_text("mine")
    if (run / name).is_dir():
        shutil.rmtree(run / name)
    (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(elsewhere)
    merged = ["--out", str(tmp_path / "merged")]
    commands = [
        (main, [*TINY, "--out", str(run)]),
        (main, ["status", str(run)]),
        (main, ["verify", str(run)]),
        (main, ["sync", str(run)]),
        (main, ["merge", str(sound), str(run), *merged]),
        (main, ["merge", str(sound), "--out", str(run)]),
        (report, [str(run)]),
    ]
    for command, arguments in commands:
        capsys.readouterr()
        assert command(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {run / name} is a link to {elsewhere}")
    assert [path.name for path in elsewhere.rglob("*")] == ["notes.txt"]
    assert not (tmp_path / "merged").exists()


def test_a_link_among_the_locks_is_not_opened(whole, tmp_path, capsys):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(whole, run)
    (run / "wandb" / "locks").mkdir(parents=True)
    (run / "wandb" / "locks" / "t-summary.offline").symlink_to(elsewhere)
    for arguments in ([*TINY, "--out", str(run)], ["sync", str(run)]):
        assert main(arguments) == 2
        assert f"t-summary.offline is a link to {elsewhere}" in capsys.readouterr().err
    assert not elsewhere.exists()


@pytest.mark.parametrize("name", ["files/config.yaml", "files/media", "run-t-x.wandb", "address.txt", "logs/debug.log"])
def test_a_sync_uploads_nothing_that_a_link_leads_to(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.wandb_sync._mode", lambda: pytest.fail("something was started"))
    run, elsewhere = tmp_path / "wandb" / "offline-run-1-t-x", tmp_path / "elsewhere"
    (run / "files").mkdir(parents=True)
    (run / "logs").mkdir()
    (run / "run-t-x.wandb").touch()
    (run / "logs" / "debug-core.log").symlink_to(elsewhere)  # as W&B makes it, and those beside the run
    (tmp_path / "wandb" / "latest-run").symlink_to(run.name)
    with pytest.raises(pytest.fail.Exception):
        main(["sync", str(tmp_path)])
    elsewhere.write_text("mine")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(elsewhere)
    capsys.readouterr()
    assert main(["sync", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {run / name} is a link to {elsewhere}")


def test_an_addresss_folder_here_leads_nowhere_else(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = Remote("memory://bucket/run").folder
    folder.mkdir(parents=True)
    (folder / "cells").symlink_to(tmp_path)
    assert main(["verify", "memory://bucket/run"]) == 2
    assert f"{folder / 'cells'} is a link" in capsys.readouterr().err


def test_a_runs_folder_may_be_a_link_itself(whole, tmp_path, capsys):
    shutil.copytree(whole, tmp_path / "disk" / "run")
    (tmp_path / "run").symlink_to(tmp_path / "disk" / "run")
    assert main([*TINY, "--out", str(tmp_path / "run")]) == 0
    assert "3 already recorded" in capsys.readouterr().err
    assert report([str(tmp_path / "run")]) == 0


def test_links_among_a_runs_files_are_not_followed(whole, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (record, *_), asked = sorted((run / "cells").iterdir()), run / "sweeps" / "paper.json"
    kept = {path: path.rename(tmp_path / path.name) for path in (record, asked)}
    for path, target in kept.items():
        path.symlink_to(target)
    assert main(["verify", str(run)]) == 1
    assert f"{record}: a link" in capsys.readouterr().out
    assert report([str(run)]) == 0
    said = (run / "report.md").read_text()
    assert "`paper.json` is a link, which is not followed" in said
    assert f"`{record.name}` is no record" in said
    assert main([*TINY, "--out", str(run)]) == 0
    assert "2 already recorded" in capsys.readouterr().err
    assert not any(path.is_symlink() for path in (record, asked))
    assert main(["verify", str(run)]) == 0
