"""A TD3 learner with UniLab's interface, over our TD3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from offbeat.algorithms.torch import td3
from offbeat.algorithms.torch.batch import Batch
from offbeat.algorithms.torch.networks import MLP
from offbeat.compat.unilab.algos.torch.offpolicy.actors import TD3Actor, draw_rng, hidden_sizes
from offbeat.compat.unilab.algos.torch.offpolicy.batches import make_spec, to_batch
from offbeat.compat.unilab.algos.torch.offpolicy.state import copy_learned
from offbeat.learn.torch_devices import choose_device
from offbeat.learn.torch_state import state_tensors
from offbeat.settings import make_learner_config

__all__ = ["TD3Actor", "TD3Learner"]


class TD3Learner:
    """Twin delayed DDPG: `update_critic`, `update_actor` and `soft_update_target` of our TD3.

    num_envs: environments that the actor explores in, each with a noise scale between exp(log_std_min) and
    exp(log_std_max). policy_noise, noise_clip: of the target's actions. critic_obs_dim: as for `SACLearner`.
    """

    algo_type = "td3"

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        critic_obs_dim: int | None = None,
        num_envs: int = 1024,
        device: str = "cpu",
        gamma: float = 0.97,
        tau: float = 0.01,
        actor_lr: float = 3e-4,
        critic_lr: float = 3e-4,
        actor_hidden_dim: int = 512,
        critic_hidden_dim: int = 1024,
        use_layer_norm: bool = True,
        log_std_min: float = -3.0,
        log_std_max: float = 0.0,
        weight_decay: float = 0.001,
        max_grad_norm: float = 10.0,
        policy_noise: float = 0.1,
        noise_clip: float = 0.2,
    ) -> None:
        self.device, self.update_count, self._gamma = device, 0, gamma
        self._config: Any = make_learner_config(
            "td3",
            gamma=gamma,
            tau=tau,
            target_every=1,
            hidden=hidden_sizes(actor_hidden_dim),
            critic_hidden=hidden_sizes(critic_hidden_dim),
            layer_norm=use_layer_norm,
            target_noise=policy_noise,
            optimiser="adamw",
            weight_decay=weight_decay,
            max_grad_norm=max_grad_norm or None,
            **({"target_noise_clip": noise_clip} if policy_noise else {}),
        )
        self._rates = {"actor": actor_lr, "critic": critic_lr}
        self._spec = make_spec(obs_dim, action_dim, critic_obs_dim)
        self._state = td3.init(self._config, self._spec, draw_rng(), choose_device(device), torch.float32)
        inner = self._state.actor.module
        assert isinstance(inner, MLP)
        bounds = log_std_min, log_std_max
        self.actor = TD3Actor(obs_dim, action_dim, num_envs, actor_hidden_dim, *bounds, use_layer_norm, inner)

    def update_critic(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One step of the critics."""
        with torch.no_grad():
            whole = self._batch(batch)
            noise = torch.randn(len(whole), self._spec.action_size, device=whole.obs.device, dtype=whole.obs.dtype)
            return td3.update_critic(self._state, self._config, whole, noise, self._rates["critic"])[0]

    def update_actor(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One step of the actor."""
        with torch.no_grad():
            return td3.update_actor(self._state, self._config, self._batch(batch), self._rates["actor"])

    def _batch(self, batch: Mapping[str, Tensor]) -> Batch:
        return to_batch(batch, self._spec, self._gamma, self._state.actor.flat)

    def soft_update_target(self) -> None:
        """Moves the target networks of actor and critics by tau."""
        with torch.no_grad():
            td3.move_targets(self._state, self._config, 0)

    def get_state_dict(self) -> dict[str, Any]:
        """The actor for acting, and everything that learning changes."""
        learned = {name: tensor.detach().clone() for name, tensor in state_tensors(self._state)}
        return {"actor": self.actor.state_dict(), "learner": learned, "update_count": self.update_count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `get_state_dict`."""
        copy_learned(type(self).__name__, dict(state_tensors(self._state)), state["learner"])
        self.update_count = int(state["update_count"])
