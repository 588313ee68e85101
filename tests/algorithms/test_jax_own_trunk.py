"""A recurrent network of a user's own in JAX: trained, acting, saved, and refused where it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import offbeat
from flax_memory import memory
from offbeat.algorithms.jax.own_trunk import own_trunk
from offbeat.algorithms.jax.recurrent import Recurrent
from offbeat.errors import CheckpointError, UsageError
from recurrent_parts import OwnGRU
from small_backends import BOX, CHOICE, learn, same
from small_sequences import recurrent, sequences

OWN = {"network": memory, "recurrent_size": 256}


class Plain:
    """The built-in RNN of one layer, as an object with `init` and `apply`."""

    trunk = Recurrent("rnn", 5, 6, 1)

    def initial_state(self, batch: int) -> Any:
        return np.zeros((batch, 6))

    def init(self, key: Any, x: Any, state: Any, mask: Any) -> Any:
        return {name: jnp.asarray(array) for name, array in self.trunk.first(np.random.default_rng(0)).items()}

    def apply(self, params: Any, x: Any, state: Any, mask: Any) -> Any:
        return self.trunk.step(params, x, state * mask)


@pytest.mark.slow
def test_a_network_with_the_built_in_formulas_learns_what_the_built_in_one_does() -> None:
    own, built_in = (
        recurrent("td3", BOX, "jax", network=network, recurrent_size=size, n_step=2)
        for network, size in ((lambda spec: Plain(), 256), ("rnn", 6))
    )
    assert own.arrays().keys() == built_in.arrays().keys()
    assert own.state_size == built_in.state_size == 6
    own.restore(built_in.arrays())
    given = sequences(built_in, 3)
    for each in (own, built_in):
        learn(each, given)
    # Their order in the optimisers' vectors is another one: by name.
    for name, array in ((name, array) for name, array in built_in.arrays().items() if "optimiser" not in name):
        np.testing.assert_allclose(own.arrays()[name], array, rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.slow
def test_a_run_trains_acts_and_loads_again(tmp_path: Path) -> None:
    run = offbeat.train(
        *("sac", "memory_tasks:pendulum"),
        **{"out": str(tmp_path), "backend": "jax", "network": "flax_memory:memory", "hidden": (8,)},
        **{"sequence_length": 5, "burn_in": 2, "batch_size": 4, "total_steps": 80, "random_steps": 30, "preset": None},
        **{"warmup_steps": 50, "eval_episodes": 1, "max_episode_steps": 30, "threads": 1, "quiet": True, "logger": ()},
    )
    assert run.status == "finished"
    policy, obs = offbeat.load_policy(run.path, actor=memory), np.array([0.5, -0.5], np.float32)
    assert (policy.policy.initial_carry(2) == 0.5).all()
    first = [policy.act(obs) for _ in range(3)]
    assert not np.array_equal(first[0], first[1])
    policy.reset()
    np.testing.assert_array_equal([policy.act(obs) for _ in range(3)], first)
    with pytest.raises(CheckpointError, match=r"do not match the network that actor= creates; .*missing"):
        offbeat.load_policy(run.path, actor=lambda spec: Plain5()).act(obs)
    with pytest.raises(UsageError, match=r"needs its code: pass actor= \(flax_memory:memory\)"):
        offbeat.load_policy(run.path)


class Plain5(Plain):
    trunk = Recurrent("rnn", 2, 6, 1)


class Wrong(Plain):
    def __init__(self, state: Any, found: Any) -> None:
        self._state, self._found = state, found

    def initial_state(self, batch: int) -> Any:
        return np.zeros((batch, *self._state[1:]) if self._state[0] == 2 else self._state)

    def apply(self, params: Any, x: Any, state: Any, mask: Any) -> Any:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


class Stubborn(Wrong):
    """Its initial state has two rows for every batch."""

    def initial_state(self, batch: int) -> Any:
        return np.zeros(self._state)


PAIR = np.zeros((2, 3)), np.zeros((2, 4))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (Wrong((1, 2, 4), PAIR), r"initial_state\(2\) gave a state \(1, 2, 4\) for 2 rows; .* Concatenate"),
        (Wrong((2, 4), PAIR[0]), "it returned a .*, not a pair"),
        (Wrong((2, 4), (np.zeros((1, 3)), PAIR[1])), r"features \(1, 3\) for 2 rows"),
        (Wrong((2, 3), PAIR), r"it gave a state \(2, 4\) for 2 rows, but the state before was \(2, 3\)"),
        (Wrong((2, 3), RuntimeError("oh")), "two rows of zeros raised RuntimeError: oh"),
        (Stubborn((2, 4), PAIR), r"initial_state\(1\) gave a state \(2, 4\) for 1 row; initial_state"),
        (object(), "object has no initial_state"),
        (OwnGRU(BOX), r"a torch module \(OwnGRU\), which backend=jax cannot use"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_with_the_rule(made: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        own_trunk(lambda spec: made, BOX, 0, 0, np.float32)


def test_torch_refuses_it() -> None:
    with pytest.raises(UsageError, match=r"Memory is not a recurrent nn.Module with initial_state"):
        offbeat.Agent("dqn", CHOICE, network=memory)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sac", "dqn"])
def test_the_first_weights_repeat_and_actor_and_critic_have_their_own(algorithm: str) -> None:
    made = [recurrent(algorithm, CHOICE, "jax", seed=seed, **OWN) for seed in (1, 1, 2)]
    assert same(made[0], made[1])
    assert not same(made[0], made[2])
    kernel = "trunk/GRUCell_0/hn/kernel"
    arrays = made[0].arrays()
    if algorithm == "sac":
        assert not np.array_equal(arrays[f"actor/{kernel}"], arrays[f"critic/{kernel}"])
    given = sequences(made[0], 2)
    for each in made[:2]:
        learn(each, given)
    assert same(made[0], made[1])
    assert not np.array_equal(made[0].arrays()[f"critic/{kernel}"], arrays[f"critic/{kernel}"])
