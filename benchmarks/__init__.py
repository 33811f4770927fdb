"""The benchmark: what to run, running it, keeping records, tables."""

import sys

from cst_lightning.interrupting import end_at_ctrl_c

if sys.argv[:1] == ["-m"]:  # so it is while Python looks for a command in here, whose imports take seconds
    end_at_ctrl_c()
