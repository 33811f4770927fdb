"""Training many replicates as one LightningModule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from typing_extensions import override

from cst_lightning import engines
from cst_lightning.compiled import Cvat
from cst_lightning.distributions import probs
from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback, PotentialOutcomes, Shape, as_tensor
from cst_lightning.losses import Entries, Reduction, entry_nll, observed_nll, rows_last
from cst_lightning.metrics import evaluate
from cst_lightning.minibatches import batch_bounds
from cst_lightning.networks import LiftedNetwork, OutcomeNetwork
from cst_lightning.protocols import Protocol, get_protocol
from cst_lightning.stopping import ReplicateStopping
from cst_lightning.streams import Bits, generator, row_order, to_device

_EVALUATION_ROWS = 2048
_CLASS = "class"  # in a checkpoint


class StackedModule(pl.LightningModule):
    """``S`` seeds times ``W`` variants of a hyper-parameter, trained together and independently.

    Replicate ``s * W + w`` is variant ``w`` of seed ``s``. The loss is the sum of each replicate's own
    loss, so no replicate touches another. One batch of the data loader is the whole log (``Feedback``);
    a ``training_step`` runs one epoch of minibatches over it, so the Trainer counts an epoch as one step.

    Args:
        shape: sizes of the problem (``Shape`` or the dict that a checkpoint holds).
        seeds: one a replicate group; initial weights, row order and dropout are drawn from it alone.
        protocol: a ``Protocol``, its name, or its dict.
        grid: the hyper-parameter of each variant, ``[W]`` for all seeds alike or ``[S, W]``.
        network: a factory of a plain ``nn.Module`` to use in place of the protocol's network
            (see ``LiftedNetwork``); not kept in checkpoints, so pass it to ``load_from_checkpoint`` again.
        stage: 0 for a backbone, i for round i of self-training; random streams differ between stages.

    Attributes:
        stopped_epoch: epochs trained, int64 ``[R]``. failed_epoch: epoch in which the loss turned
            non-finite, 0 where it did not, int64 ``[R]``. active: replicates still in training, bool ``[R]``.
        training_loss: of the last epoch that each one trained, ``[R]``. engine: ``compiled`` or
        ``graphs`` (CUDA graphs) or ``autograd``, whichever trained last.
    """

    #: name in registries, records and tables
    name = ""
    #: raise it when a change alters the results: it is part of a run's identity
    version = 2
    #: trained by gradients, as CVAT needs; False for a learner of another kind (see ``estimators.py``)
    has_gradient = True
    #: class of the students that learn from it; None is ``SelfTraining``
    student_class: type[StackedModule] | None = None
    #: train by compiled code or CUDA graphs where they apply (see ``docs/performance.md``); False trains by autograd
    compiled = True
    #: for a class with a ``batch_loss`` of its own: it heeds ``Feedback.weight``
    takes_weights = False
    #: over the entries of a minibatch that count
    reduction: Reduction = "mean"
    #: protocol fields that this part reads besides those of every training; None says it may read all
    protocol_fields: tuple[str, ...] | None = None
    _teacher: tuple[StackedModule] | None = None  # a tuple hides it from nn.Module: it is no part of its student
    stopped_epoch: Tensor
    failed_epoch: Tensor
    hyperparameter: Tensor  # the grid as one value a replicate, [R]
    _epoch: engines.Epoch  # of the fit that goes on

    def __init__(
        self,
        shape: Shape | Mapping[str, int],
        seeds: Sequence[int] = (0,),
        protocol: Protocol | str | Mapping[str, Any] = "written",
        grid: Sequence[float] | Sequence[Sequence[float]] = (0.0,),
        network: Callable[[], nn.Module] | None = None,
        stage: int = 0,
    ) -> None:
        super().__init__()
        self.stage = stage
        self.shape = shape if isinstance(shape, Shape) else Shape(**shape)
        if isinstance(seeds, int):
            raise InputError(f"seeds={seeds}: allowed is a list, such as [{seeds}] or range({seeds})")
        self.seeds = [int(seed) for seed in seeds]
        if len(set(self.seeds)) < len(self.seeds) or not self.seeds or min(self.seeds) < 0:
            raise InputError(f"seeds={self.seeds}: allowed are different integers from 0, at least one")
        self.protocol = get_protocol(protocol)
        self.grid = _grid(grid, len(self.seeds))
        self.automatic_optimization = False
        self.network = self._make_network(network)
        self.save_hyperparameters(
            {
                "shape": {name: getattr(self.shape, name) for name in ("n_features", "n_actions", "n_outcomes")},
                "seeds": self.seeds,
                "protocol": self.protocol.to_dict(),
                "grid": self.grid,
                "stage": self.stage,
            }
        )
        n_replicates = len(self.seeds) * self.n_variants
        self.register_buffer("hyperparameter", torch.tensor(self.grid).flatten(), persistent=False)
        self.register_buffer("stopped_epoch", torch.zeros(n_replicates, dtype=torch.int64))
        self.register_buffer("failed_epoch", torch.zeros(n_replicates, dtype=torch.int64))
        self.training_loss = torch.zeros(n_replicates)
        self.active = torch.ones(n_replicates, dtype=torch.bool)
        self.engine = ""
        self.validation_nll: Tensor | None = None
        self.test_metrics: dict[str, Tensor] = {}
        self.streams: Mapping[str, Any] = {}  # of random bits, by purpose
        self._order: list[torch.Generator] = []
        self._resumed: dict[str, Any] | None = None
        self._prepared = False
        self._fitting = False

    # --- what a subclass says -------------------------------------------------------------------

    @classmethod
    def hidden_units(cls, protocol: Protocol) -> int:
        """Width of the network under ``protocol``."""
        return protocol.hidden

    @classmethod
    def rate(cls, protocol: Protocol) -> float:
        """Adam's learning rate under ``protocol``."""
        return protocol.learning_rate

    @classmethod
    def epochs(cls, protocol: Protocol) -> int:
        """Epochs under ``protocol``, at most."""
        return protocol.max_epochs

    @property
    def max_epochs(self) -> int:
        """Epochs of this module, at most."""
        return self.epochs(self.protocol)

    @classmethod
    def default_grid(cls, protocol: Protocol) -> tuple[float, ...]:
        """Values of the hyper-parameter to train under ``protocol``."""
        return (0.0,)

    def prepare(self, feedback: Feedback) -> None:
        """Called once a fit with the whole log, before its first step; with each chunk of a log that is streamed."""

    def prepares_by_row(self, log: Feedback) -> bool:
        """Whether ``prepare`` takes each row by itself, so that a log like ``log`` can be streamed in chunks."""
        return not engines.overrides(self, StackedModule, ("prepare",))

    def check_streams(self, log: Feedback) -> None:
        """Whether this module trains on a log like ``log`` in chunks.

        Raises:
            InputError: it needs the whole log (see ``prepares_by_row``), or is on a GPU.
        """
        if not self.prepares_by_row(log):
            raise InputError(
                f"{type(self).__name__} needs the whole log before its first step, and this one comes in chunks "
                "(chunk_rows): leave chunk_rows out, limit rows, or use a backbone that does not (dm, hsic; udm where "
                "the log has propensities; one of your own whose prepares_by_row says so)"
            )
        if self.trainer.strategy.root_device.type != "cpu":
            raise InputError("a log in chunks (chunk_rows) is streamed on a CPU only: pass accelerator='cpu'")

    def new_epoch(self, feedback: Feedback, order: Tensor | None, bounds: Sequence[int]) -> None:
        """Called before an epoch's first minibatch.

        Args:
            order: the rows in the order they are taken in, int64 ``[S, N]``; None as they lie.
            bounds: minibatch ``i`` takes rows ``bounds[i]`` to ``bounds[i + 1]`` of that order.
        """

    def entries(self, batch: Feedback, rows: slice | Tensor) -> Entries:
        """What the loss is taken of, for some rows ``[S, B, ...]`` at the places ``rows`` of the log.

        Row by row: compiled code asks for the rows of several minibatches at once.
        """
        raise NotImplementedError(f"{type(self).__name__} must define entries or batch_loss")

    def batch_loss(self, batch: Feedback, rows: slice | Tensor) -> Tensor:
        """Loss of each replicate, ``[R]``, for a minibatch ``[S, B, ...]`` at the places ``rows`` of the log.

        Override it for a loss that ``entries`` cannot say; it is then trained by autograd.
        """
        logits = self.network(batch.x, self.bits("dropout", batch.n_rows)).logits
        return self.entry_loss(logits, batch, rows)

    def entry_loss(self, logits: Tensor, batch: Feedback, rows: slice | Tensor) -> Tensor:
        """Loss of the entries, ``[R]``."""
        entries = self.entries(batch, rows)
        # the network's logits lie with their rows last; sums over mixed layouts are several times slower
        mine = Entries(*(rows_last(self.for_replicates(tensor)) for tensor in entries))
        return entry_nll(logits, mine, self.reduction)

    def can_compile(self) -> bool:
        """Whether compiled code does what the class says: nothing is overridden that it would pass over."""
        return not engines.overrides(self, StackedModule, ("batch_loss",)) and self._passes_over_nothing()

    def _passes_over_nothing(self) -> bool:
        own = ("entry_loss", "bits", "random", "repeat", "for_replicates")
        return not engines.overrides(self, StackedModule, own)

    def compiled_cvat(self, rows: slice | Tensor, sizes: Sequence[int]) -> Cvat | None:
        """What the compiled code needs besides ``entries``, for minibatches of ``sizes`` rows at ``rows``."""
        return None

    def teach(self, teacher: StackedModule) -> None:
        """Make ``teacher`` the source of the pseudo-labels of this student's fit."""
        self._teacher = (teacher,)

    # --- the stack ------------------------------------------------------------------------------

    @property
    def n_variants(self) -> int:
        """``W``."""
        return len(self.grid[0])

    def repeat(self, tensor: Tensor) -> Tensor:
        """``[S, ...]`` to ``[R, ...]``, each seed's values for each of its variants."""
        return tensor.repeat_interleave(self.n_variants, 0) if self.n_variants > 1 else tensor

    def for_replicates(self, tensor: Tensor) -> Tensor:
        """``[S or R, ...]`` to ``[R, ...]``."""
        return self.repeat(tensor) if len(tensor) == len(self.seeds) else tensor

    def bits(self, purpose: str, n_rows: int) -> Tensor:
        """Random bits for one pass of the network over ``n_rows`` rows, from the stream ``purpose``."""
        return self.random(purpose, self.network.n_bits(n_rows))

    def random(self, purpose: str, n: int) -> Tensor:
        """``n`` random 16-bit integers a seed, int16 ``[S, n]``."""
        taken: Tensor = self.streams[purpose].take(n)
        return taken

    def replicate_state(self) -> dict[str, Tensor]:
        """Every trained tensor, each with the leading axis ``R``."""
        return dict(self.network.named_parameters()) | dict(self.network.named_buffers())

    def select(self, variants: Sequence[int]) -> Self:
        """One chosen variant a seed, as a module of its own with ``W = 1``; ``variants`` is ``[S]``."""
        grid = [[row[variant]] for row, variant in zip(self.grid, variants, strict=True)]
        chosen = type(self)(self.shape, self.seeds, self.protocol, grid, self.factory, self.stage)
        index = torch.tensor([s * self.n_variants + v for s, v in enumerate(variants)], device=self.device)
        chosen.to(self.device)
        with torch.no_grad():
            for name, value in chosen.replicate_state().items():
                value.copy_(self.replicate_state()[name][index])
        chosen.stopped_epoch, chosen.failed_epoch = self.stopped_epoch[index], self.failed_epoch[index]
        return chosen

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Logits of every action without dropout; contexts ``[S or 1, N, d]`` (or ``[N, d]``) to ``[R, N, K, m-1]``."""
        x = self._contexts(x)
        starts = range(0, x.shape[1], _EVALUATION_ROWS)
        logits = [self.network(x[:, start : start + _EVALUATION_ROWS]).logits for start in starts]
        return self.calibrate(torch.cat(logits, 1))

    def _contexts(self, x: Tensor) -> Tensor:
        """Checked contexts, ``[S, N, d]``."""
        x = as_tensor("x", x).to(self.device, torch.float32)
        x = x[None] if x.ndim == 2 else x
        if x.ndim != 3 or x.shape[-1] != self.shape.n_features or x.shape[0] not in (1, len(self.seeds)):
            raise InputError(
                f"x has shape {tuple(x.shape)}: allowed is [N, {self.shape.n_features}], for all seeds alike, or "
                f"[{len(self.seeds)}, N, {self.shape.n_features}]"
            )
        return x.expand(len(self.seeds), -1, -1)

    def calibrate(self, logits: Tensor) -> Tensor:
        """What becomes of the network's logits ``[R, N, K, m-1]`` before anyone sees them."""
        return logits

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities of all outcomes under every action, ``[R, N, K, m]``, without dropout."""
        return probs(self.logits(x))

    def _make_network(self, factory: Callable[[], nn.Module] | None) -> OutcomeNetwork | LiftedNetwork:
        self.factory = factory
        if factory is not None:
            return LiftedNetwork(factory, self.shape, self.seeds, self.n_variants, self.stage)
        return OutcomeNetwork(
            self.shape,
            self.seeds,
            self.n_variants,
            hidden=self.hidden_units(self.protocol),
            depth=self.protocol.depth,
            dropout=self.protocol.dropout,
            architecture=self.protocol.architecture,
            stage=self.stage,
        )

    # --- Lightning ------------------------------------------------------------------------------

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        # on a GPU a step may become part of a CUDA graph
        capturable = self.device.type == "cuda"
        return torch.optim.Adam(
            self.network.parameters(), lr=self.rate(self.protocol), fused=True, capturable=capturable
        )

    @override
    def configure_callbacks(self) -> list[pl.Callback]:
        protocol = self.protocol
        return [ReplicateStopping(protocol.stopping, protocol.patience, protocol.min_improvement, self.kept())]

    def kept(self) -> Literal["last", "best"]:
        """Which epoch's weights stay: ``last`` or ``best``."""
        return self.protocol.keep

    @override
    def setup(self, stage: str) -> None:
        self._fitting = stage == "fit"

    @override
    def teardown(self, stage: str) -> None:
        self._fitting = False
        vars(self).pop("_epoch", None)  # it holds on to the optimizer

    @override
    def on_fit_start(self) -> None:
        purposes = ("dropout", "teacher", "cvat")
        self.streams = {purpose: Bits(self.seeds, purpose, self.stage, self.device) for purpose in purposes}
        self._order = [generator(seed, "order", self.stage) for seed in self.seeds]
        if self.trainer.precision not in ("32-true", "bf16-mixed"):
            raise InputError(f"precision={self.trainer.precision}: allowed are 32-true and bf16-mixed")
        if self._resumed is not None and self.trainer.ckpt_path:
            for purpose, stream in self.streams.items():
                stream.load_state_dict(self._resumed[purpose])
            for source, state in zip(self._order, self._resumed["order"], strict=True):
                source.set_state(state.cpu())
        else:
            self.failed_epoch.zero_()
            self.stopped_epoch.zero_()
        self.active = torch.ones_like(self.failed_epoch, dtype=torch.bool)  # ReplicateStopping has the last word
        self._resumed, self._prepared = None, False

    @override
    def training_step(self, feedback: Feedback, batch_idx: int) -> None:
        if batch_idx:
            raise InputError(
                "the loader must hand out the log, or a chunk of it, as its one batch: DataLoader([log], "
                "batch_size=None)"
            )
        feedback = self._aligned(feedback)
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        if not self._prepared:
            self.prepare(feedback)
            self.engine = engines.choose(self, optimizer.optimizer)
            self._epoch = engines.start(self, optimizer, feedback)
            self._prepared = True
        elif isinstance(getattr(self.trainer.train_dataloader, "dataset", None), IterableDataset):
            self.check_streams(feedback)
            self.prepare(feedback)  # these are other rows
        bounds = batch_bounds(feedback.n_rows, self.protocol.batch_size)
        order = self._row_order(feedback.n_rows) if self.protocol.shuffle else None
        with engines.denormals_flushed():
            self.new_epoch(feedback, order, bounds)
            loss = self._epoch(feedback, order, bounds) / (len(bounds) - 1)
        self.training_loss = torch.where(self.active, loss, self.training_loss.to(loss.device))
        barebones = self.trainer.barebones  # there nothing looks at the log, nor at steps without a limit to them
        if self.engine != "autograd" and not (barebones and self.trainer.max_steps == -1):
            engines.count_step(optimizer)
        if not barebones:
            self.log("train_loss", self.training_loss.mean(), batch_size=feedback.n_rows, on_epoch=True, on_step=False)

    @override
    def on_validation_epoch_start(self) -> None:
        self.validation_nll = None

    @override
    def validation_step(self, feedback: Feedback, batch_idx: int) -> None:
        feedback = self._aligned(feedback)
        self.validation_nll = observed_nll(self.logits(feedback.x), feedback)
        if not self.trainer.barebones:
            self.log("val_nll", self.validation_nll.mean(), batch_size=feedback.n_rows)

    @override
    def test_step(self, potential: PotentialOutcomes, batch_idx: int) -> None:
        self.test_metrics = evaluate(self.logits(potential.x), potential)
        for name, value in self.test_metrics.items():
            self.log(f"test_{name}", value.mean(), batch_size=potential.x.shape[1])

    @override
    def predict_step(self, x: Tensor, batch_idx: int) -> Tensor:
        return self.forward(x)

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[_CLASS] = type(self).__name__
        if self.streams:
            streams: dict[str, Any] = {purpose: stream.state_dict() for purpose, stream in self.streams.items()}
            checkpoint["streams"] = streams | {"order": [source.get_state() for source in self._order]}

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._check_is_mine(checkpoint)
        self._resumed = checkpoint.get("streams")
        if not self._fitting:
            # a model to predict with gets the weights that its stopping rule keeps, not those it was training
            kept = checkpoint.get("callbacks", {}).get(ReplicateStopping.__name__, {}).get("snapshot", {})
            state = checkpoint["state_dict"]
            state.update({name if name in state else f"network.{name}": value for name, value in kept.items()})

    def _check_is_mine(self, checkpoint: Mapping[str, Any]) -> None:
        own, kept = dict(self.hparams), checkpoint.get("hyper_parameters", {})
        name = type(self).__name__
        if checkpoint.get(_CLASS, name) != name:  # older ones do not say
            raise InputError(f"the checkpoint is of a {checkpoint[_CLASS]}, and this is a {name}")
        there, here = ({**values, **values.get("protocol", {}), "protocol": None} for values in (kept, own))
        for field in here:
            if field in there and there[field] != here[field]:
                raise InputError(f"the checkpoint has {field}={there[field]}, and this {name} {here[field]}")

    def _aligned(self, feedback: Feedback) -> Feedback:
        if feedback.shape != self.shape:
            raise InputError(f"the log has {feedback.shape}, the module {self.shape}")
        if feedback.n_replicates not in (1, len(self.seeds)):
            raise InputError(
                f"the log has {feedback.n_replicates} replicates, the module {len(self.seeds)} seeds: "
                "allowed is one log for all seeds, or one for each"
            )
        own_loss = engines.overrides(self, StackedModule, ("batch_loss",))
        if feedback.weight is not None and own_loss and not self.takes_weights:
            raise InputError(f"the log has weights, and the loss of {type(self).__name__} takes none: leave them out")
        return feedback.expand(len(self.seeds)) if feedback.n_replicates < len(self.seeds) else feedback

    def _row_order(self, n_rows: int) -> Tensor:
        return to_device(row_order(self._order, n_rows), self.device)


def _grid(grid: Sequence[float] | Sequence[Sequence[float]], n_seeds: int) -> list[list[float]]:
    try:
        values = torch.tensor(grid, dtype=torch.float64)
    except (TypeError, ValueError):
        values = torch.empty(0)
    values = values.expand(n_seeds, -1) if values.ndim == 1 else values
    if values.ndim != 2 or len(values) != n_seeds or not values.shape[1]:
        raise InputError(f"grid={grid!r}: allowed is [W] or one [W] for each of the {n_seeds} seeds")
    rows: list[list[float]] = values.tolist()
    return rows
