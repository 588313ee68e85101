"""Parts of a tmrl-style training for tests: an interface without a network, a memory and an agent that keep records."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch

from offbeat.compat.tmrl import models, rendezvous, spool
from offbeat.compat.tmrl.actor import ActorModule, TorchActorModule
from offbeat.compat.tmrl.memory import TorchMemory
from offbeat.compat.tmrl.networking import Buffer, RolloutWorker
from offbeat.compat.tmrl.training import TrainingAgent

SPACES = (
    gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32),
    gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32),
)


PORT = 55_001
PASSWORD = "YourRandomPasswordHere"


def episode(number: int, steps: int = 4) -> Buffer:
    """One truncated episode of `steps` steps; observation (number, step), reward 1."""
    buffer = Buffer()
    buffer.append_sample((None, np.array([number, 0], np.float32), 0.0, False, False, {}))
    for step in range(1, steps + 1):
        action = np.array([step / 10], np.float32)
        buffer.append_sample((action, np.array([number, step], np.float32), 1.0, False, step == steps, {}))
    buffer.stat_train_return, buffer.stat_train_steps = float(number), steps
    return buffer


class ScriptedInterface:
    """Gives the buffers of a list, one for each retrieval, and empty ones afterwards; records broadcasts.

    more: what to give when the list is empty, by the number of the retrieval.
    """

    def __init__(self, buffers: Sequence[Any] = (), more: Any = None) -> None:
        self.buffers, self.more = list(buffers), more
        self.retrievals = 0
        self.actors: list[Any] = []
        self.events: list[str] = []

    def retrieve_buffer(self) -> Any:
        self.retrievals += 1
        self.events.append("retrieve")
        if self.buffers:
            return self.buffers.pop(0)
        return Buffer() if self.more is None else self.more(self.retrievals)

    def broadcast_model(self, actor: Any) -> None:
        self.events.append("broadcast")
        self.actors.append(actor)


class ListMemory(TorchMemory):
    """A memory as tmrl's tutorial has one: columns of samples; a transition is between two of them."""

    def __init__(self, nb_steps: int, device: Any, memory_size: int = 1_000, batch_size: int = 4, **more: Any) -> None:
        super().__init__(device, nb_steps, memory_size=memory_size, batch_size=batch_size, **more)
        self.appended: list[int] = []

    def append_buffer(self, buffer: Any) -> None:
        self.appended.append(len(buffer))
        self.data = (self.data + list(buffer.memory))[-self.memory_size :]

    def _starts(self) -> list[int]:
        """Samples that are followed by a step of the same episode."""
        return [index for index in range(len(self.data) - 1) if self.data[index + 1][0] is not None]

    def __len__(self) -> int:
        return len(self._starts())

    def get_transition(self, item: int) -> Any:
        start = self._starts()[item]
        action, obs, reward, terminated, truncated, info = self.data[start + 1]
        return self.data[start][1], action, np.float32(reward), obs, terminated, truncated, info


class Actor(TorchActorModule):
    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space, action_space)
        self.layer = torch.nn.Linear(observation_space.shape[0], action_space.shape[0])

    def act(self, obs: Any, test: bool = False) -> Any:
        mean = torch.tanh(self.layer(obs))[0]
        noise = 0.0 if test else torch.randn(mean.shape)
        return (mean + noise).clip(-1.0, 1.0).numpy() * self.action_space.high


class RegressingAgent(TrainingAgent):
    """Fits the actor's layer to the actions by gradient descent; records its batches."""

    def __init__(self, observation_space: Any, action_space: Any, device: Any, rate: float = 0.1) -> None:
        super().__init__(observation_space, action_space, device)
        self.actor = Actor(observation_space, action_space)
        self.optimizer = torch.optim.Adam(self.actor.parameters(), rate)
        self.batches: list[Any] = []
        self.trained = 0

    def train(self, batch: Any) -> dict[str, Any]:
        self.batches.append(batch)
        obs, action = batch[:2]
        loss = ((self.actor.layer(obs) - action) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.trained += 1
        return {"loss": loss.detach(), "trained": self.trained}

    def get_actor(self) -> Any:
        return self.actor

    def state_dict(self) -> dict[str, Any]:
        parts = {"actor": self.actor.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**parts, "trained": self.trained}

    def load_state_dict(self, state: Any) -> None:
        self.actor.load_state_dict(state["actor"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.trained = state["trained"]


def seed_everything(seed: int) -> None:
    """The generators that memories and agents of users draw from."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


class Counting(gymnasium.Env[Any, Any]):
    """Observation (episode, step), reward 1; an episode terminates after `length` steps."""

    observation_space, action_space = SPACES

    def __init__(self, length: float = 5) -> None:
        self.length, self.episode, self.steps = length, 0, 0
        self.actions: list[Any] = []

    def _observation(self) -> Any:
        return np.array([self.episode, self.steps], np.float32)

    def reset(self, **_: Any) -> Any:
        self.episode, self.steps = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.actions.append(action)
        return self._observation(), 1.0, self.steps >= self.length, False, {}


class Constant(ActorModule):
    """Acts with a constant, which is its whole state; -1 in tests."""

    def __init__(self, observation_space: Any, action_space: Any, value: float = 0.0) -> None:
        super().__init__(observation_space, action_space)
        self.value, self.devices = value, []  # type: ignore[var-annotated]

    def act(self, obs: Any, test: bool = False) -> Any:
        return np.array([-1.0 if test else self.value], np.float32)

    def to_device(self, device: Any) -> Constant:
        self.devices.append(device)
        return self

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: Any) -> None:
        self.value = state["value"]


def worker(**changes: Any) -> RolloutWorker:
    given: dict[str, Any] = {"env_cls": Counting, "actor_module_cls": Constant, "server_port": PORT}
    return RolloutWorker(**{**given, **changes})


def alone(**changes: Any) -> RolloutWorker:
    return worker(standalone=True, **changes)


def observations(buffer: Any) -> list[list[float]]:
    return [sample[1].tolist() for sample in buffer.memory]


def interface(**changes: Any) -> tuple[rendezvous.Place, spool.Inbox, models.ModelPublisher]:
    """A trainer's end."""
    place = rendezvous.Place(PORT, PASSWORD, {})
    place.connect_trainer()
    inbox = spool.Inbox(place, changes.pop("most", 1_000), changes.pop("keep", False))
    return place, inbox, models.ModelPublisher(place.directory / "models")


def model(value: float, tmp_path: Path) -> bytes:
    Constant(*SPACES, value).save(tmp_path / "saved")
    return (tmp_path / "saved").read_bytes()


SMALL: dict[str, Any] = {
    "env_cls": SPACES,
    "memory_cls": ListMemory,
    "training_agent_cls": RegressingAgent,
    "rounds": 1,
    "steps": 3,
    "sleep_between_buffer_retrieval_attempts": 0.0,
}


def with_sleep(sleep: Any) -> SimpleNamespace:
    """The module `time` with another `sleep`, for one module: threads of other libraries sleep in this process, too."""
    return SimpleNamespace(**{**vars(time), "sleep": sleep})
