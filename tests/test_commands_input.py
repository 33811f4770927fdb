"""What the commands for a log say of what is wrong: a line that names the file, the column or the option."""

import errno
import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest

from cst_lightning import CounterfactualClassifier, InputError
from cst_lightning.__main__ import main
from cst_lightning.typed_labels import with_never_taken

FIT = ["fit", "--data", "log.csv", "--action", "price", "--outcome", "bought", "--out", "m"]


@pytest.mark.parametrize("day", ["2024-01-31", "31.01.2024", "31/01/2024"])
@pytest.mark.parametrize("command", ["diagnose", "fit"])
def test_a_column_of_dates_names_the_option_that_leaves_it_out(sales, command, day, capsys):
    frame = pd.read_csv(sales / "new.csv").assign(day=day)
    frame.to_csv(sales / "dated.csv", index=False)
    call = [command, "--data", str(sales / "dated.csv"), "--action", "price", "--outcome", "bought"]
    assert main([*call, *(["--out", str(sales / "m")] if command == "fit" else [])]) == 2
    told = capsys.readouterr().err
    assert f"column 'day' holds dates, such as {day}: make numbers of it" in told
    assert "leave it out of the features (--keep day), or name it as categorical" in told


@pytest.mark.parametrize(
    ("labels", "typed"), [([1, 2], 2.5), ([1, 2], "x"), ([1.5], "x"), ([1.5], "nan"), ([True, False], "x")]
)
def test_actions_of_another_kind_than_the_logs_are_an_error(labels, typed):
    with pytest.raises(InputError, match=f"actions={typed}: it is no label like those of the log"):
        with_never_taken([typed], pd.Series(labels))


def test_an_error_of_the_validation_file_names_that_file_alone(sales, capsys):
    pd.read_csv(sales / "new.csv").drop(columns="age").to_csv(sales / "short.csv", index=False)
    call = ["diagnose", "--data", str(sales / "log.csv"), "--action", "price", "--outcome", "bought"]
    assert main([*call, "--features", "age", "--validation", str(sales / "short.csv")]) == 2
    said = capsys.readouterr().err
    assert "short.csv" in said
    assert "log.csv" not in said


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (["fit", "--data", "log.csv", "--action", "prize", "--outcome", "bought", "--out", "m"], "mean 'price'"),
        (["fit", "--data", "nothing.csv", "--action", "price", "--outcome", "bought", "--out", "m"], "nothing.csv"),
        (["predict", "--model", "model", "--data", "new.csv", "--out", "p.xlsx"], "allowed are names that end in"),
        (["predict", "--model", "model", "--data", "new.csv", "--out", "no/p.csv"], "there is no folder"),
        (["predict", "--model", "model", "--data", "new.csv", "--out", "/proc/sys/p.csv"], "/proc/sys cannot be writ"),
        (["fit", *FIT[1:7], "--out", "/proc/sys/m"], "/proc/sys cannot be written"),
        (["diagnose", *FIT[1:7], "--page", "/proc/sys/p"], "/proc/sys cannot be written"),
        (["predict", "--model", "nothing", "--data", "new.csv", "--out", "p.csv"], "no model: there is no such fo"),
        (["predict", "--model", ".", "--data", "new.csv", "--out", "p.csv"], "no model: there is no model.json in it"),
        (["predict", "--model", "model", "--data", "short.csv", "--out", "p.csv"], "no column 'town'"),
        (["recommend", "--model", "model", "--data", "new.csv", "--out", "r.csv"], "outcomes are text"),
        (["recommend", "--model", "model", "--data", "new.csv", "--out", "r.csv", "--value.yse", "1"], "'yse'"),
        (["evaluate", "--model", "model", "--data", "unknown.csv"], "'price': action 99.0 in data row 1 was not"),
        (["recommend", "--model", "model", "--data", "new.csv", "--out", "r.csv", "--value.yes", "1"], "give each of"),
        (["predict", "--model", "model", "--data", "new.csv", "--out", "p.csv", "--bogus", "3"], "see --help"),
        (["diagnose", "--data", "log.csv", "--action", "price", "--outcome", "bought", "--page", "no/p"], "no folder"),
        (["fit", "--data", "log.csv", "--action", "price", "--outcome", "bought", "--out", "."], "is no model"),
        ([*FIT, "--encodng", "x"], "error: there is no option --encodng: did you mean --encoding?"),
        ([*FIT, "--max_epoch", "1"], "error: there is no option --max_epoch: did you mean --max_epochs?"),
        ([*FIT, "--n-model", "1"], "error: there is no option --n-model: did you mean --n_models?"),
        ([*FIT, "--config", "typo.yaml"], "error: typo.yaml: there is no option --nmodels: did you mean --n_models?"),
        (["fit", "--config=typo.yaml"], "error: typo.yaml: there is no option --nmodels: did you mean --n_models?"),
        ([*FIT, "--config", "kind.yaml"], "error: kind.yaml: --hidden=abc: allowed is an integer"),
        ([*FIT, "--random_state", "a"], "random_state='a'"),
        ([*FIT, "--hidden", "abc"], "--hidden=abc: allowed is an integer"),
        ([*FIT, "--cvat_weights", "a"], "--cvat_weights=a: allowed is a list"),
        (FIT[:5], "error: --outcome is missing; see --help"),
        ([*FIT[:7], "--config", "four.yaml"], "error: --out is missing; see --help"),  # which no file is to blame for
        (["recommend", "--model", "model", "--data", "new.csv", "--out", "r.csv", "--value", "3"], "--value.no 0"),
        (["recommend", "--model", "model", "--data", "new.csv", "--out", "r.csv"],
         "give each of 'no', 'yes' a number: --value.no NUMBER --value.yes NUMBER (`action` for a number: what"),
        (["recommend", "--model", "model", "--data", "new.csv", "--out", "r.csv", "--value.yes", "1"],
         "and nothing else: --value.no NUMBER --value.yes NUMBER"),
        (["recommend", "--model", "model", "--data", "new.csv", "--out", "r.csv",
          "--value.0.5", "1", "--value.1.5", "2"], "value: '0.5' was not in training: allowed are no, yes"),
        (["recommend", "--model", "model", "--data", "new.csv", "--out", "r.csv", "--value.yes", "5,5",
          "--value.no", "0"], "error: value of outcome 'yes' is '5,5': allowed are a finite number, 'action' (the"),
        (["recommend", "--model", "model", "--data", "new.csv", "--out", "r.csv", "--value.yes", '{"9.50": "x"}',
          "--value.no", "0"], "value of outcome 'yes': action 14.5 is missing: give each of 9.5, 14.5, 19.5 a number"),
        (["recommend", "--model", "model", "--data", "new.csv", "--out", "r.csv", "--value.yes", '{"9": 1}',
          "--value.no", "0"], "error: value.yes: '9' was not in training: allowed are 9.5, 14.5, 19.5"),
        (["evaluate", "--model", "model", "--data", "unpriced.csv"], "no column 'price' (action): there are age, town"),
        (["predict", "--model", "model", "--data", "named.csv", "--out", "p.csv", "--keep", "p(yes | 9.5)"],
         "keep=p(yes | 9.5): a"),
        (["recommend", "--model", "model", "--data", "named.csv", "--out", "p.csv", "--value", "{yes: 1, no: 0}",
          "--keep", "action"], "keep=action: a"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(sales, call, message, capsys, monkeypatch):
    monkeypatch.chdir(sales)
    new = pd.read_csv("new.csv")
    new.drop(columns="town").to_csv("short.csv", index=False)
    (sales / "typo.yaml").write_text("nmodels: 3\n")
    (sales / "four.yaml").write_text("n_models: 4\n")
    (sales / "kind.yaml").write_text("hidden: abc\n")
    new.drop(columns="price").to_csv("unpriced.csv", index=False)
    new.assign(price=99.0).to_csv("unknown.csv", index=False)
    new.assign(action="x", **{"p(yes | 9.5)": 1}).to_csv("named.csv", index=False)
    assert main(call) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert [line for line in told if not line.startswith("warning")] == [told[-1]]
    assert message in told[-1]
    assert told[-1].startswith("error: ")


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_a_full_disk_is_a_line_and_leaves_the_older_answers(name, sales, tmp_path, capsys, monkeypatch):
    def full(frame, path, **options):
        path.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / name).write_text("older")
    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    call = ["predict", "--model", str(sales / "model"), "--data", str(sales / "new.csv")]
    assert main([*call, "--out", str(tmp_path / name)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {tmp_path / name}: No space left on device"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["older"]


@pytest.mark.parametrize("roles", ["[" * 100_000, "9" * 5000, "[]", {"action": 5}, {"outcome": ["x"]}, {"nothing": 1}])
def test_what_a_model_from_elsewhere_says_of_its_columns_is_read_or_refused_in_a_line(roles, sales, tmp_path, capsys):
    model = shutil.copytree(sales / "model", tmp_path / "model")
    (model / "log.json").write_text(roles if isinstance(roles, str) else json.dumps({"roles": roles}))
    assert main(["evaluate", "--model", str(model), "--data", str(sales / "new.csv")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {model}/log.json cannot be read (")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (["predict", "--model", "none", "--data", "new.csv", "--out", "p.csv"], "none holds no model"),
        (["fit", *FIT[1:7], "--out", "."], ". is there and is no model"),
        (["recommend", "--model", "model", "--data", "new.csv", "--out", "r.csv", "--actions", "9.5", "15"],
         "actions: '15' was not in training"),
        (["recommend", "--model", "model", "--data", "new.csv", "--out", "r.csv"], "value: outcomes are text"),
        (["evaluate", "--model", "model", "--data", "new.csv", "--value.yse", "1"], "value: 'yse' was not in training"),
        (["predict", "--model", "model", "--data", "gap.csv", "--out", "p.csv"], "gap.csv: column 'age' is missing"),
        (["evaluate", "--model", "model", "--data", "never.csv"], "never.csv: outcome is missing in every row"),
        ([*FIT, "--data", "few.csv", "--keep", "customer"], "few.csv: "),
    ],
)  # fmt: skip
def test_an_error_names_the_file_or_the_option_that_it_is_of(sales, call, said, capsys, monkeypatch):
    monkeypatch.chdir(sales)
    new = pd.read_csv("new.csv")
    new.assign(age=None).to_csv("gap.csv", index=False)
    new.assign(bought=None).to_csv("never.csv", index=False)
    new[:5].to_csv("few.csv", index=False)
    assert main(call) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {said}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method", "pl_hard"], "unknown method 'pl_hard'"),
        (["--backbone", "dmm"], "unknown backbone 'dmm'"),
        (["--selection", "best"], "unknown selection 'best'"),
        (["--hidden", "0"], "hidden=0"),
        (["--n_models", "9"], "n_models=9"),
        (["--device", "tpu"], "device='tpu'"),
        (["--missing", "drop"], "missing='drop'"),
        (["--random_state", "-1"], "random_state=-1"),
        (["--propensity_floor", "2"], "propensity_floor=2"),
    ],
)
def test_options_are_checked_before_the_log_is_read(options, said, capsys):
    assert main([*FIT, "--data", "is/not/there.csv", *options]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"error: {said}")
    assert not told.out


def test_rows_and_options_are_told_as_a_file_and_a_command_line_have_them(sales, capsys):
    new = pd.read_csv(sales / "new.csv")
    new.assign(age=new["age"].where(new.index != 3)).to_csv(sales / "gap.csv", index=False)
    new.assign(town=new["town"].where(new.index != 3, "Paris")).to_csv(sales / "paris.csv", index=False)
    call = ["predict", "--model", str(sales / "model"), "--out", str(sales / "p.csv"), "--data"]
    assert main([*call, str(sales / "gap.csv")]) == 2
    err = capsys.readouterr().err
    assert (
        "column 'age' is missing (NaN) in data row 4: fill it, drop these rows, or train with --missing impute" in err
    )
    assert main([*call, str(sales / "paris.csv")]) == 0
    assert "warning: column 'town' holds 'Paris' in data row 4, which training had not" in capsys.readouterr().err


def test_a_remedy_is_one_of_the_command_line_and_bars_cut_columns_too(sales, capsys):
    new = pd.read_csv(sales / "new.csv")
    new.to_csv(sales / "utf16.csv", index=False, encoding="utf-16")
    new.to_csv(sales / "bars.csv", index=False, sep="|")
    call = ["predict", "--model", str(sales / "model"), "--out", str(sales / "p.csv"), "--data"]
    assert main([*call, str(sales / "utf16.csv")]) == 2
    assert "it begins with the byte-order mark of utf-16: pass --encoding utf-16" in capsys.readouterr().err
    assert main([*call, str(sales / "utf16.csv"), "--encoding", "utf-16"]) == 0
    assert main([*call, str(sales / "bars.csv")]) == 0


def test_nothing_that_is_read_is_written_over(sales, tmp_path, capsys):
    data, model = tmp_path / "new.csv", tmp_path / "model"
    shutil.copy(sales / "new.csv", data)
    shutil.copytree(sales / "model", model)
    (tmp_path / "link.csv").symlink_to(data)
    shutil.copy(data, model / "log.csv")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    value, roles = ["--value.yes", "1", "--value.no", "0"], ["--action", "price", "--outcome", "bought"]
    for call in (
        ["predict", "--model", str(model), "--data", str(data), "--out", str(data)],
        ["predict", "--model", str(model), "--data", str(tmp_path / "link.csv"), "--out", str(data)],
        ["recommend", "--model", str(model), "--data", str(data), *value, "--out", str(tmp_path / "link.csv")],
        ["predict", "--model", str(model), "--data", str(data), "--out", str(model / "learners" / "x.csv")],
        ["diagnose", "--data", str(data), *roles, "--page", str(data)],
        ["fit", "--data", str(model / "log.csv"), *roles, "--out", str(model)],
    ):
        assert main(call) == 2, call
        assert "is read, and would be written over: name another place" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert main(["predict", "--model", str(model), "--data", str(data), "--out", str(model / "p.csv")]) == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"p": "a third"}, "propensity 'p' holds text, such as 'a third' in data rows 1, 2, 3, 4, 5 and 95 more: only"),
        ({"p": lambda log: np.where(log.index == 4, 1.5, 0.5)}, "propensity 'p' is above 1 (1.5) in data row 5"),
        (
            {"p1": 0.5, "p2": 0.25, "p3": lambda log: np.where(log.index == 6, 0.5, 0.25)},
            "propensities p1, p2, p3 sum to 1.25 in data row 7",
        ),
        (
            {"p1": lambda log: np.where(log["price"] == 9.5, 0.0, 0.5), "p2": 0.5, "p3": lambda log: 0.5 - log["p1"]},
            "the propensity of the action taken is 0 in data rows",
        ),
        ({"p1": 0.5, "p2": 0.5}, "2 propensity columns for 3 actions (9.5, 14.5, 19.5)"),
    ],
)
def test_wrong_propensities_are_told_by_evaluation_as_by_fit(sales, capsys, columns, message):
    path = sales / "propensities.csv"
    pd.read_csv(sales / "new.csv").assign(**columns).to_csv(path, index=False)
    call = ["evaluate", "--model", str(sales / "model"), "--data", str(path), "--propensity", *columns]
    assert main(call) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {path}: {message}")
    assert not said.out


@pytest.mark.parametrize("stopped", [KeyboardInterrupt, SystemExit(1)])
def test_ctrl_c_is_a_line_and_no_traceback(stopped, sales, tmp_path, capsys, monkeypatch):
    def stop(*_, **__):
        raise stopped

    monkeypatch.setattr(CounterfactualClassifier, "fit", stop)
    call = ["fit", "--data", str(sales / "log.csv"), "--action", "price", "--outcome", "bought"]
    assert main([*call, "--out", str(tmp_path / "model")]) == 130
    assert capsys.readouterr().err == "stopped: nothing was saved\n"
    assert not list(tmp_path.iterdir())
