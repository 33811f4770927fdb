"""Parts of one's own, most of them misbehaving, named by class path in the tests of the sweep."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from cst_lightning import DirectMethod, Feedback, InputError, PotentialOutcomes, SelfTraining, StackedModule
from cst_lightning.estimators import EstimatorBackbone
from cst_lightning.losses import Entries
from cst_lightning.selection import Rule
from datamodules.base import BanditDataModule, Draw


class Silent(StackedModule):
    """It says nothing to learn."""

    name = "silent"


class Empty(EstimatorBackbone):
    """It has no estimator."""

    name = "empty"


class Broken(DirectMethod):
    name = "broken"

    def prepare(self, feedback):
        raise InputError("this backbone is broken on purpose")


class Buggy(DirectMethod):
    name = "buggy"

    def prepare(self, feedback):
        raise ZeroDivisionError


class Killed(DirectMethod):
    name = "killed"

    def prepare(self, feedback):
        os.kill(os.getpid(), signal.SIGKILL)


class Slow(DirectMethod):
    name = "slow"

    def prepare(self, feedback):
        time.sleep(600)


class Coins(BanditDataModule):
    """A data set of one's own: outcomes that nothing predicts."""

    def __init__(self, seeds, n_train: int = 100):
        super().__init__(seeds, 0.0)
        self.n_train = n_train

    def draw(self):
        g = torch.Generator().manual_seed(self.seeds[0])
        x = torch.randn(len(self.seeds), self.n_train, 3, generator=g)
        outcomes = torch.randint(2, (*x.shape[:2], 2), generator=g)
        action = torch.arange(self.n_train).expand(len(self.seeds), -1) % 2
        potential = PotentialOutcomes(x, outcomes)
        log = Feedback(x, action, outcomes.gather(-1, action[..., None])[..., 0], 2)
        return Draw(log, potential, potential, potential)


class Waiting(DirectMethod):
    """Says that it began by a file of its process id in the folder ``WAITING``, and trains when ``go`` is there."""

    name = "waiting"

    def prepare(self, feedback):
        _wait_in(os.environ["WAITING"], str(os.getpid()))


def _wait_in(folder, text):
    handle, _ = tempfile.mkstemp(prefix=f"begun-{os.getpid()}-", dir=folder)
    os.write(handle, text.encode())
    os.close(handle)
    while not Path(folder, "go").exists():
        time.sleep(0.05)


def _in_a_worker():
    return multiprocessing.parent_process() is not None or Path(sys.argv[0]).name == "default_worker.py"  # Ray's


class AlsoWaiting(Waiting):
    name = "also_waiting"


class Greedy(DirectMethod):
    """Wants more memory than it may have."""

    name = "greedy"

    def prepare(self, feedback):
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, before[1]))
        try:
            bytearray(2 << 30)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


class Large(DirectMethod):
    """A GPU's memory holds the replicates of ``at_once`` seeds."""

    name = "large"
    at_once = 3

    def prepare(self, feedback):
        if len(self.seeds) > self.at_once:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class LargeForLibraries(DirectMethod):
    """A GPU's memory holds two seeds, and who finds out says it in another way each time."""

    name = "large_for_libraries"

    def prepare(self, feedback):
        if len(self.seeds) <= 2:
            return
        way = os.environ["WAY"]
        if way == "allocator":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if way == "CUDA":
            raise torch.AcceleratorError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`.")
        if way == "cuBLAS":
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        finally:  # as the end of a recording of a CUDA graph does
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


class LargeStudent(SelfTraining):
    """A GPU's memory holds the students of three seeds."""

    name = "large_student"

    def prepare(self, feedback):
        if len(self.seeds) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        super().prepare(feedback)


class Halved(SelfTraining):
    """Pseudo-labels count half, with CVAT."""

    name = "halved"
    soft = True
    cvat = True

    def entries(self, batch, rows):
        target, weight = super().entries(batch, rows)
        taken = batch.taken.repeat_interleave(len(weight) // len(batch.taken), 0)
        return Entries(target, torch.where(taken, weight, weight / 2))


class Terminated(DirectMethod):
    name = "terminated"

    def prepare(self, feedback):
        os.kill(os.getpid(), signal.SIGTERM)


class Parent(DirectMethod):
    """Starts two processes, one in a session of its own, and hangs; their ids are in a file."""

    name = "parent"

    def prepare(self, feedback):
        children = [subprocess.Popen(["sleep", "600"], start_new_session=apart) for apart in (False, True)]
        told = Path(tempfile.gettempdir(), f"cst-child-{self.seeds[0]}")
        told.write_text(" ".join(str(child.pid) for child in children))
        time.sleep(600)


class KilledParent(DirectMethod):
    """Starts a process, whose id is in a file, and is killed."""

    name = "killed_parent"

    def prepare(self, feedback):
        child = subprocess.Popen(["sleep", "600"])
        Path(tempfile.gettempdir(), f"cst-orphan-{self.seeds[0]}").write_text(str(child.pid))
        os.kill(os.getpid(), signal.SIGKILL)


class OneNaN(DirectMethod):
    """The loss of seed 1 is not a number from the second epoch on."""

    name = "one_nan"

    def entries(self, batch, rows):
        entries = super().entries(batch, rows)
        bad = torch.tensor([seed == 1 for seed in self.seeds], device=entries.weight.device)[:, None, None]
        return (
            entries
            if self.trainer.current_epoch < 1
            else entries._replace(weight=entries.weight.masked_fill(bad, torch.nan))
        )


class WaitingCoins(Coins):
    """Says in the folder ``WAITING`` which GPUs the worker sees that draws it, and goes on when ``go`` is there."""

    def draw(self):
        if _in_a_worker():
            _wait_in(os.environ["WAITING"], os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        return super().draw()


class FlakyCoins(Coins):
    """Kills the worker that draws it, once."""

    def __init__(self, seeds, token: int = 0):
        super().__init__(seeds)
        self.marker = Path(tempfile.gettempdir(), f"cst-flaky-{token}")

    def draw(self):
        if _in_a_worker() and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().draw()


class Plain(DirectMethod):
    name = "plain"


class Leaky(DirectMethod):
    """Fails with keys in its message."""

    name = "leaky"

    def prepare(self, feedback):
        raise RuntimeError(f"login failed for {os.environ['WANDB_API_KEY']} and {os.environ['MY_TOKEN']}")


def _most_sure(logits, rows, train, protocol):
    return -logits.abs().mean((1, 2, 3))


MOST_SURE = Rule("most_sure", oracle=False, score=_most_sure)  # a bad one, and plain to see
ALL_SEEING = Rule("all_seeing", oracle=True, score=_most_sure)
