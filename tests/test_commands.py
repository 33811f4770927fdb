"""``python -m cst_lightning`` on a file as a spreadsheet writes it."""

import json
import re
import shlex
import shutil

import numpy as np
import pandas as pd
import pytest

from cst_lightning import CounterfactualClassifier, read_log
from cst_lightning.__main__ import main
from cst_lightning.commands import COMMANDS
from cst_lightning.typed_labels import with_never_taken

FIT = ["fit", "--data", "log.csv", "--action", "price", "--outcome", "bought", "--out", "m"]


def test_predictions_are_a_probability_for_each_outcome_and_action(sales, capsys):
    out = sales / "predictions.csv"
    call = ["predict", "--model", str(sales / "model"), "--data", str(sales / "new.csv"), "--out", str(out)]
    assert main([*call, "--keep", "customer"]) == 0
    written = pd.read_csv(out)
    assert written["customer"].tolist() == list(range(300, 400))
    assert [name for name in written if "yes" in name] == [f"p(yes | {price})" for price in (9.5, 14.5, 19.5)]
    assert np.allclose(written.filter(like="9.5)").filter(like="| 9").sum(axis=1), 1)
    assert written["p(yes | 9.5)"].mean() > written["p(yes | 19.5)"].mean()
    assert "100 rows" in capsys.readouterr().out
    assert main([*call[:-1], str(sales / "predictions.parquet")]) == 0
    assert pd.read_parquet(sales / "predictions.parquet")["row"].tolist() == list(range(1, 101))


@pytest.mark.parametrize("sep", [",", ";"])
def test_what_is_kept_is_written_as_it_stands(sales, tmp_path, sep):
    kept = {"id": ["00123", "7", "", "12345678901234567890"], "day": "31.01.2024", "at": "2024-01-31", "is": "TRUE"}
    kept |= {
        "cost": "9.50" if sep == "," else "9,50",
        "phone": "+41791234567",
        "number": ["1", "20", "3", "-4"],
        "share": "1e5",
    }
    new = pd.read_csv(sales / "new.csv", nrows=4)[["age", "town"]].assign(**kept)
    new.to_csv(tmp_path / "in.csv", index=False, sep=sep, decimal="." if sep == "," else ",")
    call = ["predict", "--model", str(sales / "model"), "--data", str(tmp_path / "in.csv"), "--keep", *kept]
    assert main([*call, "--out", str(tmp_path / "out.csv")]) == 0
    got = pd.read_csv(tmp_path / "out.csv", sep=sep, dtype=str, keep_default_na=False)
    assert got[list(kept)].equals(new[list(kept)].astype(str))
    assert main([*call, "--out", str(tmp_path / "out.parquet")]) == 0
    got = pd.read_parquet(tmp_path / "out.parquet")
    assert got["number"].tolist() == [1, 20, 3, -4]
    assert got["id"].fillna("").tolist() == kept["id"]


@pytest.mark.parametrize("tells", [True, False])
def test_fit_says_whether_the_features_tell_more_than_a_constant(sales, tmp_path, tells, capsys):
    log = pd.read_csv(sales / "log.csv", sep=";", decimal=",")
    if not tells:
        log["bought"] = np.where(np.random.default_rng(1).random(len(log)) < 0.5, "yes", "no")
    log.to_csv(tmp_path / "log.csv", index=False)
    call = ["fit", "--data", str(tmp_path / "log.csv"), "--action", "price", "--outcome", "bought"]
    call += ["--out", str(tmp_path / "m"), "--keep", "customer", "--backbone", "s_logistic", "--random_state", "0"]
    assert main([*call, "--method", "backbone"]) == 0
    text = capsys.readouterr().out
    kept, nll = re.search(r"(\S+)  backbone   <- kept\nNLL of the held-out observed outcomes: (\S+)\n", text).groups()
    assert nll == kept
    assert text.index("training s_logistic: 5 models on 300 rows; this can take minutes\n") < text.index(
        "held-out score"
    )
    constant = float(re.search(r"of a constant, each action's shares in the rows trained on: (\S+)\n", text)[1])
    assert f"the model less the constant: {float(nll) - constant:.4f}"[:-1] in text
    assert (": the features may tell nothing of the outcome, or the rows are too few\n" in text) == (not tells)


def test_fit_says_that_it_was_too_short_only_where_no_stopping_rule_ended_it(sales, tmp_path, capsys):
    log = pd.read_csv(sales / "log.csv", sep=";", decimal=",")
    log["bought"] = np.where(np.random.default_rng(1).random(len(log)) < 0.5, "yes", "no")
    log.to_csv(tmp_path / "log.csv", index=False)
    call = ["fit", "--data", str(tmp_path / "log.csv"), *FIT[3:7], "--out", str(tmp_path / "m"), "--keep", "customer"]
    call += ["--random_state", "0", "--hidden", "4", "--method", "backbone", "--n_models", "1", "--patience", "2"]
    for epochs, cut_off in (("2", True), ("500", False)):
        assert main([*call, "--max_epochs", epochs]) == 0
        text = capsys.readouterr().out
        assert ": the features may tell nothing of the outcome" in text
        assert (f"or the training is too short (it ended at --max_epochs {epochs})" in text) == cut_off


def test_a_model_of_one_action_says_that_it_recommends_it_for_want_of_others(sales, tmp_path, capsys):
    log = pd.read_csv(sales / "log.csv", sep=";", decimal=",")
    log.assign(price=9.5).to_csv(tmp_path / "one.csv", index=False)
    one = str(tmp_path / "m")
    call = [*FIT[:7], "--data", str(tmp_path / "one.csv"), "--keep", "customer", "--out", one]
    assert main([*call, "--backbone", "s_logistic", "--method", "backbone"]) == 0
    worths = ["--value.yes", "1", "--value.no", "0", "--data", str(sales / "new.csv"), "--out", str(tmp_path / "r.csv")]
    for model, warned in ((one, True), (str(sales / "model"), False)):
        capsys.readouterr()
        assert main(["recommend", "--model", model, *worths]) == 0
        said = f"warning: {model}: the model knows of no action but 9.5, which is recommended in every row"
        assert (said in capsys.readouterr().err) == warned


def test_fit_says_that_a_feature_may_give_the_outcome_away(sales, tmp_path, capsys):
    log = pd.read_csv(sales / "log.csv", sep=";", decimal=",")
    for leak in (True, False):
        log.assign(refund=np.where(leak, log["bought"] == "yes", 0)).to_csv(tmp_path / "log.csv", index=False)
        call = ["fit", "--data", str(tmp_path / "log.csv"), "--action", "price", "--outcome", "bought", "--out"]
        call += [str(tmp_path / "m"), "--keep", "customer", "--backbone", "s_boosting", "--method", "backbone"]
        assert main([*call, "--random_state", "0"]) == 0
        said = "too good to be true: a feature may give the outcome away (known only after it); `diagnose` names it"
        assert (said in capsys.readouterr().err) == leak


@pytest.mark.parametrize(
    ("written", "ages", "read", "said"),
    [
        ({"sep": ";", "decimal": ","}, 40.5, {"sep": ";", "decimal": ","}, "semicolon, decimal comma, utf-8"),
        (
            {"sep": ";", "decimal": ",", "encoding": "utf-8-sig"},
            40.5,
            {"sep": ";", "decimal": ","},
            "semicolon, decimal comma, utf-8 with BOM",
        ),
        ({"sep": "\t", "encoding": "utf-16"}, 40.5, {"sep": "\t"}, "tab, decimal point, utf-8 with BOM"),
        ({"sep": ";"}, 40.5, {"sep": ";"}, "semicolon, decimal point, utf-8"),
        # nothing in the file shows its decimal sign
        ({"sep": ";"}, 40, {"sep": ";", "decimal": ","}, "semicolon, decimal comma, utf-8"),
        ({}, 40.5, {}, "comma, decimal point, utf-8"),
    ],
)
def test_answers_are_written_as_the_contexts_are(sales, tmp_path, capsys, written, ages, read, said):
    new = pd.read_csv(sales / "new.csv")[["town"]].assign(age=ages)
    new.to_csv(tmp_path / "in.csv", index=False, **written)
    call = ["--model", str(sales / "model"), "--data", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv")]
    call += ["--keep", "age", "--encoding", written.get("encoding", "utf-8").removesuffix("-sig")]
    for command, names in (
        (["predict"], [f"p({sale} | {price})" for price in (9.5, 14.5, 19.5) for sale in ("no", "yes")]),
        (["recommend", "--value.yes", "action", "--value.no", "0"], ["action", "expected_value"]),
    ):
        assert main([*command, *call]) == 0
        replaced = ", replaced" if command[0] == "recommend" else ""
        assert capsys.readouterr().out == f"100 rows: {tmp_path / 'out.csv'} (CSV, columns by {said}){replaced}\n"
        assert (tmp_path / "out.csv").read_bytes().startswith(b"\xef\xbb\xbf") == ("BOM" in said)
        got = pd.read_csv(tmp_path / "out.csv", **read, encoding="utf-8-sig")
        assert got.columns.tolist() == ["age", *names]
        assert got.dtypes.map(pd.api.types.is_numeric_dtype).all()
        assert set(got["age"]) == {ages}
    assert set(got["action"]) <= {9.5, 14.5, 19.5}


def test_recommendations_are_of_the_actions_allowed(sales):
    out = sales / "actions.csv"
    call = ["recommend", "--model", str(sales / "model"), "--data", str(sales / "new.csv"), "--out", str(out)]
    assert main([*call, "--value.yes", "1", "--value.no", "0"]) == 0
    assert (pd.read_csv(out)["action"] == 9.5).mean() > 0.9  # the lowest price is bought most
    for actions in (["[14.5, 19.5]"], ["14.50", "19.5"], ["1.45e1", "+19.5"]):
        assert main([*call, "--value", '{"yes": 1, "no": 0}', "--actions", *actions]) == 0
        assert set(pd.read_csv(out)["action"]) <= {14.5, 19.5}


def test_an_outcome_can_be_worth_its_price(sales, capsys):
    out, data = sales / "revenue.csv", ["--data", str(sales / "new.csv")]
    call = ["--model", str(sales / "model"), *data, "--value.yes", "action", "--value.no", "0"]
    assert main(["recommend", *call, "--out", str(out)]) == 0
    assert main(["predict", "--model", str(sales / "model"), *data, "--out", str(sales / "p.csv")]) == 0
    got, p = pd.read_csv(out), pd.read_csv(sales / "p.csv")
    revenue = np.stack([price * p[f"p(yes | {price})"] for price in (9.5, 14.5, 19.5)], 1)
    assert got["expected_value"].tolist() == pytest.approx(revenue.max(1))
    assert got["action"].tolist() == np.array([9.5, 14.5, 19.5])[revenue.argmax(1)].tolist()
    capsys.readouterr()
    new = pd.read_csv(sales / "new.csv")
    logged = new["price"].where(new["bought"] == "yes", 0).mean()
    assert main(["evaluate", *call, "--actions", "[9.5]"]) == 0
    text = capsys.readouterr().out
    assert f"value of a row as logged: {logged:.4f}" in text
    low = new[new["price"] == 9.5]
    assert f"rows' worth of {len(new)}" in text
    snips = float(text.split("SNIPS: ")[1].split()[0])
    assert snips == pytest.approx(9.5 * (low["bought"] == "yes").mean(), abs=1.5)


def test_actions_that_are_text_have_a_worth_each(sales, tmp_path, capsys):
    log = pd.read_csv(sales / "log.csv", sep=";", decimal=",")
    log["price"] = log["price"].map("{:.2f} EUR".format).str.replace(".", ",")
    log.to_csv(tmp_path / "log.csv", index=False)
    model = ["--model", str(tmp_path / "model"), "--data", str(tmp_path / "log.csv")]
    roles = ["--action", "price", "--outcome", "bought", "--keep", "customer"]
    options = ["--method", "backbone", "--max_epochs", "20", "--hidden", "8", "--random_state", "0"]
    assert main(["fit", *model[2:], *roles, *options, "--out", model[1]]) == 0
    recommend = ["recommend", *model, "--out", str(tmp_path / "r.csv")]
    assert main([*recommend, "--value.yes", "action", "--value.no", "-1"]) == 2
    said = capsys.readouterr().err
    assert "worth its action, and the actions are text ('14,50 EUR', '19,50 EUR', '9,50 EUR'): give a dict" in said
    typed = shlex.split(said.partition("number for each: ")[2].partition(", with")[0])
    assert json.loads(typed[1]) == {"no": -1, "yes": {"14,50 EUR": 0, "19,50 EUR": 0, "9,50 EUR": 0}}
    typed[1] = typed[1].replace('"19,50 EUR": 0', '"19,50 EUR": 1000')
    config = tmp_path / "value.yaml"
    config.write_text(f"value: {typed[1]}\n")
    one = ["--value.no", "-1", "--value.yes", '{"14,50 EUR": 0, "19,50 EUR": 1000, "9,50 EUR": 0}']
    for value in (typed, one, ["--config", str(config)]):
        assert main([*recommend, *value]) == 0
        assert set(pd.read_csv(tmp_path / "r.csv")["action"]) == {"19,50 EUR"}
        capsys.readouterr()
        assert main(["evaluate", *model, *value]) == 0
        assert "value of a row by the recommended actions" in capsys.readouterr().out


def test_outcomes_that_are_numbers_are_worth_themselves_and_that_is_said(sales, tmp_path, capsys):
    log = pd.read_csv(sales / "log.csv", sep=";", decimal=",")
    log.assign(bought=np.where(log["bought"] == "yes", 1.5, 0)).to_csv(tmp_path / "log.csv", index=False)
    model = ["--model", str(tmp_path / "model"), "--data", str(tmp_path / "log.csv")]
    roles = ["--action", "price", "--outcome", "bought", "--keep", "customer"]
    options = ["--method", "backbone", "--max_epochs", "2", "--random_state", "0"]
    for again in (False, True):
        assert main(["fit", *model[2:], *roles, *options, "--out", model[1]]) == 0
        assert f"saved to {model[1]}{', replaced' * again}; next" in capsys.readouterr().out
    said = "value of an outcome, without --value: 0.0 is 0, 1.5 is 1.5\n"
    for command in (["recommend", "--out", str(tmp_path / "r.csv")], ["evaluate"]):
        assert main([*command, *model]) == 0
        assert said in capsys.readouterr().out
        for value in (["--value.0", "0", "--value.1.5", "1"], ["--value.1.50", "1", "--value.0.0", "0"]):
            assert main([*command, *model, *value]) == 0
            assert "without --value" not in capsys.readouterr().out


def test_where_the_features_tell_the_action_other_actions_have_no_value(sales, capsys):
    new = pd.read_csv(sales / "new.csv").drop(columns="customer").assign(note="x")  # only the columns it needs are read
    new["price"] = np.where(new["age"] > 40, 9.5, 14.5)
    new.to_csv(sales / "rule.csv", index=False)
    call = ["evaluate", "--model", str(sales / "model"), "--data", str(sales / "rule.csv"), "--value.yes", "1"]
    assert main([*call, "--value.no", "0", "--actions", "[9.5, 14.5]"]) == 0
    out = capsys.readouterr().out
    assert "value of the recommended actions: not known (the features tell the action in these rows" in out
    assert "SNIPS" not in out


def test_evaluation_on_the_file_of_the_training_is_told(sales, tmp_path, capsys):
    old = tmp_path / "old"  # a model of before has the roles alone
    shutil.copytree(sales / "model", old)
    (old / "log.json").write_text(json.dumps(json.loads((old / "log.json").read_text())["roles"]))
    shutil.copy(sales / "log.csv", tmp_path / "copy.csv")
    for model, data, told in (
        (sales / "model", sales / "log.csv", True),
        (sales / "model", tmp_path / "copy.csv", True),
        (sales / "model", sales / "new.csv", False),
        (old, sales / "log.csv", False),
    ):
        assert main(["evaluate", "--model", str(model), "--data", str(data)]) == 0
        said = f"warning: {data}: the model was trained on this file: its NLL"
        assert (said in capsys.readouterr().err) == told


def test_evaluation_tells_that_propensities_of_the_training_are_not_there(sales, tmp_path, capsys):
    log = pd.read_csv(sales / "log.csv", sep=";", decimal=",")
    log.assign(p=1 / 3).to_csv(tmp_path / "log.csv", index=False)
    call = ["fit", "--data", str(tmp_path / "log.csv"), "--action", "price", "--outcome", "bought", "--propensity", "p"]
    call += ["--keep", "customer", "--backbone", "constant", "--method", "backbone", "--out", str(tmp_path / "m")]
    assert main(call) == 0
    log.to_csv(tmp_path / "later.csv", index=False)
    values = ["--value.yes", "1", "--value.no", "0"]
    assert main(["evaluate", "--model", str(tmp_path / "m"), "--data", str(tmp_path / "later.csv"), *values]) == 0
    said = capsys.readouterr()
    assert "later.csv: the column 'p' of the model's propensities is not there: they are estimated" in said.err
    assert "propensities estimated on these rows" in said.out


def test_evaluation_says_fit_calibration_and_value(sales, capsys):
    call = ["evaluate", "--model", str(sales / "model"), "--data", str(sales / "new.csv")]
    assert main([*call, "--value.yes", "1", "--value.no", "0"]) == 0
    text = capsys.readouterr().out
    assert "NLL of 100 observed outcomes" in text
    assert "14.5     yes" in text
    assert "each below the floor of 0.01 (--floor) counts as 0.01\n" in text
    assert re.search(r"doubly robust: .*, 0 propensities below the floor 0\.01\n", text)
    assert main(call) == 0
    told = capsys.readouterr().out
    assert "not known (value: outcomes are text" in told
    assert "--value.no NUMBER --value.yes NUMBER" in told


def test_a_diagnosis_is_text_and_a_page(sales, capsys):
    call = ["diagnose", "--data", str(sales / "log.csv"), "--action", "price", "--outcome", "bought"]
    assert main([*call, "--page", str(sales / "page.html")]) == 0
    assert "14.5" in capsys.readouterr().out
    assert (sales / "page.html").read_text().startswith("<!")


def test_a_diagnosis_compares_with_a_later_log_and_knows_of_actions_never_taken(sales, capsys):
    later = pd.read_csv(sales / "new.csv")
    later["age"] += 30
    later.drop(columns="customer").to_csv(sales / "later.csv", index=False)
    call = [
        "diagnose",
        "--data",
        str(sales / "log.csv"),
        "--action",
        "price",
        "--outcome",
        "bought",
        "--keep",
        "customer",
    ]
    assert main(call) == 0
    alone = capsys.readouterr().out
    assert main([*call, "--validation", str(sales / "later.csv"), "--actions", "9.5", "14.5", "19.5", "24.5"]) == 0
    told = capsys.readouterr().out
    assert "24.5" in told
    assert "24.5" not in alone
    differ = "differ (AUC"
    assert differ in told
    assert differ not in alone


@pytest.mark.parametrize(
    ("labels", "typed", "wanted"),
    [
        ([True, False], ["true", "false"], [True, False]),
        ([True, True], ["false"], [False]),
        ([1, 2], ["2", "3"], [2, 3]),
        ([1.5, 2.5], ["1.5", "3"], [1.5, 3.0]),
        ([1.5, 2.5], ["1.50", "3.20"], [1.5, 3.2]),
        ([1, 2], ["1.00", "3.00"], [1, 3]),
        (["1.50"], ["1.5"], ["1.5"]),
        (["yes", "no"], [False, "maybe"], ["no", "maybe"]),
    ],
)
def test_actions_never_taken_are_labels_like_those_of_the_log(labels, typed, wanted):
    found = with_never_taken(typed, pd.Series(labels))
    assert found == wanted
    assert [type(label) for label in found] == [type(label) for label in wanted]


def test_options_come_from_a_file_too(sales):
    config = sales / "fit.yaml"
    options = {"data": str(sales / "log.csv"), "action": "price", "outcome": "bought", "out": str(sales / "other")}
    config.write_text(json.dumps(options | {"keep": ["customer"], "max_epochs": 2, "method": "backbone"}))
    assert main(["fit", "--config", str(config)]) == 0
    assert json.loads((sales / "other" / "model.json").read_text())["method"] == "backbone"


def test_the_options_as_printed_are_a_file_that_gives_the_same_model(sales, capsys):
    options = ["--data", str(sales / "log.csv"), "--action", "price", "--outcome", "bought", "--keep", "customer"]
    options += ["--method", "backbone", "--max_epochs", "2", "--random_state", "3"]
    with pytest.raises(SystemExit) as ended:
        main(["fit", *options, "--out", str(sales / "printed"), "--print_config"])
    assert ended.value.code == 0
    (sales / "printed.yaml").write_text(capsys.readouterr().out)
    assert main(["fit", *options, "--out", str(sales / "typed")]) == 0
    assert main(["fit", "--config", str(sales / "printed.yaml")]) == 0
    weights = [(sales / name / "model.safetensors").read_bytes() for name in ("typed", "printed")]
    assert weights[0] == weights[1]


def test_a_fit_that_divides_by_propensities_says_how_they_were_clipped(sales, capsys):
    options = ["--data", str(sales / "log.csv"), "--action", "price", "--outcome", "bought", "--keep", "customer"]
    call = ["fit", *options, "--method", "backbone", "--max_epochs", "2", "--out", str(sales / "weighted")]
    assert main([*call, "--backbone", "udm", "--propensity_floor", "0.3"]) == 0
    assert "propensity, estimated on the whole log: clipped at 0.3 in rows: " in capsys.readouterr().out


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_option_says_what_it_is_for(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "2000")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    blocks = re.split(r"\n +--", capsys.readouterr().out.partition("options:")[2])[1:]
    told = {re.match(r"\w+", block)[0]: re.split(r"\s{2,}", block.strip(), maxsplit=1)[-1] for block in blocks}
    assert {"data", "encoding"} <= set(told)
    assert [option for option, text in told.items() if text.startswith(("(", option))] == []
    assert not [option for option, text in told.items() if re.search(r"\bbase\b|\bdata:", text)]


def test_a_feature_can_be_written_beside_the_answers(sales):
    out, data = sales / "beside.csv", str(sales / "new.csv")
    call = ["--model", str(sales / "model"), "--data", data, "--out", str(out), "--keep", "customer", "age", "town"]
    for command, names in (("predict", ["p(no | 9.5)"]), ("recommend", ["action", "expected_value"])):
        assert main([command, *call, *(["--value", "{yes: 1, no: 0}"] if command == "recommend" else [])]) == 0
        written = pd.read_csv(out)
        assert written.columns.tolist()[: 3 + len(names)] == ["customer", "age", "town", *names]
        pd.testing.assert_frame_equal(
            written[["customer", "age", "town"]], pd.read_csv(data)[["customer", "age", "town"]]
        )


def test_a_model_that_was_saved_from_python_serves_every_command(sales, capsys):
    log = read_log(sales / "log.csv")
    python = CounterfactualClassifier(hidden=8, max_epochs=30, random_state=0)
    python.fit(log[["age", "town"]], log["price"], log["bought"]).save(sales / "python")
    answers = []
    for model in ("model", "python"):
        call = ["--model", str(sales / model), "--data", str(sales / "new.csv"), "--out", str(sales / "p.csv")]
        assert main(["predict", *call]) == 0
        assert main(["recommend", *call[:-1], str(sales / "r.csv"), "--value", "{yes: 1, no: 0}"]) == 0
        answers.append([(sales / name).read_bytes() for name in ("p.csv", "r.csv")])
    assert answers[0] == answers[1]
    call = ["evaluate", "--model", str(sales / "python"), "--data", str(sales / "new.csv")]
    assert main(call) == 2
    assert "saved from Python, without the names of these columns: give action and outcome" in capsys.readouterr().err
    assert main([*call, "--action", "price", "--outcome", "bought"]) == 0
    python.fit(log[["age"]].to_numpy(), log["price"], log["bought"]).save(sales / "nameless")
    call = ["predict", "--model", str(sales / "nameless"), "--data", str(sales / "new.csv")]
    assert main([*call, "--out", str(sales / "p.csv")]) == 2
    assert "nameless was trained on columns without names" in capsys.readouterr().err


def test_lists_of_names_are_given_in_any_way(sales, capsys):
    base = ["diagnose", "--data", str(sales / "log.csv"), "--action", "price", "--outcome", "bought"]
    said = []
    for features in (["--features", "age", "town"], ["--features", "age", "--features", "town"]):
        assert main([*base, *features]) == 0
        said.append(capsys.readouterr().out)
    assert main([*base, '--features=["age", "town"]']) == 0
    assert said == [capsys.readouterr().out] * 2
    assert main([*base, "--features", "age"]) == 0
    assert "town" not in capsys.readouterr().out


def test_evaluation_takes_logs_that_could_not_be_trained_on(sales, capsys):
    new = pd.read_csv(sales / "new.csv")
    few = new[(new["price"] == 9.5) & (new["bought"] == "yes")][:5]
    few.to_csv(sales / "few.csv", index=False)
    call = ["evaluate", "--model", str(sales / "model"), "--value", "{yes: 1, no: 0}", "--data"]
    assert main([*call, str(sales / "few.csv")]) == 0
    assert "NLL of 5 observed outcomes" in capsys.readouterr().out
    new.assign(price=new["price"].where(new.index != 2)).to_csv(sales / "gap.csv", index=False)
    assert main([*call, str(sales / "gap.csv")]) == 2
    assert "action 'price' is missing in data row 3" in capsys.readouterr().err
    assert main([*call, str(sales / "few.csv"), "--propensity", "p"]) == 2
    assert "no column 'p'" in capsys.readouterr().err


def test_evaluation_says_why_the_value_of_recommended_actions_is_not_known(sales, capsys):
    new = pd.read_csv(sales / "new.csv")
    new[:1].to_csv(sales / "one.csv", index=False)
    new.assign(bought=new["bought"].where(new.index == 3)).to_csv(sales / "unseen.csv", index=False)
    new[:2].to_csv(sales / "two.csv", index=False)
    new[new["price"] == 9.5].to_csv(sales / "low.csv", index=False)
    n_low = int((new["price"] == 9.5).sum())
    new[new["price"] == 9.5].assign(p=1.0).to_csv(sales / "sure.csv", index=False)  # for some, 14.5 earns more
    call = ["evaluate", "--model", str(sales / "model"), "--value", "{yes: 1, no: 0}", "--data"]
    for name, options, why in (
        ("one.csv", [], "rows with an outcome: 1; at least 20 are needed"),
        ("two.csv", [], "rows with an outcome: 2; at least 20 are needed"),
        ("unseen.csv", [], "rows with an outcome: 1; at least 20 are needed"),
        ("low.csv", ["--actions", "19.5"], f"{n_low} of {n_low} rows were recommended an action that no row with an"),
        ("sure.csv", ["--propensity", "p", "--value", "{yes: action, no: 0}"], "rows were recommended an action that"),
    ):
        assert main([*call, str(sales / name), *options]) == 0
        out = capsys.readouterr().out
        assert "NLL of" in out
        assert "SNIPS" not in out
        assert "value of the recommended actions: not known (" in out
        assert why in out
    assert main([*call, str(sales / "new.csv"), "--floor", "2"]) == 2
    said = capsys.readouterr()
    assert "error: floor=2.0: allowed is from 0, below 1" in said.err
    assert not said.out


def test_a_feature_that_new_rows_lack_is_imputed_by_every_command(sales, capsys):
    model, lacking = str(sales / "imputing"), str(sales / "lacking.csv")
    roles = ["--action", "price", "--outcome", "bought", "--keep", "customer"]
    options = ["--missing", "impute", "--method", "backbone", "--max_epochs", "2", "--out", model]
    assert main(["fit", "--data", str(sales / "log.csv"), *roles, *options]) == 0
    pd.read_csv(sales / "new.csv").assign(age=None, town=None).to_csv(lacking, index=False)
    assert main(["predict", "--model", model, "--data", lacking, "--out", str(sales / "p.csv")]) == 0
    pd.read_csv(sales / "new.csv").assign(age=None).to_csv(lacking, index=False)
    assert main(["evaluate", "--model", model, "--data", lacking, "--value", "{yes: 1, no: 0}"]) == 0
    assert "doubly robust" in capsys.readouterr().out
    assert main(["evaluate", "--model", str(sales / "model"), "--data", lacking]) == 2
    assert "column 'age' is missing (NaN) in data rows 1, 2" in capsys.readouterr().err


def test_the_constant_beside_a_model_knows_its_training_alone(sales, capsys):
    classifier = CounterfactualClassifier.load(sales / "model")
    log, later = read_log(sales / "log.csv"), pd.read_csv(sales / "new.csv")
    counts = pd.crosstab(log["price"], log["bought"])
    assert classifier.outcome_counts_.tolist() == counts.to_numpy().tolist()
    assert main(["evaluate", "--model", str(sales / "model"), "--data", str(sales / "new.csv")]) == 0
    shares = (counts + 1).div((counts + 1).sum(axis=1), axis=0)
    loss = -np.log([shares.loc[price, bought] for price, bought in later[["price", "bought"]].itertuples(index=False)])
    assert f"of a constant, each action's shares in the training: {loss.mean():.4f} ±" in capsys.readouterr().out


@pytest.fixture(scope="module")
def offers(tmp_path_factory):
    """A Parquet log of text actions and three outcomes, with logged propensities and a category that is a number."""
    folder, rng, n = tmp_path_factory.mktemp("offers"), np.random.default_rng(0), 400
    frame = pd.DataFrame({"age": rng.normal(40, 9, n), "code": rng.choice([3, 7, 9], n), "note": "x"})
    chances = np.where(frame["age"].to_numpy()[:, None] > 40, [0.6, 0.3, 0.1], [0.2, 0.3, 0.5])
    taken = (rng.random(n)[:, None] > chances.cumsum(1)).sum(1)
    frame["offer"], frame["p"] = np.array(["call", "mail", "none"])[taken], chances[np.arange(n), taken]
    for k, name in enumerate(("call", "mail", "none")):
        frame[f"p_{name}"] = chances[:, k]
    frame["reply"] = rng.choice(["later", "no", "yes"], n)
    frame[:300].to_parquet(folder / "log.parquet")
    frame[300:].to_parquet(folder / "new.parquet")
    return folder


def test_propensity_columns_that_are_named_by_actions_go_by_their_names(offers, capsys):
    names = ["call", "mail", "none"]
    for part in ("log", "new"):
        frame = pd.read_parquet(offers / f"{part}.parquet")
        frame.rename(columns={f"p_{name}": name for name in names}).to_parquet(offers / f"named_{part}.parquet")
    said = []
    for number, order in enumerate((names, names[::-1])):
        columns = ["--action", "offer", "--outcome", "reply", "--propensity", *order]
        given = ["--data", str(offers / "named_log.parquet"), *columns, "--features", "age"]
        model = str(offers / f"named{number}")
        options = ["--backbone", "udm", "--method", "backbone", "--max_epochs", "3", "--random_state", "0"]
        assert main(["fit", *given, *options, "--out", model]) == 0
        assert main(["diagnose", *given]) == 0
        new, worth = str(offers / "named_new.parquet"), ["--value.yes", "5", "--value.later", "1", "--value.no", "0"]
        assert main(["evaluate", "--model", model, "--data", new, *worth]) == 0
        said.append(capsys.readouterr().out.replace(model, "model"))
    assert said[0] == said[1]


@pytest.mark.parametrize("propensity", [["p"], ["p_call", "p_mail", "p_none"]])
def test_every_command_takes_parquet_text_actions_three_outcomes_and_propensities(offers, propensity, capsys):
    columns = ["--action", "offer", "--outcome", "reply", "--propensity", *propensity]
    columns += ["--features", "age", "code", "--categorical", "code"]
    log, new, model = str(offers / "log.parquet"), str(offers / "new.parquet"), str(offers / f"m{len(propensity)}")
    assert main(["diagnose", "--data", log, *columns]) == 0
    options = ["--backbone", "udm", "--method", "backbone", "--max_epochs", "3", "--random_state", "0"]
    assert main(["fit", "--data", log, *columns, *options, "--out", model]) == 0
    said = capsys.readouterr().out
    assert "weights 1 / propensity: clipped at 0.01 in rows: 0" in said
    assert json.loads((offers / f"m{len(propensity)}" / "model.json").read_text())["n_features_in"] == 2
    out = offers / "out.csv"
    assert main(["predict", "--model", model, "--data", new, "--out", str(out)]) == 0
    predicted = pd.read_csv(out)
    assert np.allclose(predicted[[f"p({r} | mail)" for r in ("later", "no", "yes")]].sum(axis=1), 1)
    worth = ["--value.yes", "5", "--value.later", "1", "--value.no", "0"]
    assert (
        main(["recommend", "--model", model, "--data", new, *worth, "--actions", "call", "mail", "--out", str(out)])
        == 0
    )
    assert set(pd.read_csv(out)["action"]) <= {"call", "mail"}
    capsys.readouterr()
    assert main(["evaluate", "--model", model, "--data", new, *worth]) == 0
    said = capsys.readouterr().out
    assert "propensities estimated" not in said  # the log has them
    assert "doubly robust" in said
    calibrated = {tuple(line.split()[:2]) for line in said.splitlines()}
    assert {(action, reply) for action in ("call", "mail", "none") for reply in ("later", "no", "yes")} <= calibrated
