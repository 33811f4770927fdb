"""Small problems that train in a moment, shared by the tests."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import settings

from benchmarks.grid import backbones
from benchmarks.sweep import main as sweep
from cst_lightning import Feedback, PotentialOutcomes, fit
from cst_lightning.__main__ import main as log_command
from cst_lightning.testing import close as close
from cst_lightning.testing import state_of as state_of
from cst_lightning.testing import tiny_protocol as tiny_protocol
from datamodules.base import BanditDataModule, Draw
from tests.sweeps import LOGGED, TINY

torch.set_num_threads(1)
os.environ["WANDB_MODE"] = "disabled"  # but for the tests of tracking
if not os.environ.get("CST_GPU"):  # tests ask the same of every machine; what a GPU does, test_gpu.py asks
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")


#: files of tests that take longest: they come first, so that no core is left alone with one at the end
LONGEST = (
    "test_ray.py", "test_tracking_online.py", "test_tracking_again.py", "test_sweep.py", "test_sweep_faults.py",
    "test_report.py", "test_tracking.py", "test_checkpoints.py", "test_remote.py", "test_compiled.py",
    "test_determinism.py", "test_page.py", "test_soak.py", "test_estimators.py", "test_losses.py", "test_train.py",
    "test_faults.py", "test_names.py", "test_large_log.py", "test_examples.py",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    names = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: names.get(item.path.name, len(LONGEST)))


def pytest_sessionstart(session):
    """Compile what trains once, before the processes of many tests do so beside each other."""
    if getattr(session.config.option, "numprocesses", None) and not hasattr(session.config, "workerinput"):
        train("dm", tiny_protocol(), TinyDataModule())


class TinyDataModule(BanditDataModule):
    """Random logs of any size, the same for the same seed."""

    def __init__(self, seeds=(0, 1), holdout=0.0, n=48, d=4, k=3, m=2):
        super().__init__(seeds, holdout)
        self.sizes = n, d, k, m

    def draw(self) -> Draw:
        n, d, k, m = self.sizes
        parts = []
        for seed in self.seeds:
            g = torch.Generator().manual_seed(seed)
            x = torch.randn(n, d, generator=g)
            action = torch.randint(k, (n,), generator=g)
            action[:k] = torch.arange(k)
            parts.append((x, action, torch.randint(m, (n, k), generator=g)))
        x, action, outcomes = (torch.stack(part) for part in zip(*parts, strict=True))
        potential = PotentialOutcomes(x, outcomes, m)
        log = Feedback(x, action, outcomes.gather(-1, action[..., None])[..., 0], k, m)
        return Draw(log, potential, potential.row_range(0, n // 2), potential)


#: trained by gradients; scikit-learn's learners have tests of their own
BACKBONES = sorted(name for name, part in backbones().found.items() if part.has_gradient)
LEARNERS = sorted(set(backbones().found) - set(BACKBONES))


def train(backbone, protocol, data, **changes):
    """The backbone of that name, trained."""
    part = backbones().get(backbone)
    module = part(data.shape, data.seeds, protocol, part.default_grid(protocol), **changes)
    fit(module, data)
    return module


def make_data(seeds, protocol, **sizes):
    return TinyDataModule(seeds, protocol.holdout, **sizes)


@pytest.fixture(autouse=True)
def _wandb_variables():
    """What a test, or a logger in it, leaves of W&B ends with it: variables, and settings that this process keeps."""
    before = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
    yield
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        del os.environ[name]
    os.environ.update(before)
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


@pytest.fixture
def tiny() -> TinyDataModule:
    return TinyDataModule()


@pytest.fixture(scope="session")
def published_files() -> Path:
    """The folder with the files of Scene and Yeast, where there is one."""
    folder = os.environ.get("CST_DATA_DIR")
    if not folder:
        pytest.skip("CST_DATA_DIR names no folder with Scene and Yeast")
    return Path(folder)


@pytest.fixture(scope="session")
def browser():
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium on this machine")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


def open_page(browser, path, width=1440):
    """The page, and all that it said and asked other hosts for."""
    page, troubles = browser.new_page(viewport={"width": width, "height": 900}), []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: troubles.append(request.url) if request.url.startswith("http") else None)
    page.goto(path.as_uri())
    return page, troubles


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The folder of a sweep of a second, that ended well; not to be changed."""
    folder = tmp_path_factory.mktemp("whole")
    assert sweep([*TINY, "--workers", "1", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def sales(tmp_path_factory):
    """A log of three prices, training and new rows, and a model of it; a module's own."""
    folder = tmp_path_factory.mktemp("sales")
    rng = np.random.default_rng(0)
    n = 400
    frame = pd.DataFrame({"age": rng.normal(40, 9, n).round(1), "town": rng.choice(["Bern", "Chur", "Zug"], n)})
    frame["price"] = rng.choice([9.5, 14.5, 19.5], n)
    chance = 1 / (1 + np.exp((frame["price"] - 14) / 2 + (frame["age"] - 40) / 9))
    frame["bought"] = np.where(rng.random(n) < chance, "yes", "no")
    frame["customer"] = np.arange(n)
    frame[:300].to_csv(folder / "log.csv", sep=";", decimal=",", index=False, encoding="utf-8-sig")
    frame[300:].to_csv(folder / "new.csv", index=False)
    options = ["--data", str(folder / "log.csv"), "--action", "price", "--outcome", "bought", "--keep", '["customer"]']
    sizes = ["--random_state", "0", "--hidden", "8", "--max_epochs", "30"]
    assert log_command(["fit", *options, "--out", str(folder / "model"), *sizes]) == 0
    return folder


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """The folder of a sweep that logged to W&B offline; a module's own."""
    folder = tmp_path_factory.mktemp("tracking") / "run"
    options = ["--wandb", "offline", "--wandb-project", "mine", "--wandb-entity", "us", "--wandb-tags", "a", "b"]
    assert sweep([*LOGGED, *options, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def blank_figures(monkeypatch):
    """Figures are drawn and not written, which takes half a minute a folder; others look at what is on them."""
    from matplotlib import pyplot

    from benchmarks import figures
    from benchmarks.files import replace_file

    def save(figure, path):
        pyplot.close(figure)
        replace_file(path, lambda temporary: temporary.write_text("<svg/>"))

    monkeypatch.setattr(figures, "save", save)
