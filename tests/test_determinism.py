"""The same command gives the same records, however it runs; another machine differs by rounding alone."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from benchmarks.sweep import main
from tests.sweeps import ROOT, SHORT, numbers

DATASETS = ["moons", "D1@n=60,n_test=200,n_validation=50"]
BACKBONES = ["dm", "hsic", "s_logistic"]
REST = ["--seeds", "0..1", "--cvat-weights", "0.1", "1", "--override.max_epochs_hsic", "2", *SHORT]
REST += ["--override.batch_size", "20"]


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    assert (
        main(["--datasets", *DATASETS, "--backbones", *BACKBONES, *REST, "--workers", "1", "--out", str(folder)]) == 0
    )
    return folder


def test_two_workers_and_another_order_give_the_same_records(one_worker, tmp_path):
    turned = ["--datasets", *DATASETS[::-1], "--backbones", *BACKBONES[::-1], *REST]
    assert main([*turned, "--workers", "2", "--out", str(tmp_path)]) == 0
    assert numbers(tmp_path) == numbers(one_worker)
    assert len(numbers(tmp_path)) == 16


def test_eight_jobs_at_once_in_one_folder_mix_nothing(one_worker, tmp_path):
    more = ["udm", "dm_early"]
    arguments = ["--datasets", *DATASETS, "--backbones", *BACKBONES, *more, *REST]
    assert main([*arguments, "--workers", "8", "--out", str(tmp_path)]) == 0
    found = numbers(tmp_path)
    assert len(found) == 28
    assert {name: found[name] for name in numbers(one_worker)} == numbers(one_worker)
    assert not list(tmp_path.rglob("*.ckpt"))


def test_what_was_there_before_changes_no_record(one_worker, tmp_path):
    (tmp_path / "cells").mkdir()
    for path in sorted((one_worker / "cells").iterdir())[::2]:
        shutil.copy(path, tmp_path / "cells")
    again = ["--datasets", *DATASETS, "--backbones", *BACKBONES, *REST]
    assert main([*again, "--workers", "2", "--out", str(tmp_path)]) == 0
    assert numbers(tmp_path) == numbers(one_worker)


TRAIN = """
import json, torch
torch.set_num_threads({threads})
from cst_lightning import DirectMethod, evaluate, fit, self_train
from datamodules.pricing import PricingDataModule
data = PricingDataModule("D1", seeds=range(3), holdout=0.2, n_train=200, n_test=500, n_validation=50)
backbone = DirectMethod(data.shape, data.seeds, protocol="matched")
fit(backbone, data, max_epochs=5)
short = lambda module, data, max_epochs: fit(module, data, max_epochs=5)
student = self_train(backbone, data, cvat_weights=[0, 1], rounds=1, fitter=short)
nll = [evaluate(module.logits(data.test.x), data.test)["nll"] for module in (backbone, student)]
print(json.dumps([backbone.engine, torch.cat(nll).tolist()]))
"""


def losses(threads=1, **environment):
    code = TRAIN.format(threads=threads)
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    engine, values = json.loads(process.stdout.splitlines()[-1])
    assert engine == "compiled"
    assert len(values) == 9
    return values


def test_another_processor_differs_by_rounding_alone(tmp_path):
    """Compiled code and torch without this processor's wide instructions, as an old machine would run them."""
    here = losses()
    assert losses() == here
    old = losses(
        NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="", NUMBA_CACHE_DIR=str(tmp_path), ATEN_CPU_CAPABILITY="default",
        MKL_ENABLE_INSTRUCTIONS="SSE4_2", OPENBLAS_CORETYPE="Nehalem",
    )  # fmt: skip
    assert old == pytest.approx(here, rel=1e-4)
    assert losses(threads=2) == pytest.approx(here, rel=1e-4)
