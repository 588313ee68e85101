"""Scripts for UniLab, with other imports: SAC and TD3 with 64 environments, and APPO over rollouts made outside.

    python examples/coming_from_unilab.py --algo sac             in turns: a vector step, then 8 updates
    python examples/coming_from_unilab.py --algo td3 --free      environments and updates side by side
    python examples/coming_from_unilab.py --algo appo            a loop of your own around the learner

Killed at any moment, the same command goes on where the newest checkpoint is.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from offbeat.compat.unilab import APPOLearner, MLPModel, OffPolicyRunner, SACLearner, TD3Learner

ENV, OBS, ACTIONS, ENVS = "Pendulum-v1", 3, 1, 64


Act = Callable[[torch.Tensor], torch.Tensor]


def mean_return(act: Act, episodes: int = 20) -> float:
    """The mean return of a policy (N, O) -> (N, A) in [-1, 1], without noise."""
    envs = gymnasium.make_vec(ENV, episodes, vectorization_mode="sync")
    obs, _ = envs.reset(seed=1_000)
    total = np.zeros(episodes)
    for _ in range(200):
        with torch.no_grad():
            action = act(torch.as_tensor(obs)).clamp(-1.0, 1.0)
        obs, reward, _, _, _ = envs.step(2.0 * action.numpy())
        total += np.asarray(reward)
    envs.close()
    return float(total.mean())


def train_off_policy(algo: str, free: bool, iterations: int, save_interval: int, log_dir: str) -> Act:
    """Trains SAC or TD3; returns the policy."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"actor_hidden_dim": 128, "critic_hidden_dim": 128, "actor_lr": 3e-4, "critic_lr": 1e-3}
    learner: Any = (
        SACLearner(OBS, ACTIONS, alpha_init=0.2, alpha_lr=1e-3, target_entropy_ratio=1.0, tau=0.02, **sizes)
        if algo == "sac"
        else TD3Learner(OBS, ACTIONS, num_envs=ENVS, tau=0.02, **sizes)
    )
    runner = OffPolicyRunner(
        learner,
        ENV,
        algo,
        num_envs=ENVS,
        replay_buffer_n=4096,
        batch_size=256,
        learning_starts=10,
        updates_per_step=8,
        policy_frequency=2,
        sync_collection=not free,
        actor_hidden_dim=128,
        seed=0,
    )
    runner.learn(iterations, save_interval, log_dir)
    runner.close()
    return partial(learner.actor.explore, deterministic=True)


class Worker:
    """Collects rollouts with the weights that it was sent, as a worker elsewhere would."""

    def __init__(self, actor: MLPModel, seed: int) -> None:
        self.envs = gymnasium.make_vec(ENV, ENVS, vectorization_mode="sync")
        self.actor = actor
        self.obs, _ = self.envs.reset(seed=seed)
        self.running, self.returns = np.zeros(ENVS), deque[float](maxlen=100)

    def collect(self, weights: dict[str, torch.Tensor], steps: int) -> dict[str, torch.Tensor]:
        """A rollout [T, N, ...] by the names that the learner reads."""
        self.actor.load_state_dict(weights)
        columns: dict[str, list[torch.Tensor]] = {}
        for _ in range(steps):
            obs = torch.as_tensor(self.obs)
            with torch.no_grad():
                action = self.actor({"policy": obs}, stochastic_output=True)
                log_prob = self.actor.get_output_log_prob(action)
            following, reward, terminated, truncated, _ = self.envs.step(2.0 * action.clamp(-1.0, 1.0).numpy())
            row = {
                "observations": obs,
                "actions": action,
                "actions_log_prob": log_prob,
                "rewards": torch.as_tensor(reward, dtype=torch.float32) * 0.1,
                "dones": torch.as_tensor(terminated | truncated, dtype=torch.float32),
                "time_outs": torch.as_tensor(truncated, dtype=torch.float32),
                "final_obs": torch.as_tensor(following),
            }
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
            self._count(np.asarray(reward), terminated | truncated)
            self.obs = following
            if (terminated | truncated).any():
                self.obs, _, _, _, _ = self.envs.step(np.zeros((ENVS, ACTIONS), np.float32))  # the next episodes begin
        return {name: torch.stack(each) for name, each in columns.items()} | {"last_obs": torch.as_tensor(self.obs)}

    def _count(self, reward: np.ndarray, ended: np.ndarray) -> None:
        self.running += reward
        self.returns.extend(self.running[ended])
        self.running[ended] = 0.0


def make_model(outputs: int, **options: Any) -> MLPModel:
    groups = {"actor": ["policy"], "critic": ["policy"]}
    return MLPModel({"policy": torch.zeros(1, OBS)}, groups, "actor", outputs, hidden_dims=(64, 64), **options)


def train_appo(iterations: int, save_interval: int, log_dir: str) -> Act:
    """Trains APPO with a worker whose weights are one update old; returns the policy."""
    torch.manual_seed(0)
    gaussian = {"class_name": "GaussianDistribution", "init_std": 0.6}
    actor = make_model(ACTIONS, distribution_cfg=gaussian, obs_normalization=True)
    learner = APPOLearner(
        actor,
        make_model(1, obs_normalization=True),
        num_learning_epochs=8,
        gamma=0.95,
        entropy_coef=0.0,
        schedule="adaptive",
    )
    path = Path(log_dir) / "appo"
    begun = learner.load(path) if (path / "checkpoints").exists() else 0
    worker = Worker(make_model(ACTIONS, distribution_cfg=gaussian, obs_normalization=True), seed=begun)
    weights = {name: value.clone() for name, value in learner.get_weights().items()}
    for iteration in range(begun + 1, iterations + 1):
        rollout = worker.collect(weights, steps=25)
        weights = {name: value.clone() for name, value in learner.get_weights().items()}
        learner.process_batch(rollout)
        metrics = learner.update(rollout)
        if iteration % save_interval == 0 or iteration == iterations:
            learner.save(path)
            mean = np.mean(worker.returns) if worker.returns else float("nan")
            print(f"iteration {iteration}: return {mean:.0f}, kl {metrics['kl']:.4f}", flush=True)
    return actor


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--algo", choices=("sac", "td3", "appo"), default="sac")
    parser.add_argument("--free", action="store_true", help="environments and updates side by side")
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--save-interval", type=int, default=20, help="iterations between checkpoints")
    parser.add_argument("--log-dir", default="logs")
    given = parser.parse_args(arguments)
    log_dir = str(Path(given.log_dir) / f"{given.algo}{'-free' * given.free}")
    if given.algo == "appo":
        policy = train_appo(given.iterations, given.save_interval, log_dir)
    else:
        policy = train_off_policy(given.algo, given.free, given.iterations, given.save_interval, log_dir)
    found = mean_return(policy)
    print(f"{given.algo}: mean return {found:.0f} after {given.iterations} iterations")
    return found


if __name__ == "__main__":
    main()
