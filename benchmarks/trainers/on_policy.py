"""The task of every trainer in benchmarks/appo.py."""

from __future__ import annotations

ENVIRONMENTS = 8
ROLLOUT_STEPS = 512  # of each environment
MINIBATCH = 512  # rows
EPOCHS = 5
HIDDEN = (64, 64)  # of the actor, and of a critic beside it, with tanh
GAMMA, LAMBDA, RATE = 0.99, 0.95, 3e-4
