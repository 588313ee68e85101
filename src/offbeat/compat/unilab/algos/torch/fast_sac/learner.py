"""A SAC learner with UniLab's interface, over our SAC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from offbeat.algorithms.configs import Fixed, Learned
from offbeat.algorithms.torch import sac
from offbeat.algorithms.torch.batch import blocks
from offbeat.algorithms.torch.networks import MLP
from offbeat.compat.unilab.algos.torch.offpolicy.actors import SACActor, draw_rng, hidden_sizes
from offbeat.compat.unilab.algos.torch.offpolicy.batches import make_spec, to_batch
from offbeat.compat.unilab.algos.torch.offpolicy.state import copy_learned
from offbeat.learn.torch_devices import choose_device
from offbeat.learn.torch_state import state_tensors
from offbeat.settings import make_learner_config

__all__ = ["SACActor", "SACLearner"]


class SACLearner:
    """Soft actor-critic: `update_critic`, `update_actor` (with the temperature) and `soft_update_target` of our SAC.

    critic_obs_dim: the size of the critics' own observations, which they see besides `obs`; None for none. alpha: the
    temperature, learned towards an entropy of -action_dim * target_entropy_ratio with use_autotune. First weights
    follow torch.manual_seed.
    """

    algo_type = "sac"

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        critic_obs_dim: int | None = None,
        device: str = "cpu",
        gamma: float = 0.97,
        tau: float = 0.125,
        actor_lr: float = 3e-4,
        critic_lr: float = 3e-4,
        alpha_lr: float = 3e-4,
        alpha_init: float = 0.001,
        target_entropy_ratio: float = 0.0,
        actor_hidden_dim: int = 512,
        critic_hidden_dim: int = 768,
        num_q_networks: int = 2,
        use_layer_norm: bool = True,
        log_std_max: float = 0.0,
        log_std_min: float = -5.0,
        weight_decay: float = 0.001,
        max_grad_norm: float = 0.0,
        use_autotune: bool = True,
    ) -> None:
        self.device, self.update_count, self._gamma = device, 0, gamma
        learned = Learned(initial=alpha_init, target_entropy=-float(action_dim) * target_entropy_ratio)
        self._config: Any = make_learner_config(
            "sac",
            gamma=gamma,
            tau=tau,
            hidden=hidden_sizes(actor_hidden_dim),
            critic_hidden=hidden_sizes(critic_hidden_dim),
            activation="silu",
            layer_norm=use_layer_norm,
            critics=num_q_networks,
            actor_value="mean",
            log_std_min=log_std_min,
            log_std_max=log_std_max,
            temperature=learned if use_autotune else Fixed(alpha_init),
            optimiser="adamw",
            adam_betas=(0.9, 0.95),
            weight_decay=weight_decay,
            max_grad_norm=max_grad_norm or None,
        )
        self._rates = {"actor": actor_lr, "critic": critic_lr, "temperature": alpha_lr}
        self._spec = make_spec(obs_dim, action_dim, critic_obs_dim)
        self._state = sac.init(self._config, self._spec, draw_rng(), choose_device(device), torch.float32)
        inner = self._state.actor.module
        assert isinstance(inner, MLP)
        self.actor = SACActor(obs_dim, action_dim, actor_hidden_dim, log_std_max, log_std_min, use_layer_norm, inner)

    def update_critic(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One step of the critics."""
        with torch.no_grad():
            alpha, parts = self._state.log_temperature.exp(), self._blocks(batch)
            found, _ = sac.update_critic(self._state, self._config, parts, None, alpha, self._rates["critic"])
        return {**found, "alpha": alpha}

    def update_actor(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One step of the actor, and one of the temperature where it is learned."""
        with torch.no_grad():
            alpha, parts = self._state.log_temperature.exp(), self._blocks(batch)
            found = sac.update_actor(self._state, self._config, parts, alpha, self._rates["actor"])
            sac.update_temperature(self._state, self._config, 0.0, found["entropy"], self._rates["temperature"])
        return found

    def _blocks(self, batch: Mapping[str, Tensor]) -> list[sac.SampledBlock]:
        whole = to_batch(batch, self._spec, self._gamma, self._state.actor.flat)
        noise = torch.randn(2, len(whole), self._spec.action_size, device=whole.obs.device, dtype=whole.obs.dtype)
        explicit = self._state.actor.explicit and self._state.critic.explicit
        return [sac.SampledBlock(whole.rows(rows), noise[:, rows]) for rows in blocks(len(whole), explicit)]

    def soft_update_target(self) -> None:
        """Moves the target critics by tau."""
        with torch.no_grad():
            sac.move_target(self._state, self._config, 0)

    def get_state_dict(self) -> dict[str, Any]:
        """The actor for acting, and everything that learning changes."""
        learned = {name: tensor.detach().clone() for name, tensor in state_tensors(self._state)}
        return {"actor": self.actor.state_dict(), "learner": learned, "update_count": self.update_count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `get_state_dict`."""
        copy_learned(type(self).__name__, dict(state_tensors(self._state)), state["learner"])
        self.update_count = int(state["update_count"])
