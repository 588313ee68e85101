"""Ranks by torch.distributed: gloo for tensors on the CPU, NCCL for those on a GPU."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from offbeat.errors import OffbeatError, UsageError
from offbeat.ranks import Place, RankFault, Ranks
from offbeat.types import Array

UPDATES_BETWEEN_COMPARISONS = 1_000
"""After so many updates, the ranks compare their parameters by hash."""
TIMEOUT = timedelta(minutes=30)
"""Longer than rank 0 evaluates, while the others wait. A rank that ends is noticed at once, by its connections."""


class TorchRanks:
    """`Ranks` over a process group. control: its group for numbers on the CPU."""

    def __init__(self, group: Any = None, control: Any = None) -> None:
        self._group, self._control = group, group if control is None else control
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._owns = False

    @classmethod
    def join(cls, place: Place) -> TorchRanks:
        """Joins the ranks that `torchrun` started; waits until all have come.

        A process group that the script made itself is used as it is.
        """
        check_available()
        if dist.is_initialized():
            control = None if "gloo" in str(dist.get_backend_config()) else dist.new_group(backend="gloo")
            return cls(control=control)
        if torch.cuda.is_available():
            torch.cuda.set_device(place.local % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        try:
            with _explained(place.rank):
                dist.init_process_group(backend, timeout=TIMEOUT)
        except ValueError as error:
            raise UsageError(
                f"RANK={place.rank} and WORLD_SIZE={place.size} say that this is one of several learners, but they "
                f"cannot meet: {error}. Start the processes with torchrun, or unset both variables"
            ) from error
        ranks = cls()
        ranks._owns = True
        return ranks

    def gather(self, row: Array) -> Array:
        own = torch.from_numpy(np.ascontiguousarray(row, np.float64))
        return self._all(own)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        lengths = self.gather(np.array([len(data)])).astype(np.int64)[:, 0]
        own = torch.zeros(max(1, int(lengths.max())), dtype=torch.uint8)
        own[: len(data)] = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)]
        return [row[:length].tobytes() for row, length in zip(self._all(own), lengths, strict=True)]

    def _all(self, own: Tensor) -> Array:
        found = own.new_empty(self.size, len(own))
        parts = list(found.unbind())
        with _explained(self.rank):
            if self.size == 2:
                parts[self.rank].copy_(own)
                self._exchange(own, parts[1 - self.rank])
            else:
                dist.all_gather(parts, own, group=self._control)
        return found.numpy()

    def add_up(self, tensor: Tensor) -> None:
        with _explained(self.rank):
            if self.size == 2 and not tensor.is_cuda:
                other = torch.empty_like(tensor)
                self._exchange(tensor, other)
                tensor.add_(other)  # the same bits on both ranks, because a + b = b + a
            else:
                dist.all_reduce(tensor, group=self._group if tensor.is_cuda else self._control)

    def _exchange(self, own: Tensor, other: Tensor) -> None:
        """Sends a tensor to the other of two ranks and receives its own: faster here than gloo's all-reduce."""
        peer = 1 - self.rank
        for work in (dist.isend(own, peer, group=self._control), dist.irecv(other, peer, group=self._control)):
            if work is not None:
                work.wait()

    def copy_first(self, tensor: Tensor) -> None:
        with _explained(self.rank):
            dist.broadcast(tensor, 0, group=self._group if tensor.is_cuda else self._control)

    def close(self) -> None:
        if self._owns and dist.is_initialized():
            dist.destroy_process_group()


def local_device(device: str, place: Place) -> str:
    """The GPU of a rank among those of its machine; `device` where there is none."""
    return f"cuda:{place.local % torch.cuda.device_count()}" if torch.cuda.is_available() else device


def check_available() -> None:
    """Raises UsageError where torch was built without torch.distributed."""
    if not dist.is_available() or not dist.is_gloo_available():
        raise UsageError(
            "this torch has no torch.distributed with gloo, which several learners need: install a usual build of "
            "torch, or train with one learner"
        )


@contextmanager
def _explained(rank: int) -> Iterator[None]:
    """Turns torch's error about a lost connection into a sentence."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RankFault(
            f"learner rank {rank} lost the other ranks: one of them has ended, or the network between them failed "
            f"({_reason(first)}). The error of that rank, if it had one, is above; resume the run from "
            "its last checkpoint with any number of learners"
        ) from error


def _reason(text: str) -> str:
    """The first clause of torch's message, without the place in its source."""
    return re.sub(r"^(\[[^]]*\]\s*)+", "", text).partition(". ")[0][:120]


def share_first(tensors: Iterable[tuple[str, Tensor]], ranks: Ranks) -> None:
    """Every rank begins with the tensors of rank 0."""
    with torch.no_grad():
        for _, tensor in tensors:
            whole = tensor.detach().contiguous()
            ranks.copy_first(whole)
            tensor.copy_(whole)


def check_equal(tensors: Iterable[tuple[str, Tensor]], ranks: Ranks, updates: int) -> None:
    """Compares tensors on all ranks by hash; raises OffbeatError that names those that differ."""
    named = list(tensors)
    digests = np.array([_digest(tensor) for _, tensor in named], np.float64)
    found = ranks.gather(digests)
    if not (differing := np.flatnonzero((found != found[0]).any(0))).size:
        return
    names = [named[index][0] for index in differing]
    others = np.flatnonzero((found != found[0]).any(1)).tolist()
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    raise OffbeatError(
        f"the learners no longer have the same state after {updates} updates: {', '.join(names[:3])}{more} of rank "
        f"{', '.join(map(str, others))} differ from those of rank 0. Every step must go through apply or minimise "
        "(offbeat.algorithms.torch), which average gradients over ranks, and must not depend on the rank"
    )


def _digest(tensor: Tensor) -> int:
    """48 bits of a hash of the bytes, which a float64 holds exactly."""
    data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return int.from_bytes(hashlib.blake2b(data.tobytes(), digest_size=6).digest(), "little")
