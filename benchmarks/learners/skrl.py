"""skrl's SAC with its memory on the CPU: the faster of eager and compiled networks."""

from __future__ import annotations

import itertools
import tempfile
from typing import Any

import skrl
import torch
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from torch import Tensor, nn

from data import environment, rows
from worker import calls_per_second

_CRITICS = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")


def _mlp(sizes: list[int], compiled: bool) -> nn.Module:
    layers = [(nn.Linear(*pair), nn.ReLU()) for pair in itertools.pairwise(sizes)]
    network = nn.Sequential(*itertools.chain(*layers))[:-1]
    if compiled:
        network.compile()
    return network


class Policy(GaussianMixin, Model):
    """skrl has no squashed log-probability: its own examples squash the mean and clip the action, and so does this."""

    def __init__(self, spaces: dict[str, Any], hidden: list[int], compiled: bool) -> None:
        Model.__init__(self, device="cpu", **spaces)
        GaussianMixin.__init__(self, clip_actions=True)
        self.network = _mlp([self.num_observations, *hidden, 2 * self.num_actions], compiled)

    def compute(self, inputs: dict[str, Tensor], role: str = "") -> tuple[Tensor, dict[str, Tensor]]:
        mean, log_std = self.network(inputs["observations"]).chunk(2, dim=1)
        return mean.tanh(), {"log_std": log_std}


class Critic(DeterministicMixin, Model):
    def __init__(self, spaces: dict[str, Any], hidden: list[int], compiled: bool) -> None:
        Model.__init__(self, device="cpu", **spaces)
        DeterministicMixin.__init__(self)
        self.network = _mlp([self.num_observations + self.num_actions, *hidden, 1], compiled)

    def compute(self, inputs: dict[str, Tensor], role: str = "") -> tuple[Tensor, dict[str, Tensor]]:
        return self.network(torch.cat((inputs["observations"], inputs["taken_actions"]), dim=1)), {}


class Contestant:
    def __init__(self, threads: int, capacity: int, shape: dict[str, Any]) -> None:
        torch.set_num_threads(threads)
        self.versions = {"skrl": skrl.__version__, "torch": torch.__version__}
        agents = {name: self._agent(capacity, shape, name == "compiled") for name in ("eager", "compiled")}
        for agent in agents.values():
            self._rate(agent)  # compiles
        trials = [{name: self._rate(agent) for name, agent in agents.items()} for _ in range(3)]
        rates = {name: max(trial[name] for trial in trials) for name in agents}
        best = max(rates, key=rates.__getitem__)
        self._chosen = agents[best]
        self.setting = (
            f"{best} networks (the faster in a trial at batch {shape['batch']}, threads {threads}), "
            "memory with replacement, no tracking"
        )

    @staticmethod
    def _agent(capacity: int, shape: dict[str, Any], compiled: bool) -> SAC:
        env = environment(shape["observation"], shape["action"])
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        hidden = list(shape["hidden"])
        models = {"policy": Policy(spaces, hidden, compiled)}
        models |= {name: Critic(spaces, hidden, compiled) for name in _CRITICS}
        # Without replacement, skrl's default, each batch costs a permutation of the whole memory.
        memory = RandomMemory(memory_size=capacity, num_envs=1, device="cpu", replacement=True)
        settings = SAC_CFG(
            batch_size=shape["batch"], discount_factor=0.99, polyak=0.005, learning_rate=3e-4, initial_entropy_value=1.0
        )
        settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0
        settings.experiment.directory = tempfile.gettempdir()
        agent = SAC(models=models, memory=memory, device="cpu", cfg=settings, **spaces)
        agent.init()
        data = rows(capacity, shape["observation"], shape["action"])
        memory.add_samples(
            observations=torch.from_numpy(data.obs),
            actions=torch.from_numpy(data.action),
            rewards=torch.from_numpy(data.reward)[:, None],
            next_observations=torch.from_numpy(data.next_obs),
            terminated=torch.from_numpy(data.terminated)[:, None] > 0,
        )
        assert len(memory) == capacity, f"skrl's memory holds {len(memory)} rows of {capacity}"
        agent.enable_models_training_mode(True)
        return agent

    @staticmethod
    def _rate(agent: SAC) -> float:
        return calls_per_second(lambda: agent.update(timestep=0, timesteps=1), [], seconds=0.7)

    def learn(self, updates: int) -> None:
        for _ in range(updates):
            self._chosen.update(timestep=0, timesteps=1)
