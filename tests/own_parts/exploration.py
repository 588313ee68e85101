import numpy as np


class PinkNoise:
    """Noise on Box actions that changes at several speeds at once: a sum of autoregressive processes, as pink noise is.

    Each environment's processes stand in the last columns of the carry.
    """

    scale, keep = 0.3, np.float32([0.0, 0.5, 0.75, 0.875])  # share of each process that is left after a step

    def __init__(self, policy, spec):
        self.policy, self.shape = policy, (len(self.keep), spec.action_size)

    def load(self, weights):
        self.policy.load(weights)

    def initial_carry(self, num_envs):
        own = np.zeros((num_envs, self.shape[0] * self.shape[1]), np.float32)
        return np.concatenate((self.policy.initial_carry(num_envs), own), 1)

    def act(self, obs, carry, rng, step=0, mask=None):
        inner = carry.shape[1] - self.shape[0] * self.shape[1]
        action, policy_carry, extras = self.policy.act(obs, carry[:, :inner], rng, step, mask)
        noise = carry[:, inner:].reshape(len(carry), *self.shape)
        if rng is not None:  # without a generator the policy acts deterministically, as in evaluation
            keep = self.keep[:, None]
            noise = keep * noise + np.sqrt(1.0 - keep**2) * rng.standard_normal(noise.shape, np.float32)
            action = np.clip(action + self.scale * noise.sum(1) / np.sqrt(np.float32(len(keep))), -1.0, 1.0)
        return action, np.concatenate((policy_carry, noise.reshape(len(carry), -1)), 1), extras
