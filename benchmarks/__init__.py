"""The benchmark: what to run, running it, keeping records, tables."""

import sys

from cst_lightning.interrupting import end_at_ctrl_c

# so it is while Python looks for a command in here, whose imports take seconds
if sys.argv[:1] == ["-m"] and any(one.removeprefix("-m").startswith("benchmarks.") for one in sys.orig_argv):
    end_at_ctrl_c()
