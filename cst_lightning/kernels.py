"""Minibatches of the outcome network, compiled by numba: forward pass, gradients by hand, CVAT, Adam.

``train`` works a replicate's minibatch through whole before the next one's, so its activations never
leave the cache, and what lies between two matrix products is one pass over memory. The mathematics and
the random bits are those of ``StackedModule.batch_loss`` (``losses.py`` has the equations); only
rounding differs. Nothing here looks at bounds: ``compiled.py`` does.

All of it stays in this one file: numba's cache of ``train`` sees changes of the file that ``train`` is
in, and of no other. Arrays are ``[units, rows]`` of one replicate and minibatch, unless said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
_F = TypeVar("_F", bound=Callable[..., Any])


# Infinity and NaN must stay what they are: a replicate that diverges is found by them. Sums may be taken in another
# order in the functions that take them, and a * b + c rounded once. So that rounding never depends on which copy of a
# function runs (its own or one within its caller; a cached program has the other), no line leaves LLVM the choice of
# which of two products to round.
_EXACT, _ANY_ORDER = {"contract", "nsz"}, {"contract", "nsz", "reassoc"}


def _jit(function: _F) -> _F:
    return _compile(function, {"fastmath": _EXACT})


def _sums(function: _F) -> _F:
    return _compile(function, {"fastmath": _ANY_ORDER})


def _entry(function: _F) -> _F:
    try:
        return _compile(function, {"fastmath": _ANY_ORDER, "cache": True})
    except RuntimeError:  # no folder to keep compiled code in: every process compiles for itself
        return _compile(function, {"fastmath": _ANY_ORDER})


def _compile(function: _F, options: dict[str, Any]) -> _F:
    return cast("_F", numba.njit(nogil=True, error_model="numpy", **options)(function))


BLAS_FROM = 24  # rows and columns of a matrix from which BLAS is faster than a loop that LLVM vectorises
_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_TINY = np.float32(1e-8)  # see losses.cvat


class Layers(NamedTuple):
    """Of each linear layer: ``[R, out, in]`` and ``[R, out]``."""

    weight: Sequence[Array]
    bias: Sequence[Array]


class Adam(NamedTuple):
    """Adam's settings; what its bias corrections make of the learning rate and of the root, a minibatch each."""

    rate: Array
    correction: Array
    new: np.float32  # share of a gradient in its running mean
    old_square: np.float32
    new_square: np.float32
    eps: np.float32


class Gates(NamedTuple):
    """What follows each linear layer: dropout, the activation, both or neither."""

    dropped: NDArray[np.bool_]
    active: NDArray[np.bool_]
    threshold: int  # a unit is dropped where its bits are below it
    scale: np.float32
    slope: np.float32  # of the activation below 0


class Rows(NamedTuple):
    """The rows of a run of minibatches."""

    x: Array  # [S, n, d]
    target: Array  # [S or R, n, K]
    weight: Array  # [S or R, n, K]
    counterfactual: Array  # [S, n, K]
    mean: bool


class Bits(NamedTuple):
    """Random bits of a run of minibatches, int16 ``[S, ...]``, and where the minibatches start and stop."""

    dropout: NDArray[np.int16]
    cvat: NDArray[np.int16]
    bounds: NDArray[np.int64]


class Cvat(NamedTuple):
    """CVAT's settings: see ``losses.cvat``."""

    weight: Array
    xi: np.float32
    eps: np.float32
    iterations: int
    smoothing: np.float32


class Work(NamedTuple):
    """Memory for one minibatch of one replicate."""

    x: Array  # [d, B], as start and direction
    start: Array
    direction: Array
    clean: Array  # [L - 1, h, B]: what enters each layer after the first, without CVAT's perturbation
    moved: Array  # the same with it
    first: Array  # [h, B]: of the clean contexts, the first layer
    towards: Array  # the first layer's weights times the direction
    back: Array  # [2, h, B]: gradients on their way down; the first layer's ends in back[0]
    unit: Array  # [h, B]: v of a direction W'v
    length: Array  # [B]
    logits: Array  # [K, B], as all that follow
    gradient: Array
    clean_logits: Array
    p: Array  # probability of outcome 1 in the clean pass
    p0: Array  # of outcome 0
    target: Array
    weight: Array
    share: Array  # weight of an entry in CVAT
    gram: Array  # [h, h]
    product: Array  # [h, max(h, d, K)]


# --- a run of minibatches ------------------------------------------------------------------------------


@_entry
def train(
    layers: Layers,
    means: Layers,
    squares: Layers,
    adam: Adam,
    gates: Gates,
    rows: Rows,
    bits: Bits,
    cvat: Cvat,
    active: NDArray[np.bool_],
    losses: NDArray[np.float64],
) -> None:
    """Train the replicates that are ``active`` (``[R]``) in place; their minibatch losses are added to ``losses``.

    ``means`` and ``squares`` are Adam's, in the shapes of ``layers``. A replicate whose loss turns
    non-finite is left as it then is.
    """
    n_seeds, n_layers = len(rows.x), len(layers.weight)
    n_variants = len(active) // n_seeds
    gradients = Layers(
        [np.empty_like(layers.weight[layer][0]) for layer in range(n_layers)],
        [np.empty_like(layers.bias[layer][0]) for layer in range(n_layers)],
    )
    work = _room(layers, rows.x.shape[2], bits.bounds[1])
    for s in range(n_seeds):
        used = cvat_used = 0
        for batch in range(len(bits.bounds) - 1):
            first, stop = bits.bounds[batch], bits.bounds[batch + 1]
            if stop - first != len(work.length):
                work = _room(layers, rows.x.shape[2], stop - first)
            n_bits = _n_bits(layers, gates, stop - first)
            mask = bits.dropout[s, used : used + n_bits]
            used += _whole_words(n_bits)
            cvat_bits = bits.cvat[s, cvat_used:]
            cvat_used += _whole_words(work.x.size) + (cvat.iterations + 1) * _whole_words(n_bits)
            loaded = -1
            for r in range(s * n_variants, (s + 1) * n_variants):
                if not active[r] or not np.isfinite(losses[r]):
                    continue
                if loaded < 0:
                    _load_contexts(rows, s, first, stop, cvat_bits, work)
                source = r if len(rows.target) > n_seeds else s
                if source != loaded:
                    _load_entries(rows, source, first, stop, work)
                    loaded = source
                losses[r] += _clean_pass(layers, r, gates, mask, work, gradients)
                if cvat.weight[r] != 0:
                    passes = cvat_bits[_whole_words(work.x.size) :]
                    losses[r] += _cvat_passes(layers, r, gates, passes, cvat, work, gradients)
                _adam_step(adam, batch, r, layers, gradients, means, squares)


@_sums
def _load_contexts(rows: Rows, s: int, first: int, stop: int, cvat_bits: NDArray[np.int16], work: Work) -> None:
    _transpose(rows.x[s, first:stop], work.x)
    if len(cvat_bits):
        _transpose(rows.counterfactual[s, first:stop], work.share)
        if rows.mean:
            _divide_by_count(work.share)
        _start(cvat_bits, work.start, work.length)


@_sums
def _load_entries(rows: Rows, source: int, first: int, stop: int, work: Work) -> None:
    _transpose(rows.target[source, first:stop], work.target)
    _transpose(rows.weight[source, first:stop], work.weight)
    if rows.mean:
        _divide_by_count(work.weight)


@_entry
def predict(layers: Layers, gates: Gates, x: Array, bits: Bits, out: Array) -> None:
    """Logits with dropout of contexts ``[S, n, d]``, into ``out``, ``[R, n, K]``."""
    n_variants = len(out) // len(x)
    work = _room(layers, x.shape[2], bits.bounds[1])
    for s in range(len(x)):
        used = 0
        for batch in range(len(bits.bounds) - 1):
            first, stop = bits.bounds[batch], bits.bounds[batch + 1]
            if stop - first != len(work.length):
                work = _room(layers, x.shape[2], stop - first)
            n_bits = _n_bits(layers, gates, stop - first)
            mask = bits.dropout[s, used : used + n_bits]
            used += _whole_words(n_bits)
            _transpose(x[s, first:stop], work.x)
            for r in range(s * n_variants, (s + 1) * n_variants):
                _affine(layers.weight[0][r], layers.bias[0][r], work.x, work.clean[0])
                _forward(layers, r, gates, mask, work.clean, work.logits)
                out[r, first:stop] = work.logits.T


@_jit
def _room(layers: Layers, n_features: int, n_rows: int) -> Work:
    n_layers, hidden = len(layers.weight), layers.weight[0].shape[1]
    n_logits = layers.weight[n_layers - 1].shape[1]
    by_feature = np.empty((3, n_features, n_rows), np.float32)
    by_unit = np.empty((5, hidden, n_rows), np.float32)
    by_action = np.empty((8, n_logits, n_rows), np.float32)
    return Work(
        by_feature[0],
        by_feature[1],
        by_feature[2],
        np.empty((n_layers - 1, hidden, n_rows), np.float32),
        np.empty((n_layers - 1, hidden, n_rows), np.float32),
        by_unit[0],
        by_unit[1],
        by_unit[2:4],
        by_unit[4],
        np.empty(n_rows, np.float32),
        by_action[0],
        by_action[1],
        by_action[2],
        by_action[3],
        by_action[4],
        by_action[5],
        by_action[6],
        by_action[7],
        np.empty((hidden, hidden), np.float32),
        np.empty((hidden, max(hidden, n_features, n_logits)), np.float32),
    )


@_jit
def _n_bits(layers: Layers, gates: Gates, n_rows: int) -> int:
    total = 0
    for layer in range(len(layers.weight)):
        if gates.dropped[layer]:
            total += layers.weight[layer].shape[1] * n_rows
    return total


# --- one minibatch of one replicate ----------------------------------------------------------------------


@_sums
def _clean_pass(
    layers: Layers, r: int, gates: Gates, mask: NDArray[np.int16], work: Work, gradients: Layers
) -> np.float32:
    """Weighted cross-entropy; its gradients replace those in ``gradients``."""
    _affine(layers.weight[0][r], layers.bias[0][r], work.x, work.first)
    work.clean[0] = work.first
    _forward(layers, r, gates, mask, work.clean, work.clean_logits)
    loss = _cross_entropy(work)
    _backward(layers, r, gates, mask, work, work.clean, gradients, False)
    _outer(work.back[0], work.x, gradients.weight[0], work.product, False)
    _row_sums(work.back[0], gradients.bias[0], False)
    return loss


@_sums
def _cvat_passes(
    layers: Layers, r: int, gates: Gates, bits: NDArray[np.int16], cvat: Cvat, work: Work, gradients: Layers
) -> np.float32:
    """Weight times divergence at the adversarial direction; its gradients are added to ``gradients``.

    With ``W`` the first layer's weights, only ``W direction`` enters a pass, and every direction after
    the start is ``W'v`` normalised. Where the layer is narrow the iteration therefore runs on ``v``,
    with ``W W'`` in place of two products of all features.
    """
    first_weight = layers.weight[0][r]
    n_bits = _n_bits(layers, gates, len(work.length))
    narrow = 2 * first_weight.shape[0] <= first_weight.shape[1]
    if narrow:
        _outer(first_weight, first_weight, work.gram, work.product, False)
    tiny = _TINY / cvat.xi  # the gradient of the direction is xi times that of the contexts
    _matmul(first_weight, work.start, work.towards)
    for iteration in range(cvat.iterations):
        _axpy(cvat.xi, work.towards, work.first, work.moved[0])
        mask = bits[iteration * _whole_words(n_bits) :][:n_bits]
        _forward(layers, r, gates, mask, work.moved, work.logits)
        _divergence(work, cvat.smoothing, False)
        _input_gradient(layers, r, gates, mask, work)
        if narrow:
            _matmul(work.gram, work.back[0], work.towards)
            _lengths(work.back[0], work.towards, tiny, work.length)
            work.unit[:] = work.back[0]
            _divide_rows(work.unit, work.length)
            _divide_rows(work.towards, work.length)
        else:
            _matmul(first_weight.T, work.back[0], work.direction)
            _lengths(work.direction, work.direction, tiny, work.length)
            _divide_rows(work.direction, work.length)
            _matmul(first_weight, work.direction, work.towards)
    _axpy(cvat.eps, work.towards, work.first, work.moved[0])
    mask = bits[cvat.iterations * _whole_words(n_bits) :][:n_bits]
    _forward(layers, r, gates, mask, work.moved, work.logits)
    value = _divergence(work, cvat.smoothing, True)
    _scale(work.gradient, cvat.weight[r])
    _backward(layers, r, gates, mask, work, work.moved, gradients, True)
    _outer(work.back[0], work.x, gradients.weight[0], work.product, True)
    _row_sums(work.back[0], gradients.bias[0], True)
    _scale(work.back[0], cvat.eps)
    if narrow and cvat.iterations > 0:
        _outer(work.back[0], work.unit, work.gram, work.product, False)
        _add_matmul(work.gram, first_weight, gradients.weight[0], work.product)
    else:
        direction = work.direction if cvat.iterations > 0 else work.start
        _outer(work.back[0], direction, gradients.weight[0], work.product, True)
    return np.float32(value * cvat.weight[r])


@_jit
def _forward(layers: Layers, r: int, gates: Gates, mask: NDArray[np.int16], inputs: Array, logits: Array) -> None:
    """From the first layer's result, ``inputs[0]``, to the logits; ``inputs`` becomes what enters each next layer."""
    last, used = len(inputs), 0
    for layer in range(last):
        used = _gate(inputs[layer], mask, used, gates, layer)
        out = logits if layer + 1 == last else inputs[layer + 1]
        _affine(layers.weight[layer + 1][r], layers.bias[layer + 1][r], inputs[layer], out)
    _gate(logits, mask, used, gates, last)


@_sums
def _backward(
    layers: Layers,
    r: int,
    gates: Gates,
    mask: NDArray[np.int16],
    work: Work,
    inputs: Array,
    gradients: Layers,
    add: bool,
) -> None:
    """From ``work.gradient`` to ``work.back[0]``, the gradient of the first layer's result, and to ``gradients``."""
    used = len(mask)
    g = work.gradient
    for layer in range(len(inputs), 0, -1):
        h = inputs[layer - 1]
        # the last layer has no activation, so the sign of what its gate gave does not matter
        after = g if layer == len(inputs) else inputs[layer]
        used = _gate_back(g, after, mask, used, gates, layer)
        _outer(g, h, gradients.weight[layer], work.product, add)
        _row_sums(g, gradients.bias[layer], add)
        down = work.back[(layer - 1) % 2]
        _matmul(layers.weight[layer][r].T, g, down)
        g = down
    _gate_back(g, inputs[0], mask, used, gates, 0)


@_jit
def _input_gradient(layers: Layers, r: int, gates: Gates, mask: NDArray[np.int16], work: Work) -> None:
    """``_backward`` of ``work.moved`` without the gradients of the parameters."""
    used, last = len(mask), len(work.moved)
    g = work.gradient
    used = _gate_back(g, g, mask, used, gates, last)
    for layer in range(last, 0, -1):
        down = work.back[(layer - 1) % 2]
        _matmul(layers.weight[layer][r].T, g, down)
        used = _gate_back(down, work.moved[layer - 1], mask, used, gates, layer - 1)
        g = down


@_jit
def _gate(h: Array, mask: NDArray[np.int16], used: int, gates: Gates, layer: int) -> int:
    """Dropout and activation in place; how much of ``mask`` is used now."""
    if gates.dropped[layer]:
        flat = h.ravel()
        bits = mask[used : used + flat.size]
        slope = gates.slope if gates.active[layer] else _ONE
        for i in range(flat.size):
            kept = gates.scale if bits[i] >= gates.threshold else _ZERO
            flat[i] *= kept if flat[i] > 0 else kept * slope
        return used + flat.size
    if gates.active[layer]:
        flat = h.ravel()
        for i in range(flat.size):
            flat[i] *= _ONE if flat[i] > 0 else gates.slope
    return used


@_jit
def _gate_back(g: Array, h: Array, mask: NDArray[np.int16], used: int, gates: Gates, layer: int) -> int:
    """The gradient before ``_gate``, in place, from the one after it; ``h`` is what ``_gate`` gave."""
    flat, sign = g.ravel(), h.ravel()
    if gates.dropped[layer]:
        used -= flat.size
        bits = mask[used : used + flat.size]
        slope = gates.slope if gates.active[layer] else _ONE
        for i in range(flat.size):
            kept = gates.scale if bits[i] >= gates.threshold else _ZERO
            flat[i] *= kept if sign[i] > 0 else kept * slope
    elif gates.active[layer]:
        for i in range(flat.size):
            flat[i] *= _ONE if sign[i] > 0 else gates.slope
    return used


@_sums
def _cross_entropy(work: Work) -> np.float32:
    """Weighted cross-entropy of the clean logits, their probabilities, and the gradient."""
    total = _ZERO
    logits, target, weight = work.clean_logits.ravel(), work.target.ravel(), work.weight.ravel()
    p, p0, gradient = work.p.ravel(), work.p0.ravel(), work.gradient.ravel()
    for i in range(logits.size):
        logit = logits[i]
        e = _exp(-abs(logit))
        above = _ONE / (_ONE + e)
        below = e * above
        p[i] = above if logit > 0 else below
        p0[i] = below if logit > 0 else above
        positive = logit if logit > 0 else _ZERO * logit
        total += weight[i] * (positive + _log1p(e) - target[i] * logit)
        gradient[i] = weight[i] * (p[i] - target[i])
    return total


@_sums
def _divergence(work: Work, smoothing: np.float32, with_value: bool) -> np.float32:
    """Weighted KL of the clean outcomes and those of ``work.logits`` (``distributions.kl``), and its gradient."""
    logits, clean, share = work.logits.ravel(), work.clean_logits.ravel(), work.share.ravel()
    p, p0, gradient = work.p.ravel(), work.p0.ravel(), work.gradient.ravel()
    total = _ZERO
    if smoothing > 0:
        for i in range(logits.size):
            e = _exp(-abs(logits[i]))
            above = _ONE / (_ONE + e)
            below = e * above
            q = above if logits[i] > 0 else below
            q0 = below if logits[i] > 0 else above
            a, a0 = q + smoothing, q0 + smoothing
            t = p[i] * p[i] / (a * (p[i] + smoothing * a))
            t0 = p0[i] * p0[i] / (a0 * (p0[i] + smoothing * a0))
            gradient[i] = share[i] * q * q0 * (t0 - t)
        if with_value:
            for i in range(logits.size):
                e = _exp(-abs(logits[i]))
                above = _ONE / (_ONE + e)
                below = e * above
                q = above if logits[i] > 0 else below
                q0 = below if logits[i] > 0 else above
                total += share[i] * p[i] * _log(p[i] / (q + smoothing) + smoothing)
                total += share[i] * p0[i] * _log(p0[i] / (q0 + smoothing) + smoothing)
                total += _ZERO * logits[i]
        return total
    for i in range(logits.size):
        e = _exp(-abs(logits[i]))
        above = _ONE / (_ONE + e)
        gradient[i] = share[i] * ((above if logits[i] > 0 else e * above) - p[i])
    if with_value:
        for i in range(logits.size):
            # of two outcomes, the one that the clean pass holds unlikely: then no two large terms cancel
            flip = clean[i] > 0
            before, after = (-clean[i], -logits[i]) if flip else (clean[i], logits[i])
            unlikely = p0[i] if flip else p[i]
            normaliser = (after if after > 0 else _ZERO * after) + _log1p(_exp(-abs(after)))
            total += share[i] * (unlikely * (before - after) + normaliser - _log1p(_exp(before)))
    return total


@_jit
def _adam_step(
    adam: Adam, batch: int, r: int, layers: Layers, gradients: Layers, means: Layers, squares: Layers
) -> None:
    for layer in range(len(layers.weight)):
        weight, bias = layers.weight[layer][r].ravel(), layers.bias[layer][r]
        weight_mean, weight_square = means.weight[layer][r].ravel(), squares.weight[layer][r].ravel()
        _update(adam, batch, weight, gradients.weight[layer].ravel(), weight_mean, weight_square)
        _update(adam, batch, bias, gradients.bias[layer], means.bias[layer][r], squares.bias[layer][r])


@_jit
def _update(adam: Adam, batch: int, parameter: Array, gradient: Array, mean: Array, square: Array) -> None:
    rate, correction = adam.rate[batch], adam.correction[batch]
    for i in range(parameter.size):
        mean[i] += adam.new * (gradient[i] - mean[i])
        gradient[i] = adam.new_square * gradient[i] * gradient[i]
    for i in range(parameter.size):
        square[i] = adam.old_square * square[i] + gradient[i]
        parameter[i] -= rate * mean[i] / (np.sqrt(square[i]) * correction + adam.eps)


@_jit
def _whole_words(n: int) -> int:
    """``streams.whole_words``; here, so that a change of either is not missed by the cache of compiled code."""
    return (n + 3) // 4 * 4


# --- small pieces ---------------------------------------------------------------------------------------


@_jit
def _exp(x: np.float32) -> np.float32:
    """``exp`` of a number of at most 0, to 5e-7: 2 to a whole power times a polynomial, which vectorises."""
    x = np.float32(-87) if x < -87 else x
    whole = np.int32(x * np.float32(1.44269504) - _HALF)
    f = x - np.float32(whole) * np.float32(0.693147181)
    tail = _HALF + f * (
        np.float32(1 / 6) + f * (np.float32(1 / 24) + f * (np.float32(1 / 120) + f * np.float32(1 / 720)))
    )
    power = np.int32((whole + np.int32(127)) << np.int32(23)).view(np.float32)
    return (_ONE + f * (_ONE + f * tail)) * power


@_jit
def _log1p(x: np.float32) -> np.float32:
    """``log(1 + x)`` of a number in 0..1, as the series of ``2 artanh(x / (2 + x))``."""
    z = x / (_TWO + x)
    s = z * z
    tail = np.float32(1 / 7) + s * (np.float32(1 / 9) + s * (np.float32(1 / 11) + s * np.float32(1 / 13)))
    return _TWO * z * (_ONE + s * (np.float32(1 / 3) + s * (np.float32(1 / 5) + s * tail)))


@_jit
def _log(x: np.float32) -> np.float32:
    """``log`` of a positive normal number: its exponent, and the artanh series of its fraction in 0.7..1.4."""
    bits = np.float32(x).view(np.int32) - np.int32(0x3F3504F3)  # so that the fraction starts at sqrt(1/2)
    whole = bits >> np.int32(23)
    m = np.int32((bits & np.int32(0x7FFFFF)) + np.int32(0x3F3504F3)).view(np.float32)
    z = (m - _ONE) / (m + _ONE)
    s = z * z
    tail = np.float32(1 / 3) + s * (np.float32(1 / 5) + s * (np.float32(1 / 7) + s * np.float32(1 / 9)))
    return np.float32(whole) * np.float32(0.693147181) + (_TWO * z + _TWO * z * s * tail)


@_jit
def _transpose(rows: Array, out: Array) -> None:
    for b in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            out[i, b] = rows[b, i]


@_sums
def _divide_by_count(weight: Array) -> None:
    flat = weight.ravel()
    count = _ZERO
    for i in range(flat.size):
        count += _ONE if flat[i] != 0 else _ZERO
    share = _ONE / max(count, _ONE)
    for i in range(flat.size):
        flat[i] *= share


@_jit
def _start(bits: NDArray[np.int16], out: Array, length: Array) -> None:
    """``uniform`` of the bits, ``[B, d]`` to ``[d, B]``, each row divided by its length."""
    n_features, n_rows = out.shape
    for b in range(n_rows):
        for i in range(n_features):
            out[i, b] = (np.float32(bits[b * n_features + i]) + _HALF) * np.float32(1 / 65536)
    _lengths(out, out, _TINY, length)
    _divide_rows(out, length)


@_jit
def _lengths(a: Array, b: Array, tiny: np.float32, out: Array) -> None:
    """Root of each column's inner product, which is not below 0 but for rounding, plus ``tiny``."""
    out[:] = _ZERO
    for i in range(a.shape[0]):
        for j in range(out.size):
            out[j] += a[i, j] * b[i, j]
    for j in range(out.size):
        out[j] = np.sqrt(_ZERO if out[j] < 0 else out[j]) + tiny


@_jit
def _divide_rows(a: Array, length: Array) -> None:
    for i in range(a.shape[0]):
        for j in range(length.size):
            a[i, j] /= length[j]


@_jit
def _scale(a: Array, factor: np.float32) -> None:
    flat = a.ravel()
    for i in range(flat.size):
        flat[i] *= factor


@_jit
def _axpy(factor: np.float32, a: Array, b: Array, out: Array) -> None:
    a, b, out = a.ravel(), b.ravel(), out.ravel()
    for i in range(out.size):
        out[i] = factor * a[i] + b[i]


@_sums
def _row_sums(g: Array, out: Array, add: bool) -> None:
    for j in range(g.shape[0]):
        total, row = _ZERO, g[j]
        for b in range(row.size):
            total += row[b]
        out[j] = out[j] + total if add else total


@_jit
def _affine(w: Array, bias: Array, h: Array, out: Array) -> None:
    """``w h + bias``."""
    if min(w.shape) >= BLAS_FROM:
        np.dot(w, h, out)
        for j in range(out.shape[0]):
            for b in range(out.shape[1]):
                out[j, b] += bias[j]
        return
    for j in range(out.shape[0]):
        for b in range(out.shape[1]):
            out[j, b] = bias[j]
    _accumulate(w, h, out)


@_jit
def _matmul(w: Array, h: Array, out: Array) -> None:
    """``w h``."""
    if min(w.shape) >= BLAS_FROM:
        np.dot(w, h, out)
        return
    out[:] = _ZERO
    _accumulate(w, h, out)


@_jit
def _add_matmul(w: Array, h: Array, out: Array, room: Array) -> None:
    """Add ``w h``."""
    if min(w.shape) >= BLAS_FROM:
        product = room.ravel()[: out.size].reshape(out.shape)
        np.dot(w, h, product)
        _axpy(_ONE, product, out, out)
        return
    _accumulate(w, h, out)


@_jit
def _accumulate(w: Array, h: Array, out: Array) -> None:
    # two rows by four columns of w at a time: six loads for eight multiplications
    n_in, n_rows = h.shape
    n_out = out.shape[0]
    fours, twos = n_in - n_in % 4, n_out - n_out % 2
    for j in range(0, twos, 2):
        o, p = out[j], out[j + 1]
        for i in range(0, fours, 4):
            w0, w1, w2, w3 = w[j, i], w[j, i + 1], w[j, i + 2], w[j, i + 3]
            v0, v1, v2, v3 = w[j + 1, i], w[j + 1, i + 1], w[j + 1, i + 2], w[j + 1, i + 3]
            h0, h1, h2, h3 = h[i], h[i + 1], h[i + 2], h[i + 3]
            for b in range(n_rows):
                o[b] = o[b] + w0 * h0[b] + w1 * h1[b] + w2 * h2[b] + w3 * h3[b]
                p[b] = p[b] + v0 * h0[b] + v1 * h1[b] + v2 * h2[b] + v3 * h3[b]
        for i in range(fours, n_in):
            w0, v0, h0 = w[j, i], w[j + 1, i], h[i]
            for b in range(n_rows):
                o[b] += w0 * h0[b]
                p[b] += v0 * h0[b]
    for j in range(twos, n_out):
        o = out[j]
        for i in range(n_in):
            w0, h0 = w[j, i], h[i]
            for b in range(n_rows):
                o[b] += w0 * h0[b]


@_sums
def _outer(g: Array, h: Array, out: Array, room: Array, add: bool) -> None:
    """``g h'``, in place of ``out`` or added to it."""
    if min(out.shape) >= BLAS_FROM:
        product = room.ravel()[: out.size].reshape(out.shape) if add else out
        np.dot(g, h.T, product)
        if add:
            _axpy(_ONE, product, out, out)
        return
    if not add:
        out[:] = _ZERO
    _accumulate_outer(g, h, out)


@_sums
def _accumulate_outer(g: Array, h: Array, out: Array) -> None:
    n_in, n_rows = h.shape
    fours = n_in - n_in % 4
    for j in range(g.shape[0]):
        a = g[j]
        for i in range(0, fours, 4):
            h0, h1, h2, h3 = h[i], h[i + 1], h[i + 2], h[i + 3]
            t0 = t1 = t2 = t3 = _ZERO
            for b in range(n_rows):
                t0 += a[b] * h0[b]
                t1 += a[b] * h1[b]
                t2 += a[b] * h2[b]
                t3 += a[b] * h3[b]
            out[j, i] += t0
            out[j, i + 1] += t1
            out[j, i + 2] += t2
            out[j, i + 3] += t3
        for i in range(fours, n_in):
            h0, t0 = h[i], _ZERO
            for b in range(n_rows):
                t0 += a[b] * h0[b]
            out[j, i] += t0
