"""The script that measures a log larger than memory."""

import json
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks import large_log
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
    assert large_log.main(["--file", str(path), "--chunk-rows", "600", "--chunks", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["features"], found["actions"], found["chunks"]) == (1500, 50, 10, 3)
    assert found["trained_chunks"] == 4
    assert 0 < found["validation_nll"] < 2
    assert large_log.main(["--file", str(path), "--chunk-rows", "5"]) == 2
    assert "chunk_rows=5" in capsys.readouterr().err


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
    assert -1 < found["training_log_likelihood"] < 0
    for wrong in (["--rows", "300"], ["--whole", "--chunks", "2"]):  # the file is there; nothing is streamed
        with pytest.raises(SystemExit):
            large_log.main(["--file", str(tmp_path / "log.parquet"), *wrong])
    said = capsys.readouterr().err
    assert "is there, so nothing is written" in said
    assert "--whole reads no chunks" in said
