"""Matrix products that write their result into given memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from offbeat.processor import vendor

MOST_NARROW = 16
"""Matrices with fewer columns are narrow; a single column is a vector."""


PADDED_TO = 32
"""Rows of a product whose number differs from call to call are padded to a multiple of this."""


def is_narrow(matrix: Tensor) -> bool:
    return matrix.ndim == 2 and 1 < matrix.shape[1] < MOST_NARROW


def empty_matrix(like: Tensor, *shape: int) -> Tensor:
    """Memory for a result; a narrow matrix is stored by column, which makes its product up to 4 times as fast."""
    narrow = len(shape) == 2 and 1 < shape[1] < MOST_NARROW
    return like.new_empty(shape[::-1]).T if narrow else like.new_empty(shape)


def product_by_member(left: Tensor, right: Tensor, counts: list[int], out: Tensor) -> Tensor:
    """left (B, in) @ right[e] (in, out) into out (B, out); the first counts[0] rows go with member 0, and so on."""
    start = 0
    for count, matrix in zip(counts, right, strict=True):
        rows = slice(start, start + count)
        if count and _onednn_is_faster(left[rows], matrix):
            _padded_product(left, matrix, rows, out[rows])
        elif count:
            product(left[rows], matrix, out[rows])
        start += count
    return out


def _padded_product(left: Tensor, right: Tensor, rows: slice, out: Tensor) -> None:
    """Some rows of left @ right into `out`, computed with a few rows around them.

    oneDNN compiles a product for each number of rows, which takes longer than a small product; so few numbers occur.
    """
    padded = min(len(left), -(-len(out) // PADDED_TO) * PADDED_TO)
    first = min(rows.start, len(left) - padded)
    found = _onednn_product(left[first : first + padded], right)
    out.copy_(found[rows.start - first : rows.stop - first])


def product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """left @ right into `out`; matrices, or stacks of matrices."""
    if left.shape[-1] == 1:
        return torch.mul(left, right, out=out)
    if _onednn_is_faster(left, right):
        for one, other, into in _matrices(left, right, out):
            into.copy_(_onednn_product(one, other))
        return out
    return torch.mm(left, right, out=out) if left.ndim == 2 else torch.bmm(left, right, out=out)


def product_in(space: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """left @ right, in `space` or in new memory: oneDNN's result is not copied."""
    if left.ndim == 2 and _onednn_is_faster(left, right):
        return _onednn_product(left, right)
    return product(left, right, space)


def add_product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Adds left @ right to `out`."""
    if _onednn_is_faster(left, right):
        for one, other, into in _matrices(left, right, out):
            into.add_(_onednn_product(one, other))
    else:
        (out.addmm_ if left.ndim == 2 else out.baddbmm_)(left, right)


def _matrices(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    return [tensors] if tensors[0].ndim == 2 else zip(*tensors, strict=True)


FAST_FROM = 1_500_000
"""Multiplications of a product from which oneDNN is faster than torch.mm and torch.bmm. Measured on a Zen 5 processor:
a product of 256 x 256 matrices took 0.14 ms instead of 0.29 ms with one thread, and two of them 0.16 ms instead of 0.28
ms with two; one of 1024 x 256 by 256 x 768 took 1.5 ms instead of 3.5 ms."""

_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
_SLOW_BLAS = vendor() in ("AuthenticAMD", "HygonGenuine")
"""Whether torch.mm is slow: its library, MKL, has its fast kernels for Intel's processors."""


def _onednn_is_faster(left: Tensor, right: Tensor) -> bool:
    """By a rule that depends on sizes and processor only, so that results repeat exactly."""
    return _SLOW_BLAS and _onednn_serves(left, right)


def _onednn_serves(left: Tensor, right: Tensor) -> bool:
    """Whether products are large, and oneDNN computes them: in float32 on a CPU."""
    large = left.shape[-2] * left.shape[-1] * right.shape[-1] >= FAST_FROM and left.dtype == torch.float32
    return large and _ONEDNN and left.is_cpu and bool(torch.backends.mkldnn.enabled)


def _onednn_product(left: Tensor, right: Tensor) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.T, None, "none", [], "")
    return found


def fast_product(left: Tensor, right: Tensor) -> Tensor:
    """left (n, k) @ right (k, m), by the fastest library for large float32 matrices on a CPU; it has no derivative."""
    return _onednn_product(left, right) if _onednn_serves(left, right) else torch.mm(left, right)
