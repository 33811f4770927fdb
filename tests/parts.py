"""Parts of one's own, most of them misbehaving, named by class path in the tests of the sweep."""

import os
import signal
import time

import torch

from cst_lightning import DirectMethod, Feedback, InputError, PotentialOutcomes, StackedModule
from cst_lightning.estimators import EstimatorBackbone
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
