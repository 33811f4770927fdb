"""What files and names of unknown origin can do: nothing but be shown, as text."""

import ast
import csv
import json
import os
import pickle
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import tracking
from benchmarks.grid import digest
from benchmarks.report import main as report
from benchmarks.store import _name, sealed
from benchmarks.sweep import main
from benchmarks.texts import markdown_text, redact
from benchmarks.train import main as train
from cst_lightning import DirectMethod
from cst_lightning.__main__ import main as log_main
from cst_lightning.texts import csv_text, csv_value, printable
from tests.classifiers import make_log
from tests.sweeps import ROOT, SHORT, TINY, start

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
    with pytest.raises(pickle.UnpicklingError):
        train(["test", *options, "--ckpt_path", str(tmp_path / "evil.ckpt")])
    assert not marker.exists()
    assert train(["test", *options, "--ckpt_path", "http://127.0.0.1:9/evil.ckpt"]) == 2
    assert "ckpt_path=http://127.0.0.1:9/evil.ckpt: allowed is a file of this machine" in capsys.readouterr().err


def test_yaml_makes_no_objects(tmp_path, capsys):
    file = tmp_path / "sweep.yaml"
    file.write_text(f"out: !!python/object/apply:os.mkdir ['{tmp_path / 'marker'}']\n")
    assert main(["--config", str(file), "--plan"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "marker").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert main([*TINY, "--workers", "1", "--out", str(folder)]) == 0
    return folder


def rewrite(folder, changes, **fields):
    """Every record again, under the name that its identity gives it."""
    for path in list((folder / "cells").glob("*.json")):
        record = json.loads(path.read_text()) | fields
        record["identity"] |= changes
        record["protocol"] |= {"name": changes.get("protocol_name", "written"), "selection": "@SUM(A1)"}
        path.unlink()
        (folder / "cells" / f"{_name(record['identity'])}.json").write_text(json.dumps(sealed(record)))


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


# --- names that are shown -----------------------------------------------------------------------------

EVIL = {
    "dataset": '=HYPERLINK("http://x","y")|<img src=x onerror=alert(1)>',
    "backbone": "<script>alert(1)</script>\x1b[2J\n\\input{/etc/passwd} [red]|",
    "protocol_name": "+1+cmd|' /C calc'!A0\n\\input{x}\u202e",
}


def test_hostile_names_are_text_in_every_format(whole, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "sweeps")
    rewrite(folder, EVIL)
    shutil.copytree(whole / "cells", folder / "cells", dirs_exist_ok=True)  # beside sound ones
    assert report([str(folder)]) == 0
    assert main(["verify", str(folder)]) == 0
    assert main(["status", str(folder)]) == 0
    said = capsys.readouterr()
    written = [path for path in folder.iterdir() if path.suffix in (".md", ".csv", ".tex", ".html")]
    texts = {path.name: path.read_text(encoding="utf-8") for path in written}
    for text in [said.out, said.err, *texts.values()]:
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
    assert "&lt;script&gt;alert(1)" in texts["report.html"]
    for name in ("report.html", "report.md", "tables.md"):
        assert "<script>alert" not in texts[name]
        assert "<img src=x" not in texts[name]
    assert r"\input" not in "".join(line for line in texts["tables.tex"].splitlines() if not line.startswith("%"))
    names = set()
    for name in (name for name in texts if name.endswith(".csv")):
        for row in csv.reader(texts[name].splitlines()):
            for value in row:
                assert not value.startswith(("=", "+", "@", "\t", "\r")) or number(value), (name, value)
                assert not value.startswith("-") or number(value), (name, value)
                names.add(value)
    assert "'" + printable(EVIL["dataset"]) in names


def test_a_folder_of_hostile_names_alone_has_every_figure_and_its_own_name_is_text(whole, tmp_path, capsys):
    """Alone it has one setting, for which more is drawn; two dollars would be a formula, and one that is wrong."""
    folder = tmp_path / "[red] <script>alert(1) $\\frac$"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "sweeps")
    evil = "$\\frac$\x1b[2J"
    rewrite(folder, {"dataset": "<script>alert(1) $\\frac$", "backbone": evil, "method": evil})
    assert report([str(folder)]) == 0
    said = capsys.readouterr()
    assert (folder / "figures" / "losses.svg").exists()
    for text in [said.out, said.err, *(path.read_text() for path in folder.glob("*.*") if path.suffix != ".parquet")]:
        assert "\x1b" not in text
    assert "<script>alert" not in (folder / "report.md").read_text()
    assert "<script>alert" not in (folder / "report.html").read_text()
    again = ["--datasets", "multilabel", "--backbones", "constant", "--methods", "backbone", "--seeds", "0"]
    status = main([*again, "--workers", "1", "--out", str(folder)])
    said = capsys.readouterr()
    assert status == 0, said.err
    assert "[red] <script>alert(1)" in said.err


def number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_numbers_stay_numbers_and_names_are_told_apart():
    assert [csv_text(text) for text in ("=1", "+1", "-1", "@a", "\t=1", "dm", "a=b")] == [
        "'=1", "'+1", "'-1", "'@a", "'\t=1", "dm", "a=b",
    ]  # fmt: skip
    assert markdown_text("a|b<c>") == r"a\|b&lt;c>"
    assert printable("a\x1b[31m\nb\ud800\u200b") == "a?[31m?b??"


def test_a_message_of_unknown_origin_steers_no_terminal(tmp_path, capsys):
    config = tmp_path / "sweep.yaml"
    config.write_text('backbones: ["dm\\e]0;owned\\a[bold]"]\n')
    assert main(["--config", str(config), "--plan"]) == 2
    (tmp_path / "progress.json").write_text(
        json.dumps({
            "ended": False, "updated": 2**40, "host": "h\x1b[2J", "device": "\x1b[2J", "pid": 1, "left": "\x1b[2J",
            "jobs": 1, "finished": 0, "failed": 0, "share": 0,
            "running": [{"job": "\x1b[2J", "share": 0, "doing": "\n\x07", "mib": 0}],
        })
    )  # fmt: skip
    assert main(["status", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert not re.search("[\x07\x1b]", said.out + said.err)
    assert len(said.out.splitlines()) == 2


# --- secrets and folders ------------------------------------------------------------------------------


def test_secrets_of_the_environment_are_in_no_file_and_no_message(tmp_path):
    secrets = {"WANDB_API_KEY": "0123456789abcdef" * 2 + "01234567", "MY_TOKEN": "hunter2-hunter2"}
    options = ["--datasets", "moons", "--backbones", "tests.parts.Leaky", "--seeds", "0", *SHORT, "--retries", "1"]
    process = start(
        [*options, "--methods", "backbone", "--wandb", "offline", "--out", str(tmp_path)], env={**os.environ, **secrets}
    )
    said = "".join(process.communicate(timeout=300))
    assert process.returncode == 1
    assert "login failed for <WANDB_API_KEY> and <MY_TOKEN>" in said
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    for content in [said.encode(), *(path.read_bytes() for path in files)]:
        for secret in secrets.values():
            assert secret.encode() not in content


def test_what_is_taken_for_a_secret(monkeypatch):
    monkeypatch.setenv("SERVICE_PASSWORD", "correct horse")
    monkeypatch.setenv("SHORT_KEY", "1")
    assert redact("1 correct horse 1") == "1 <SERVICE_PASSWORD> 1"


def test_the_name_of_a_folders_wandb_runs_is_no_path(tmp_path):
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "sweep-id").write_text("x/../../../home")
    token = tracking._token(tmp_path)
    assert re.fullmatch("[0-9a-f]{8}", token)
    assert tracking._token(tmp_path) == token


def test_names_of_records_hold_no_part_of_a_path():
    identity = {"dataset": "../../../x", "backbone": "/etc/passwd", "method": "pl"}
    assert _name(identity) == f"_.-..-..-x--etc-passwd-pl-{digest(identity)}"


def test_a_name_is_no_link_in_markdown_and_no_formula_in_predictions(tmp_path, capsys):
    assert markdown_text("![x](http://evil/p.png)") == r"![x]\(http://evil/p.png)"
    assert [csv_value(value) for value in ("=1+1", "-10%", "-5", 3.0, "@x", "a")] == [
        "'=1+1",
        "-10%",
        "-5",
        3.0,
        "'@x",
        "a",
    ]
    x, action, outcome = make_log()
    names = np.where(action == action[0], "=HYPERLINK(1)", "plain")
    (x.assign(price=names, bought=outcome)).to_csv(tmp_path / "log.csv", index=False)
    call = [
        "fit",
        "--data",
        str(tmp_path / "log.csv"),
        "--action",
        "price",
        "--outcome",
        "bought",
        "--method",
        "backbone",
    ]
    assert log_main([*call, "--max_epochs", "1", "--n_models", "1", "--out", str(tmp_path / "m")]) == 0
    call = ["predict", "--model", str(tmp_path / "m"), "--data", str(tmp_path / "log.csv")]
    assert log_main([*call, "--out", str(tmp_path / "p.csv")]) == 0
    header = (tmp_path / "p.csv").read_text().splitlines()[0]
    assert "HYPERLINK" in header
    assert not [name for name in header.split(",") if name.startswith(("=", '"='))]


def test_a_log_steers_no_terminal(tmp_path, capsys):
    x, action, outcome = make_log()
    columns = {x.columns[0]: "clear\x1b[2J"}
    x.rename(columns=columns).assign(price=action, bought=outcome).to_csv(tmp_path / "log.csv", index=False)
    assert log_main(["diagnose", "--data", str(tmp_path / "log.csv"), "--action", "price", "--outcome", "bought"]) == 0
    assert log_main(["diagnose", "--data", str(tmp_path / "\x1b[2J.csv"), "--action", "a", "--outcome", "b"]) == 2
    said = "".join(capsys.readouterr())
    assert "?[2J.csv" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("variables", "text", "said"),
    [
        ({"SMTP_PASS": "hunter-22"}, "login hunter-22", "login <SMTP_PASS>"),
        ({"A_KEY": "abcdefgh", "B_TOKEN": "abcdefgh-REST"}, "x abcdefgh-REST", "x <B_TOKEN>"),
        ({"A_KEY": "back\\slash"}, repr("back\\slash"), "'<A_KEY>'"),
        ({}, "GET http://me:pw@host/x", "GET http://<user>:<password>@host/x"),
    ],
)
def test_what_is_secret_is_found_in_every_form(variables, text, said, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert redact(text) == said


def test_a_key_of_netrc_is_secret_too(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password 0123456789abcdef\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert redact("key 0123456789abcdef") == "key <password of api.wandb.ai>"


def test_the_sweep_itself_tells_no_secret(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("MY_TOKEN", "very-secret-token")
    monkeypatch.setattr("benchmarks.sweep._check_data", lambda *_: int(os.environ["MY_TOKEN"]))
    assert main([*TINY, "--out", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "<MY_TOKEN>" in err
    assert "very-secret-token" not in err
