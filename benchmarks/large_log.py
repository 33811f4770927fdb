"""A large log: written in row groups, then streamed through a backbone or fitted whole, with time and peak memory."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.files import OutputError, replace_file, write_text
from benchmarks.machine import measured_here
from benchmarks.watching import peak_mib
from cst_lightning import CounterfactualClassifier, DirectMethod, InputError, fit, get_protocol, interrupting
from cst_lightning.columns import Roles
from cst_lightning.disk import check_writable
from cst_lightning.logs import read_log
from datamodules.base import draw_actions
from datamodules.logged import LoggedDataModule
from datamodules.pricing import DEMANDS, PricingDataModule

_GROUP_ROWS = 50_000


def write_log(
    path: Path, n_rows: int, n_features: int = 50, n_prices: int = 10, demand: str = "D1", seed: int = 0
) -> None:
    """A Parquet log of the pricing data, ``_GROUP_ROWS`` rows in memory at a time.

    Columns ``x0``, ``x1``, ... (float32), ``price`` (1 to K) and ``bought``.
    """
    pricing = PricingDataModule(demand, seeds=[seed], n_prices=n_prices, n_features=n_features)
    names = [f"x{i}" for i in range(pricing.n_features)]
    schema = pa.schema([*((name, pa.float32()) for name in names), ("price", pa.int16()), ("bought", pa.bool_())])

    def write(temporary: Path) -> None:
        with pq.ParquetWriter(temporary, schema) as writer:
            for number, first in enumerate(range(0, n_rows, _GROUP_ROWS)):
                rng = np.random.RandomState((seed, number))
                x = rng.uniform(size=(min(_GROUP_ROWS, n_rows - first), pricing.n_features))
                action = draw_actions(pricing.propensity(x), rng)
                probability = pricing.probabilities(seed, x)[np.arange(len(x)), action, 1]
                columns = [*x.astype(np.float32).T, (action + 1).astype(np.int16), rng.binomial(1, probability) == 1]
                writer.write_table(pa.table(columns, schema=schema))

    replace_file(path, write)


def stream(path: Path, chunk_rows: int, chunks: int | None) -> dict[str, float]:
    """Stream so many chunks of the log through DM (all of them); what it took, and the peak memory of this process."""
    started = time.perf_counter()
    data = LoggedDataModule(path, "price", "bought", holdout=0.02, chunk_rows=chunk_rows)
    model = DirectMethod(data.shape, [0], get_protocol("matched"))
    read = time.perf_counter()
    chunks = data.n_chunks if chunks is None else chunks
    fit(model, data, max_epochs=chunks)
    seconds = time.perf_counter() - read
    assert model.validation_nll is not None
    assert data.validation is not None
    return {
        "rows": data.n_rows,
        "features": data.shape.n_features,
        "actions": data.shape.n_actions,
        "chunk_rows": chunk_rows,
        "chunks": data.n_chunks,
        "trained_chunks": chunks,
        "setup_seconds": round(read - started, 1),
        "train_seconds": round(seconds, 1),
        "rows_a_second": round(chunks / data.n_chunks * (data.n_rows - data.validation.n_rows) / seconds),
        "validation_nll": round(float(model.validation_nll), 4),
        **_sizes(path),
    }


def fit_whole(path: Path) -> dict[str, float]:
    """Read the log whole and fit the default ``CounterfactualClassifier``, as ``python -m cst_lightning fit`` does."""
    started = time.perf_counter()
    log = read_log(path, columns=Roles("price", "bought"))
    names = [name for name in log.columns if name not in ("price", "bought")]
    read = time.perf_counter()
    model = CounterfactualClassifier(random_state=0).fit(log[names], log["price"], log["bought"])
    seconds, some = time.perf_counter() - read, log[:100_000]
    return {
        "rows": len(log),
        "features": len(names),
        "actions": len(model.actions_),
        "read_seconds": round(read - started, 1),
        "fit_seconds": round(seconds, 1),
        "training_log_likelihood": round(model.score(some[names], some["price"], some["bought"]), 4),
        **_sizes(path),
    }


def _sizes(path: Path) -> dict[str, float]:
    """In megabytes of 10^6 bytes: the most memory that this process held, and the file."""
    return {"peak_megabytes": round(peak_mib() * 2**20 / 1e6), "file_megabytes": round(path.stat().st_size / 1e6)}


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m benchmarks.large_log --rows 1000000 --file large.parquet``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_log", description=__doc__, allow_abbrev=False)
    parser.add_argument("--file", type=Path, required=True, help="the log; written where it is not there")
    parser.add_argument("--rows", type=int, help="of a file that is written; by default a million")
    parser.add_argument("--features", type=int, help="the same; by default 50")
    parser.add_argument("--prices", type=int, help="the same: actions, at most as many as features; by default 10")
    parser.add_argument("--whole", action="store_true", help="fit the classifier on the whole log, and stream nothing")
    parser.add_argument("--chunk-rows", type=int, help="in memory at a time; by default 100,000")
    parser.add_argument("--chunks", type=int, help="to train on; by default all, which is one pass")
    parser.add_argument(
        "--demand",
        choices=DEMANDS,
        help="of the pricing data that is written; by default D1. D2 is drawn fastest, and works with few features",
    )
    parser.add_argument("--json", type=Path, help="write what was measured, and where, to this file")
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(arguments)
    if min(options.rows or 1, options.chunks or 1) < 1 or 0 in (options.rows, options.chunks):
        parser.error(f"rows={options.rows}, chunks={options.chunks}: allowed is from 1")
    if options.whole and (options.chunk_rows, options.chunks) != (None, None):
        parser.error("--whole reads no chunks: leave --chunk-rows and --chunks out")
    asked = (options.rows, options.features, options.prices, options.demand)
    if options.file.exists() and any(one is not None for one in asked):
        parser.error(f"{options.file} is there, so nothing is written: leave --rows and such out, or name another file")
    begun, written = time.perf_counter(), {}
    rows, features, prices = options.rows or 1_000_000, options.features or 50, options.prices or 10
    demand = options.demand or "D1"
    try:
        if options.json is not None:
            check_writable(options.json.parent, "--json")
        if not options.file.exists():
            PricingDataModule(demand, [0], n_prices=prices, n_features=features)  # a wrong size is told before any work
            # in a process of its own, so that the peak is that of reading and training alone
            sizes = (rows, features, prices, demand)
            writer = multiprocessing.get_context("spawn").Process(target=write_log, args=(options.file, *sizes))
            writer.start()
            writer.join()
            if writer.exitcode:
                return 1
            written = {"write_seconds": round(time.perf_counter() - begun, 1)}
        if options.whole:
            measured = fit_whole(options.file)
        else:
            chunk_rows = 100_000 if options.chunk_rows is None else options.chunk_rows
            measured = stream(options.file, chunk_rows, options.chunks)
        measured |= {**written, "seconds": round(time.perf_counter() - begun, 1)}
        print(json.dumps(measured))
        if options.json is not None:
            seen = {"command": " ".join(["python -m benchmarks.large_log", *arguments]), **measured, **measured_here()}
            write_text(options.json, json.dumps(seen, indent=1) + "\n")
    except (InputError, OutputError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(interrupting.run(main))
