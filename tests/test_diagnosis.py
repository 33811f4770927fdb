"""A diagnosis finds what was planted, stays silent where nothing was, and says what to do."""

import builtins
import re
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

from cst_lightning import InputError
from cst_lightning.columns import Roles
from cst_lightning.diagnosis import diagnose, log_of_arrays
from cst_lightning.diagnosis_report import actions_table
from cst_lightning.encoding import FeatureEncoder
from cst_lightning.findings import SEVERITIES, percent
from tests.conftest import open_page

ROLES = Roles(action="price", outcome="bought")
N = 400


def log(n=N, seed=0, **changes):
    rng = np.random.default_rng(seed)
    columns = {
        "age": rng.normal(size=n),
        "visits": rng.integers(9, size=n),
        "town": rng.choice(["Bern", "Chur", "Zug"], n),
        "price": rng.choice(["low", "high"], n),
        "bought": rng.choice(["no", "yes"], n, p=[0.7, 0.3]),
    }
    return pd.DataFrame(columns | changes)


def titles(found, severity=None):
    return [f.title for f in found.findings if severity in (None, f.severity)]


def only(found, words, severity):
    """The one finding that says ``words`` has that severity, and both explains and advises."""
    (finding,) = [f for f in found.findings if words in f.title]
    assert finding.severity == severity, finding
    assert finding.meaning
    assert finding.advice
    return finding


def test_a_sound_log_has_no_problem_and_no_warning():
    found = diagnose(log(), ROLES)
    assert not titles(found, "problem")
    assert not titles(found, "warning")
    only(found, "No model told the action", "info")
    assert found.actions["rows"].sum() == N
    assert found.actions["P(yes)"].between(0.2, 0.4).all()
    assert found.overlap["effective"] > 0.95
    assert found.outcomes["share"].sum() == pytest.approx(1)
    assert found.propensity.sum(1) == pytest.approx(np.ones(N))


def test_the_page_explains_the_columns_of_the_actions_and_no_others():
    found = diagnose(log(), ROLES)
    section = found.page().partition("<h2>Actions</h2>")[2].partition("</table>")[0]
    explained = re.findall(r"(?:<p>|\. )(\w[\w ]*):", section)
    header = [re.sub(r"^P\(.*", "p", name) for name in actions_table(found)[0]]
    clear = ["action", "rows", "share"]
    assert [name.lower() for name in explained] == list(dict.fromkeys(name for name in header if name not in clear))


def test_the_same_log_gives_the_same_diagnosis():
    one, other = (diagnose(log(), ROLES, random_state=3).page() for _ in range(2))
    assert one == other


def test_a_feature_written_after_the_outcome():
    frame = log()
    frame["refund"] = np.where(frame["bought"] == "yes", np.nan, 0.0)  # only its being missing tells
    frame["code"] = frame["price"].map({"low": "L", "high": "H"})
    found = diagnose(frame, ROLES)
    assert "known before the action" in only(found, "'refund' alone tells the outcome", "problem").advice
    only(found, "'code' alone tells the action", "problem")
    only(found, "The action is a function of the features", "problem")
    assert len([t for t in titles(found) if "alone tells" in t]) == 2


WRITTEN_AFTER = np.random.default_rng(2).random(N) < 0.6  # and not for the others


@pytest.mark.parametrize(
    ("column", "which"),
    [
        (lambda sold: np.where(sold & WRITTEN_AFTER, np.random.default_rng(4).normal(9, 1, N), 0), "not 0.0"),
        (lambda sold: np.where(sold & WRITTEN_AFTER, "post", None), "not missing"),
        (lambda sold: np.where(sold & WRITTEN_AFTER, "post", np.where(np.arange(N) % 2, "a", "b")), "'post'"),
    ],
)
def test_a_value_that_comes_with_one_outcome_alone(column, which):
    frame = log()
    sold = (frame["bought"] == "yes").to_numpy()
    rows = (sold & WRITTEN_AFTER).sum()
    found = diagnose(frame.assign(delivery=column(sold)), ROLES)
    said = f"All {rows} rows in which column 'delivery' is {which} have the outcome 'yes'"
    assert "known before the action" in only(found, said, "warning").advice
    chance = np.where(np.arange(N) < 15, "rare", "often")  # few rows may all be alike
    frame.loc[:14, "bought"] = "yes"
    assert not [title for title in titles(diagnose(frame.assign(delivery=chance), ROLES)) if title.startswith("All")]


def test_a_category_of_many_values_that_tells_the_outcome_or_the_action():
    frame, rng = log(), np.random.default_rng(0)
    reasons = np.array([f"r{i}" for i in rng.permutation(60)])  # half of them are given to who bought
    frame["reason"] = np.where(frame["bought"] == "yes", rng.choice(reasons[:30], N), rng.choice(reasons[30:], N))
    frame["list"] = np.where(frame["price"] == "low", rng.choice(reasons[:30], N), rng.choice(reasons[30:], N))
    frame["street"] = rng.choice([f"s{i}" for i in range(60)], N)  # tells nothing
    frame["customer"] = [f"c{i}" for i in range(N)]
    found = diagnose(frame, ROLES)
    only(found, "'reason' alone tells the outcome", "problem")
    only(found, "'list' alone tells the action", "problem")
    assert len([t for t in titles(found) if "alone tells" in t]) == 2


def test_a_policy_that_is_a_rule_of_two_features_has_no_overlap():
    frame = log()
    frame["price"] = np.where((frame["age"] > 0) & (frame["visits"] > 3), "low", "high")
    found = diagnose(frame, ROLES)
    assert "random" in only(found, "The action is a function of the features", "problem").advice
    assert "recommend --actions" in only(found, "almost no chance", "problem").advice
    # each action stands for the rows that took it alone, and not for all
    assert found.actions["stands for"].to_numpy() == pytest.approx(found.actions["share"], abs=0.05)
    assert re.search(
        r"stand, by their weights 1 / propensity, for \d\d % to \d\d % of all", " ".join(found.text().split())
    )
    assert diagnose(log(), ROLES).actions["stands for"].to_numpy() == pytest.approx([1, 1], abs=0.05)


@pytest.mark.parametrize("varies", [True, False])
def test_a_forgotten_propensity_is_asked_for_and_what_tells_the_action_is_named(varies):
    rng = np.random.default_rng(0)
    frame = log(2000)
    # the chances go by the context, or are the same everywhere and differ by action
    low = np.where(frame["age"] > 0, 0.9, 0.2) if varies else np.full(2000, 0.8)
    frame["price"] = np.where(rng.random(2000) < low, "low", "high")
    frame["p"] = np.where(frame["price"] == "low", low, 1 - low)
    frame["share"] = rng.uniform(0.2, 0.9, 2000)  # tells nothing
    frame["score"] = 1 / (1 + np.exp(-frame["age"]))  # tells the action, and is none of its chances
    forgotten = [title for title in titles(diagnose(frame, ROLES)) if "may be the propensity" in title]
    assert [title.split("'")[1] for title in forgotten] == ["p"]
    known = Roles(**vars(ROLES) | {"propensity": "p"})
    assert not [title for title in titles(diagnose(frame, known)) if "may be the propensity" in title]


def test_a_finding_of_no_overlap_names_the_features_that_tell_the_action():
    frame = log()
    frame["price"] = np.where(frame["visits"] > 3, "low", "high")
    assert "by AUC: 'visits' 1.000." in only(diagnose(frame, ROLES), "almost no chance", "problem").meaning


def test_weak_overlap_is_told_by_the_effective_sample_size():
    rng = np.random.default_rng(0)
    frame = log(2000)
    frame["price"] = np.where(rng.random(2000) < 1 / (1 + np.exp(-4 * frame["age"])), "low", "high")
    found = diagnose(frame, ROLES)
    assert found.overlap["effective"] < 0.3
    assert any("leave" in title and "of the rows" in title for title in titles(found))
    only(found, "almost no chance", "warning")
    assert found.model.startswith("logistic")


def test_actions_logged_never_once_and_rarely():
    price = np.array(["low", "high"] * (N // 2), dtype=object)
    price[7], price[20:40] = "free", "dear"
    found = diagnose(log(price=price), ROLES, actions=["low", "gift"])
    only(found, "'gift' was never logged", "problem")
    only(found, "'free' (1) was logged in fewer than 10 rows", "problem")
    only(found, "'dear' (20) was logged in fewer than 50 rows", "warning")
    category = pd.Categorical(["low", "high"] * (N // 2), categories=["high", "low", "gift"])
    only(diagnose(log(price=category), ROLES), "'gift' was never logged", "problem")
    one = diagnose(log(price="low"), ROLES)
    only(one, "Only one action was ever taken", "problem")
    assert "1 / propensity, for 100 % of all rows:" in " ".join(one.text().split())


def test_of_many_rare_actions_one_finding_names_the_rarest():
    price = np.array(["low", "high"] * (N // 2), dtype=object)
    for place in range(8):
        price[10 * place : 10 * place + 2 + place % 3] = f"rare {place}"
    found = diagnose(log(price=price), ROLES)
    finding = only(found, "8 actions were logged in fewer than 10 rows", "problem")
    assert finding.title.endswith("'rare 0' (2), 'rare 3' (2), 'rare 6' (2), 'rare 1' (3), 'rare 4' (3) and 3 more")


def test_outcomes_that_are_missing_rare_or_all_alike():
    n = 2000
    bought = np.array(["no"] * n, dtype=object)
    bought[[3, 700, 1501, 1900]] = "yes"  # 0.2 %
    price = np.array(["low", "high"] * (n // 2), dtype=object)
    price[[3, 700, 1501, 1900]] = "low"
    found = diagnose(log(n, bought=bought, price=price), ROLES)
    rare = only(found, "Outcome 'yes' is rare: 4 rows (0.2 %)", "warning")
    assert "99.8 %" in rare.meaning
    assert "calibration for each action" in rare.advice
    only(found, "Action 'high' was only ever followed by 'no'", "warning")
    bought[100:900] = None
    only(diagnose(log(n, bought=bought, price=price), ROLES), "800 rows (40 %) have no outcome", "warning")
    bought = log()["bought"].mask(price[:N] == "high")
    only(diagnose(log(bought=bought, price=price[:N]), ROLES), "was logged without any observed outcome", "problem")


def test_what_training_would_refuse_is_told_before_it():
    age = log()["age"]
    found = diagnose(log(age=age.where(np.arange(N) % 4 > 0), visits=age.where(np.arange(N) > 3)), ROLES)
    finding = only(found, "Features are missing in some rows: 'age' 25 %, 'visits' 1.0 %", "warning")
    assert "missing='impute'" in finding.advice
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = diagnose(log(bought=np.round(age, 2)), ROLES)
    only(found, "The outcome is continuous", "problem")


@pytest.mark.parametrize("role", ["action", "outcome"])
def test_labels_that_hardly_come_twice_are_told_as_numbers_and_as_text(role):
    column = {"action": "price", "outcome": "bought"}[role]
    found = diagnose(log(120, **{column: np.arange(120)}), ROLES)
    only(found, f"The {role} is continuous or an identifier: 120 different numbers in 120 rows", "problem")
    found = diagnose(log(120, **{column: [f"c{row}" for row in range(120)]}), ROLES)
    only(found, f"The {role} holds 120 different texts in 120 rows", "warning")
    found = diagnose(log(120, **{column: np.arange(120) % 60}), ROLES)
    assert not [title for title in titles(found) if "different" in title]


def _stamps(form):
    return pd.date_range("2024-01-29", periods=N, freq="7h").strftime(form).astype(np.int64)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (_stamps("%Y%m%d"), "dates written as numbers, such as 20240129"),
        (_stamps("%Y%m%d%H%M"), "times written as numbers, such as 202401290000"),
        (_stamps("%Y%m%d%H%M%S"), "times written as numbers, such as 20240129000000"),
        (_stamps("%s"), "what looks like seconds since 1970, such as 1706486400"),
        (_stamps("%s") + 0.5, "what looks like seconds since 1970, such as 1706486400"),
        (_stamps("%s") * 1000, "what looks like milliseconds since 1970, such as 1706486400000"),
        (np.arange(N) + 20_240_129, None),  # a counter, whose days end
        (_stamps("%s") * 3, None),
        (np.full(N, 20_240_129), None),
    ],
)
def test_dates_that_are_numbers_are_told_by_diagnosis_and_training_alike(numbers, words):
    frame = log(day=numbers)
    found = diagnose(frame, ROLES)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        FeatureEncoder().fit(frame[["age", "day", "town"]])
    told = [str(warning.message) for warning in said if "'day' holds" in str(warning.message)]
    assert len(told) == (words is not None)
    if words is None:
        assert not any("'day' holds" in title for title in titles(found))
    else:
        only(found, f"Column 'day' holds {words}", "warning")
        assert f"column 'day' holds {words}: turn them into numbers" in told[0]


AGES = np.random.default_rng(5).normal(40, 9, N).round()
PURCHASES = np.where(np.arange(N) % 10 < 8, 0.0, 1000 + np.arange(N) % 100)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (np.where(np.arange(N) % 40 == 0, 9999, AGES), "9999 in 10 rows"),
        (np.where(np.arange(N) % 40 == 0, -1, AGES.clip(18)), "-1 in 10 rows"),
        (np.where(np.arange(N) % 20 == 0, 998 + np.arange(N) // 20 % 2, AGES), "998 in 10 rows and 999 in 10 rows"),
        (np.where(np.arange(N) % 40 == 0, -999, np.random.default_rng(1).lognormal(8, 1, N)), "-999 in 10 rows"),
        (np.where(np.arange(N) % 20 == 0, np.nan, AGES), None),
        (np.where(np.arange(N) == 7, 9999, AGES), None),  # once: an outlier
        (PURCHASES, None),
        (np.arange(N) % 2 * 99, None),
        (np.random.default_rng(1).lognormal(0, 2, N), None),
        (np.random.default_rng(1).geometric(0.2, N), None),
        (np.random.default_rng(1).poisson(0.3, N), None),
        (np.where(np.arange(N) % 40 == 0, -1, np.random.default_rng(1).normal(0, 1, N)), None),
    ],
)
def test_numbers_that_stand_for_none_are_told(numbers, words):
    found = diagnose(log(number=numbers), ROLES)
    if words is None:
        assert not [title for title in titles(found) if "far from all else" in title]
    else:
        only(found, f"Column 'number' holds {words}, far from all else", "warning")


def test_a_column_of_more_categories_than_are_told_apart():
    street = [f"s{i % 101}" for i in range(N)]
    only(diagnose(log(street=street), ROLES), "Column 'street' has 101 categories", "warning")
    number = Roles(action="price", outcome="bought", categorical=["number"])
    only(diagnose(log(number=np.arange(N) % 101), number), "Column 'number' has 101 categories", "warning")
    assert not any("categories" in title for title in titles(diagnose(log(street=street[:100] * 4), ROLES)))


def test_labels_that_are_numbers_are_written_as_a_person_does():
    price = np.where(np.arange(N) < 8, 4.5, np.where(np.arange(N) < 30, 7.5, 9.5))
    bought = np.where(price == 9.5, np.random.default_rng(0).integers(2, size=N), 0).astype(float)
    refund = bought * 2
    for frame in (log(price=9.5), log(price=price, bought=bought, refund=refund)):
        found = diagnose(frame, ROLES, actions=[3.5])
        said = " ".join(f"{f.title} {f.meaning} {f.advice}" for f in found.findings)
        assert "np." not in said
        assert "3.5" in said
    only(diagnose(log(price=9.5), ROLES), "Only one action was ever taken: 9.5", "problem")
    assert "Action 7.5 was only ever followed by 0.0 (22 rows)" in titles(found)


def test_duplicated_rows_and_constant_features():
    frame = log(country="CH")
    found = diagnose(pd.concat([frame, frame[:30]]), ROLES)
    only(found, f"30 rows ({percent(30 / 430)}) repeat another row exactly", "warning")
    only(found, "Column 'country' is the same in every row", "warning")
    few = diagnose(log()[["town", "price", "bought"]], ROLES)
    only(few, "repeat another row exactly", "info")  # three towns cannot be but alike


def test_drift_within_a_log_and_against_a_validation_frame():
    frame = log(age=np.arange(N) // 4 + np.random.default_rng(3).normal(size=N))  # rises, and not from row to row
    finding = only(diagnose(frame, ROLES), "The first and the second half differ", "problem")
    assert "'age'" in finding.title
    assert "split by time" in finding.advice
    later = log(seed=1, age=np.random.default_rng(9).normal(0.9, 1, N))
    found = diagnose(log(), ROLES, validation=later)
    only(found, "The training and the validation rows differ", "warning")
    assert found.drift["column"].iloc[0] == "age"
    assert not titles(diagnose(log(), ROLES, validation=log(seed=1)), "warning")
    policy = log(price=np.where(np.arange(N) < N / 2, "low", "high"))  # the policy changed, the contexts did not
    assert "'price'" in only(diagnose(policy, ROLES), "half differ", "problem").title


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize("name", ["age", "town"])
def test_a_file_that_is_sorted_has_halves_that_differ_and_that_is_no_problem(name, rising):
    frame = log().sort_values(name, ascending=rising, ignore_index=True)
    finding = only(diagnose(frame, ROLES), f"The rows are sorted by '{name}', and so the first", "warning")
    assert "shuffle the rows" in finding.advice
    assert not titles(diagnose(frame, ROLES), "problem")
    found = diagnose(log(), ROLES, validation=frame[: N // 2])  # sorted or not, these are other rows
    only(found, "The training and the validation rows differ", "warning")


def test_validation_rows_need_the_features_and_labels_alone():
    frame = log().assign(id=np.arange(N), p=0.5)
    columns = Roles(action="price", outcome="bought", propensity="p", kept=["id"], categorical=["id"])
    found = diagnose(frame, columns, validation=log(seed=1))
    assert found.drift["column"].tolist() == diagnose(log(), ROLES, validation=log(seed=1)).drift["column"].tolist()
    with pytest.raises(InputError, match=r"the validation rows: no column 'age' \(features\)"):
        diagnose(frame, columns, validation=log(seed=1).drop(columns="age"))


def test_propensities_of_actions_that_were_never_taken():
    roles = Roles(**vars(ROLES) | {"propensity": ["high", "low", "none"], "features": ["age", "visits"]})
    frame = log(high=0.5, low=0.4, none=0.1)
    assert diagnose(frame, roles, actions=["none"]).propensity[0].tolist() == [0.5, 0.4, 0.1]
    with pytest.raises(InputError, match="3 propensity columns for 2 actions"):
        diagnose(frame, roles)


def test_validation_rows_of_another_kind_or_with_labels_of_their_own():
    text = log(60, age="forty")
    with pytest.raises(
        InputError, match="the validation rows: column 'age' holds text, such as 'forty', and in the log"
    ):
        diagnose(log(), ROLES, validation=text)
    new = pl.from_pandas(log(60, price=["high", "huge"] * 30))
    words = "30 of 60 validation rows have an action that is in no training row: 'huge'"
    only(diagnose(log(), ROLES, validation=new), words, "problem")


def test_the_text_has_the_actions_of_the_most_rows_and_says_how_many_there_are():
    n = 1500
    price = np.concatenate([[5] * 200, np.arange(n - 200) % 450])
    found = diagnose(log(n, price=price), ROLES)
    text = found.text()
    table = text[text.index("\nActions\n") : text.index("\nOutcomes\n")].splitlines()
    assert len(table) < 40
    assert "and 420 more, with fewer rows; the page has them all" in table
    assert any(line.split()[:2] == ["5", str((price == 5).sum())] for line in table)
    assert len(found.findings) < 10
    assert found.page().count("<tr>") > 450
    assert "more, with fewer rows" not in diagnose(log(), ROLES).text()


def test_a_table_of_many_outcomes_is_folded(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    bought = [f"outcome {row % 23}" for row in range(N)]
    text = diagnose(log(bought=bought), ROLES).text()
    table = text[text.index("\nActions\n") : text.index("\nOutcomes\n")].splitlines()
    assert max(map(len, table)) <= 100
    heads = [line for line in table if line.split()[:1] == ["action"]]
    assert len(heads) > 2
    assert [" ".join(heads).count(f"P(outcome {place})") for place in range(23)] == [1] * 23
    assert [line.split()[0] for line in table if line.split()[:1] in (["high"], ["low"])] == ["high", "low"] * len(
        heads
    )


def test_of_many_actions_and_outcomes_that_are_alike_one_finding_tells():
    n = 3000
    price, bought = np.arange(n) % 30, np.where(np.arange(n) % 30 < 20, "no", "yes").astype(object)
    bought[7::300] = [f"rare {i}" for i in range(10)]  # of price 7
    found = diagnose(log(n, price=price, bought=bought), ROLES)
    title = only(found, "29 actions were only ever followed by a single outcome", "warning").title
    assert title.endswith(
        ": 0 by 'no' (100), 1 by 'no' (100), 2 by 'no' (100), 3 by 'no' (100), 4 by 'no' (100) and 24 more"
    )
    title = only(found, "10 outcomes are rare, below 1.0 % each: 'rare 0' (1), ", "warning").title
    assert title.endswith(" and 5 more")
    assert len(titles(found, "warning")) < 5


def test_logged_propensities_that_do_not_fit_the_actions():
    rng = np.random.default_rng(0)
    low = rng.uniform(0.2, 0.6, N)
    columns = {"low": low, "high": 1 - low, "p1": low, "p2": 1 - low}
    frame = log(price=np.where(rng.random(N) < low, "low", "high"), **columns)
    frame["p"] = np.where(frame["price"] == "low", low, 1 - low)
    every = {"action": "price", "outcome": "bought", "features": ["age", "visits"]}
    names = ((["high", "low"], True), (["low", "high"], True), (["p2", "p1"], True), (["p1", "p2"], False))
    for propensity, right in (("p", True), *names):  # by the names of the actions, or in the order of the sorted ones
        found = diagnose(frame, Roles(**every, propensity=propensity))
        assert found.propensity[:, 1] == pytest.approx(low) or not right or propensity == "p"
        assert right != any("propensities do not fit" in title for title in titles(found, "problem")), propensity
    frame["p"] /= 2
    only(diagnose(frame, Roles(**every, propensity="p")), "and should be 2", "problem")


def test_arrays_and_many_actions():
    rng = np.random.default_rng(0)
    x, action, outcome = rng.normal(size=(900, 3)), rng.integers(50, size=900), rng.integers(3, size=900)
    found = diagnose(*log_of_arrays(x, action, outcome, np.full((900, 50), 0.02)))
    assert len(found.actions) == 50
    assert found.overlap["no chance"] == 0  # an even share of 2 % is not almost none
    assert "P(2)" in found.actions
    assert found.model == "the log's own"
    assert "<svg" in found.page()
    with pytest.raises(InputError, match=r"action has shape \(5,\): x has 900 rows"):
        log_of_arrays(x, action[:5], outcome)
    with pytest.raises(InputError, match=r"x has shape \(900,\)"):
        log_of_arrays(x[:, 0], action, outcome)
    with pytest.raises(InputError, match="diagnose needs a column"):
        diagnose(log(), Roles(action="price"))


def test_a_large_log_is_sampled_and_says_so(monkeypatch):
    monkeypatch.setattr("cst_lightning.diagnosis.MODELLED_ROWS", 300)
    found = diagnose(log(900), ROLES)
    assert (found.n_rows, found.n_modelled, len(found.propensity)) == (900, 300, 300)
    assert "on a sample of 300 rows" in " ".join(found.text().split())


def test_the_text_has_the_worst_first_and_every_number():
    frame = log(country="CH")
    frame["refund"] = (frame["bought"] == "yes").astype(int)
    frame.loc[5, "bought"] = None
    found = diagnose(frame, ROLES)
    order = [SEVERITIES.index(finding.severity) for finding in found.findings]
    assert order == sorted(order)
    text = found.text()
    assert text.startswith("400 rows (399 with an outcome), 5 features, 2 actions, 2 outcomes")
    assert text.index("PROBLEM: ") < text.index("WARNING: ") < text.index("NOTE: ")
    for words in ("What to do:", "Overlap: propensities by", "P(yes)", "low", "high"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (1, "100 %"), (0.002, "0.2 %"), (0.9996, "99.96 %"), (0.25, "25 %"), (1e-4, "0.01 %")],
)
def test_a_share_never_rounds_to_none_or_all(share, text):
    assert percent(share) == text


def test_without_jinja_the_page_says_what_to_install(monkeypatch):
    found, real = diagnose(log(), ROLES), builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] == "jinja2":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"cst-lightning\[report\]"):
        found.page()
    assert found.text()


@pytest.mark.parametrize("width", [360, 1440])
def test_the_page_opens_fits_and_takes_names_as_text(browser, tmp_path, width):
    evil = "<script>document.title='broken'</script>"
    frame = log(price=np.random.default_rng(1).choice([evil, "$1 & $2", "a very long name of an action, indeed"], N))
    frame = frame.rename(columns={"age": evil})
    path = tmp_path / "page.html"
    path.write_text(diagnose(frame, ROLES).page(), encoding="utf-8")
    page, troubles = open_page(browser, path, width)
    assert troubles == []
    assert page.title() == "Diagnosis of a log"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("figure svg[aria-label]").count() == 3
    assert page.locator("figure svg").evaluate_all("all => all.every(one => one.getBoundingClientRect().height > 100)")
    assert page.locator("td", has_text="$1 & $2").count() >= 1


def test_what_the_share_without_a_chance_leaves_out_is_named():
    price = ["low", "high"] * (N // 2)
    price[0] = "rare"
    assert "of some action." in " ".join(diagnose(log(price=["low", "high"] * (N // 2)), ROLES).text().split())
    told = " ".join(diagnose(log(price=price), ROLES, actions=["never"]).text().split())
    assert "of some action, not counting actions logged in fewer than 10 rows: 'never', 'rare'." in told


def test_spellings_of_one_value_are_a_warning():
    bought = ["Yes ", "yes ", "no "] * (N // 3) + ["no "] * (N % 3)
    town = ["Bern", "bern", "Chur", " Chur"] * (N // 4)
    found = diagnose(log(bought=bought, town=town), ROLES)
    assert "'Yes ' and 'yes '" in only(found, "outcome 'bought' differ only in", "warning").title
    assert "' Chur' and 'Chur'" in only(found, "column 'town' differ only in", "warning").title
    assert "'no '" in found.text().partition("Outcomes")[2]  # the blank is seen
    assert not [title for title in titles(found) if "action 'price' differ" in title]


def test_one_row_is_told_as_one():
    frame = log()
    frame.loc[0, "bought"] = None
    frame.iloc[2] = frame.iloc[1]
    found = diagnose(frame, ROLES)
    only(found, "1 row (0.2 %) has no outcome", "info")
    only(found, "1 row (0.2 %) repeats another row exactly", "warning")
    one = diagnose(frame[["age", "price", "bought"]], ROLES).text()
    assert one.startswith("400 rows (399 with an outcome), 1 feature, 2 actions, 2 outcomes")
