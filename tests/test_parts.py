"""Jobs cut by seeds: what a part is, what becomes of its records, and that the numbers stay."""

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cutting import cut, join
from benchmarks.executors.common import Event
from benchmarks.grid import make_jobs, parse_seeds
from benchmarks.job import Settings, cells_to_run, run_job
from benchmarks.options import jobs_of, make_parser
from benchmarks.parts import Parts
from benchmarks.plan import seeds_said
from benchmarks.records import failed_record
from benchmarks.store import Store
from benchmarks.sweep import main
from tests.parts import Large
from tests.sweeps import TINY, farthest, numbers

SEEDS = ["0..1", "9"]
SHORT = {"batch_size": 25, "max_epochs": 8, "max_epochs_hsic": 8, "max_epochs_udm": 8, "max_epochs_cst": [4]}
EARLY = {**SHORT, "patience": 1, "learning_rate": 0.05, "cvat_weights": [0.1, 1.0], "hidden": 8, "hidden_cst": 8}


def make_job(backbone, protocol="matched", dataset="moons", seeds=SEEDS, **changes):
    (job,) = make_jobs(
        "smoke",
        protocol=protocol,
        overrides={**EARLY, **changes},
        datasets=[dataset],
        backbone_names=[backbone],
        seeds=seeds,
    )
    return job


def run_parts(parts, only=None):
    """Run the parts as an executor would, or the first ``only``; what became of the whole jobs."""
    events = parts.begin()
    for part in parts.todo[:only]:
        said = []
        run_job(part, parts.store, Settings(device="cpu"), said.append)
        for message in said:
            events += parts.take(Event(part, message.kind, message.text))
        events += parts.take(Event(part, "finished"))
    return events


def parts_of(job, store, seeds_per_job, on_existing="retry-failed"):
    return Parts([job], store, seeds_per_job, on_existing, "cpu")


@pytest.mark.parametrize(
    ("backbone", "protocol"),
    [("dm", "matched"), ("hsic", "matched"), ("constant", "matched"), ("udm", "released"), ("dm_scaled", "released")],
)
def test_a_cut_changes_numbers_by_rounding_at_most(backbone, protocol, tmp_path):
    job = make_job(backbone, protocol)
    whole, store = Store(tmp_path / "whole"), Store(tmp_path / "cut")
    run_job(job, whole, Settings(device="cpu"), lambda _: None)
    run_parts(parts_of(job, store, 2))
    ours, theirs = numbers(store.folder), numbers(whole.folder)
    assert ours.keys() == theirs.keys()
    # products of another batch may sum in another order: single precision rounds by 6e-8, and the few steps of this
    # training add that up, without a chance to grow
    assert max(farthest(theirs[name], ours[name]) for name in ours) <= 1e-5


def test_a_thousand_seeds_of_a_cell_are_those_of_a_small_run(tmp_path):
    records = {}
    for seeds in ("0..999", "997..999"):
        (job,) = make_jobs(
            "smoke", protocol="matched", overrides=EARLY | {"max_epochs": 2}, datasets=["moons"], backbone_names=["dm"],
            methods=["backbone"], seeds=[seeds],
        )  # fmt: skip
        run_job(job, Store(tmp_path / seeds), Settings(device="cpu"), lambda _: None)
        records[seeds] = [Store(tmp_path / seeds).read(cell) for cell in job.cells]
    for many, few in zip(*records.values(), strict=True):
        assert [result["seed"] for result in many["results"]] == list(range(1000))
        assert {result["status"] for result in many["results"]} == {"finished"}
        assert farthest(few["results"], many["results"][997:]) <= 1e-5


def test_parts_stop_at_different_epochs_and_their_curves_fit_together(tmp_path):
    job = make_job("dm")
    store = Store(tmp_path)
    run_parts(parts_of(job, store, 1))
    record = store.read(job.cells[0])
    epochs = [result["epochs"] for result in record["results"]]
    assert len(set(epochs)) > 1
    (curve,) = record["curves"]
    assert curve["epoch"][-1] == max(epochs)
    for series in ("training_loss", "validation_nll"):
        lasts = [
            max(e for e, v in zip(curve["epoch"], of_seed, strict=True) if v is not None) for of_seed in curve[series]
        ]
        assert lasts == epochs
    assert [result["seed"] for result in record["results"]] == [0, 1, 9]
    assert len(record["data"]["n_missing_outcomes"]) == 3
    made = record["provenance"]
    assert [part["seeds"] for part in made["parts"]] == [[0], [1], [9]]
    assert made["seconds"] == pytest.approx(sum(part["seconds"] for part in made["parts"]))


def test_a_cut_has_every_seed_once_and_knows_its_whole():
    job = make_job("dm")
    parts = cut(job, 2)
    assert [part.seeds for part in parts] == [(0, 1), (9,)]
    assert {part.whole for part in parts} == {job}
    assert parts[0].label == "moons/dm, seeds 0..1"
    assert [part.seeds for part in cut(job, 99)] == [job.seeds]


@given(st.lists(st.integers(0, 20), min_size=1, unique=True))
def test_seeds_are_said_as_the_option_takes_them(seeds):
    assert list(parse_seeds(seeds_said(seeds).split())) == seeds


def test_what_was_recorded_part_by_part_is_not_run_again(tmp_path):
    job, store = make_job("dm"), Store(tmp_path)
    first = parts_of(job, store, 2)
    assert run_parts(first, only=1) == []
    assert not (tmp_path / "cells").exists()
    second = parts_of(job, store, 2)
    assert [part.seeds for part in second.todo] == [(9,)]
    events = run_parts(second)
    assert [(event.job, event.kind, event.text) for event in events] == [
        (job, "recorded", method) for method in job.methods
    ]
    assert not cells_to_run(job, store, "retry-failed")
    assert list((tmp_path / "parts" / "cells").iterdir()) == []


def test_what_another_cut_left_is_cleared_with_the_job(tmp_path):
    job, store = make_job("dm"), Store(tmp_path)
    run_parts(parts_of(job, store, 1), only=2)
    other = make_job("dm", seeds=["4..5"])
    run_parts(parts_of(other, store, 1), only=1)
    run_parts(parts_of(job, store, 2))
    left = Store(tmp_path / "parts").read_all()
    assert {tuple(record["identity"]["seeds"]) for record in left} == {(4,)}


def test_parts_that_a_killed_sweep_did_not_join_are_joined_by_the_next(tmp_path):
    job, store = make_job("dm"), Store(tmp_path)
    for part in parts_of(job, store, 2).todo:
        run_job(part, Store(tmp_path / "parts"), Settings(device="cpu"), lambda _: None)
    parts = parts_of(job, store, 2)
    assert parts.todo == []
    assert [event.text for event in run_parts(parts)] == list(job.methods)
    assert not cells_to_run(job, store, "retry-failed")


def test_parts_that_a_killed_sweep_did_not_clear_are_cleared_by_the_next(tmp_path):
    cut_by_one = [*TINY, "--seeds-per-job", "1", "--workers", "1", "--out", str(tmp_path)]
    job = jobs_of(make_parser().parse_args(cut_by_one))[0]
    run_job(job, Store(tmp_path), Settings(device="cpu"), lambda _: None)
    for part in cut(job, 1):
        run_job(part, Store(tmp_path / "parts"), Settings(device="cpu"), lambda _: None)
    (last,) = (cell for cell in job.cells if cell.method == "pl")
    record = Store(tmp_path).path(last).rename(tmp_path / "last")
    Store(tmp_path).write(last, failed_record(last, "ended", "cpu"))
    assert main([*cut_by_one, "--on-existing", "skip"]) == 1
    assert len(Store(tmp_path / "parts").read_all()) == 6  # another command may want them
    record.rename(Store(tmp_path).path(last))
    assert main(cut_by_one) == 0
    assert list((tmp_path / "parts" / "cells").iterdir()) == []


def test_a_part_that_failed_fails_its_cells_and_is_run_again_alone(tmp_path):
    job, store = make_job("dm"), Store(tmp_path)
    parts = parts_of(job, store, 2)
    run_parts(parts, only=1)
    for cell in parts.todo[1].cells:
        parts.store.write(cell, failed_record(cell, "Traceback\nMemoryError: too much", "cpu"))
    events = parts.take(Event(parts.todo[1], "failed", "MemoryError: too much"))
    assert [(event.kind, event.job.cells) for event in events] == [("failed", [cell]) for cell in job.cells]
    record = store.read(job.cells[0])
    assert record["error"].splitlines()[0] == "1 of 2 parts failed; that of seeds 9:"
    assert record["error"].splitlines()[-1] == "MemoryError: too much"
    assert parts_of(job, store, 2, "skip").todo == []
    again = parts_of(job, store, 2)
    assert [part.seeds for part in again.todo] == [(9,)]
    run_parts(again)
    assert {store.read(cell)["status"] for cell in job.cells} == {"finished"}


def test_force_runs_every_part_again(tmp_path):
    job, store = make_job("dm"), Store(tmp_path)
    run_parts(parts_of(job, store, 2), only=1)
    assert len(parts_of(job, store, 2, "force").todo) == 2
    assert list((tmp_path / "parts" / "cells").iterdir()) == []


def test_a_method_added_later_joins_what_is_there(tmp_path):
    store = Store(tmp_path)
    alone = make_jobs(
        "smoke", protocol="matched", overrides=EARLY, datasets=["moons"], backbone_names=["dm"], methods=["backbone"],
        seeds=SEEDS,
    )[0]  # fmt: skip
    run_parts(parts_of(alone, store, 2))
    before = store.path(alone.cells[0]).stat().st_mtime_ns
    job = make_job("dm")
    run_parts(parts_of(job, store, 1))
    assert store.path(alone.cells[0]).stat().st_mtime_ns == before
    assert {store.read(cell)["status"] for cell in job.cells} == {"finished"}
    assert list((tmp_path / "parts" / "cells").iterdir()) == []


def test_the_command_line_cuts_and_gives_the_same_records(tmp_path, capsys):
    assert main([*TINY, "--out", str(tmp_path / "whole")]) == 0
    options = [*TINY, "--seeds-per-job", "1", "--workers", "2", "--out", str(tmp_path / "cut")]
    assert main(options) == 0
    ours, theirs = numbers(tmp_path / "cut"), numbers(tmp_path / "whole")
    assert max(farthest(theirs[name], ours[name]) for name in ours) <= 1e-5
    assert main(options) == 0
    assert "3 already recorded" in capsys.readouterr().err
    assert main([*options, "--seeds-per-job", "0"]) == 2
    assert "seeds_per_job=0: allowed is from 1" in capsys.readouterr().err


def test_a_stack_that_a_gpu_does_not_hold_is_trained_in_smaller_ones_and_the_record_says_so(tmp_path, monkeypatch):
    job = make_job("tests.parts.Large", seeds=["0..4"], cvat_weights=[0.1])
    store, whole, said = Store(tmp_path / "halves"), Store(tmp_path / "whole"), []
    run_job(job, store, Settings(device="cpu"), said.append)
    assert [message.text for message in said if message.kind == "recorded"] == list(job.methods)
    for record in store.read_all():
        made = record["provenance"]
        assert [part["seeds"] for part in made["parts"]] == [[0, 1, 2], [3, 4]]
        assert made["failures_before"] == ["OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."]
    monkeypatch.setattr(Large, "at_once", 5)
    run_job(job, whole, Settings(device="cpu"), lambda _: None)
    ours, theirs = numbers(store.folder), numbers(whole.folder)
    assert ours.keys() == theirs.keys()
    assert max(farthest(theirs[name], ours[name]) for name in ours) <= 1e-5
    monkeypatch.setattr(Large, "at_once", 0)
    with pytest.raises(torch.OutOfMemoryError):
        run_job(make_job("tests.parts.Large", seeds=["0"]), Store(tmp_path), Settings(device="cpu"), lambda _: None)


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("allocator", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        ("CUDA", "OutOfMemoryError: CUDA error: out of memory"),
        ("cuBLAS", "OutOfMemoryError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        ("recording", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
)
def test_however_it_is_said_that_a_gpus_memory_is_full_the_stack_is_halved(way, said, tmp_path, monkeypatch):
    monkeypatch.setenv("WAY", way)
    job, store = (
        make_job("tests.parts.LargeForLibraries", seeds=["0..3"], max_epochs=1, max_epochs_cst=[1]),
        Store(tmp_path),
    )
    run_job(job, store, Settings(device="cpu"), lambda _: None)
    for record in store.read_all():
        assert [part["seeds"] for part in record["provenance"]["parts"]] == [[0, 1], [2, 3]]
        assert record["provenance"]["failures_before"] == [said]


def test_another_error_of_cuda_is_no_full_memory(tmp_path, monkeypatch):
    def broken(self, feedback):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Large, "prepare", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        run_job(make_job("tests.parts.Large", seeds=["0..3"]), Store(tmp_path), Settings(device="cpu"), lambda _: None)


def test_what_a_gpu_did_not_hold_is_gone_before_the_halves_are_trained(tmp_path, monkeypatch):
    stacks, prepare = weakref.WeakSet(), Large.prepare

    def counted(self, feedback):
        assert all(len(stack.seeds) == len(self.seeds) for stack in stacks)
        stacks.add(self)
        prepare(self, feedback)

    monkeypatch.setattr(Large, "prepare", counted)
    gc.disable()  # else it might run just then by itself
    try:
        job = make_job("tests.parts.Large", seeds=["0..3"], cvat_weights=[0.1])
        run_job(job, Store(tmp_path), Settings(device="cpu"), lambda _: None)
    finally:
        gc.enable()
    assert {len(stack.seeds) for stack in stacks} <= {2}


def test_students_that_a_gpu_does_not_hold_are_halved_and_the_backbones_record_is_left_alone(tmp_path):
    method = "tests.parts.LargeStudent"
    (job,) = make_jobs(
        "paper", datasets=["multilabel"], backbone_names=["dm"], methods=["backbone", method], seeds=["0..4"],
        overrides={"max_epochs": 2, "max_epochs_cst": (2,), "batch_size": 20},
    )  # fmt: skip
    store = Store(tmp_path)
    run_job(job, store, Settings(device="cpu"), lambda _: None)
    found = {cell.method: store.read(cell)["provenance"] for cell in job.cells}
    assert "parts" not in found["backbone"]
    assert [part["seeds"] for part in found[method]["parts"]] == [[0, 1, 2], [3, 4]]
    assert "OutOfMemoryError" in found[method]["failures_before"][0]


def test_the_record_of_a_cut_cell_has_the_reasons_of_every_part(tmp_path):
    job, store = make_job("dm", seeds=["0..3"]), Store(tmp_path)
    parts = cut(job, 2)
    for part, failures in zip(parts, (["it was killed"], []), strict=True):
        run_job(part, store, Settings(device="cpu"), lambda _: None, failures)
    joined = join(job.cells[0], [store.read(part.cells[0]) for part in parts])
    assert joined["provenance"]["failures_before"] == ["it was killed"]
    assert [part["failures_before"] for part in joined["provenance"]["parts"]] == [["it was killed"], []]
