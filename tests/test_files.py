import bz2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cst_lightning import InputError
from datamodules.files import read_arff, read_libsvm


def libsvm(tmp_path, text, name="set.txt", **changes):
    path = tmp_path / name
    path.write_bytes(bz2.compress(text.encode()) if name.endswith("bz2") else text.encode())
    return read_libsvm(path, **{"n_features": 3, "n_labels": 4, **changes})


def test_labels_features_and_rows_without_either(tmp_path):
    x, y = libsvm(tmp_path, "\ufeff0,2 1:0.5 3:-1e-3\n 2:4 \n1\n\n3,\t0 1:1 # a remark\n")
    assert x.tolist() == [[0.5, 0, -1e-3], [0, 4, 0], [0, 0, 0], [1, 0, 0]]
    assert y.tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1]]


def test_index_bases_are_stated(tmp_path):
    x, y = libsvm(tmp_path, "1 0:7\n", first_feature=0, first_label=1, name="set.bz2")
    assert x.tolist() == [[7, 0, 0]]
    assert y.tolist() == [[1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1:1\n4 1:1\n", r"line 2: label 4: allowed are 0\.\.3"),
        ("0 1:1\n0 0:1\n", r"line 2: feature 0: allowed are 1\.\.3"),
        ("0 4:1\n", r"line 1: feature 4: allowed are 1\.\.3"),
        ("1,1 1:1\n", "label 1 stands twice"),
        ("0 1:1 1:2\n", "feature 1 stands twice or out of order"),
        ("0 1:x\n", "line 1: could not convert"),
        ("0 1:nan\n", "feature 1 is not a finite number"),
        ("a 1:1\n", "line 1: could not convert"),
        ("0.5 1:1\n", "label 0.5"),
        ("", "no rows"),
    ],
)
def test_mistakes_are_named_with_file_and_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as error:
        libsvm(tmp_path, text)
    assert "set.txt" in str(error.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.bz2", b"x"),
        ("a.bz2", bz2.compress(b"0 1:1")[:-5]),
        ("a.gz", b"x"),
        ("a.txt", b"\xff\xfe\x00"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        read_libsvm(tmp_path / name, n_features=3, n_labels=4)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_libsvm(tmp_path / "none", n_features=1, n_labels=1)


@given(st.lists(st.tuples(st.sets(st.integers(0, 3)), st.dictionaries(st.integers(0, 2), st.floats(-1e6, 1e6)))))
def test_what_is_written_is_read(tmp_path_factory, rows):
    lines = [
        ",".join(map(str, sorted(labels))) + "".join(f" {i + 1}:{v!r}" for i, v in sorted(values.items()))
        for labels, values in rows
        if labels or values
    ]
    kept = [row for row in rows if row[0] or row[1]]
    if not kept:
        return
    x, y = libsvm(tmp_path_factory.mktemp("libsvm"), "\n".join(lines))
    assert [set(np.flatnonzero(row)) for row in y] == [labels for labels, _ in kept]
    assert x.tolist() == [[values.get(i, 0.0) for i in range(3)] for _, values in kept]


ARFF = """@relation toy
@attribute 'first label' {FALSE, TRUE}
@attribute height numeric
@attribute second { 0, 1 }
@attribute width real
@data
TRUE,1.5,0,2
FALSE,-1,1,3.25
"""


def arff(tmp_path, text, labels=("first label", "second")):
    path = tmp_path / "set.arff"
    path.write_text(text)
    return read_arff(path, labels=labels)


def test_arff_labels_may_stand_anywhere(tmp_path):
    x, y = arff(tmp_path, ARFF)
    assert x.tolist() == [[1.5, 2], [-1, 3.25]]
    assert y.tolist() == [[1, 0], [0, 1]]


def test_quoted_arff_labels_are_read_however_they_are_declared(tmp_path):
    quoted = ARFF.replace("{FALSE, TRUE}", "{'FALSE','TRUE'}").replace("{ 0, 1 }", "{'0',' 1'}")
    x, y = arff(tmp_path, quoted.replace("FALSE,-1,1,", "'FALSE',-1,'0',").replace("1.5,0", "1.5,' 1'"))
    assert (x.tolist(), y.tolist()) == ([[1.5, 2], [-1, 3.25]], [[1, 1], [0, 0]])


@pytest.mark.parametrize("row", ["TRUE , 1.5,0,2", " TRUE,1.5, 0 ,2 ", "'TRUE',\t1.5,0, 2", '"TRUE", 1.5,"0",2'])
def test_spaces_around_an_arff_value_are_no_part_of_it(tmp_path, row):
    for text in (ARFF.replace("TRUE,1.5,0,2", row), ARFF.replace("FALSE,-1,1,3.25", row)):
        x, y = arff(tmp_path, text)
        place = x[:, 0].tolist().index(1.5)
        assert (x[place].tolist(), y[place].tolist()) == ([1.5, 2], [1, 0])
        assert len(x) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ARFF.replace("TRUE,1.5,0,2", "TRUE,?,0,2"), r"set.arff, line 7: feature 'height' is missing"),
        (ARFF.replace("TRUE,1.5,0,2", "{0 TRUE, 1 1.5}"), "line 7: sparse rows"),
        (ARFF.replace("TRUE,1.5,0,2", "?,1.5,0,2"), "line 7: label 'first label' is '\\?'"),
        (ARFF.replace("height numeric", "height {a, b}").replace("1.5", "a").replace("-1", "b"), "not numeric"),
        (ARFF.split("TRUE,1.5")[0], "no rows|no readable"),
        (ARFF.replace("FALSE,-1,1,3.25", "% more\n\nFALSE,-1"), "line 10: 2 values, and the header has 4 columns"),
        (ARFF + "TRUE,1,0,2,9\n", "line 9: 5 values, and the header has 4 columns"),
        (ARFF + "TRUE,tall,0,2\nTRUE,1,0,2\n", "line 9: .*tall"),
        (ARFF + "TRUE,1,0,2\nMAYBE,1,0,2\n", "line 10: .*MAYBE"),
        (ARFF.replace("height numeric", "height words"), "no readable ARFF header"),
        (ARFF.replace("@attribute height", "@attribut height"), "line 3: no readable ARFF header"),
        (ARFF.replace("height numeric", "height string"), "no readable ARFF header"),
        (ARFF.replace("@data", "data"), "no line begins with @data"),
        ("", "no readable|no rows|no column"),
    ],
)
def test_arff_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        arff(tmp_path, text)


def test_arff_label_that_is_no_column(tmp_path):
    with pytest.raises(InputError, match="no column 'third'"):
        arff(tmp_path, ARFF, ["third"])
