"""Running one job: train a backbone and its students on one data set, and record each cell when it is done."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pytorch_lightning as pl
import torch
from numba.core.event import install_listener
from torch import Tensor

from benchmarks.cutting import cut, join
from benchmarks.grid import Cell, Job, backbones, student_groups
from benchmarks.records import Choice, Clock, Made, by_weight, make_record
from benchmarks.store import Record
from benchmarks.texts import first_line
from benchmarks.watching import Compiling, Curve, Message, ProgressReport, Report
from cst_lightning.backbones.constant import Constant
from cst_lightning.catalogue import get_method
from cst_lightning.fitting import NO_NEWS, fit
from cst_lightning.metrics import evaluate
from cst_lightning.rounds import Round
from cst_lightning.selection import best, get_rule, scores
from cst_lightning.self_training import self_train
from cst_lightning.stacked import StackedModule
from datamodules.base import BanditDataModule

#: how CUDA and its libraries say that a GPU's memory is full
_FULL = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


@dataclass(frozen=True)
class Settings:
    """Where the data lie, how to train, and which records to write: see the options of the sweep.

    None of them changes a number, but for the device's rounding.
    """

    data_dir: str | None = None
    device: str = "auto"
    on_existing: str = "retry-failed"
    timeout: float | None = None  # seconds that a job may take
    retries: int = 0  # of a job that failed


class Records(Protocol):
    """What a job needs of a ``Store``."""

    def read(self, cell: Cell) -> Record | None:
        """The record of ``cell``, if there is one."""
        ...

    def write(self, cell: Cell, record: Mapping[str, Any]) -> None:
        """Keep the record of ``cell``."""
        ...


def run_job(job: Job, store: Records, settings: Settings, report: Report, failures: Sequence[str] = ()) -> None:
    """Train ``job`` and record those of its cells that are to be run, each as soon as it is done.

    All its methods are trained, so that a record does not depend on which others were there already. Where a GPU's
    memory does not hold the stack, it is trained in halves, and the record says so.

    Args:
        failures: why earlier attempts at this job failed; its records keep it.
    """
    try:
        _run_stack(job, store, settings, report, failures)
        return
    except RuntimeError as error:
        full = _of_memory(error)
        if full is None or len(job.seeds) == 1:
            raise
        said = f"OutOfMemoryError: {first_line(str(full))}"
        del full  # it holds the frames that hold the stack
    gc.collect()  # a stack and its Trainer hold each other, and its memory
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    _run_halves(job, store, settings, report, [*failures, said])


def _of_memory(error: BaseException) -> BaseException | None:
    """The error which says that a GPU's memory is full, if it is ``error`` or what that arose from.

    PyTorch's allocator says so by a type, CUDA itself and its libraries by a text; and a recording of a CUDA graph
    that runs out of memory ends with an error of the recording's.
    """
    seen = list[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, torch.OutOfMemoryError):
            return error
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _FULL):
            return error
        seen.append(id(error))
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return None


class _InMemory(dict[str, Record]):
    """Records of halves, by their keys, until they are joined."""

    def read(self, cell: Cell) -> Record | None:
        return self.get(cell.key)

    def write(self, cell: Cell, record: Mapping[str, Any]) -> None:
        self[cell.key] = dict(record)


def _run_halves(job: Job, store: Records, settings: Settings, report: Report, failures: Sequence[str]) -> None:
    wanted, kept = cells_to_run(job, store, settings.on_existing), _InMemory()
    halves = cut(job, (len(job.seeds) + 1) // 2)
    for half in halves:
        # its records are not the cell's, and a curve of some seeds is not the cell's either
        run_job(half, kept, settings, lambda said: report(said) if said.kind == "progress" else None, failures)
    for cell in wanted:
        parts = [kept[part.key] for half in halves for part in half.cells if part.method == cell.method]
        store.write(cell, join(cell, parts))
        report(Message("recorded", cell.method))


def _run_stack(job: Job, store: Records, settings: Settings, report: Report, failures: Sequence[str]) -> None:
    quiet()
    with install_listener("numba:compile", Compiling()) as compiling:
        _train_stack(job, store, settings, report, Clock(job, resolve_device(settings.device), failures, compiling))


def _train_stack(job: Job, store: Records, settings: Settings, report: Report, clock: Clock) -> None:
    progress, curves = ProgressReport(job, report, clock.compiling), list[Curve]()

    def write(cell: Cell, made: Made) -> None:
        store.write(cell, make_record(cell, made, data, constant, clock))
        report(Message("recorded", cell.method))

    report(Message("progress", "data"))
    data = job.dataset.make(job.seeds, job.protocol, settings.data_dir)
    data.setup()
    constant = _constant(job, data)

    def fitter(module: StackedModule, data: pl.LightningDataModule, max_epochs: int | None = None) -> None:
        progress.begin(module)
        accelerator = "gpu" if clock.device == "cuda" else "cpu"
        # a part with callbacks of its own may need what is logged; nothing else here looks at it
        plain = type(module).configure_callbacks is StackedModule.configure_callbacks
        curves.append(Curve(report, training))
        callbacks = [progress, curves[-1]]
        arguments: dict[str, Any] = {"accelerator": accelerator, "callbacks": callbacks, "barebones": plain}
        fit(module, data, max_epochs=max_epochs, **arguments)

    cells = {cell.method: cell for cell in job.cells}
    wanted = {cell.method for cell in cells_to_run(job, store, settings.on_existing)}
    training = [method for method in ("backbone",) if method in wanted]
    backbone_class = backbones().get(job.backbone)
    stack = backbone_class(data.shape, job.seeds, job.protocol, backbone_class.default_grid(job.protocol))
    fitter(stack, data)
    chosen = _choose(stack, data)
    backbone = stack.select(chosen.variants) if stack.n_variants > 1 else stack
    if "backbone" in wanted:
        made = Made(stack, chosen, [{} for _ in job.seeds], backbone, [], curves)
        write(cells["backbone"], made)
    for group in student_groups(job.methods):
        training = [method for method in group if method in wanted]
        for method, made in _train_students(group, job, backbone, data, fitter, curves):
            if method in wanted:
                write(cells[method], made)


def _train_students(
    methods: Sequence[str],
    job: Job,
    backbone: StackedModule,
    data: BanditDataModule,
    fitter: Callable[..., None],
    curves: list[Curve],
) -> Iterator[tuple[str, Made]]:
    """Train methods of one group in one stack, PL as weight 0 of CVAT's grid."""
    kinds = {method: get_method(method) for method in methods}
    first_kind = kinds[methods[0]]
    protocol = job.protocol.replace(labels="soft") if first_kind.soft else job.protocol
    n_plain = sum(not kind.cvat for kind in kinds.values())
    weights = [0.0] * n_plain + list(protocol.cvat_weights) * (n_plain < len(methods))
    rounds, n_before = list[Round](), len(curves)
    student = self_train(
        backbone,
        data,
        cvat_weights=weights,
        audit=data.train_outcomes,
        fitter=fitter,
        on_round=lambda _, done: rounds.append(done),
        protocol=protocol,
        student=first_kind.student,
    )
    for method, kind in kinds.items():
        first, last = (n_plain, len(weights)) if kind.cvat else (0, n_plain)
        choice = _choose(student, data, first, last)
        tried = by_weight(student, data, choice) if last - first > 1 else []
        yield method, Made(student, choice, tried, backbone, rounds, curves[n_before:])


def _choose(module: StackedModule, data: BanditDataModule, first: int = 0, last: int | None = None) -> Choice:
    last = module.n_variants if last is None else last
    if last - first == 1:
        return Choice([first] * len(module.seeds), first, None)
    rule = get_rule(module.protocol.selection)
    score = scores(rule, module, data.train, data.validation, data.oracle_validation)[:, first:last]
    return Choice([first + variant for variant in best(score)], first, score)


def _constant(job: Job, data: BanditDataModule) -> dict[str, Tensor]:
    """NLL and Hamming loss of the observed shares of each action's outcomes, the least that a method must beat."""
    constant = Constant(data.shape, job.seeds, job.protocol)
    fit(constant, data.train)
    return evaluate(constant.logits(data.test.x), data.test, ["nll", "hamming"])


def resolve_device(device: str) -> str:
    """``cpu`` or ``cuda`` for ``auto``, ``cpu`` or ``cuda``."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def quiet() -> None:
    """Lightning's notices about a Trainer of one step an epoch are no news to the reader of a sweep."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    for message in NO_NEWS:
        warnings.filterwarnings("ignore", message=message)


def cells_to_run(job: Job, store: Records, on_existing: str) -> Sequence[Cell]:
    """Cells of ``job`` that have to be run: see ``--on-existing``."""
    if on_existing == "force":
        return job.cells
    wanted = []
    for cell in job.cells:
        record = store.read(cell)
        if record is None or (record["status"] == "failed" and on_existing == "retry-failed"):
            wanted.append(cell)
    return wanted
