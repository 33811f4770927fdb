"""Parts of one's own, most of them misbehaving, named by class path in the tests of the sweep."""

import os
import resource
import signal
import tempfile
import time
from pathlib import Path

import torch

from cst_lightning import DirectMethod, Feedback, InputError, PotentialOutcomes
from datamodules.base import BanditDataModule, Draw


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
    """Says that it began by a file of the folder ``WAITING``, and trains when there is one named ``go``."""

    name = "waiting"

    def prepare(self, feedback):
        folder = Path(os.environ["WAITING"])
        tempfile.mkstemp(prefix="begun-", dir=folder)
        while not (folder / "go").exists():
            time.sleep(0.05)


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
