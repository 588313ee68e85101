"""Scripts for metarl's off-policy algorithms, run by Offbeat: only the imports differ.

python examples/coming_from_metarl.py dqn|ddpg|own [--epochs 6] [--out runs/metarl] [--resume]

dqn is DQN on CartPole-v1, ddpg is DDPG on Pendulum-v1, and own is a subclass of OffPolicyRLAlgorithm that is written
here. Every epoch is saved; after a crash or kill -9, --resume continues from the last one.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import gymnasium
import torch
from torch.nn import functional

from offbeat.compat.metarl.envs import MetaRLEnv, normalize
from offbeat.compat.metarl.experiment import LocalRunner, SnapshotConfig
from offbeat.compat.metarl.experiment.deterministic import set_seed
from offbeat.compat.metarl.np.algos import OffPolicyRLAlgorithm
from offbeat.compat.metarl.np.exploration_policies import AddOrnsteinUhlenbeckNoise, EpsilonGreedyPolicy
from offbeat.compat.metarl.replay_buffer import PathBuffer
from offbeat.compat.metarl.torch.algos import DDPG, DQN
from offbeat.compat.metarl.torch.policies import DeterministicMLPPolicy, DiscreteQfDerivedPolicy
from offbeat.compat.metarl.torch.q_functions import ContinuousMLPQFunction, DiscreteMLPQFunction


class OwnDQN(OffPolicyRLAlgorithm):
    """Deep Q-learning with an optimiser and a target network of its own."""

    def init_opt(self) -> None:
        self.target = copy.deepcopy(self.qf)
        self.optimizer = torch.optim.Adam(self.qf.parameters(), lr=1e-3)

    def train_once(self, itr: int, paths: list[dict[str, Any]]) -> None:
        if self.replay_buffer.n_transitions_stored < self.min_buffer_size:
            return
        for _ in range(self.n_train_steps):
            self.optimize(self.replay_buffer.sample_transitions(self.buffer_batch_size))
        self.target.load_state_dict(self.qf.state_dict())

    def optimize(self, samples: dict[str, Any]) -> None:
        batch = {key: torch.as_tensor(array, dtype=torch.float32) for key, array in samples.items()}
        with torch.no_grad():
            best = self.qf(batch["next_observations"]).argmax(1, keepdim=True)
            following = self.target(batch["next_observations"]).gather(1, best)
            target = batch["rewards"] + self.discount * (1.0 - batch["terminals"]) * following
        value = (self.qf(batch["observations"]) * batch["actions"]).sum(1, keepdim=True)  # actions are one-hot
        loss = functional.smooth_l1_loss(value, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def dqn(kind: Any, epochs: int, calls: int) -> tuple[Any, Any]:
    env = MetaRLEnv(gymnasium.make("CartPole-v1"))
    qf = DiscreteMLPQFunction(env_spec=env.spec, hidden_sizes=(64, 64))
    policy = DiscreteQfDerivedPolicy(env_spec=env.spec, qf=qf)
    exploration = EpsilonGreedyPolicy(env.spec, policy, total_timesteps=1_000 * epochs, decay_ratio=0.3)
    own = {"qf_lr": 1e-3, "target_network_update_freq": 1, "double_q": True} if kind is DQN else {}
    algo = kind(
        env_spec=env.spec,
        policy=policy,
        qf=qf,
        replay_buffer=PathBuffer(capacity_in_transitions=50_000),
        exploration_policy=exploration,
        steps_per_epoch=calls,
        n_train_steps=100,
        min_buffer_size=500,
        max_path_length=200,
        discount=0.99,
        **own,
    )
    return algo, env


def ddpg(calls: int) -> tuple[Any, Any]:
    env = MetaRLEnv(normalize(gymnasium.make("Pendulum-v1")))
    policy = DeterministicMLPPolicy(env_spec=env.spec, hidden_sizes=[64, 64], output_nonlinearity=torch.tanh)
    algo = DDPG(
        env_spec=env.spec,
        policy=policy,
        qf=ContinuousMLPQFunction(env_spec=env.spec, hidden_sizes=[64, 64]),
        replay_buffer=PathBuffer(capacity_in_transitions=50_000),
        exploration_policy=AddOrnsteinUhlenbeckNoise(env.spec, policy, sigma=0.3, dt=1.0),
        steps_per_epoch=calls,
        n_train_steps=100,
        min_buffer_size=500,
        discount=0.98,
        policy_lr=1e-3,
        qf_lr=1e-3,
        reward_scale=0.1,
    )
    return algo, env


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("dqn", "ddpg", "own"))
    parser.add_argument("--epochs", type=int, default=6, help="default: %(default)s")
    parser.add_argument("--calls", type=int, default=10, help="of train_once per epoch (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="before each train_once (default: %(default)s)")
    parser.add_argument("--out", default="runs/metarl", help="directory of the checkpoints (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    arguments = parser.parse_args()

    set_seed(arguments.seed)
    kinds = {"dqn": DQN, "own": OwnDQN}
    if arguments.kind == "ddpg":
        algo, env = ddpg(arguments.calls)
    else:
        algo, env = dqn(kinds[arguments.kind], arguments.epochs, arguments.calls)
    with LocalRunner(SnapshotConfig(arguments.out, snapshot_mode="last", snapshot_gap=1)) as runner:
        runner.setup(algo, env)
        if arguments.resume:
            runner.restore(arguments.out)
            last = runner.resume()
        else:
            last = runner.train(n_epochs=arguments.epochs, batch_size=arguments.steps)
        print(f"{arguments.kind}: {runner.total_env_steps} steps, average return {last:.1f}")


if __name__ == "__main__":
    main()
