"""A script for skrl with JAX, on Offbeat: SAC on Pendulum with flax models of your own. Only the import lines differ.

python examples/coming_from_skrl_jax.py --timesteps 10000

To continue a run that was killed, name its directory and change nothing else:

OFFBEAT_RESUME=runs/skrl_jax/pendulum python examples/coming_from_skrl_jax.py --timesteps 10000
"""

import argparse
import os

import flax.linen as nn
import gymnasium as gym
import jax.numpy as jnp

from offbeat.compat.skrl.agents.jax.sac import SAC, SAC_CFG
from offbeat.compat.skrl.envs.wrappers.jax import wrap_env
from offbeat.compat.skrl.memories.jax import RandomMemory
from offbeat.compat.skrl.models.jax import DeterministicMixin, GaussianMixin, Model
from offbeat.compat.skrl.trainers.jax import SequentialTrainer
from offbeat.compat.skrl.utils import set_seed


def layers(x, hidden):
    """Dense layers of these sizes with ReLU after each."""
    for size in hidden:
        x = nn.relu(nn.Dense(size)(x))
    return x


class Policy(GaussianMixin, Model):
    """Normal actions in the environment's own units: Pendulum takes torques from -2 to 2."""

    hidden: tuple = (64, 64)

    def __init__(self, observation_space, action_space, device, hidden, state_space=None, **kwargs):
        spaces = {"observation_space": observation_space, "state_space": state_space, "action_space": action_space}
        Model.__init__(self, **spaces, device=device, **kwargs)
        self.hidden = hidden
        GaussianMixin.__init__(self, clip_actions=True)

    @nn.compact
    def __call__(self, inputs, role):
        x = nn.Dense(self.num_actions)(layers(inputs["observations"], self.hidden))
        log_std = self.param("log_std", lambda _: jnp.zeros(self.num_actions))
        return 2.0 * nn.tanh(x), {"log_std": log_std}


class Critic(DeterministicMixin, Model):
    hidden: tuple = (64, 64)

    def __init__(self, observation_space, action_space, device, hidden, state_space=None, **kwargs):
        spaces = {"observation_space": observation_space, "state_space": state_space, "action_space": action_space}
        Model.__init__(self, **spaces, device=device, **kwargs)
        self.hidden = hidden
        DeterministicMixin.__init__(self)

    @nn.compact
    def __call__(self, inputs, role):
        x = jnp.concatenate([inputs["observations"], inputs["taken_actions"]], axis=-1)
        return nn.Dense(1)(layers(x, self.hidden)), {}


def evaluate(agent, env, episodes):
    """The mean return of episodes with the policy's mean actions."""
    agent.enable_training_mode(False, apply_to_models=True)
    returns = []
    for _ in range(episodes):
        observations, _ = env.reset()
        total, ended = 0.0, False
        while not ended:
            _, outputs = agent.act(observations, None, timestep=10**9, timesteps=10**9)
            observations, rewards, terminated, truncated, _ = env.step(outputs["mean_actions"])
            total += rewards.item()
            ended = bool((terminated | truncated).item())
        returns.append(total)
    return sum(returns) / len(returns)


def make_trainer(options):
    """The trainer of a new agent."""
    set_seed(options.seed)
    env = wrap_env(gym.make("Pendulum-v1"))
    own = env.observation_space, env.action_space, env.device, tuple(options.hidden)
    models = {"policy": Policy(*own)}
    for name in ("critic_1", "critic_2", "target_critic_1", "target_critic_2"):
        models[name] = Critic(*own)
    for role, model in models.items():
        model.init_state_dict(role=role)
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
    parser.add_argument("--directory", default="runs/skrl_jax")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)

    trainer = make_trainer(options)
    trainer.train()
    trainer.agents.save(os.path.join(options.directory, "pendulum.pickle"))
    print(f"mean return: {evaluate(trainer.agents, trainer.env, options.episodes):.1f}")


if __name__ == "__main__":
    main()
