"""The script that measures a log larger than memory."""

import json
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks import large_log
from benchmarks.records import provenance
from tests.sweeps import ROOT


def test_a_small_one_is_written_streamed_and_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(large_log, "_GROUP_ROWS", 700)
    path = tmp_path / "log.parquet"
    large_log.write_log(path, 1500)
    table = pq.read_table(path)
    assert pq.ParquetFile(path).num_row_groups == 3
    assert table.num_columns == 52
    assert set(table["price"].unique().to_pylist()) == set(range(1, 11))
    x, price = table["x0"].to_numpy(), table["price"].to_numpy()
    assert np.mean(x[price == 1]) > np.mean(x[price == 2]) + 0.1  # the policy sets price 1 where x0 is large
    file = tmp_path / "made" / "measured.json"
    options = ["--file", str(path), "--chunk-rows", "600", "--chunks", "4", "--json", str(file)]
    assert large_log.main(options) == 0
    found, kept = json.loads(capsys.readouterr().out), json.loads(file.read_text())
    assert found.items() <= kept.items()
    assert kept["command"] == " ".join(["python -m benchmarks.large_log", *options])
    assert kept["git_commit"] == provenance("cpu")["git_commit"]  # None in a copy without a history
    assert kept["versions"]["torch"]
    assert kept["machine"]
    assert 0 < kept["train_seconds"] <= kept["seconds"]
    assert kept["file_megabytes"] == round(path.stat().st_size / 1e6)
    assert (found["rows"], found["features"], found["actions"], found["chunks"]) == (1500, 50, 10, 3)
    assert found["trained_chunks"] == 4
    assert 0 < found["validation_nll"] < 2
    assert large_log.main(["--file", str(path), "--chunk-rows", "5"]) == 2
    assert "chunk_rows=5" in capsys.readouterr().err


def test_where_what_was_measured_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys):
    """Before any work where it shows; it may show at the end alone, as of a disk that is full by then."""
    path, trained = tmp_path / "log.parquet", []
    monkeypatch.setattr(large_log, "stream", lambda *arguments: trained.append(1) or {"rows": 1})
    path.touch()
    assert large_log.main(["--file", str(path), "--json", str(path / "measured.json")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be written (Not a directory): name another with --json" in line
    assert trained == []
    assert large_log.main(["--file", str(path), "--json", str(tmp_path)]) == 1  # a folder is no file
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path.name} was not" in line


def test_the_pages_have_the_figures_of_the_committed_measurement():
    seen = json.loads((ROOT / "results" / "large_log.json").read_text())
    assert (seen["features"], seen["actions"], seen["trained_chunks"]) == (50, 10, seen["chunks"])  # one pass
    assert seen["rows"] == 10_000_000
    assert seen["peak_megabytes"] < 2000
    assert not seen["git_commit"].endswith("+")
    rows, peak = f"{seen['rows'] / 1e6:g} million rows x 50 features x 10 actions", f"{seen['peak_megabytes']:,} MB"
    reliability, cluster = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("reliability", "how-to/cluster"))
    assert f"{rows}: {peak} ([measured](../results/large_log.json))" in reliability
    hours = 1e9 / seen["rows_a_second"] / 3600
    for text in (
        f"{rows}, {seen['file_megabytes']:,} MB of Parquet, streamed (`{seen['command']}`)",
        f"{seen['rows_a_second']:,} rows a second in {peak} |",
        f"one pass of {hours:.1f} hours on one core",
        f"about {round(1000 * hours, -2):,.0f} core-hours a pass",
        f"16 cores and 32 GB, {1000 * hours / (20 * 16):.0f} hours",
        f"0.04 dollars a core-hour, {round(1000 * hours * 0.04, -1):.0f} dollars",
        f"about {round(1e6 * seen['file_megabytes'] / seen['rows'], -1):.0f} GB as Parquet",
    ):
        assert text in cluster


def test_five_times_the_rows_train_in_the_same_memory(tmp_path):
    peaks = []
    for n_rows in (100_000, 500_000):
        path = tmp_path / f"{n_rows}.parquet"
        large_log.write_log(path, n_rows, demand="D2")
        command = [sys.executable, "-m", "benchmarks.large_log", "--file", str(path), "--chunk-rows", "20000"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(json.loads(done.stdout)["peak_megabytes"])
    # held whole, the rows that the second has more would take at least 4 bytes x 50 features each: 80 MB
    assert peaks[1] - peaks[0] < 60


def test_a_small_one_is_fitted_whole(tmp_path, capsys):
    options = ["--file", str(tmp_path / "log.parquet"), "--rows", "300", "--features", "4", "--prices", "2", "--whole"]
    options += ["--demand", "D2"]  # D1 sells always where features are few
    assert large_log.main(options) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["features"], found["actions"]) == (300, 4, 2)
    assert 0 < found["write_seconds"] < found["seconds"]
    assert -1 < found["training_log_likelihood"] < 0
    for wrong in (["--rows", "300"], ["--whole", "--chunks", "2"]):  # the file is there; nothing is streamed
        with pytest.raises(SystemExit):
            large_log.main(["--file", str(tmp_path / "log.parquet"), *wrong])
    said = capsys.readouterr().err
    assert "is there, so nothing is written" in said
    assert "--whole reads no chunks" in said
