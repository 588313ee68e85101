"""tmrl's documented interface (`training_offline`, `networking`, ...) on our learner, replay and checkpoints."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "TrainingOffline": "training_offline",
    "TorchTrainingOffline": "training_offline",
    "Buffer": "networking",
    "Server": "networking",
    "Trainer": "networking",
    "RolloutWorker": "networking",
    "ActorModule": "actor",
    "TorchActorModule": "actor",
    "TrainingAgent": "training",
    "Memory": "memory",
    "TorchMemory": "memory",
    "GenericGymEnv": "envs",
    "partial": "util",
    "ReplayMemory": "own_memory",
    "SACAgent": "own_agent",
    "SACActor": "own_agent",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
