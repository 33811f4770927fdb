"""The measuring of speed: that it measures what it says, not how fast anything is."""

import json
import math

import pytest
import torch

from benchmarks import speed
from benchmarks.plain_loop import PlainNetwork, train_epoch
from cst_lightning import HSIC, DirectMethod, SelfTraining, fit
from cst_lightning.streams import Bits, uniform
from tests.conftest import TinyDataModule, tiny_protocol


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


def test_a_case_is_measured_and_written(tmp_path, monkeypatch, capsys):
    small = [
        speed.Case("cvat", "D1", (64, 12, 3), 8, 4, batch_size=32, seconds=0.05),
        speed.Case("hsic", "B=64", (64, 4, 3), 8, 2, batch_size=64, with_loop=False, seconds=0.05),
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
