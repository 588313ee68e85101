"""Recurrent SAC for skrl's interface, by the library whose name is given: models with a GRU, and a filled memory."""

from __future__ import annotations

import tempfile
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from data import environment, episodes, states

_CRITICS = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")


class Trunk(nn.Module):
    """A GRU over the sequences of an update, which begins anew after the end of an episode."""

    def __init__(self, inputs: int, units: int, length: int) -> None:
        super().__init__()
        self.units, self.length = units, length
        self.gru = nn.GRU(inputs, units, batch_first=True)

    def forward(self, inputs: dict[str, Any], first: int) -> tuple[Tensor, list[Tensor]]:
        """Features of each row, and the new states. first: the row of a sequence whose states it begins with."""
        x = inputs["observations"]
        if "terminated" not in inputs:  # one step of each environment
            features, new = self.gru(x[:, None], inputs["rnn"][0])
            return features[:, 0], [new]
        x = x.view(-1, self.length, x.shape[-1])
        state = inputs["rnn"][0].view(1, -1, self.length, self.units)[:, :, first].contiguous()
        ended = (inputs["terminated"] | inputs["truncated"]).view(-1, self.length)
        cuts = (ended[:, :-1].any(0).nonzero()[:, 0] + 1).tolist()
        parts = []
        for start, stop in zip([0, *cuts], [*cuts, self.length], strict=True):
            part, state = self.gru(x[:, start:stop], state)
            state = state * ~ended[:, stop - 1, None]
            parts.append(part)
        return torch.cat(parts, 1).flatten(0, 1), [state]


def _models(library: str, spaces: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
    models = import_module(f"{library}.models.torch")
    units, length, head = shape["units"], shape["length"], shape["head"]

    def network(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, head), nn.ReLU(), nn.Linear(head, outputs))

    class Recurrent(models.Model):
        def __init__(self, more_inputs: int, outputs: int) -> None:
            models.Model.__init__(self, device="cpu", **spaces)
            self.trunk = Trunk(self.num_observations, units, length)
            self.head = network(units + more_inputs, outputs)

        def get_specification(self) -> dict[str, Any]:
            return {"rnn": {"sequence_length": length, "sizes": [(1, 1, units)]}}

    class Policy(models.GaussianMixin, Recurrent):
        """skrl has no squashed log-probability: its own examples squash the mean and clip the action."""

        def __init__(self) -> None:
            Recurrent.__init__(self, 0, 2 * shape["action"])
            models.GaussianMixin.__init__(self, clip_actions=True)

        def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
            features, new = self.trunk(inputs, 0)
            mean, log_std = self.head(features).chunk(2, dim=1)
            return mean.tanh(), {"log_std": log_std, "rnn": new}

    class Critic(models.DeterministicMixin, Recurrent):
        def __init__(self) -> None:
            Recurrent.__init__(self, shape["action"], 1)
            models.DeterministicMixin.__init__(self)

        def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
            features, new = self.trunk(inputs, 1 if role.startswith("target") else 0)
            return self.head(torch.cat((features, inputs["taken_actions"]), dim=1)), {"rnn": new}

    return {"policy": Policy()} | {name: Critic() for name in _CRITICS}


def make_agent(library: str, capacity: int, shape: dict[str, Any]) -> Any:
    """The agent, ready for `update`."""
    sac = import_module(f"{library}.agents.torch.sac")
    memories = import_module(f"{library}.memories.torch")
    env = environment(shape["observation"], shape["action"])
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    # Without replacement, skrl's default, each batch costs a permutation of the whole memory.
    memory = memories.RandomMemory(memory_size=capacity, num_envs=1, device="cpu", replacement=True)
    settings = sac.SAC_CFG(
        batch_size=shape["batch"], discount_factor=0.99, polyak=0.005, learning_rate=3e-4, initial_entropy_value=1.0
    )
    settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0
    settings.experiment.directory = tempfile.gettempdir()
    agent = sac.SAC_RNN(models=_models(library, spaces, shape), memory=memory, device="cpu", cfg=settings, **spaces)
    agent.init()
    _fill(memory, capacity, shape)
    agent.enable_models_training_mode(True)
    return agent


def _fill(memory: Any, capacity: int, shape: dict[str, Any]) -> None:
    data = episodes(capacity, shape["observation"], shape["action"], shape["episode"])
    terminated = torch.from_numpy(data.terminated)[:, None] > 0
    columns = {
        "observations": torch.from_numpy(data.obs),
        "actions": torch.from_numpy(data.action),
        "rewards": torch.from_numpy(data.reward)[:, None],
        "next_observations": torch.from_numpy(data.next_obs),
        "terminated": terminated,
        "truncated": torch.zeros_like(terminated),
        "rnn_policy_0": torch.from_numpy(states(capacity, shape["units"]))[:, None],
    }
    if "environments" in memory.get_tensor_names():  # of Offbeat's agent
        columns["environments"] = torch.zeros(capacity, 1, dtype=torch.int32)
    memory.add_samples(**columns)
    assert len(memory) == capacity, f"the memory holds {len(memory)} rows of {capacity}"
