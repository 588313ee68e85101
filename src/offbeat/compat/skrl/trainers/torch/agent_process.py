"""The process of one agent, which `ParallelTrainer` starts."""

from __future__ import annotations

import sys
from typing import Any

import torch

from offbeat.collect.children import Parent
from offbeat.compat.skrl.framework import config


def work(parent: Parent, job: tuple[int, int, Any, Any]) -> None:
    """Calls methods of the agent as the parent asks for them, until it asks for nothing more."""
    number, seed, cfg, agent = job
    config.torch.key = seed
    torch.manual_seed(seed + number)
    agent.init(trainer_cfg=cfg)
    while (message := parent.receive()) is not None:
        method, arguments, named = message
        with torch.set_grad_enabled(method in ("update", "post_interaction")):
            result = getattr(agent, method)(*arguments, **named)
        parent.send("result", _without_graph(result))


def _without_graph(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.detach()
    if isinstance(result, tuple):
        return tuple(_without_graph(each) for each in result)
    if isinstance(result, dict):
        return {name: _without_graph(each) for name, each in result.items()}
    return result


if __name__ == "__main__":
    Parent(sys.argv[1:]).run(work)
