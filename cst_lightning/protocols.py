"""Protocols: everything the paper leaves open or its released code does otherwise.

``WRITTEN`` is the paper's text (where it is silent, what the code does), ``RELEASED`` is the code
behind the paper's tables (github.com/ruijiang81/CST), ``MATCHED`` is a level field: every method has
the same width, the same early stopping on held-out observed rows, and no oracle.

Where ``released`` knowingly differs from the code: one forward pass serves the factual and the imputed
loss and CVAT's clean prediction (the code draws dropout anew for each), and HSIC's embedding comes from
the pass of its likelihood. Each pass has the same distribution there and here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from cst_lightning.errors import InputError, unknown_name


@dataclass(frozen=True)
class Protocol:
    """One way of running the benchmark. All fields are plain values, so it prints, saves and loads as a dict."""

    name: str
    #: demand of D3 and D4: ``step(x) * p`` in the text, ``2 * step(x) * p`` in the code
    price_term: Literal["text", "code"]
    #: share of the training rows that the logging policy of Scene and Yeast is trained on
    logging_fraction: float
    #: share of the logged rows held out as observed validation rows
    holdout: float
    #: shape of the outcome network
    architecture: Literal["written", "released"]
    #: linear layers; None is the architecture's own number
    depth: int | None
    #: units a hidden layer of DM and HSIC
    hidden: int
    #: units a hidden layer of UDM
    hidden_udm: int
    #: units a hidden layer of every CST network
    hidden_cst: int
    #: probability of dropping a unit
    dropout: float
    #: Adam's learning rate of DM and UDM
    learning_rate: float
    #: Adam's learning rate of HSIC
    learning_rate_hsic: float
    #: Adam's learning rate of CST
    learning_rate_cst: float
    #: rows a step
    batch_size: int
    #: whether each epoch takes the rows in a new order
    shuffle: bool
    #: epochs of DM, at most
    max_epochs: int
    #: epochs of HSIC, at most
    max_epochs_hsic: int
    #: epochs of UDM, at most
    max_epochs_udm: int
    #: epochs of each CST round, at most; the last number serves for further rounds
    max_epochs_cst: tuple[int, ...]
    #: fixed: all epochs; converged: until the training loss stalls; early: until the NLL of held-out observed rows does
    stopping: Literal["fixed", "converged", "early"]
    #: epochs without improvement after which a replicate stops
    patience: int
    #: relative improvement that counts as one
    min_improvement: float
    #: which epoch's weights a backbone keeps: the last, or the best by what stopping watches
    keep: Literal["last", "best"]
    #: the same for CST
    keep_cst: Literal["last", "best"]
    #: rounds of imputing and retraining
    rounds: int
    #: the teacher's likeliest outcome, or its distribution
    labels: Literal["hard", "soft"]
    #: label anew each batch, with the teacher's dropout on
    teacher_dropout: bool
    #: leave out pseudo-labels whose probability is exactly the batch's median of that action
    drop_median: bool
    #: start a round from the teacher's weights instead of fresh ones (where the widths allow it)
    warm_start: bool
    #: CST loss: sum over the entries of a batch, or mean
    reduction: Literal["sum", "mean"]
    #: CVAT weights tried
    cvat_weights: tuple[float, ...]
    #: step of CVAT's finite difference
    cvat_xi: float
    #: length of CVAT's perturbation
    cvat_eps: float
    #: power iterations of CVAT
    cvat_iterations: int
    #: added inside the logarithms of CVAT's KL, as the code does: saturated entries lose their gradient. 0 is exact
    cvat_smoothing: float
    #: rule that chooses a CVAT weight (and an HSIC weight, where several are tried)
    selection: str
    #: HSIC weights tried
    hsic_weights: tuple[float, ...]
    #: HSIC kernel
    hsic_kernel: Literal["rbf", "linear"]
    #: bandwidth of the RBF kernel; None is the batch's median distance
    hsic_bandwidth: float | None
    #: divide HSIC by its largest value
    hsic_normalised: bool
    #: logistic regression behind UDM's weights
    propensity_model: Literal["multinomial", "one_vs_rest"]
    #: least propensity that UDM divides by
    propensity_floor: float

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # NumPy's numbers, as a grid search has them
            value = tuple(map(_plain, value)) if isinstance(value, list | tuple) else _plain(value)
            object.__setattr__(self, field.name, value)
            if not _fits(value, hints[field.name]):
                raise InputError(f"protocol field {field.name}={value!r}: allowed is {_said(hints[field.name])}")
        self._check_ranges()

    def _check_ranges(self) -> None:
        for names, fits, allowed in _RANGES:
            for name in names:
                value = getattr(self, name)
                values = value if isinstance(value, tuple) else (value,)
                if value == () or not all(v is None or fits(v) for v in values):
                    raise InputError(f"protocol field {name}={value!r}: allowed is {allowed}")
        for name in ("cvat_weights", "hsic_weights"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise InputError(f"protocol field {name}={getattr(self, name)!r}: a weight stands twice")
        if self.stopping == "early" and self.holdout == 0:
            raise InputError("protocol field holdout=0: stopping=early needs held-out rows, such as holdout=0.2")

    def replace(self, **changes: Any) -> Protocol:
        """The protocol with some fields changed; an unknown field is an error with the nearest names."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise unknown_name("protocol field", name, known)
        return dataclasses.replace(self, **changes)

    @property
    def changes(self) -> dict[str, Any]:
        """Fields that differ from the protocol of the same name, as plain values; all of them for another name."""
        own = self.to_dict()
        base = PROTOCOLS[self.name].to_dict() if self.name in PROTOCOLS else {}
        return {name: value for name, value in own.items() if name not in base or base[name] != value}

    def cst_epochs(self, round_: int) -> int:
        """Epochs of CST round ``round_`` (from 0), at most."""
        return self.max_epochs_cst[min(round_, len(self.max_epochs_cst) - 1)]

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values (tuples as lists), as JSON and YAML keep them."""
        return {
            field.name: list(value) if isinstance(value := getattr(self, field.name), tuple) else value
            for field in dataclasses.fields(self)
        }


def get_protocol(protocol: Protocol | str | Mapping[str, Any]) -> Protocol:
    """A protocol from itself, its name, or the dict that ``Protocol.to_dict`` gave."""
    if isinstance(protocol, Protocol):
        return protocol
    if isinstance(protocol, str):
        if protocol not in PROTOCOLS:
            raise unknown_name("protocol", protocol, PROTOCOLS)
        return PROTOCOLS[protocol]
    known = [field.name for field in dataclasses.fields(Protocol)]
    for name in protocol:
        if name not in known:
            raise unknown_name("protocol field", name, known)
    missing = [name for name in known if name not in protocol]
    if missing:
        raise InputError(f"protocol lacks the field {missing[0]}: a saved protocol holds every field")
    return Protocol(**protocol)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(v, get_args(hint)[0]) for v in value)
    if get_args(hint):  # a union with None
        return any(_fits(value, part) for part in get_args(hint))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint) and not (hint is int and isinstance(value, bool))


def _said(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    return str(getattr(hint, "__name__", hint)) if not get_args(hint) else str(hint)


_RANGES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("logging_fraction",), lambda v: 0 < v <= 1, "above 0, at most 1"),
    (
        ("holdout", "dropout", "propensity_floor", "min_improvement", "cvat_smoothing"),
        lambda v: 0 <= v < 1,
        "from 0, below 1",
    ),
    (("hidden", "hidden_udm", "hidden_cst", "batch_size", "patience", "rounds"), lambda v: v >= 1, "from 1"),
    (("max_epochs", "max_epochs_hsic", "max_epochs_udm", "max_epochs_cst"), lambda v: v >= 1, "from 1"),
    (("depth",), lambda v: v >= 3, "from 3"),
    (("cvat_iterations",), lambda v: v >= 0, "from 0"),
    (("learning_rate", "learning_rate_hsic", "learning_rate_cst", "cvat_xi", "cvat_eps"), lambda v: v > 0, "above 0"),
    (("cvat_weights",), lambda v: v > 0, "one or more weights above 0 (weight 0 is the method pl)"),
    (("hsic_weights",), lambda v: v >= 0, "one or more weights from 0"),
    (("hsic_bandwidth",), lambda v: v > 0, "above 0, or None for the median distance"),
)

WRITTEN = Protocol(
    name="written",
    price_term="text",
    logging_fraction=0.05,
    holdout=0.0,
    architecture="written",
    depth=None,
    hidden=128,
    hidden_udm=128,
    hidden_cst=128,
    dropout=0.2,
    learning_rate=1e-3,
    learning_rate_hsic=1e-4,
    learning_rate_cst=1e-3,
    batch_size=64,
    shuffle=False,
    max_epochs=2000,
    max_epochs_hsic=2000,
    max_epochs_udm=2000,
    max_epochs_cst=(2000,),
    stopping="converged",
    patience=50,
    min_improvement=0.01,
    keep="last",
    keep_cst="best",
    rounds=2,
    labels="hard",
    teacher_dropout=False,
    drop_median=False,
    warm_start=False,
    reduction="sum",
    cvat_weights=(0.01, 0.1, 1.0, 10.0),
    cvat_xi=10.0,
    cvat_eps=1.0,
    cvat_iterations=3,
    cvat_smoothing=0.0,
    selection="oracle_hamming",
    hsic_weights=(0.01,),
    hsic_kernel="rbf",
    hsic_bandwidth=0.5,
    hsic_normalised=False,
    propensity_model="multinomial",
    propensity_floor=1e-6,
)

RELEASED = WRITTEN.replace(
    name="released",
    price_term="code",
    logging_fraction=0.2,
    architecture="released",
    hidden_udm=8,
    hidden_cst=8,
    max_epochs=2000,
    max_epochs_hsic=1000,
    max_epochs_udm=3000,
    # the function sets num_epochs = 2000 inside its loop, so only the first round runs the 3000 it was asked for
    max_epochs_cst=(3000, 2000),
    stopping="fixed",
    teacher_dropout=True,
    drop_median=True,
    reduction="mean",
    cvat_smoothing=1e-7,
    hsic_kernel="linear",
    hsic_bandwidth=None,
    propensity_model="one_vs_rest",
)

MATCHED = WRITTEN.replace(
    name="matched",
    price_term="code",
    holdout=0.2,
    learning_rate_hsic=1e-3,
    shuffle=True,
    stopping="early",
    patience=20,
    min_improvement=0.0,
    keep="best",
    reduction="mean",
    selection="observed_nll",
    hsic_weights=(0.01, 0.1, 1.0, 10.0),
    hsic_bandwidth=None,
    hsic_normalised=True,
    propensity_floor=0.01,
)

PROTOCOLS = {protocol.name: protocol for protocol in (WRITTEN, RELEASED, MATCHED)}
