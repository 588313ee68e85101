"""Matrix products that write their result into given memory."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_NARROW = 16
"""Matrices with fewer columns are narrow; a single column is a vector."""


def is_narrow(matrix: Tensor) -> bool:
    return matrix.ndim == 2 and 1 < matrix.shape[1] < MOST_NARROW


def empty_matrix(like: Tensor, *shape: int) -> Tensor:
    """Memory for a result; a narrow matrix is stored by column, which makes its product up to 4 times as fast."""
    narrow = len(shape) == 2 and 1 < shape[1] < MOST_NARROW
    return like.new_empty(shape[::-1]).T if narrow else like.new_empty(shape)


def product_by_member(left: Tensor, right: Tensor, counts: list[int], out: Tensor) -> Tensor:
    """left (B, in) @ right[e] (in, out) into out (B, out); the first counts[0] rows go with member 0, and so on."""
    for rows, matrix, space in zip(left.split(counts), right, out.split(counts), strict=True):
        if len(rows):
            product(rows, matrix, space)
    return out


def product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """left @ right into `out`."""
    if left.shape[-1] == 1:
        return torch.mul(left, right, out=out)
    return torch.mm(left, right, out=out) if left.ndim == 2 else torch.bmm(left, right, out=out)


FAST_FROM = 1_500_000
"""Multiplications of a product from which oneDNN is faster than torch.mm: measured on an AMD processor with one thread,
where a product of 1024 x 256 by 256 x 768 took 1.5 ms instead of 3.5 ms."""

_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")


def fast_product(left: Tensor, right: Tensor) -> Tensor:
    """left (n, k) @ right (k, m), by the fastest library for large float32 matrices on a CPU; it has no derivative."""
    large = left.numel() * right.shape[1] >= FAST_FROM and left.dtype == torch.float32
    if large and _ONEDNN and left.device.type == "cpu" and torch.backends.mkldnn.enabled:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.T, None, "none", [], "")
        return found
    return torch.mm(left, right)
