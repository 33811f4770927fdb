"""Backbones that misbehave, named by class path in the tests of the sweep."""

import os
import signal
import time

from cst_lightning import DirectMethod, InputError


class Broken(DirectMethod):
    name = "broken"

    def prepare(self, feedback):
        raise InputError("this backbone is broken on purpose")


class Killed(DirectMethod):
    name = "killed"

    def prepare(self, feedback):
        os.kill(os.getpid(), signal.SIGKILL)


class Slow(DirectMethod):
    name = "slow"

    def prepare(self, feedback):
        time.sleep(600)
