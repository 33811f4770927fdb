"""A small log and a quick classifier, for the tests of the estimator."""

import numpy as np
import pandas as pd

QUICK = {"hidden": 6, "max_epochs": 4, "random_state": 0}


def make_log(n=120, k=3, m=2, seed=0):
    rng = np.random.default_rng(seed)
    x = pd.DataFrame(
        {"age": rng.normal(40, 10, n), "visits": rng.integers(0, 9, n), "city": rng.choice(["Oslo", "Rome"], n)}
    )
    action = np.array(["low", "mid", "high", "top"])[rng.integers(k, size=n)]
    action[:k] = ["low", "mid", "high", "top"][:k]
    outcome = np.array(["left", "one", "many"])[rng.integers(m, size=n)]
    return x, action, outcome
