"""What every worker would import and set up for itself: done once, by the server that workers are forked from."""

from numba import njit

import benchmarks.job
import datamodules.multilabel
import datamodules.pricing

__all__ = ["benchmarks", "datamodules"]

njit("int64(int64)")(lambda number: number)  # numba's compiler sets itself up at the first function
