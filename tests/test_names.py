"""Names, messages and secrets of unknown origin: shown as text, or not at all."""

import csv
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks import tracker, wandb_sync
from benchmarks.grid import digest, make_jobs
from benchmarks.report import main as report
from benchmarks.run import _finish
from benchmarks.store import Store, _name
from benchmarks.sweep import main
from benchmarks.texts import markdown_text, redact, shell_word
from benchmarks.wandb_runs import how_to_sync
from cst_lightning.__main__ import main as log_main
from cst_lightning.texts import csv_text, csv_value, printable
from tests.classifiers import make_log
from tests.sweeps import SHORT, TINY, rewrite, start, with_metric

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
    with_metric(folder, EVIL["backbone"])
    with_metric(folder, EVIL["dataset"])
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
    folder = tmp_path / "[red] <script>alert(1) $\\frac$ ![x](x)"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "sweeps")
    evil = "$\\frac$\x1b[2J"
    rewrite(folder, {"dataset": "<script>alert(1) $\\frac$", "backbone": f"{evil} ![x](x)", "method": evil})
    assert report([str(folder)]) == 0
    said = capsys.readouterr()
    assert {"calibration", "curves"} <= {path.name.partition("_")[0] for path in folder.glob("figures/*.svg")}
    for text in [said.out, said.err, *(path.read_text() for path in folder.glob("*.*") if path.suffix != ".parquet")]:
        assert "\x1b" not in text
    assert not re.search(r"<script>alert|\]\((?!figures/)", (folder / "report.md").read_text())
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
    assert [csv_text(text) for text in ("=1", "+1", "-1", "@a", "\t=1", "＝1", "dm", "a=b")] == [
        "'=1", "'+1", "'-1", "'@a", "'\t=1", "'＝1", "dm", "a=b",
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
    token = tracker._token(tmp_path)
    assert re.fullmatch("[0-9a-f]{8}", token)
    assert tracker._token(tmp_path) == token


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


@pytest.mark.parametrize("well", [True, False])
def test_the_name_of_a_wandb_run_steers_no_terminal(well, tmp_path, monkeypatch, capsys):
    """What W&B's own command says of it goes through too; in its place is one that says what it is called with."""
    run = tmp_path / "wandb" / "offline-run-1-\x1b[31mRED\x1b]0;title\a"
    run.mkdir(parents=True)
    (run / "run.wandb").touch()
    (tmp_path / "python").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for name, value in {"_mode": "online", "answers": well, "arrived": False}.items():
        monkeypatch.setattr(wandb_sync, name, lambda *_, _value=value, **__: _value)
    assert main(["sync", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    shown = "offline-run-1-?[31mRED?]0;title?"
    assert [line for line in out.splitlines() if shown in line][1:] == out.splitlines()[-2:]  # its log is empty, too
    assert f"{run.parent}/{shown}" in err if well else not err
    assert not {"\x1b", "\a"} & {*out, *err}


def test_a_command_to_paste_takes_any_folders_name():
    folder = Path("/tmp/my runs/$HOME's")
    assert shlex.split(how_to_sync(folder))[-1] == shlex.split(shell_word(folder))[0] == str(folder)


@pytest.mark.parametrize("recorded", [False, True])
def test_the_closing_line_advises_a_report_where_there_is_one_to_make(whole, tmp_path, recorded, capsys):
    folder = tmp_path / "my runs $1"
    for name in ("sweeps", "cells") if recorded else ("sweeps",):
        shutil.copytree(whole / name, folder / name)
    jobs = make_jobs("smoke", datasets=["moons"], backbone_names=["dm"])
    assert _finish(jobs, Store(folder), Console(stderr=True), "interrupted", None) == 130
    command = capsys.readouterr().err.partition("python -m benchmarks.report ")[2].splitlines()[:1]
    assert list(map(shlex.split, command)) == ([[str(folder)]] if recorded else [])


@pytest.mark.parametrize(
    ("variables", "text", "said"),
    [
        ({"SMTP_PASS": "hunter-22"}, "login hunter-22", "login <SMTP_PASS>"),
        ({"A_KEY": "abcdefgh", "B_TOKEN": "abcdefgh-REST"}, "x abcdefgh-REST", "x <B_TOKEN>"),
        ({"A_KEY": "back\\slash"}, repr("back\\slash"), "'<A_KEY>'"),
        ({"DB_PWD": "hunter-22"}, "hunter-22", "<DB_PWD>"),
        ({"HF_AUTH": "hunter-22"}, "hunter-22", "<HF_AUTH>"),
        ({"PROXY_AUTHORIZATION": "hunter-22"}, "hunter-22", "<PROXY_AUTHORIZATION>"),
        ({"GITHUB_PAT": "hunter-22"}, "hunter-22", "<GITHUB_PAT>"),
        ({"PAT_OF_CI": "hunter-22"}, "hunter-22", "<PAT_OF_CI>"),
        ({"SENTRY_DSN": "hunter-22"}, "hunter-22", "<SENTRY_DSN>"),
        ({"SESSION_COOKIE": "hunter-22"}, "hunter-22", "<SESSION_COOKIE>"),
        ({"CONN_STR": "hunter-22"}, "hunter-22", "<CONN_STR>"),
        ({"AZURE_STORAGE_CONNECTION_STRING": "hunter-22"}, "hunter-22", "<AZURE_STORAGE_CONNECTION_STRING>"),
        ({"PWD": "/home/me", "OLDPWD": "/home/him"}, "/home/me /home/him", "/home/me /home/him"),
        ({"XAUTHORITY": "/home/me/.x", "SSH_AUTH_SOCK": "/tmp/agent"}, "/home/me/.x /tmp/agent", None),
        (
            {"GIT_AUTHOR_NAME": "Somebody", "MY_PATH": "/home/me", "PATTERN": "abcdefgh"},
            "Somebody /home/me abcdefgh",
            None,
        ),
        ({"DB_PWD": "seven.."}, "seven..", None),
        ({}, "sent Authorization: Basic dXNlcjpwdw== to it", "sent Authorization: Basic <credentials> to it"),
        ({}, "{'authorization': 'Bearer abc.def', 'x': 1}", "{'authorization': 'Bearer <credentials>', 'x': 1}"),
        ({}, r"{\"Authorization\": \"token ghp_1\"}", r"{\"Authorization\": \"token <credentials>\"}"),
        ({}, "Proxy-Authorization: Own abc;", "Proxy-Authorization: <credentials>;"),
        ({}, 'Authorization: Digest username="me", response="6629"', "Authorization: Digest <credentials>"),
        ({}, "no authorization for it", None),
        ({}, "GET http://me:pw@host/x", "GET http://<user>:<password>@host/x"),
    ],
)
def test_what_is_secret_is_found_in_every_form(variables, text, said, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert redact(text) == (text if said is None else said)


def test_a_key_of_netrc_is_secret_too(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password 0123456789abcdef\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert redact("key 0123456789abcdef") == "key <password of api.wandb.ai>"


def test_the_sweep_itself_tells_no_secret(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("MY_TOKEN", "very-secret-token")
    monkeypatch.setattr("benchmarks.run._check_data", lambda *_: int(os.environ["MY_TOKEN"]))
    assert main([*TINY, "--out", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "<MY_TOKEN>" in err
    assert "very-secret-token" not in err
