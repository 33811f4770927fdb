"""How long a sweep says that it will still take, by how long the committed ones took."""

import heapq
import io
import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from benchmarks import progress
from benchmarks.executors.common import Event
from benchmarks.grid import make_jobs, student_groups
from benchmarks.options import saved_jobs
from benchmarks.plan import COMPILE_S, begin_seconds, estimate_seconds, trainings
from benchmarks.progress import Display
from benchmarks.records import Clock
from benchmarks.status import show_status
from benchmarks.store import Store
from benchmarks.sweep import main as sweep
from benchmarks.watching import Compiling, ProgressReport
from cst_lightning.stopping import ReplicateStopping

RESULTS = Path(__file__).parents[1] / "results"


def times_of(folder):
    """The jobs that wrote ``folder`` in their order, and the CPU time that each took."""
    jobs, _ = saved_jobs(folder)
    store = Store(folder)
    return jobs, [max(store.read(cell)["provenance"]["cpu_seconds"] for cell in job.cells) for job in jobs]


@pytest.mark.parametrize("name", ["ablation", "deviations", "matched", "overlap", "released", "written"])
def test_the_time_planned_is_about_what_each_committed_run_took(name):
    """CPU time of one machine, for which the estimate is made."""
    jobs, seconds = times_of(RESULTS / name)
    assert sum(seconds) / 1.5 < sum(map(estimate_seconds, jobs)) < 1.5 * sum(seconds)


def epochs_of(job, store):
    """Epochs of each training of a job until its last replicate had stopped."""
    records = {cell.method: store.read(cell) for cell in job.cells}
    found = [max(result["epochs"] for result in next(iter(records.values()))["results"])]
    for group in student_groups(job.methods):
        for number in range(job.protocol.rounds):
            stopped = [r["rounds"][number]["stopped_epoch"] for method in group for r in records[method]["results"]]
            found.append(max(stopped))
    return found


def share_said(job, epochs, part):
    """What a job says of itself when it has taken ``part`` of its time; an epoch takes what is planned for it."""
    report = ProgressReport(job, lambda _: None, Compiling())
    costs = [training.seconds / training.epochs for training in trainings(job)]
    at = part * (begin_seconds(job) + sum(cost * n for cost, n in zip(costs, epochs, strict=True))) - begin_seconds(job)
    if at < 0:
        return 0.0
    for cost, n in zip(costs, epochs, strict=True):
        report.begin(SimpleNamespace(name="dm", stage=1))
        if at <= cost * n:
            epoch = int(at / cost)
            # a replicate improves until the last one has waited long enough
            left = n - epoch if job.protocol.stopping == "fixed" else min(job.protocol.patience, n - epoch)
            return report.share(epoch, n if job.protocol.stopping == "fixed" else 3000, left)
        at -= cost * n
    return 1.0


# of preset quick, on one core each: the seconds a job took, and when it said of which training, epoch and epochs left
TOLD = {
    "dm": (14.4, [
        (2.0, 0, 1, 20), (3.0, 1, 1, 20), (4.0, 1, 12, 20), (4.9, 1, 23, 20), (5.7, 1, 35, 19), (6.6, 1, 54, 20),
        (7.5, 1, 76, 20), (8.3, 1, 113, 8), (8.9, 2, 1, 20), (9.9, 2, 12, 20), (10.7, 2, 23, 20), (11.6, 2, 40, 18),
        (12.5, 2, 63, 12), (13.3, 2, 98, 14),
    ]),
    "hsic": (21.5, [
        (1.7, 0, 1, 20), (2.6, 0, 7, 20), (3.5, 0, 13, 20), (4.5, 0, 19, 20), (5.4, 0, 25, 17), (6.3, 0, 31, 18),
        (7.2, 0, 37, 12), (8.1, 0, 43, 18), (9.0, 0, 49, 12), (9.8, 0, 55, 6), (10.7, 0, 61, 0), (11.5, 1, 1, 20),
        (12.4, 1, 12, 20), (13.2, 1, 23, 20), (14.1, 1, 37, 20), (15.0, 1, 58, 18), (15.9, 1, 87, 13),
        (16.7, 1, 128, 5), (17.1, 2, 1, 20), (18.1, 2, 12, 20), (18.9, 2, 23, 20), (19.8, 2, 40, 20),
        (20.7, 2, 70, 4),
    ]),
    "udm": (14.2, [
        (3.8, 0, 1, 20), (4.9, 1, 1, 20), (5.8, 1, 12, 20), (6.6, 1, 23, 20), (7.5, 1, 36, 19), (8.4, 1, 54, 17),
        (9.3, 1, 78, 18), (10.0, 2, 1, 20), (10.9, 2, 12, 20), (11.8, 2, 24, 16), (12.7, 2, 48, 15),
    ]),
}  # fmt: skip


def told_by(job, compiling):
    """The events of a job by the second; before what is trained by compiled code it compiles, for so many seconds."""
    duration, points = TOLD[job.backbone]
    report, first, found, late = ProgressReport(job, lambda _: None, Compiling()), job.backbone == "hsic", [], 0.0
    for number in range(3):
        report.begin(SimpleNamespace(name=job.backbone, stage=number))
        mine = [point[0::2] + point[3:] for point in points if point[1] == number]
        if number == first and compiling:
            found.append((mine[0][0] - 0.1, Event(job, "progress", "compiling", share=report.share(0, 1, 1))))
            late = compiling
        for second, epoch, left in mine:
            share = report.share(epoch, 2000, left)
            found.append((late + second, Event(job, "progress", "dm", share=share, setup=late)))
    return [(0.0, Event(job, "started")), *found, (late + duration, Event(job, "finished"))]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("compiling", [0.0, 37.0])
def test_time_left_of_a_recorded_sweep_is_right_also_where_it_compiles(workers, compiling, tmp_path, monkeypatch):
    jobs, free, events = make_jobs("quick"), [0.0] * workers, []
    for number, job in enumerate(jobs):
        start = heapq.heappop(free)
        mine = told_by(job, compiling if number < workers else 0.0)
        events += [(start + second, event) for second, event in mine]
        heapq.heappush(free, start + mine[-1][0])
    now, end, ratios = 0.0, max(free), []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    display = Display(jobs, [estimate_seconds(job) for job in jobs], Console(file=io.StringIO()), tmp_path, "cpu")
    events.sort(key=lambda told: told[0])
    for percent in range(1, 96):
        while events[0][0] <= end * percent / 100:
            now, event = events.pop(0)
            display.show(event)
        now = end * percent / 100
        ratios.append(display.seconds_left / (end - now))
    assert min(ratios[9:]) > 0.5
    assert max(ratios[9:]) < 2


# "quick" compiled while it ran
@pytest.mark.parametrize("name", ["ablation", "deviations", "matched", "overlap", "released", "written"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_time_left_is_right_within_a_factor_of_two_from_the_first_tenth_on(name, workers, tmp_path, monkeypatch):
    jobs, seconds = times_of(RESULTS / name)
    store = Store(RESULTS / name)
    epochs = {id(job): epochs_of(job, store) for job in jobs}
    free, spans = [0.0] * workers, []
    for job, duration in zip(jobs, seconds, strict=True):
        start = heapq.heappop(free)
        spans.append((job, start, start + duration))
        heapq.heappush(free, start + duration)
    end = max(free)
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    display = Display(jobs, [estimate_seconds(job) for job in jobs], Console(file=io.StringIO()), tmp_path, "cpu")
    told, heard = [], {}
    for percent in range(1, 100):
        before, now = now, end * percent / 100
        for job, start, stop in spans:
            if before <= start < now:
                display.show(Event(job, "started"))
            if start < now < stop:
                share = share_said(job, epochs[id(job)], (now - start) / (stop - start))
                if share != heard.get(id(job)):  # a fit of one step says nothing before its end
                    display.show(Event(job, "progress", "dm", share=share))
                heard[id(job)] = share
            elif before < stop <= now:
                display.show(Event(job, "finished"))
        told.append(display.seconds_left / (end - now))
    assert max(told[9:95]) < 2
    assert min(told[9:95]) > 0.5
    assert all(abs(ratio - 1) * (100 - percent) < 5 for percent, ratio in enumerate(told[95:], 96))  # in per cent


@pytest.mark.parametrize(("variables", "bars"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_gets_bars_unless_it_wants_plain_lines_or_can_show_no_others(variables, bars, tmp_path, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in ({"TERM": "xterm"} | variables).items():
        monkeypatch.setenv(name, value)
    (job,) = make_jobs("paper", datasets=["D1"], backbone_names=["dm"], methods=["backbone"])
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Display([job], [1.0], console, tmp_path, "cpu") as display:
        display.show(Event(job, "started"))
        monkeypatch.setattr(progress, "_LINE_S", -1)
        display.show(Event(job, "progress", "dm, epoch 30", share=0.5, mib=321.0))
        monkeypatch.undo()
        display.show(Event(job, "finished"))
    said = console.file.getvalue()
    assert ("\x1b[" in said) == bars
    assert ("50 %, 0 of 1 job ended, 1 running" in said) != bars
    assert "1/1 D1/dm finished" in said
    assert ("100 %" in said) == bars


def test_where_there_are_no_bars_a_line_a_minute_says_how_things_stand(tmp_path, monkeypatch):
    jobs = make_jobs("paper", datasets=["D1", "D2"], backbone_names=["dm"], methods=["backbone"])
    console, now = Console(file=io.StringIO(), width=100), 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    display = Display(jobs, [1.0, 1.0], console, tmp_path, "cpu")
    display.show(Event(jobs[0], "started"))
    for now in range(10, 160, 10):
        display.show(Event(jobs[0], "progress", "dm, epoch 30", share=now / 200))
    assert console.file.getvalue().splitlines() == [
        "18 %, 0 of 2 jobs ended, 1 running, about 6 min left",  # 330 s
        "35 %, 0 of 2 jobs ended, 1 running, about 4 min left",  # 260 s
    ]


@pytest.mark.parametrize(("kind", "failed"), [("finished", ""), ("failed", ", 1 failed")])
def test_at_the_beginning_of_a_sweep_the_time_that_is_left_is_the_plans(kind, failed, tmp_path, monkeypatch):
    jobs = make_jobs("paper", datasets=["D1", "D2"], backbone_names=["dm"], methods=["backbone"])
    monkeypatch.setattr(progress.time, "monotonic", lambda: 0.0)
    console = Console(file=io.StringIO(), width=100)
    display = Display(jobs, [1.0, 80.0], console, tmp_path, "cpu")
    assert display.seconds_left is None
    display.show(Event(jobs[0], "started"))
    assert display.seconds_left == 81.0
    display.show(Event(jobs[0], kind))
    assert console.file.getvalue() == f"1/2 D1/dm {kind} after 0 s{failed}, about 80 s left\n"


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Two jobs that take as long, the first of them started at 0 s of ``clock.now``, and their display."""
    jobs = make_jobs("paper", datasets=["D1", "D2"], backbone_names=["dm"], methods=["backbone"])
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    display = Display(jobs, [1.0, 1.0], Console(file=io.StringIO()), tmp_path, "cpu")
    display.show(Event(jobs[0], "started"))
    return display, jobs, clock


def test_time_left_does_not_expect_of_the_rest_what_compiling_took_once(begun):
    display, jobs, clock = begun
    clock.now = 50.0
    display.show(Event(jobs[0], "progress", "dm, epoch 30", share=0.5, setup=40.0))
    assert display.seconds_left == pytest.approx(30)
    clock.now = 60.0
    display.show(Event(jobs[0], "finished"))
    display.show(Event(jobs[1], "started"))
    assert display.seconds_left == pytest.approx(20)


def test_a_job_says_when_it_compiles_and_how_long_it_took(monkeypatch):
    (job,) = make_jobs("paper", datasets=["D1"], backbone_names=["dm"], methods=["backbone", "pl"])
    said, now, compiling = [], 0.0, Compiling()
    monkeypatch.setattr("numba.core.event.timer", lambda: now)
    report = ProgressReport(job, said.append, compiling)
    report.begin(SimpleNamespace(name="dm", stage=0))
    compiling.on_start(None)
    compiling.on_start(None)  # a function that the first one calls
    now = 39.0
    compiling.on_end(None)
    compiling.on_end(None)
    report.on_train_epoch_end(SimpleNamespace(current_epoch=0, max_epochs=9, callbacks=[]), None)
    assert [(message.text, message.setup) for message in said] == [("compiling", 0.0), ("dm, epoch 1", 39.0)]


def test_what_compiling_takes_of_the_processor_is_no_cost_of_a_job(monkeypatch):
    """On a machine that others load it takes longer by the clock than of the processor."""
    (job,) = make_jobs("paper", datasets=["D1"], backbone_names=["dm"], methods=["backbone"])
    wall = cpu = 0.0
    monkeypatch.setattr("numba.core.event.timer", lambda: wall)
    monkeypatch.setattr("time.process_time", lambda: cpu)
    compiling = Compiling()
    clock = Clock(job, "cpu", [], compiling)
    for _ in range(2):
        compiling.on_start(None)
        wall, cpu = wall + 30.0, cpu + 10.0
        compiling.on_end(None)
        cpu += 2.0
    made = clock.provenance()
    assert (made["cpu_seconds"], made["compiling_seconds"]) == (4.0, 60.0)


def test_a_job_that_is_silent_does_not_make_the_rest_seem_slow(begun):
    display, jobs, clock = begun
    clock.now = 10.0
    display.show(Event(jobs[0], "progress", "s_boosting, epoch 1", share=0.5))
    clock.now = 50.0
    assert display.seconds_left == pytest.approx(21)  # a tenth of its half, and the other job


def test_a_job_that_compiles_is_expected_to_do_so_as_long_as_it_takes_on_one_core(begun):
    display, jobs, clock = begun
    clock.now = 10.0
    display.show(Event(jobs[0], "progress", "compiling", share=0.5))
    assert display.seconds_left == pytest.approx(COMPILE_S + 10 + 20)
    clock.now += COMPILE_S / 4
    assert display.seconds_left == pytest.approx(0.75 * COMPILE_S + 10 + 20)
    clock.now += 2 * COMPILE_S
    assert display.seconds_left == pytest.approx(10 + 20)


def test_a_job_far_on_is_judged_by_its_own_speed_and_one_to_come_by_that_of_all(begun):
    display, jobs, clock = begun
    clock.now = 10.0
    display.show(Event(jobs[0], "finished"))
    display.show(Event(jobs[1], "started"))
    clock.now = 14.0
    display.show(Event(jobs[1], "progress", "dm, epoch 30", share=0.8))
    slower, own = 14.0 / 1.8, 4.0 / 0.8
    assert 0.2 * own < display.seconds_left < 0.2 * slower


@pytest.mark.parametrize(
    "change",
    [
        {"share": "0.5"},
        {"share": 10**400},
        {"pid": 10**23},
        {"updated": "now"},
        {"running": [{"job": "D1/dm", "doing": "", "share": 0.5, "mib": "x"}]},
        {"running": 7},
        "{" * 100_000,
        '{"a":' * 100_000,
        "null",
        "\udcff",
    ],
    ids=lambda change: str(change)[:20],
)
def test_what_no_sweep_wrote_of_itself_is_told_in_a_line(change, tmp_path, capsys):
    jobs = make_jobs("paper", datasets=["D1"], backbone_names=["dm"], methods=["backbone"])
    Display(jobs, [1.0], Console(file=io.StringIO()), tmp_path, "cpu")._tell()
    path = tmp_path / "progress.json"
    assert "1 job finished" in show_status(tmp_path)
    text = change if isinstance(change, str) else json.dumps(json.loads(path.read_text()) | change)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    assert sweep(["status", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: {path} is none that a sweep wrote: delete it"


def test_the_least_that_is_left_is_that_of_the_replicate_which_improved_last():
    stopping = ReplicateStopping("early", patience=20)
    assert stopping.least_epochs_left == float("inf")
    state = {"state": {"waited": torch.tensor([3, 7, 1]), "active": torch.tensor([True, True, False])}, "snapshot": {}}
    stopping.load_state_dict(state)
    assert stopping.least_epochs_left == 17  # the third has stopped
    assert ReplicateStopping("fixed").least_epochs_left == float("inf")


def of_job(job, share):
    """What of a job is done with so much of its only training."""
    before, whole = begin_seconds(job), estimate_seconds(job)
    return (before + share * (whole - before)) / whole


def test_when_the_first_training_begins_what_comes_before_it_is_done():
    (job,) = make_jobs("paper", protocol="matched", datasets=["yeast"], backbone_names=["dm"], methods=["backbone"])
    said, compiling = [], Compiling()
    report = ProgressReport(job, said.append, compiling)
    report.begin(SimpleNamespace(name="dm", stage=0))
    compiling.on_start(None)
    assert said[0].share == pytest.approx(begin_seconds(job) / estimate_seconds(job))


def test_what_is_done_never_becomes_less(monkeypatch):
    (job,) = make_jobs("paper", protocol="matched", datasets=["D1"], backbone_names=["dm"], methods=["backbone"])
    said, clock, stopping = [], count(1), ReplicateStopping("early", patience=20)
    monkeypatch.setattr("benchmarks.watching.time.monotonic", lambda: float(next(clock)))
    progress = ProgressReport(job, said.append, Compiling())
    progress.begin(SimpleNamespace(name="dm", stage=0))
    for epoch, waited in ((69, 15), (70, 0)):
        stopping.load_state_dict(
            {"state": {"waited": torch.tensor([waited]), "active": torch.tensor([True])}, "snapshot": {}}
        )
        progress.on_train_epoch_end(SimpleNamespace(current_epoch=epoch, max_epochs=2000, callbacks=[stopping]), None)
    assert said[0].share == pytest.approx(of_job(job, 70 / 75))
    assert said[1].share == said[0].share


def test_a_training_is_near_its_end_when_no_replicate_has_improved_for_long():
    (job,) = make_jobs("paper", protocol="matched", datasets=["D1"], backbone_names=["dm"], methods=["backbone"])
    report = ProgressReport(job, lambda _: None, Compiling())
    report.begin(SimpleNamespace(name="dm", stage=0))
    assert report.share(epoch=90, most=2000, left=10) == pytest.approx(of_job(job, 0.9))
    assert report.share(epoch=90, most=92, left=2) == pytest.approx(of_job(job, 90 / 92))


def test_the_share_that_is_done_rises_to_one_over_all_trainings_of_a_job(monkeypatch):
    methods = ["backbone", "pl", "pl_soft_cvat", "benchmarks.separate_passes.SeparatePasses", "tests.parts.Halved"]
    (job,) = make_jobs("paper", datasets=["D1"], backbone_names=["dm"], methods=methods)
    said, clock = [], count(1)
    monkeypatch.setattr("benchmarks.watching.time.monotonic", lambda: float(next(clock)))
    progress = ProgressReport(job, said.append, Compiling())
    n_trainings = 1 + job.protocol.rounds * 4  # hard labels, soft ones, and two classes of one's own
    for _ in range(n_trainings):
        progress.begin(SimpleNamespace(name="dm", stage=1))
        for epoch in (0, 9):
            progress.on_train_epoch_end(SimpleNamespace(current_epoch=epoch, max_epochs=10, callbacks=[]), None)
    shares = [message.share for message in said]
    assert len(shares) == 2 * n_trainings
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
