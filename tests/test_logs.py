"""Log files: every way of writing one is read alike, and what is wrong is said in one line."""

import gzip
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cst_lightning import InputError
from cst_lightning.columns import Roles
from cst_lightning.logs import read_batches, read_log

ROLES = Roles(action="price", outcome="bought")


def frame(n=40):
    return pd.DataFrame(
        {
            "age": 20 + np.arange(n) / 4,
            "visits": np.arange(n) % 5,
            "town": ["Zürich", "Bern", "Chur, Ost"][:3] * (n // 3) + ["Bern"] * (n % 3),
            "member": np.arange(n) % 3 == 0,
            "price": ["low", "high"] * (n // 2) + ["low"] * (n % 2),
            "bought": ["no", "yes", "no"] * (n // 3) + ["yes"] * (n % 3),
        }
    )


def text(n=40, head="age,price,bought", age=str, price=lambda i: ["low", "high"][i % 2], bought=lambda i: i % 3 % 2):
    return "\n".join([head, *(f"{age(i)},{price(i)},{bought(i)}" for i in range(n))]) + "\n"


def put(tmp_path, content, name="log.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


WRITTEN = {
    "comma.csv": lambda path: frame().to_csv(path, index=False),
    "semicolon.csv": lambda path: frame().to_csv(path, index=False, sep=";", decimal=","),
    "tab.tsv": lambda path: frame().to_csv(path, index=False, sep="\t"),
    "bom.csv": lambda path: frame().to_csv(path, index=False, encoding="utf-8-sig"),
    "crlf.csv": lambda path: frame().to_csv(path, index=False, lineterminator="\r\n"),
    "zipped.csv.gz": lambda path: path.write_bytes(gzip.compress(frame().to_csv(index=False).encode())),
    "spaces.csv": lambda path: path.write_text(frame().to_csv(index=False).replace("age,", "age ,")),
    "log.parquet": lambda path: frame().to_parquet(path),
    "log.feather": lambda path: feather.write_feather(frame(), path),
    "folder": lambda path: [
        path.mkdir(),
        frame().iloc[:7].to_parquet(path / "a.parquet"),
        frame().iloc[7:].to_parquet(path / "b.parquet"),
        (path / "_SUCCESS").touch(),
    ],
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_log_is_read_alike_however_it_is_written(tmp_path, name):
    WRITTEN[name](tmp_path / name)
    got = read_log(tmp_path / name, columns=ROLES)
    pd.testing.assert_frame_equal(got, frame(), check_dtype=False)
    parts = list(read_batches(tmp_path / name, 9, columns=ROLES))
    assert [len(part) for part in parts] == [9, 9, 9, 9, 4]
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), got)
    pd.testing.assert_frame_equal(read_log(tmp_path / name, columns=ROLES, rows=21), got[:21])


def test_what_was_found_is_told(tmp_path):
    WRITTEN["semicolon.csv"](tmp_path / "a.csv")
    assert read_log(tmp_path / "a.csv").attrs["format"] == "CSV, columns by semicolon, decimal comma, utf-8"
    frame().to_csv(tmp_path / "b.csv", index=False, encoding="utf-8-sig")
    assert read_log(tmp_path / "b.csv").attrs["format"] == "CSV, columns by comma, decimal point, utf-8 with BOM"
    WRITTEN["log.parquet"](tmp_path / "a.parquet")
    assert read_log(tmp_path / "a.parquet").attrs["format"] == "Parquet"


def test_a_partitioned_folder_has_its_column(tmp_path):
    ds.write_dataset(
        pa.Table.from_pandas(frame()),
        tmp_path / "log",
        format="parquet",
        partitioning=ds.partitioning(pa.schema([("price", pa.string())]), flavor="hive"),
    )
    got = read_log(tmp_path / "log", columns=ROLES)
    assert got["price"].value_counts().to_dict() == {"low": 20, "high": 20}
    assert sum(len(part) for part in read_batches(tmp_path / "log", 8, columns=ROLES)) == 40


def test_only_columns_with_a_role_are_read(tmp_path):
    WRITTEN["log.parquet"](tmp_path / "a.parquet")
    roles = Roles(action="price", outcome="bought", features=["visits"], kept=["town"])
    assert list(read_log(tmp_path / "a.parquet", columns=roles)) == ["visits", "town", "price", "bought"]


def test_another_encoding_is_named_and_can_be_passed(tmp_path):
    path = put(tmp_path, frame().to_csv(index=False).encode("cp1252"))
    place = path.read_bytes().index(b"\xfc")
    with pytest.raises(InputError, match=rf"log\.csv: byte 0xfc at position {place} is no utf-8 text: .* cp1252"):
        read_log(path, columns=ROLES)
    pd.testing.assert_frame_equal(read_log(path, columns=ROLES, encoding="cp1252"), frame(), check_dtype=False)
    path = put(tmp_path, frame().to_csv(index=False).encode("utf-16"))
    with pytest.raises(InputError, match="utf-16: pass encoding='utf-16'"):
        read_log(path, columns=ROLES)
    pd.testing.assert_frame_equal(read_log(path, columns=ROLES, encoding="utf-16"), frame(), check_dtype=False)
    with pytest.raises(InputError, match="encoding='latin-99' is not known"):
        read_log(path, encoding="latin-99")


@pytest.mark.parametrize(
    ("written", "said_to_be", "proved"),
    [("utf-8-sig", "cp1252", "utf-8"), ("utf-8-sig", "utf-16", "utf-8"), ("utf-16", "cp1252", "utf-16")],
)
def test_a_byte_order_mark_is_believed_before_an_option(tmp_path, written, said_to_be, proved):
    path = put(tmp_path, frame().to_csv(index=False).encode(written))
    message = rf"not written in {said_to_be}, .* mark of {proved}: pass encoding='{proved}'"
    for read in (read_log, lambda *given, **options: list(read_batches(*given, 10, **options))):
        with pytest.raises(InputError, match=message):
            read(path, columns=ROLES, encoding=said_to_be)
    read_log(path, columns=ROLES, encoding=proved)


@pytest.mark.parametrize(
    ("title", "sign"),
    [
        ("Report of 2024,,\n,,\n", ","),
        ("Report of 2024;;\n", ";"),
        ("Report of 2024\n\n", ";"),
        ("Report of 2024\nfor Bern, Zug\n", ","),
        ("Report of 2024, for Zug\n", ";"),
    ],
)
def test_a_title_above_the_header_is_told(tmp_path, title, sign):
    path = put(tmp_path, (title + text(40).replace(",", sign)).encode())
    with pytest.raises(
        InputError, match=r"the first line, 'Report of 2024.*', looks like no header .*: delete the lines"
    ):
        read_log(path, columns=ROLES)
    # the header is one, although by comma it has fewer columns than the rows
    marked = frame()[["age", "price"]].assign(paid=1.5, due=2.5).to_csv(index=False, sep=";", decimal=",")
    with pytest.raises(InputError, match=r"no column 'prize' .* did you mean 'price'"):
        read_log(put(tmp_path, marked), columns=Roles(action="prize"))
    with pytest.raises(InputError, match=r"columns 7, 8 have no name: name them or delete them"):
        read_log(
            put(tmp_path, frame().assign(a=1, b=2).rename(columns={"a": "", "b": " "}).to_csv(index=False).encode())
        )


def test_a_byte_far_down_the_file_is_found(tmp_path):
    content = text(100_000).encode() + "1,Zürich,1\n".encode("latin-1")
    path = put(tmp_path, content)
    message = f"byte 0xfc at position {content.index(0xFC)} "
    with pytest.raises(InputError, match=message):
        read_log(path, columns=ROLES)
    with pytest.raises(InputError, match=message):
        list(read_batches(path, 1000, columns=ROLES))


def test_types_of_a_stream_hold_for_the_whole_file(tmp_path):
    path = put(tmp_path, text(100_000, age=lambda i: "7.5" if i == 99_999 else "7"))
    parts = list(read_batches(path, 40_000, columns=ROLES))
    assert {str(part["age"].dtype) for part in parts} == {"float64"}
    assert parts[-1]["age"].iloc[-1] == 7.5


def test_memory_of_a_stream_does_not_grow_with_the_file(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "log.parquet"
    schema = pa.schema([(f"x{i}", pa.float64()) for i in range(20)])
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(30):
            writer.write_table(pa.table(list(rng.random((20, 10_000))), schema=schema))
    before, most = pa.total_allocated_bytes(), 0
    for _ in read_batches(path, 5_000):
        most = max(most, pa.total_allocated_bytes() - before)
    assert path.stat().st_size > 40e6
    assert most < 25e6  # some row groups, and not the file


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("age,price,bought\n", "only a header, no rows"),
        ("1,2,3\n4,5,6\n", "the first line is 1, 2, 3: it must name the columns"),
        (text(1), ": 1 row: a log needs at least 20"),
        (text(19), "19 rows: a log needs at least 20"),
        (text(head="age,age,bought"), "column 'age' stands 2 times"),
        (text(head=",price,bought"), r"column 1 has no name \(a row index\?\)"),
        ("age,price,bought,,\n1,low,1,,\n", "columns 4, 5 have no name: name them or delete them"),
        (text(head="age,Price,bought"), r"no column 'price' \(action\): did you mean 'Price'\? There are age, Price"),
        (text() + "1,low,1,9\n", "row 42 of the file has 4 cells and the header 3"),
        (b"PK\x03\x04 and so on", "save the sheet as CSV"),
    ],
)
def test_a_file_that_cannot_be_a_log(tmp_path, content, message):
    with pytest.raises(InputError, match=message) as error:
        read_log(put(tmp_path, content), columns=ROLES)
    assert "log.csv" in str(error.value)
    assert "\n" not in str(error.value)


def german(bad=None, name="age", row=3):
    """A spreadsheet's CSV: semicolons, decimal commas, a price for an action."""
    rows = [{"age": f"{20 + i},5", "km": f"{i * 100},25", "price": ["14,90", "19,90"][i % 2]} for i in range(40)]
    if bad is not None:
        rows[row - 1][name] = bad
    return "age;km;price;bought\n" + "".join(f"{';'.join(r.values())};{i % 3 % 2}\n" for i, r in enumerate(rows))


@pytest.mark.parametrize(
    ("bad", "name", "said"),
    [
        ("unknown", "age", "column 'age' holds 'unknown' in data row 3, text among numbers"),
        (
            "14.90",
            "age",
            "column 'age' holds '14.90' in data row 3, a number with a decimal point where most have a comma",
        ),
        ("5.637,45", "km", "column 'km' holds '5.637,45' in data row 3, a number with marks between the thousands"),
        ("5.637", "km", "column 'km' holds '5.637' in data row 3, a number with marks between the thousands"),
        (
            "14.90",
            "price",
            "action 'price' is '14.90' in data row 3, a number with a decimal point where most have a com",
        ),
        ("1.014,90", "price", "action 'price' is '1.014,90' in data row 3, a number with marks between the thousands"),
    ],
)
def test_the_cell_that_does_not_fit_the_decimal_commas_of_the_others_is_named(tmp_path, bad, name, said):
    with pytest.raises(InputError, match=said):
        read_log(put(tmp_path, german(bad, name)), columns=ROLES)
    as_batches = pd.concat(read_batches(tmp_path / "log.csv", 7, columns=ROLES))
    assert as_batches[name].iloc[2] == bad  # and not another number
    whole = read_log(put(tmp_path, german(), "sound.csv"), columns=ROLES)
    assert whole["price"].tolist()[:2] == [14.9, 19.9]


def test_points_between_the_thousands_alone_are_no_decimal_points(tmp_path):
    rows = [f"{20 + i},5;{1 + i}.637;{'low' if i % 2 else 'high'};{i % 3 % 2}" for i in range(40)]
    with pytest.raises(
        InputError, match=r"column 'km' holds '1\.637' in data row 1, a number written as text, with a p"
    ):
        read_log(put(tmp_path, "age;km;price;bought\n" + "\n".join(rows)), columns=ROLES)


def doubtful(km, sep=";", age=str):
    rows = [f"{age(20 + i)}{sep}{km(i)}{sep}{'low' if i % 2 else 'high'}{sep}{i % 3 % 2}" for i in range(40)]
    return sep.join(["age", "km", "price", "bought"]) + "\n" + "\n".join(rows)


@pytest.mark.parametrize("sep", [";", "\t"])
@pytest.mark.parametrize("mark", [".", ","])
def test_numbers_that_may_be_thousands_or_decimals_are_warned_of(tmp_path, sep, mark):
    path = put(tmp_path, doubtful(lambda i: 950 if i < 2 else f"{i}{mark}637", sep))
    said = rf"log\.csv: column 'km' holds '2{mark}637' in data row 3, read as 2\.637, .* not 2637: if so, write that"
    with pytest.warns(UserWarning, match=said):
        assert read_log(path, columns=ROLES)["km"].tolist()[2] == 2.637
    with pytest.warns(UserWarning, match=said):
        assert pd.concat(read_batches(path, 7, columns=ROLES))["km"].tolist()[2] == 2.637


@pytest.mark.parametrize(
    ("content", "roles"),
    [
        (doubtful(lambda i: f"{i}.637", age=lambda i: f"{i}.5"), ROLES),  # the point is the decimal mark
        (doubtful(lambda i: f"{1 + i}.637"), Roles("price", "bought", features=["age"])),  # not looked at
        (doubtful(lambda i: f"{1 + i}.637"), Roles("price", "bought", categorical=["km"])),
        (doubtful(lambda i: f"{1 + i}.637", ","), ROLES),  # where columns are cut by commas, none are decimal
    ],
)
def test_numbers_that_are_sure_or_not_used_are_not_warned_of(tmp_path, content, roles):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_log(put(tmp_path, content), columns=roles)


def test_files_that_are_not_there_or_of_another_kind(tmp_path):
    put(tmp_path, text(), "sales.csv")
    with pytest.raises(InputError, match=r"sale\.csv: no such file or folder; did you mean sales\.csv\?"):
        read_log(tmp_path / "sale.csv")
    with pytest.raises(InputError, match=r"ends in '\.xlsx': allowed are \.csv, .*; save the sheet as CSV first"):
        read_log(put(tmp_path, "x", "sales.xlsx"))
    with pytest.raises(InputError, match=r"a\.parquet: cannot be read as Parquet"):
        read_log(put(tmp_path, "no parquet", "a.parquet"))
    with pytest.raises(InputError, match="a folder must hold files of one kind"):
        read_log(tmp_path)
    pq.write_table(pa.table({"age": [1], "list": [[1, 2]]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="column 'list' holds list"):
        read_log(tmp_path / "b.parquet")
    for options in ({"rows": 0}, {"delimiter": ",,"}):
        with pytest.raises(InputError, match=next(iter(options))):
            read_log(tmp_path / "sales.csv", **options)
    with pytest.raises(InputError, match="rows_per_batch=0"):
        read_batches(tmp_path / "sales.csv", 0)


def test_empty_rows_at_the_end_as_a_spreadsheet_leaves_them_are_no_rows(tmp_path):
    got = read_log(put(tmp_path, text() + ",,\n" * 3), columns=ROLES)
    pd.testing.assert_frame_equal(got, read_log(put(tmp_path, text(), "same.csv"), columns=ROLES))
    with pytest.raises(InputError, match="action 'price' is missing in data row 41"):
        read_log(put(tmp_path, text() + ",,\n" + text().splitlines()[1] + "\n"), columns=ROLES)


@pytest.mark.parametrize("before", ["\n", "  \n\n", "sep=,\n"])
def test_lines_before_the_header_are_no_rows(tmp_path, before):
    same = read_log(put(tmp_path, text(), "same.csv"), columns=ROLES)
    pd.testing.assert_frame_equal(read_log(put(tmp_path, before + text()), columns=ROLES), same)
    parts = list(read_batches(put(tmp_path, before + text()), 7, columns=ROLES))
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), same)


def test_without_roles_no_value_is_judged(tmp_path):
    rows = [f"{i},01.02.2024,low,0" for i in range(30)]
    got = read_log(put(tmp_path, "\n".join(["age,day,price,bought", *rows, ",,,", ",,,"])))
    assert len(got) == 30
    assert got["age"].tolist() == list(range(30))


def test_codes_of_categories_are_read_as_they_are_written(tmp_path):
    path = put(tmp_path, "zip,price,bought\n" + "\n".join(f"0{i % 3},{i % 2},{i % 2}" for i in range(30)))
    roles = Roles("price", "bought", categorical=["zip"])
    assert read_log(path, columns=roles)["zip"].tolist()[:3] == ["00", "01", "02"]
    assert next(read_batches(path, 9, columns=roles))["zip"].tolist()[:3] == ["00", "01", "02"]
    assert read_log(path)["zip"].tolist()[:3] == [0, 1, 2]


def test_an_empty_line_of_a_single_column_is_a_row_without_a_value(tmp_path):
    path, roles = put(tmp_path, "age\n40\n\n50\n"), Roles(features=["age"])
    assert read_log(path, columns=roles)["age"].tolist()[::2] == [40, 50]
    assert len(pd.concat(read_batches(path, 2, columns=roles))) == 3


def test_a_decimal_comma_may_come_late(tmp_path):
    rows = [f"{i if i < 400 else f'{i},5'};{'low' if i % 2 else 'high'};{i % 3}" for i in range(500)]
    got = read_log(put(tmp_path, "age;price;bought\n" + "\n".join(rows)), columns=ROLES)
    assert got["age"].tolist()[398:402] == [398, 399, 400.5, 401.5]


def test_new_contexts_need_no_outcome_and_may_be_few(tmp_path):
    assert len(read_log(put(tmp_path, "age,town\n3,Bern\n"))) == 1


def test_lines_within_quotes_and_another_delimiter(tmp_path):
    path = put(tmp_path, text(price=lambda i: '"a\nb"' if i % 2 else "c").replace(",", "|"))
    got = read_log(path, columns=ROLES, delimiter="|")
    assert sorted(got["price"].unique()) == ["a\nb", "c"]
    pd.testing.assert_frame_equal(
        pd.concat(read_batches(path, 7, columns=ROLES, delimiter="|"), ignore_index=True), got
    )


values = st.floats(-1e6, 1e6).map(lambda x: round(x, 3)) | st.none()
words = st.text(st.characters(codec="utf-8", exclude_characters='\r\n"', exclude_categories=["C"]), min_size=1)


@settings(max_examples=10)
@given(
    st.lists(st.tuples(values, words.map(lambda w: f"x{w}")), min_size=2, max_size=30),
    st.sampled_from([",", ";", "\t"]),
    st.integers(1, 9),
)
def test_any_table_comes_back(tmp_path_factory, table, delimiter, size):
    path = tmp_path_factory.mktemp("any") / "log.csv"
    written = pd.DataFrame(table, columns=["number", "word"]).astype({"number": float})
    written.loc[0, "number"] = 0.5  # so that the decimal sign can be seen
    written.to_csv(path, index=False, sep=delimiter, decimal="." if delimiter == "," else ",", quoting=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = read_log(path, columns=Roles(categorical=["word"]), delimiter=delimiter)
    pd.testing.assert_frame_equal(got, written, check_dtype=False)
    parts = read_batches(path, size, columns=Roles(categorical=["word"]), delimiter=delimiter)
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), got)
