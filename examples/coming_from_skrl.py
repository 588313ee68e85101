"""A script for skrl, on Offbeat: SAC on Pendulum with models of your own. Only the import lines differ.

python examples/coming_from_skrl.py --timesteps 10000

To continue a run that was killed, name its directory and change nothing else:

OFFBEAT_RESUME=runs/skrl/pendulum python examples/coming_from_skrl.py --timesteps 10000
"""

import argparse
import itertools
import os

import gymnasium as gym
import torch
from torch import nn

from offbeat.compat.skrl.agents.torch.sac import SAC, SAC_CFG
from offbeat.compat.skrl.envs.wrappers.torch import wrap_env
from offbeat.compat.skrl.memories.torch import RandomMemory
from offbeat.compat.skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from offbeat.compat.skrl.trainers.torch import SequentialTrainer
from offbeat.compat.skrl.utils import set_seed


def layers(sizes):
    """Linear layers of these sizes with ReLU between them."""
    pairs = [(nn.Linear(*pair), nn.ReLU()) for pair in itertools.pairwise(sizes)]
    return nn.Sequential(*itertools.chain(*pairs))[:-1]


class Policy(GaussianMixin, Model):
    """Normal actions in the environment's own units: Pendulum takes torques from -2 to 2."""

    def __init__(self, observation_space, action_space, device, hidden):
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device=device)
        GaussianMixin.__init__(self, clip_actions=True)
        self.net = layers([self.num_observations, *hidden, self.num_actions])
        self.log_std = nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs, role):
        return 2.0 * torch.tanh(self.net(inputs["observations"])), {"log_std": self.log_std}


class Critic(DeterministicMixin, Model):
    def __init__(self, observation_space, action_space, device, hidden):
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device=device)
        DeterministicMixin.__init__(self)
        self.net = layers([self.num_observations + self.num_actions, *hidden, 1])

    def compute(self, inputs, role):
        return self.net(torch.cat([inputs["observations"], inputs["taken_actions"]], dim=1)), {}


def evaluate(agent, env, episodes):
    """The mean return of episodes with the policy's mean actions."""
    agent.enable_training_mode(False, apply_to_models=True)
    returns = []
    for _ in range(episodes):
        observations, _ = env.reset()
        total, ended = 0.0, False
        while not ended:
            with torch.no_grad():
                _, outputs = agent.act(observations, None, timestep=10**9, timesteps=10**9)
            observations, rewards, terminated, truncated, _ = env.step(outputs["mean_actions"])
            total += float(rewards)
            ended = bool(terminated | truncated)
        returns.append(total)
    return sum(returns) / len(returns)


def make_trainer(options):
    """The trainer of a new agent."""
    set_seed(options.seed)
    env = wrap_env(gym.make("Pendulum-v1"))
    own = env.observation_space, env.action_space, env.device, options.hidden
    models = {"policy": Policy(*own)}
    for name in ("critic_1", "critic_2", "target_critic_1", "target_critic_2"):
        models[name] = Critic(*own)
    memory = RandomMemory(memory_size=20_000, num_envs=env.num_envs, device=env.device)

    cfg = SAC_CFG()
    cfg.batch_size = options.batch_size
    cfg.discount_factor = 0.98
    cfg.learning_rate = 1e-3
    cfg.random_timesteps = cfg.learning_starts = options.learning_starts
    cfg.experiment.directory = options.directory
    cfg.experiment.experiment_name = "pendulum"
    cfg.experiment.checkpoint_interval = options.checkpoint_interval

    agent = SAC(
        models=models,
        memory=memory,
        cfg=cfg,
        observation_space=env.observation_space,
        state_space=env.state_space,
        action_space=env.action_space,
        device=env.device,
    )
    settings = {"timesteps": options.timesteps, "headless": True, "disable_progressbar": None}
    return SequentialTrainer(env=env, agents=agent, cfg=settings)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=10_000)
    parser.add_argument("--learning-starts", type=int, default=200)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--checkpoint-interval", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=10, help="episodes of the evaluation at the end")
    parser.add_argument("--directory", default="runs/skrl")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)

    trainer = make_trainer(options)
    trainer.train()
    trainer.agents.save(os.path.join(options.directory, "pendulum.pt"))
    print(f"mean return: {evaluate(trainer.agents, trainer.env, options.episodes):.1f}")


if __name__ == "__main__":
    main()
