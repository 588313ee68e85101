"""A pipeline written for tmrl: a server, a trainer and two rollout workers as processes, with an own memory and agent.

    python examples/coming_from_tmrl.py [--epochs 10] [--out tmrl_pendulum]

Only the imports differ from a script for tmrl. The same command continues a training that was interrupted, even by
`kill -9`. Each part can also be started by hand, in a terminal of its own: add `server`, `trainer` or `worker`.
"""

from __future__ import annotations

import argparse
import copy
import logging
import multiprocessing
import os
import sys
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import torch

from offbeat.compat.tmrl.actor import TorchActorModule
from offbeat.compat.tmrl.envs import GenericGymEnv
from offbeat.compat.tmrl.memory import TorchMemory
from offbeat.compat.tmrl.networking import RolloutWorker, Server, Trainer
from offbeat.compat.tmrl.training import TrainingAgent
from offbeat.compat.tmrl.training_offline import TorchTrainingOffline

ENV = partial(GenericGymEnv, id="Pendulum-v1")


def network(inputs: int, outputs: int) -> torch.nn.Sequential:
    layers = torch.nn.Linear(inputs, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU()
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, outputs))


class Actor(TorchActorModule):
    """A squashed Gaussian policy."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space, action_space)
        self.net = network(observation_space.shape[0], 2 * action_space.shape[0])
        self.register_buffer("scale", torch.as_tensor(action_space.high))

    def sample(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions (B, A) and their log-probabilities (B,)."""
        mean, log_std = self.net(obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5.0, 2.0).exp())
        drawn = normal.rsample()
        squashed = torch.tanh(drawn)
        log_prob = normal.log_prob(drawn) - torch.log(self.scale * (1.0 - squashed**2) + 1e-6)
        return squashed * self.scale, log_prob.sum(-1)

    def act(self, obs: torch.Tensor, test: bool = False) -> np.ndarray:
        action = torch.tanh(self.net(obs).chunk(2, -1)[0]) * self.scale if test else self.sample(obs)[0]
        return action[0].cpu().numpy()


class Memory(TorchMemory):
    """Keeps whole transitions. A sample holds the action that led to its observation; the first of an episode none."""

    def append_buffer(self, buffer: Any) -> None:
        previous = None
        for action, obs, reward, terminated, truncated, info in buffer.memory:
            if action is not None and previous is not None:
                self.data.append((previous, action, np.float32(reward), obs, terminated, truncated, info))
            previous = obs
        self.data = self.data[-self.memory_size :]

    def __len__(self) -> int:
        return len(self.data)

    def get_transition(self, item: int) -> Any:
        return self.data[item]


class SoftActorCritic(TrainingAgent):
    """SAC with two critics and a fixed temperature."""

    def __init__(
        self, observation_space: Any, action_space: Any, device: Any, rate: float = 1e-3, temperature: float = 0.05
    ) -> None:
        super().__init__(observation_space, action_space, device)
        self.temperature = temperature
        self.actor = Actor(observation_space, action_space).to(device)
        size = observation_space.shape[0] + action_space.shape[0]
        self.critics = torch.nn.ModuleList(network(size, 1) for _ in range(2)).to(device)
        self.targets = copy.deepcopy(self.critics)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), rate)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), rate)

    @staticmethod
    def values(critics: Any, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """The values (2, B) of both critics."""
        return torch.stack([critic(torch.cat((obs, action), -1))[:, 0] for critic in critics])

    def train(self, batch: Any) -> dict[str, Any]:
        obs, action, reward, next_obs, terminated, _ = batch
        with torch.no_grad():
            next_action, log_prob = self.actor.sample(next_obs)
            next_value = self.values(self.targets, next_obs, next_action).amin(0) - self.temperature * log_prob
            target = reward / 10.0 + 0.99 * (1.0 - terminated) * next_value
        critic_loss = ((self.values(self.critics, obs, action) - target) ** 2).mean()
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        chosen, log_prob = self.actor.sample(obs)
        actor_loss = (self.temperature * log_prob - self.values(self.critics, obs, chosen).amin(0)).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        with torch.no_grad():
            for target_, own in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target_.lerp_(own, 0.005)
        return {"critic_loss": critic_loss.detach(), "actor_loss": actor_loss.detach()}

    def get_actor(self) -> Actor:
        return self.actor

    def _parts(self) -> dict[str, Any]:
        names = ("actor", "critics", "targets", "actor_optimizer", "critic_optimizer")
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(state[name])


def run_server(options: argparse.Namespace) -> None:
    server = Server(port=options.port, max_workers=2)
    while server is not None:
        time.sleep(1.0)


def run_worker(options: argparse.Namespace) -> None:
    worker = RolloutWorker(ENV, Actor, server_ip="127.0.0.1", server_port=options.port)
    worker.run_synchronous(test_episode_interval=10, initial_steps=400, max_steps_per_update=50)


def run_trainer(options: argparse.Namespace) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    training_cls = partial(
        TorchTrainingOffline,
        env_cls=ENV,
        memory_cls=partial(Memory, memory_size=100_000, batch_size=128),
        training_agent_cls=SoftActorCritic,
        epochs=options.epochs,
        rounds=options.rounds,
        steps=options.steps,
        update_model_interval=50,
        update_buffer_interval=50,
        max_training_steps_per_env_step=1.0,
        sleep_between_buffer_retrieval_attempts=0.02,
        start_training=400,
        device="cpu",
    )
    trainer = Trainer(
        training_cls,
        server_ip="127.0.0.1",
        server_port=options.port,
        model_path=f"{options.out}/actor.tmod",
        checkpoint_path=f"{options.out}/checkpoint",
    )
    trainer.run()


def run_with_parent(run: Any, options: argparse.Namespace) -> None:
    """Runs a part, and ends it when the process that started it ends, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    run(options)


def run_all(options: argparse.Namespace) -> None:
    """Starts every part as a process, and evaluates the final policy without a server."""
    parts = run_server, run_worker, run_worker, run_trainer
    processes = [multiprocessing.Process(target=run_with_parent, args=(part, options)) for part in parts]
    for process in processes:
        process.start()
    *others, trainer = processes
    trainer.join()
    for process in others:
        process.terminate()
        process.join()
    if trainer.exitcode != 0:
        sys.exit("the trainer did not finish; run the same command again to continue")
    judge = RolloutWorker(ENV, Actor, standalone=True, model_path=f"{options.out}/actor.tmod")
    returns = []
    for _ in range(20):
        judge.run_episode(train=False)
        returns.append(judge.buffer.stat_test_return)
    print(f"test return over {len(returns)} episodes: {np.mean(returns):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", nargs="?", default="all", choices=("all", "server", "trainer", "worker"))
    parser.add_argument("--port", type=int, default=55_555, help="of the server (default: %(default)s)")
    parser.add_argument("--out", default="tmrl_pendulum", help="directory for the files (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="a checkpoint after each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds per epoch (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=500, help="training steps per round (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"all": run_all, "server": run_server, "worker": run_worker, "trainer": run_trainer}[options.role](options)


if __name__ == "__main__":
    main()
