"""Stable-Baselines3's PPO by `learn`, environments in its own process, observations and rewards normalised."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization

from trainers.clock import Clock
from trainers.on_policy import ENVIRONMENTS, EPOCHS, GAMMA, HIDDEN, LAMBDA, MINIBATCH, RATE, ROLLOUT_STEPS

# RL Baselines3 Zoo, hyperparams/ppo.yml, HalfCheetah; one environment, `normalize: true`.
ZOO: dict[str, Any] = {
    "n_steps": 512,
    "batch_size": 64,
    "n_epochs": 20,
    "gamma": 0.98,
    "gae_lambda": 0.92,
    "learning_rate": 2.0633e-05,
    "clip_range": 0.1,
    "ent_coef": 0.000401762,
    "vf_coef": 0.58096,
    "max_grad_norm": 0.8,
}
ZOO_POLICY: dict[str, Any] = {
    "log_std_init": -2,
    "ortho_init": False,
    "activation_fn": torch.nn.ReLU,
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}


class Contestant:
    """learner_threads: torch's threads; the number of cores if not given."""

    def __init__(self, threads: int, learner_threads: int | None = None) -> None:
        torch.set_num_threads(learner_threads or threads)
        self.versions = {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__}
        self.setting = (
            f"`PPO(...).learn`, DummyVecEnv and VecNormalize, n_steps {ROLLOUT_STEPS}, batch_size {MINIBATCH}, "
            f"torch's threads {torch.get_num_threads()}"
        )

    def steps_per_second(self, environment: str, first: int, last: int, seed: int) -> float:
        """Steps per second between the steps `first` and `last`, both at the end of a rollout."""
        rows = ROLLOUT_STEPS * ENVIRONMENTS
        if first % rows or last % rows:
            raise ValueError(f"steps {first} to {last} are not whole rollouts; use multiples of {rows}")
        env = VecNormalize(make_vec_env(environment, ENVIRONMENTS, seed=seed), gamma=GAMMA)
        model = PPO(
            "MlpPolicy",
            env,
            n_steps=ROLLOUT_STEPS,
            batch_size=MINIBATCH,
            n_epochs=EPOCHS,
            gamma=GAMMA,
            gae_lambda=LAMBDA,
            learning_rate=RATE,
            policy_kwargs={"net_arch": {"pi": list(HIDDEN), "vf": list(HIDDEN)}},
            device="cpu",
            seed=seed,
        )
        clock = Clock(first, last)
        model.learn(last, callback=clock)
        env.close()
        return (last - first) / (clock.seen[last] - clock.seen[first])

    def learned(self, environment: str, steps: int, seed: int, episodes: int, path: str) -> dict[str, Any]:
        """Trains a run with RL Zoo's settings, stored at `path` when it is complete: returns, time, settings."""
        file = Path(path) / "result.json"
        if not file.exists():
            env = VecNormalize(make_vec_env(environment, 1, seed=seed), gamma=ZOO["gamma"])
            model = PPO("MlpPolicy", env, **ZOO, policy_kwargs=ZOO_POLICY, device="cpu", seed=seed)
            start = time.perf_counter()
            model.learn(steps)
            seconds = time.perf_counter() - start
            playing = VecNormalize(make_vec_env(environment, 1, seed=10_000 + seed), training=False, norm_reward=False)
            sync_envs_normalization(env, playing)
            returns, _ = evaluate_policy(
                model, playing, episodes, deterministic=True, return_episode_rewards=True, warn=False
            )
            settings = {"n_envs": 1, **ZOO, "policy_kwargs": ZOO_POLICY | {"activation_fn": "ReLU"}}
            found = {"returns": [float(each) for each in returns], "wall_seconds": seconds, "settings": settings}
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part")
            part.write_text(json.dumps(found, indent=1) + "\n")
            part.replace(file)  # atomic: an existing result is complete
        result: dict[str, Any] = json.loads(file.read_text())
        return result
