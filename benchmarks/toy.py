"""The paper's toy figure: ``python -m benchmarks.toy`` draws self-training on two moons."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from jsonargparse import ArgumentError, ArgumentParser
from torch import Tensor

from benchmarks.job import quiet
from cst_lightning import interrupting
from cst_lightning.backbones.direct_method import DirectMethod
from cst_lightning.distributions import mode
from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback, PotentialOutcomes
from cst_lightning.fitting import fit
from cst_lightning.metrics import evaluate
from cst_lightning.protocols import WRITTEN
from cst_lightning.self_training import self_train
from cst_lightning.stacked import StackedModule
from datamodules.moons import MoonsDataModule

#: the paper's toy: three layers of 16, dropout 0.5, CVAT weight 1, ten rounds; where the text is silent the
#: notebook of the released code (toy.ipynb): full batches, each round goes on from its teacher's weights for 1000
#: epochs, one power iteration
TOY = WRITTEN.replace(
    name="toy",
    hidden=16,
    hidden_cst=16,
    dropout=0.5,
    batch_size=50,
    learning_rate=1e-2,
    learning_rate_cst=1e-3,
    max_epochs=2000,
    max_epochs_cst=[1000],
    stopping="fixed",
    keep_cst="last",
    warm_start=True,
    cvat_weights=[1.0],
    cvat_iterations=1,
    cvat_smoothing=1e-7,
    rounds=10,
)
_COLOURS = ("#0072b2", "#d55e00")  # no, yes: told apart by colour-blind readers too
_NAMES = ("no purchase", "purchase")

Panel = tuple[str, StackedModule, StackedModule | None]  # title, model of the boundary, model of the imputed outcomes


def train_toy(seed: int, rounds: int) -> tuple[MoonsDataModule, list[Panel]]:
    """Train the direct method and ``rounds`` of self-training; the stages to draw."""
    data = MoonsDataModule([seed], noise=0.05)
    backbone = DirectMethod(data.shape, data.seeds, TOY)
    fit(backbone, data)
    students: list[StackedModule] = []
    self_train(
        backbone,
        data,
        cvat_weights=TOY.cvat_weights,
        rounds=rounds,
        on_round=lambda student, _: students.append(student),
    )
    panels: list[Panel] = [("direct method", backbone, None), ("after the first imputation", students[0], backbone)]
    if rounds > 1:
        panels.append((f"after {rounds} rounds", students[-1], students[-2]))
    return data, panels


def draw_toy(data: MoonsDataModule, panels: Sequence[Panel], path: Path) -> None:
    """One column a stage, one row an action: observed points as dots, imputed ones as triangles, the boundary."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    figure, axes = plt.subplots(
        2, len(panels), figsize=(3.6 * len(panels), 5.6), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for column, (title, model, labeller) in enumerate(panels):
        for action in range(2):
            axis = axes[action, column]
            _draw_panel(axis, data.train, data.test, model, labeller, action)
            axis.set_title(f"A{action}: {title}", fontsize=10)
            if column == 0:
                axis.set_ylabel("$x_1$")
            if action == 1:
                axis.set_xlabel("$x_0$")
    handles = [
        Line2D([], [], marker="o", ls="", color=c, label=f"observed: {n}")
        for c, n in zip(_COLOURS, _NAMES, strict=True)
    ]
    handles += [
        Line2D([], [], marker="^", ls="", color=c, label=f"imputed: {n}") for c, n in zip(_COLOURS, _NAMES, strict=True)
    ]
    handles.append(Line2D([], [], color="black", label="decision boundary"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_panel(
    axis: Any, log: Feedback, test: PotentialOutcomes, model: StackedModule, labeller: StackedModule | None, action: int
) -> None:
    x, taken = log.x[0], log.action[0] == action
    axis.scatter(*test.x[0].T, s=6, c=[_COLOURS[r] for r in test.outcomes[0, :, action]], alpha=0.12, linewidths=0)
    (left, right), (low, high) = _limits(test.x[0][:, 0]), _limits(test.x[0][:, 1])
    horizontal, vertical = np.meshgrid(np.linspace(left, right, 200), np.linspace(low, high, 200))
    points = torch.from_numpy(np.stack([horizontal.ravel(), vertical.ravel()], 1)).float()
    positive = model(points[None])[0, :, action, 1].reshape(horizontal.shape)
    axis.contour(horizontal, vertical, positive, levels=[0.5], colors="black", linewidths=1.5)
    axis.scatter(*x[taken].T, s=28, c=[_COLOURS[r] for r in log.outcome[0][taken]], edgecolors="white", linewidths=0.5)
    if labeller is not None:
        imputed = mode(labeller.logits(x[None]))[0, :, action][~taken]
        axis.scatter(
            *x[~taken].T, s=28, marker="^", c=[_COLOURS[r] for r in imputed], edgecolors="white", linewidths=0.5
        )


def _limits(values: Tensor) -> tuple[float, float]:
    margin = 0.1 * float(values.max() - values.min())
    return float(values.min()) - margin, float(values.max()) + margin


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, draw, and say how many test outcomes each stage predicts wrongly."""
    parser = ArgumentParser(prog="python -m benchmarks.toy", description=__doc__, exit_on_error=False)
    parser.add_argument("--seed", type=int, default=0, help="replicate to draw")
    parser.add_argument("--rounds", type=int, default=TOY.rounds, help="rounds of self-training")
    parser.add_argument("--out", type=str, default="results/toy/toy.png", help="the picture: .png, .svg or .pdf")
    try:
        options = parser.parse_args(arguments)
        path = Path(options.out)
        if path.suffix not in (".png", ".svg", ".pdf"):
            raise InputError(f"out={options.out}: allowed are names that end in .png, .svg or .pdf")
        if options.rounds < 1:
            raise InputError(f"rounds={options.rounds}: allowed is from 1")
        path.parent.mkdir(parents=True, exist_ok=True)
        quiet()
        torch.set_num_threads(1)
        data, panels = train_toy(options.seed, options.rounds)
        draw_toy(data, panels, path)
    except (ArgumentError, InputError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    for title, model, _ in panels:
        wrong = float(evaluate(model.logits(data.test.x), data.test)["hamming"])
        print(f"{title}: Hamming loss {wrong:.3f}")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(interrupting.run(main))
