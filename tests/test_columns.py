"""Checks of a log's columns: each message names column, row and remedy."""

from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest

from cst_lightning import InputError
from cst_lightning.columns import (
    MAX_LABELS,
    Roles,
    add_tallies,
    check_log,
    describe_columns,
    tallies_of,
)
from cst_lightning.encoding import FeatureEncoder

ROLES = Roles(action="price", outcome="bought")


def log(n=40, **changes):
    columns = {"age": np.arange(n) / 4, "price": ["low", "high"] * (n // 2), "bought": [0, 1, 0, 1] * (n // 4)}
    return pd.DataFrame(columns | changes)


def broken(column, row, value, n=40):
    frame = log(n).astype({column: object})
    frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (broken("price", 16, None), r"action 'price' is missing in data row 17: fill it in"),
        (log(price=["low", None] * 20), r"missing in data rows 2, 4, 6, 8, 10 and 15 more"),
        (broken("age", 16, "n.k."), r"column 'age' holds 'n.k.' in data row 17, text among numbers: correct it"),
        (log(age=["1,5", "2,25"] * 20), r"'1,5' in data row 1, a number written as text"),
        (log(age=["1", "2,25"] * 20), r"'2,25' in data row 2, a number written as text"),
        (log(age=["12 %", "7 %"] * 20), r"'12 %' in data row 1, a number written as text"),
        (log(age=["41", "7"] * 20), r"'41' in data row 1, a number written as text"),
        (log(age=["41", "n.k."] * 20), r"'n.k.' in data row 2, text among numbers"),
        (log(age=pd.date_range("2024-01-01", periods=40)), r"'age' holds dates, such as 2024-01-01.*: make numbers"),
        (log(age=pd.date_range("2024-01-01", periods=40)), "dates, such as 2024-01-01: make"),
        (log(age=pd.date_range("2024-01-01 05:30", periods=40)), "dates, such as 2024-01-01 05:30:00: make"),
        (
            log(age=pd.to_timedelta(np.arange(40), "h")),
            r"'age' holds durations, such as 0 days.*: make numbers of it \(h",
        ),
        (log(age=["31.12.2024", "1.3.2025"] * 20), r"'age' holds dates, such as 31\.12\.2024: make numbers"),
        (log(age=["2024/12/31 10:05", "2024/1/5 9:00"] * 20), "'age' holds dates"),
        (log(age=[1.0, np.inf] * 20), r"'age' is infinite in data rows 2, 4, .*: write a finite number"),
        (log(age=[np.nan] * 40), r"'age' is empty in every row: leave it out"),
        (log(age=[(1, 2)] * 40), r"'age' holds tuple values: allowed are numbers"),
        (log(bought=[1] * 40), r"outcome 'bought': only 1 is seen: at least two"),
        (log(bought=[np.nan] * 40), r"outcome 'bought': none is seen"),
        (log(price=["yes", " yes"] * 20), r"column 'price': action .* differ only by type or spaces: 'yes' and ' yes'"),
        (log(price=[1, "1"] * 20), r"'price': .* differ only by type or spaces: 1 and '1'"),
        (log(price=["low", 1] * 20), r"'price': action holds text and numbers \('low' and 1\)"),
        (log(bought=[True, "True"] * 20), r"'bought': .* differ only by type or spaces: True and 'True'"),
        (log(2 * MAX_LABELS, price=np.arange(2 * MAX_LABELS)), r"2000 different values: at most 1000 .* by ranges"),
        (log(19 - 3), "16 rows: a log needs at least 20"),
    ],
)
def test_what_is_wrong_is_said(frame, message):
    with pytest.raises(InputError, match=message) as error:
        check_log(frame, ROLES, where="log.csv")
    assert str(error.value).startswith(("log.csv: ", "log.csv, "))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("propensity", "message"),
    [
        ([0.5, 0.0] * 20, r"'p' is too low \(0\) in data rows 2, 4, .*: allowed is above 0, at most 1"),
        ([0.5] * 39 + [1.2], r"'p' is above 1 \(1.2\) in data row 40"),
        ([0.5] * 39 + [None], r"'p' is missing in data row 40"),
        (
            ["half"] * 40,
            r"propensity 'p' holds text, such as 'half' in data rows 1, 2, 3, 4, 5 and 35 more: only numbers",
        ),
        ([0.5] * 39 + ["half"], r"'p' holds mixed, such as 'half' in data row 40: only numbers"),
    ],
)
def test_propensities_of_the_action_taken(propensity, message):
    with pytest.raises(InputError, match=message):
        check_log(log(p=propensity), Roles(action="price", outcome="bought", propensity="p"))


def test_propensities_of_every_action():
    roles = Roles(action="price", outcome="bought", propensity=["high", "low"])  # in the order of the sorted actions
    check_log(log(high=[0.0, 1.0] * 20, low=[1.0, 0.0] * 20), roles)
    with pytest.raises(
        InputError, match=r"of the action taken is 0 in data row 4: .*high, low stand for actions 'high'"
    ):
        check_log(log(high=[0.5, 0.5, 0.5, 0.0] + [0.5] * 36, low=[0.5, 0.5, 0.5, 1.0] + [0.5] * 36), roles)
    with pytest.raises(InputError, match=r"high, low sum to 1\.1 in data rows 1, 2, 3, 4, 5 and 35 more"):
        check_log(log(high=[0.5] * 40, low=[0.6] * 40), roles)
    three = Roles(action="price", outcome="bought", propensity=["free", "high", "low"])
    with pytest.raises(InputError, match=r"3 propensity columns for 2 actions \('high', 'low'\)"):
        check_log(log(high=0.5, low=0.5, free=0.0), three)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (Roles(action="prise"), r"no column 'prise' \(action\): did you mean 'price'\? There are age, price, bought"),
        (Roles(features=["ago"]), r"no column 'ago' \(features\): did you mean 'age'\?"),
        (Roles(action="PRISE "), r"did you mean 'price'\? There are"),
        (Roles(outcome="bougt"), r"did you mean 'bought'\? There are"),
        (
            Roles(outcome="income"),
            r"no column 'income' \(outcome\): there are age, price, bought",
        ),  # a far cry from each
        (Roles(action="price", outcome="price"), "column 'price' has two roles"),
        (Roles(features=["age", "age"]), "'age' has two roles or is named twice"),
        (Roles(action="price", categorical=["price"]), "categorical column 'price' is no feature"),
        (Roles(action="price", outcome="bought", kept=["age"]), "no column is left as a feature"),
    ],
)
def test_roles_that_do_not_fit(roles, message):
    with pytest.raises(InputError, match=message):
        check_log(log(), roles)


def test_names_of_a_frame_are_text_and_different():
    with pytest.raises(InputError, match="column name 0 is no text"):
        check_log(pd.DataFrame(np.zeros((30, 2))), Roles())
    with pytest.raises(InputError, match="column 'a' stands 2 times"):
        check_log(pd.DataFrame(np.zeros((30, 2)), columns=["a", "a"]), Roles())


def test_what_is_allowed_is_let_through():
    frame = log(
        bought=[0, None, 1, 0] * 10,  # an outcome that was not observed
        age=[1.0, np.nan] * 20,
        town=["Bern", None, "8000", "Chur"] * 10,
        code=["01", "02"] * 20,  # digits that are categories
        member=[True, False] * 20,
        kind=pd.Categorical(["a", "b"] * 20),
        band=pd.Categorical(["1", "2"] * 20),  # numbers that are categories by their type
    )
    check_log(frame, ROLES)
    check_log(log(age=["31.12.2024", "n.k."] * 20), Roles(action="price", outcome="bought", categorical=["age"]))
    check_log(log(age=pd.date_range("2024", periods=40), x=1.0), Roles(action="price", outcome="bought", kept=["age"]))


@pytest.mark.parametrize(
    ("values", "is_category"),
    [
        (["41", "7", "38", "29", "n.k.", "33"], False),
        (["41", "7", "n.k.", "?"], False),
        (["41", "n.k.", "?", "none", "7"], True),
        (["41", "7"], False),
        (["01", "02", "13"], True),
        (["1", "2", "13"], False),
        (["01", "n.k."], False),
        (["2,5", "7 %"], False),
        (["8000 Zug", "3000 Bern"], True),
    ],
)
def test_text_is_categories_to_the_check_of_a_log_and_to_the_encoder_alike(values, is_category):
    frame = log(age=(values * 40)[:40])
    for check in (lambda: check_log(frame, ROLES), lambda: FeatureEncoder().fit(frame[["age"]])):
        with nullcontext() if is_category else pytest.raises(InputError, match="column 'age' "):
            check()


@pytest.mark.parametrize(
    "text",
    [
        *("31.12.2024", "2024/1/5 9:00", "2020-01-02T10:05:00Z", "2020-01", "2020/12", "10:30", "9:05:59", "10:30 pm"),
        *("1 Jan 2020", "1. January 2020", "1-Jan-20", "Jan-20", "january 5, 2020", "May 2020", "2020-Feb-01", "3 sep"),
        *("Jan 5 2020 10:30", "5 Dec 2020, 10:30:05", "13.02.2024", "13/02/2024", "13-2-24", "13.02.2024, 17:05 h"),
        *("13. Februar 2024", "13 février 2024", "Di, 13.02.2024", "Tuesday 13/02/2024 17:05", "13.02.", "13. 2. 2024"),
        "02/2024",
    ],
)
def test_dates_and_times_however_they_are_written_are_no_categories(text):
    with pytest.raises(InputError, match=f"'age' holds dates, such as {text}: make numbers of it"):
        check_log(log(age=text), ROLES)
    with pytest.raises(InputError, match=f"'age' holds dates, such as '{text}': turn them into numbers"):
        FeatureEncoder().fit(log(age=text)[["age"]])


@pytest.mark.parametrize("text", ["1.2.3", "10.1.2"])
def test_the_number_of_a_version_is_no_date(text):
    with pytest.raises(InputError, match=f"'{text}' in data row 1, a number written as text: .* as categorical"):
        check_log(log(age=text), ROLES)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "Jan",
            "May",
            "Marina 12",
            "Decade-90",
            "16:9",
            "21:60",
            "1890-1901",
            "A-20",
            "Windows 10.0.1",
            "1/2",
            "30/1990",
        ),
        *("32 Februar 2024", "40 Main 2000", "Room 10:30"),
    ],
)
def test_what_is_like_a_date_is_a_category(text):
    check_log(log(age=text), ROLES)
    FeatureEncoder().fit(log(age=text)[["age"]])


def test_a_column_without_a_value_is_an_error_only_where_one_trains():
    with pytest.raises(InputError, match="'age' is empty in every row: leave it out of the features"):
        check_log(log(age=[None] * 40), ROLES)
    check_log(log(age=[None] * 40), Roles(features=["age"]))


def test_tallies_of_parts_add_up_to_those_of_the_whole():
    frame = log(town=["Bern", None, "Chur", "Bern"] * 10)
    whole = tallies_of(frame, ROLES)
    parts = add_tallies(tallies_of(frame[:13], ROLES), tallies_of(frame[13:], ROLES, first=13))
    for name in ("price", "bought", "town"):
        pd.testing.assert_frame_equal(parts[name], whole[name], check_dtype=False)
    assert whole["town"].loc["Chur"].tolist() == [10, 2]


def test_columns_are_described():
    frame = log(town=["Bern", None] * 20, when=pd.date_range("2024", periods=40), member=True)
    shown = describe_columns(frame, Roles(action="price", outcome="bought", kept=["when"], categorical=["town"]))
    assert shown.set_index("column").T.to_dict("list") == {
        "age": ["number", 0, 40, "feature"],
        "price": ["text", 0, 2, "action"],
        "bought": ["whole number", 0, 2, "outcome"],
        "town": ["text", 20, 1, "feature, categorical"],
        "when": ["date", 0, 40, "kept"],
        "member": ["yes/no", 0, 1, "feature"],
    }


@pytest.mark.parametrize("role", ["features", "categorical", "kept"])
def test_a_single_name_is_a_list_of_it(role):
    assert getattr(Roles("action", **{role: "age"}), role) == ("age",)
