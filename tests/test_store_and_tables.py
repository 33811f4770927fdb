import math
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.entries import Place, make_entries, paper_results
from benchmarks.files import OutputError, write_text
from benchmarks.grid import Cell
from benchmarks.statistics import summarise
from benchmarks.store import Store, finite_or_none
from benchmarks.tables import to_csv, to_latex, to_markdown
from cst_lightning import InputError, get_protocol
from datamodules.catalogue import DataSpec


def cell(method="pl", backbone="dm", seeds=(0, 1, 2), dataset="D1"):
    return Cell(DataSpec.parse(dataset), backbone, method, seeds, get_protocol("written"))


def record(of, values, oracle=False, status="finished"):
    results = [
        {
            "seed": seed,
            "metrics": {} if value is None else {"nll": value},
            "floor": {"nll": 0.4},
            "constant": {"nll": 1.4},
            "status": "finished" if value is not None else "failed",
            "failed_in": None if value is not None else "backbone",
            "epochs": 1,
            "cvat_weight": None,
            "backbone_weight": None,
            "by_weight": {},
            "reliability": {},
            "rounds": [],
        }
        for seed, value in zip(of.seeds, values, strict=True)
    ]
    made = {"finished": "2026-01-01T00:00:00+00:00", "git_commit": "unknown"}
    return {
        "identity": of.identity, "status": status, "results": results, "oracle": oracle, "error": "x",
        "protocol": of.protocol.to_dict(), "overrides": {}, "metrics": ["nll"], "provenance": made,
        "selection": of.protocol.selection if oracle else None, "curves": [], "data": {},
    }  # fmt: skip


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_a_file_is_for_whoever_the_umask_lets_read(mask, tmp_path):
    (tmp_path / "text").touch(0o600)
    before = os.umask(mask)
    try:
        write_text(tmp_path / "text", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "text").stat().st_mode & 0o777 == 0o666 & ~mask
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_records_come_back_and_leave_no_rubbish(tmp_path):
    store, one = Store(tmp_path), cell()
    store.check_writable()
    assert store.read(one) is None
    store.write(one, record(one, [1 / 3, 0.1, 0.2]))
    assert store.read(one)["results"][0]["metrics"]["nll"] == 1 / 3
    assert len(list((tmp_path / "cells").iterdir())) == 1


@pytest.mark.parametrize("content", ["", "{", '{"identity": 1}', "[]", '{"status": "finished", "identity": {}}'])
def test_a_damaged_or_foreign_record_is_set_aside(tmp_path, content):
    store, one = Store(tmp_path), cell()
    (tmp_path / "cells").mkdir()
    store.path(one).write_text(content)
    assert store.read(one) is None
    assert store.path(one).read_text() == content  # looking changes nothing
    assert store.read_all() == []
    store.write(one, record(one, [1, 2, 3]))
    assert store.read(one) is not None
    (aside,) = (tmp_path / "set-aside").iterdir()
    assert aside.name.startswith(store.path(one).stem)
    assert aside.read_text() == content


def test_what_a_killed_writer_left_is_cleared(tmp_path):
    code = "import os; from pathlib import Path; from benchmarks.files import replace_file; "
    code += f"replace_file(Path({str(tmp_path)!r}, 'cells', 'a.json'), lambda path: (path.touch(), os._exit(0)))"
    subprocess.run([sys.executable, "-c", code], check=True)
    (left,) = (tmp_path / "cells").iterdir()
    writing = left.with_name(left.name.replace(left.name.split(".")[-2], str(os.getpid())))
    elsewhere = left.with_name(left.name.replace(left.name.split(".")[-3], "another-host"))
    for path in (writing, elsewhere):
        path.write_text("{")
        os.utime(path, (0, 0))
    Store(tmp_path).check_writable()
    assert {path.name for path in (tmp_path / "cells").iterdir()} == {writing.name, elsewhere.name}


def test_a_write_that_fails_leaves_the_old_record(tmp_path):
    store, one = Store(tmp_path), cell()
    store.write(one, record(one, [1, 2, 3]))
    with pytest.raises(ValueError, match="Out of range float"):
        store.write(one, {"status": math.nan})
    assert store.read(one)["results"][2]["metrics"]["nll"] == 3
    with pytest.raises(OutputError, match="File name too long"):
        write_text(tmp_path / ("x" * 300), "text")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [store.path(one).name]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e151, -1e300])
def test_a_number_of_which_no_mean_could_be_told_is_kept_as_none(value):
    assert finite_or_none(value) is None
    assert finite_or_none(-1e150) == -1e150


def test_many_writers_never_mix(tmp_path):
    store = Store(tmp_path)
    cells = [cell(method, backbone) for method in ("backbone", "pl", "pl_cvat") for backbone in ("dm", "udm", "hsic")]

    def write(number):
        for one in cells:
            store.write(one, record(one, [number] * 3))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in cells:
        values = {result["metrics"]["nll"] for result in store.read(one)["results"]}
        assert len(values) == 1
    assert len(list((tmp_path / "cells").iterdir())) == len(cells)


def test_an_unwritable_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Store(tmp_path / "file" / "sub").check_writable()


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_standard_error_is_the_sample_one(values):
    summary = summarise(values, len(values))
    mean = sum(values) / len(values)
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    assert summary.mean == pytest.approx(mean, abs=1e-6)
    assert summary.standard_error == pytest.approx(error, rel=1e-6, abs=1e-6)


def test_only_finished_seeds_are_averaged_and_said_so():
    assert summarise([], 3) is None
    assert summarise([None, math.nan], 2) is None
    summary = summarise([1.0, None, 3.0], 3)
    assert (summary.mean, summary.n, summary.asked) == (2.0, 2, 3)
    assert math.isnan(summarise([1.0], 1).standard_error)
    one = cell()
    text = to_markdown(make_entries([(Place.of_cell(one), record(one, [0.5, None, 0.7]))], "nll"))
    assert "0.6000 ± 0.1000 (n=2/3)" in text


def test_tables_show_best_paper_floor_oracle_failed_and_missing():
    cells = [cell(method) for method in ("backbone", "pl", "pl_cvat")]
    cells += [cell(method, "udm") for method in ("backbone", "pl", "pl_cvat")]
    found = [
        record(cells[0], [2.0, 2.1, 2.2]), record(cells[1], [0.6, 0.61, 0.62]), record(cells[2], [0.5, 0.5, 0.5], True),
        record(cells[3], [0, 0, 0], status="failed"), None, record(cells[5], [None, None, None]),
    ]  # fmt: skip
    entries = make_entries(list(zip(map(Place.of_cell, cells), found, strict=True)), "nll")
    text = to_markdown(entries)
    assert "| **0.5000 ± 0.0000†** | 90 % |" in text
    assert "| 0.6100 ± 0.0058 | 79 % |" in text
    assert "| paper | 0.5744 ± 0.0165 | 83 % |" in text
    assert "| paper | 0.5422 ± 0.0080† | 86 % |" in text  # whose weights an oracle chose too
    assert "| constant |  |  | 1.4000 ± 0.0000 | 0 % |" in text
    assert "| floor |  |  | 0.4000 ± 0.0000 | 100 % |" in text
    assert "| UDM | backbone | ours | failed |" in text
    assert "| UDM | PL | ours | missing |" in text
    assert "| UDM | PL + CVAT | ours | no finite seed |" in text
    assert "oracle_hamming" in text
    assert "nan" not in text.lower().replace("ours", "")
    latex = to_latex(entries)
    assert r"\textbf{0.5000$\pm$0.0000$^\dagger$}" in latex
    assert latex.count(r"\\") >= 7
    rows = to_csv(entries).splitlines()
    assert len(rows) == 7
    assert rows[4].split(",")[:8] == ["written", "", "D1", "udm", "backbone", "nll", "failed", "0"]
    assert r"50\% of \{a\_b\} \& \textbackslash{}c" in to_latex(
        [replace(entries[0], place=replace(entries[0].place, backbone=r"50% of {a_b} & \c"))]
    )


def test_latex_has_variants_of_a_data_set_in_a_table_of_their_own():
    one = cell()
    places = [replace(Place.of_cell(one), dataset=name) for name in ("D1", "D1@o=2", "D2")]
    latex = to_latex(make_entries([(place, record(one, [0.5, 0.6, 0.7])) for place in places], "nll"))
    first, second = latex.split(r"\begin{tabular}")[1:]
    assert [name in first for name in ("D1 &", "D2 &", "o=2")] == [True, True, False]
    assert [name in second for name in ("D1 &", "D2 &", "o=2")] == [False, False, True]
    assert latex.count("% NLL (nats)") == 1
    assert second.startswith("{@{}lr@{}}")  # no share of the way there, which is over the main data sets
    assert first.startswith("{@{}lrrr@{}}")
    assert r"\par" in latex.rpartition(r"\end{tabular}")[2]
    assert "Bold: lowest" in latex.rpartition(r"\end{tabular}")[2]  # in print, and not in a comment


def test_a_method_does_not_win_by_losing_its_bad_seed():
    cells = [cell("backbone"), cell("pl")]
    found = [record(cells[0], [0.5, 0.5, 0.8]), record(cells[1], [0.55, 0.55, None])]
    best = [entry.best for entry in make_entries(list(zip(map(Place.of_cell, cells), found, strict=True)), "nll")]
    assert best == [True, False]


def test_a_method_without_rivals_wins_nothing():
    one = cell()
    (entry,) = make_entries([(Place.of_cell(one), record(one, [0.5, 0.6, 0.7]))], "nll")
    assert not entry.best


def test_the_papers_144_numbers_are_there():
    numbers = paper_results()
    assert len(numbers) == 144
    assert numbers["D1", "dm", "backbone", "nll"] == (2.3738, 0.0747)
    assert numbers["D1@o=3", "dm", "pl_cvat", "hamming"] == (0.2696, 0.0092)
