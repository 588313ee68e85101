import flax.linen as nn
import jax.numpy as jnp


class Actor(nn.Module):
    """Mean and log standard deviation of SAC's actions."""

    size: int
    hidden: int = 8

    @nn.compact
    def __call__(self, obs):
        out = nn.Dense(2 * self.size)(nn.tanh(nn.Dense(self.hidden)(obs)))
        return out[:, : self.size], out[:, self.size :]


class Critic(nn.Module):
    """The value of an action."""

    @nn.compact
    def __call__(self, obs, action):
        return nn.Dense(1)(nn.relu(nn.Dense(8)(jnp.concatenate((obs, action), -1))))


def actor(spec):
    return Actor(spec.action_size)


def critic(spec):
    return Critic()
