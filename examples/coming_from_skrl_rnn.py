"""A script for skrl, on Offbeat: SAC_RNN on Pendulum without velocity, with GRU or LSTM models of your own.

Only the import lines differ. Without memory the torque cannot be chosen well: see --kind none.

python examples/coming_from_skrl_rnn.py --kind gru --timesteps 10000
"""

import argparse
import os

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from offbeat.compat.skrl.agents.torch.sac import SAC_CFG
from offbeat.compat.skrl.agents.torch.sac import SAC_RNN as SAC
from offbeat.compat.skrl.envs.wrappers.torch import wrap_env
from offbeat.compat.skrl.memories.torch import RandomMemory
from offbeat.compat.skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from offbeat.compat.skrl.trainers.torch import SequentialTrainer
from offbeat.compat.skrl.utils import set_seed

SEQUENCE_LENGTH = 16


class NoVelocity(gym.ObservationWrapper):
    """Pendulum's observation without its third number, the angular velocity."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def observation(self, observation):
        return observation[:2]


class Memory(nn.Module):
    """A GRU or an LSTM over the steps of an update's sequences, or over one step of acting; or neither.

    Its features are those of the GRU or LSTM, and the observation beside them.
    """

    def __init__(self, kind, size, hidden, num_envs):
        super().__init__()
        self.kind, self.num_envs = kind, num_envs
        self.hidden = hidden if kind != "none" else 0
        self.width = self.hidden + size
        if kind != "none":
            self.rnn = {"gru": nn.GRU, "lstm": nn.LSTM}[kind](size, hidden, batch_first=True)
            # torch draws these weights for as many inputs as hidden units: too small for two inputs.
            nn.init.uniform_(self.rnn.weight_ih_l0, -(size**-0.5), size**-0.5)

    def specification(self):
        sizes = [(1, self.num_envs, self.hidden)] * {"gru": 1, "lstm": 2, "none": 0}[self.kind]
        return {"rnn": {"sequence_length": SEQUENCE_LENGTH, "sizes": sizes}} if sizes else {}

    def forward(self, inputs, from_zeros=False):
        """Features of each row, and the new states. from_zeros: begins sequences with zeros, not with inputs["rnn"]."""
        x = inputs["observations"]
        if self.kind == "none":
            return x, []
        if "terminated" not in inputs:  # acting: one step of each environment
            out, new = self.run(x[:, None], inputs["rnn"])
            return torch.cat([out[:, 0], x], dim=1), new
        x = x.view(-1, SEQUENCE_LENGTH, x.shape[-1])
        states = [each.view(1, -1, SEQUENCE_LENGTH, self.hidden)[:, :, 0].contiguous() for each in inputs["rnn"]]
        states = [torch.zeros_like(each) for each in states] if from_zeros else states
        ended = (inputs["terminated"] | inputs["truncated"]).view(-1, SEQUENCE_LENGTH)
        cuts = (ended[:, :-1].any(0).nonzero()[:, 0] + 1).tolist()
        outs = []
        for start, stop in zip([0, *cuts], [*cuts, SEQUENCE_LENGTH], strict=True):
            out, states = self.run(x[:, start:stop], states)
            states = [each * ~ended[:, stop - 1, None] for each in states]  # the next episode begins with zeros
            outs.append(out)
        return torch.cat([torch.cat(outs, 1), x], dim=2).flatten(0, 1), states

    def run(self, x, states):
        out, new = self.rnn(x, tuple(states) if self.kind == "lstm" else states[0])
        return out, list(new) if self.kind == "lstm" else [new]


class Policy(GaussianMixin, Model):
    """Normal actions in the environment's own units: Pendulum takes torques from -2 to 2."""

    def __init__(self, env, kind, hidden):
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        GaussianMixin.__init__(self, clip_actions=True)
        self.memory = Memory(kind, self.num_observations, hidden, env.num_envs)
        self.net = nn.Sequential(nn.Linear(self.memory.width, hidden), nn.ReLU(), nn.Linear(hidden, self.num_actions))
        self.log_std = nn.Parameter(torch.zeros(self.num_actions))

    def get_specification(self):
        return self.memory.specification()

    def compute(self, inputs, role):
        features, states = self.memory(inputs)
        return 2.0 * torch.tanh(self.net(features)), {"log_std": self.log_std, "rnn": states}


class Critic(DeterministicMixin, Model):
    def __init__(self, env, kind, hidden):
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        DeterministicMixin.__init__(self)
        self.memory = Memory(kind, self.num_observations, hidden, env.num_envs)
        width = self.memory.width + self.num_actions
        self.net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def get_specification(self):
        return self.memory.specification()

    def compute(self, inputs, role):
        # inputs["rnn"] are the policy's states. A critic learned faster when it began with zeros.
        features, _ = self.memory(inputs, from_zeros=True)
        return self.net(torch.cat([features, inputs["taken_actions"]], dim=1)), {}


def evaluate(agent, env, episodes):
    """The mean return of episodes with the policy's mean actions. The agent resets its states at episode ends."""
    agent.enable_training_mode(False, apply_to_models=True)
    when = {"timestep": 10**9, "timesteps": 10**9}
    total = 0.0
    for _ in range(episodes):
        observations, _ = env.reset()
        ended = False
        while not ended:
            with torch.no_grad():
                actions = agent.act(observations, None, **when)[1]["mean_actions"]
            following, rewards, terminated, truncated, infos = env.step(actions)
            step = {
                "observations": observations,
                "actions": actions,
                "rewards": rewards,
                "next_observations": following,
            }
            step |= {"terminated": terminated, "truncated": truncated, "states": None, "next_states": None}
            agent.record_transition(**step, infos=infos, **when)
            observations, ended = following, bool(terminated | truncated)
            total += float(rewards)
    return total / episodes


def make_trainer(options):
    """The trainer of a new agent."""
    set_seed(options.seed)
    env = wrap_env(NoVelocity(gym.make("Pendulum-v1")))
    models = {"policy": Policy(env, options.kind, options.hidden)}
    for name in ("critic_1", "critic_2", "target_critic_1", "target_critic_2"):
        models[name] = Critic(env, options.kind, options.hidden)
    memory = RandomMemory(memory_size=20_000, num_envs=env.num_envs, device=env.device)

    cfg = SAC_CFG()
    cfg.batch_size = options.batch_size  # sequences
    cfg.discount_factor = 0.98
    cfg.learning_rate = 1e-3
    cfg.learning_starts = options.learning_starts
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
    parser.add_argument("--kind", choices=("gru", "lstm", "none"), default="gru")
    parser.add_argument("--timesteps", type=int, default=10_000)
    parser.add_argument("--learning-starts", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--checkpoint-interval", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=10, help="episodes of the evaluation at the end")
    parser.add_argument("--directory", default="runs/skrl_rnn")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)

    trainer = make_trainer(options)
    trainer.train()
    trainer.agents.save(os.path.join(options.directory, "pendulum.pt"))
    print(f"mean return: {evaluate(trainer.agents, trainer.env, options.episodes):.1f}")


if __name__ == "__main__":
    main()
