"""Samplers of the user's own that collect with workers: how they are made, and how their workers are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offbeat.compat.metarl.experiment.deterministic import generator, get_seed
from offbeat.errors import UsageError


class WorkerFactory:
    """Makes the workers of a sampler: worker_class(worker_number=, seed=, max_path_length=, **worker_args)."""

    def __init__(
        self,
        *,
        seed: int,
        max_path_length: Any,
        n_workers: int,
        worker_class: Any,
        worker_args: dict[str, Any] | None = None,
    ) -> None:
        self.n_workers = n_workers
        self._class = worker_class
        self._arguments = {"seed": seed, "max_path_length": max_path_length, **(worker_args or {})}

    def prepare_worker_messages(self, objs: Any, preprocess: Callable[[Any], Any] = lambda each: each) -> list[Any]:
        """One message for each worker: the elements of a list of n_workers, or one object for all."""
        if not isinstance(objs, list):
            objs = [objs] * self.n_workers
        if len(objs) != self.n_workers:
            raise UsageError(
                f"a list of {len(objs)} was given for n_workers={self.n_workers}; pass one for each worker"
            )
        return [preprocess(each) for each in objs]

    def __call__(self, worker_number: int) -> Any:
        if not 0 <= worker_number < self.n_workers:
            raise UsageError(f"worker_number={worker_number} is out of range: there are n_workers={self.n_workers}")
        return self._class(worker_number=worker_number, **self._arguments)


def has_workers(sampler_cls: Any) -> bool:
    """Whether a sampler of this class is made from a WorkerFactory."""
    return callable(getattr(sampler_cls, "from_worker_factory", None))


def make_worker_sampler(
    sampler_cls: Any, algo: Any, env: Any, sampler_args: dict[str, Any], n_workers: int, workers: dict[str, Any]
) -> Any:
    """sampler_cls.from_worker_factory(factory, agents=algo.policy, envs=env). workers: worker_class and worker_args."""
    name = getattr(sampler_cls, "__name__", str(sampler_cls))
    if workers["worker_class"] is None:
        raise UsageError(
            f"setup: {name} collects with workers, but worker_class is None; pass the class of its workers"
        )
    if n_workers < 1:
        raise UsageError(f"setup: n_workers={n_workers} is out of range: it must be at least 1")
    for needed in ("policy", "max_path_length"):
        if not hasattr(algo, needed):
            raise UsageError(
                f"setup: {name} collects with workers, so algo needs {needed}, which {type(algo).__name__} has not"
            )
    seed = get_seed()
    factory = WorkerFactory(
        seed=int(generator("workers").integers(2**31)) if seed is None else seed,
        max_path_length=algo.max_path_length,
        n_workers=n_workers,
        **workers,
    )
    return sampler_cls.from_worker_factory(factory, agents=algo.policy, envs=env, **sampler_args)
