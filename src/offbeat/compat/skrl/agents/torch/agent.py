"""`Agent` in torch: .pt files, and the modes of modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from offbeat.compat.skrl.agents.agent import AnyAgent
from offbeat.compat.skrl.agents.configuration import AgentCfg
from offbeat.compat.skrl.models.torch import Model
from offbeat.compat.skrl.torch_arrays import TORCH
from offbeat.errors import UsageError


class Agent(AnyAgent):
    """To subclass: `act`, `update`, `pre_interaction` and `post_interaction`. A trainer calls `init` first.

    checkpoint_modules: what files hold, by name. experiment_dir: where they are.
    """

    arrays = TORCH
    suffix = ".pt"
    _modes: list[_ModelMode] | None = None

    def __init__(
        self,
        *,
        cfg: AgentCfg,
        models: dict[str, Any],
        memory: Any = None,
        observation_space: gymnasium.Space | None = None,
        state_space: gymnasium.Space | None = None,
        action_space: gymnasium.Space | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        AnyAgent.__init__(
            self,
            cfg=cfg,
            models=models,
            memory=memory,
            observation_space=observation_space,
            state_space=state_space,
            action_space=action_space,
            device=device,
        )
        for model in models.values():
            if isinstance(model, nn.Module):
                model.to(getattr(model, "device", self.device))

    def init(self, *, trainer_cfg: Any = None) -> None:
        """Resolves the intervals by the trainer's timesteps, and opens TensorBoard and Weights & Biases.

        trainer_cfg: the trainer's settings, as an object or a dictionary.
        """
        AnyAgent.init(self, trainer_cfg=trainer_cfg)
        self._modes = None  # models may have got other submodules since

    def enable_models_training_mode(self, enabled: bool = True) -> None:
        """Training (True) or evaluation mode of all models."""
        if self._modes is None:
            self._modes = [_ModelMode(model) for model in self.models.values() if model is not None]
        for mode in self._modes:
            mode.set(enabled)

    def _state_of(self, module: Any) -> Any:
        return _copied(module.state_dict() if hasattr(module, "state_dict") else module)

    def _write(self, states: Any, path: Path) -> None:
        torch.save(states, path)

    def _read(self, path: Path) -> Any:
        """Without pickle (weights_only), onto the agent's device."""
        try:
            return torch.load(path, map_location=self.device, weights_only=True)
        except Exception as error:
            raise UsageError(f"load: {path} is not a file of weights that torch reads safely: {error}") from error

    def _restore(self, name: str, module: Any, state: Any, path: str) -> None:
        try:
            if hasattr(module, "load_state_dict"):
                module.load_state_dict(state)
                if isinstance(module, nn.Module):
                    module.eval()
            elif isinstance(module, Tensor):
                with torch.no_grad():
                    module.copy_(state)
            else:
                raise UsageError(
                    f"load: {name!r} has no load_state_dict, so {path} cannot be loaded into it; add the method"
                )
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"load: {name!r} in {path} does not fit this agent: {error}") from error

    # In another process.

    def learned_state(self) -> dict[str, Any]:
        """What `take_over` needs: all modules, and the memory."""
        return {"modules": self._module_states(), "memory": self.memory}

    def take_over(self, state: dict[str, Any]) -> None:
        """Takes over what this agent has learned in another process."""
        self._restore_modules(state["modules"], "another process")
        if self.memory is not None and state["memory"] is not None:
            self.memory.__dict__.update(state["memory"].__dict__)


class _ModelMode:
    """Sets a model's mode as its `enable_training_mode` does; twice per update, so without a call for each submodule.

    The calls are made where the model or a submodule has such a method of its own.
    """

    def __init__(self, model: Any) -> None:
        self._model, modules = model, list(model.modules())
        plain = getattr(type(model), "enable_training_mode", None) is Model.enable_training_mode
        plain = plain and all(type(each).train is nn.Module.train for each in modules)
        self._attributes = [each.__dict__ for each in modules] if plain else None

    def set(self, training: bool) -> None:
        if self._attributes is None:
            self._model.enable_training_mode(training)
            return
        for each in self._attributes:
            each["training"] = training


def _copied(state: Any) -> Any:
    """Tensors as copies: of a view, torch would save all of the memory that it is a view of."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {name: _copied(value) for name, value in state.items()}
    return [_copied(value) for value in state] if isinstance(state, list) else state
