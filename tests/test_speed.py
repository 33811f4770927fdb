"""The measuring of speed: that it measures what it says, not how fast anything is."""

import json
import math
import multiprocessing
import signal
from itertools import product
from multiprocessing.connection import Connection

import pytest
import torch

from benchmarks import speed
from benchmarks.measuring import PASSES, SHAPES, Case
from benchmarks.plain_loop import PlainNetwork, train_epoch
from cst_lightning import HSIC, DirectMethod, SelfTraining, fit
from cst_lightning.streams import Bits, uniform
from tests.conftest import TinyDataModule, tiny_protocol
from tests.sweeps import ROOT


@pytest.mark.parametrize("what", ["dm", "hsic", "cvat"])
@pytest.mark.parametrize("architecture", ["written", "released"])
def test_the_plain_loop_does_the_same_mathematics(what, architecture, monkeypatch):
    data = TinyDataModule([0])
    protocol = tiny_protocol(
        architecture=architecture,
        dropout=0.0,
        reduction="mean",
        hsic_kernel="linear",
        hsic_bandwidth=None,
        stopping="fixed",
        keep_cst="last",
        learning_rate_hsic=1e-3,
    )
    teacher = DirectMethod(data.shape, [0], protocol)
    if what == "dm":
        module = DirectMethod(data.shape, [0], protocol)
    elif what == "hsic":
        module = HSIC(data.shape, [0], protocol, [0.5])
    else:
        module = SelfTraining(data.shape, [0], protocol, [0.5], stage=1)
        module.teach(teacher)
    model = PlainNetwork(data.shape, 6, architecture, 0.0)
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    for layer, stacked in zip(layers, module.network.linear, strict=True):
        layer.weight.data, layer.bias.data = stacked.weight.data[0].clone(), stacked.bias.data[0, :, 0].clone()
    log = data.train
    starts = Bits([0], "cvat", 1)
    monkeypatch.setattr(torch, "rand_like", lambda x: uniform(starts.take(x.numel())).view(x.shape) + 0.5)
    fit(module, log, max_epochs=2)
    if what == "cvat":
        target, weight = (tensor[0] for tensor in module._entries)
    else:
        target, weight = (tensor[0] for tensor in module_entries(module, log, teacher))
    weights = {"cvat_weight": 0.5} if what == "cvat" else {"hsic_weight": 0.5} if what == "hsic" else {}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(2):
        train_epoch(model, optimizer, log.x[0], target[..., 0], weight, log.action[0], protocol, **weights)
    assert torch.allclose(model(log.x[0])[0], module.logits(log.x)[0, ..., 0], atol=1e-3)


def module_entries(module, log, teacher):
    return (module if isinstance(module, DirectMethod) else teacher).entries(log, slice(None))


def test_the_full_run_has_every_training_shape_width_and_stack():
    found = speed.cases(quick=False, device="cpu")
    names = [(case.what, case.shape, case.hidden, case.n_replicates) for case in found]
    assert len(set(names)) == len(names)
    assert set(product(PASSES, SHAPES, (8, 128), (1, 5, 25, 125))) <= set(names)
    grown = {name for case in found if (name := case.shape.partition("=")[0]) != case.shape}
    assert grown == {"N", "d", "K", "h", "B"}
    assert {case.what for case in found if case.shape.startswith("N=")} == {"cvat", "hsic"}


def test_a_wide_case_says_where_its_time_goes(tmp_path, capsys):
    case = Case("cvat", "wide", (96, 26, 3), 32, 4, batch_size=32, seconds=0.05, barebones=False)
    (found,) = speed.run([case])
    weights = 26 * 32 + 32 * 32 + 32 * 3
    assert found.gflops == pytest.approx(2e-6 * 32 * weights * PASSES["cvat"] / found.cpu_ms_per_replicate_step)
    assert found.share_of_matmul_rate == pytest.approx(found.gflops / found.matmul_gflops)
    assert found.ratio_to_loop == pytest.approx(found.loop_cpu_ms / found.cpu_ms_per_replicate_step)
    assert found.replicate_steps_per_s == pytest.approx(1e3 / found.wall_ms_per_replicate_step)
    shares = [found.share_of_adam, found.share_of_random_bits, found.share_of_bookkeeping]
    assert all(0 < share < 1 for share in shares)
    assert found.share_of_products > 0
    assert found.loop_wall_ms > 0


def test_a_case_is_measured_and_written(tmp_path, monkeypatch, capsys):
    small = [
        Case("cvat", "D1", (64, 12, 3), 8, 4, batch_size=32, seconds=0.05),
        Case("hsic", "B=64", (64, 4, 3), 8, 2, batch_size=64, with_loop=False, seconds=0.05),
    ]
    monkeypatch.setattr(speed, "cases", lambda quick, device: small)
    assert speed.main(["--out", str(tmp_path / "made"), "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows == json.loads((tmp_path / "made" / "speed.json").read_text())
    assert [(row["what"], row["shape"], row["hidden"], row["R"]) for row in rows] == [
        ("cvat", "D1", 8, 4),
        ("hsic", "B=64", 8, 2),
    ]
    assert [row["engine"] for row in rows] == ["compiled", "autograd"]
    for name in ("cpu_ms_per_replicate_step", "share_of_matmul_rate", "peak_mib"):
        assert all(math.isfinite(row[name]) and row[name] > 0 for row in rows)
    assert rows[0]["ratio_to_loop"] > 0
    assert rows[1]["ratio_to_loop"] is None
    assert (tmp_path / "made" / "speed.png").stat().st_size > 10_000
    assert "| cvat | D1 | 8 | 4 | compiled |" in (tmp_path / "made" / "speed.md").read_text()
    assert "cvat D1 hidden 8 R 4" in capsys.readouterr().out


def test_a_measurement_that_is_stopped_keeps_the_cases_it_has(tmp_path, monkeypatch):
    measured = []

    def stopped(wanted):
        yield from measured
        raise KeyboardInterrupt

    measured += speed.run([Case("hsic", "B=64", (64, 4, 3), 8, 2, batch_size=64, with_loop=False, seconds=0.05)])
    monkeypatch.setattr(speed, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        speed.main(["--json", str(tmp_path / "rows.json")])
    assert [row["what"] for row in json.loads((tmp_path / "rows.json").read_text())] == ["hsic"]


def test_ctrl_c_does_not_wait_for_the_case_that_is_measured(monkeypatch):
    workers = []

    def ctrl_c(connection):
        workers.extend(multiprocessing.active_children())
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "recv", ctrl_c)
    long = Case("hsic", "B=64", (64, 4, 3), 8, 2, batch_size=64, with_loop=False, seconds=0.05)
    with pytest.raises(KeyboardInterrupt):
        next(speed.run([long]))
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL]


@pytest.mark.parametrize("option", [["--out", "/proc/sys/kernel/speed"], ["--json", "/proc/sys/kernel/speed.json"]])
def test_where_figures_cannot_be_written_is_told_before_any_work(option, monkeypatch, capsys):
    monkeypatch.setattr(speed, "run", lambda _: pytest.fail("it has begun"))
    with pytest.raises(SystemExit) as ended:
        speed.main(option)
    assert ended.value.code == 2
    assert f"cannot be written (No such file or directory): name another with {option[0]}" in capsys.readouterr().err


def test_the_page_has_the_figures_of_the_committed_run():
    rows = json.loads((ROOT / "results" / "speed" / "speed.json").read_text())
    at = {(row["what"], row["shape"], row["hidden"], row["R"]): row for row in rows}
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    narrow, wide = at["cvat", "D1", 8, 25], at["cvat", "D1", 128, 25]
    assert f"{narrow['cpu_ms_per_replicate_step']:.3f} ms, {narrow['ratio_to_loop']:.0f} times less" in page
    assert narrow["cpu_ms_per_replicate_step"] <= min(0.07, narrow["loop_cpu_ms"] / 30)  # the goal, as committed
    books = [at[key]["share_of_bookkeeping"] for key in (("cvat", "D1", 8, 125), ("cvat", "D1, full Trainer", 8, 25))]
    said = f"{narrow['share_of_bookkeeping']:.0%} ({books[0]:.0%} at R = 125; {books[1]:.0%} with a full Trainer)"
    assert said.replace("%", " %") in page
    assert f"| 60 % | {wide['share_of_matmul_rate']:.0%} |".replace("%", " %").replace("  ", " ") in page
    for name, words in (
        ("share_of_products", "take {} by themselves"),
        ("share_of_adam", "Adam takes {}"),
        ("share_of_random_bits", "random bits {}"),
        ("share_of_bookkeeping", "Lightning {}"),
    ):
        assert words.format(f"{wide[name]:.0%}".replace("%", " %")) in page
    hsic = [at["hsic", "D1", 8, n] for n in (1, 25)]
    times = [row["cpu_ms_per_replicate_step"] * row["R"] for row in hsic]
    assert f"costs {times[0]:.1f} ms with one replicate and {times[1]:.1f} ms with 25" in page
