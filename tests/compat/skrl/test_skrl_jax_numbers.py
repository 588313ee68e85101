"""One update of SAC in JAX and float64 equals the documented formulas, written out plainly with optax's Adam."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import skrl_jax_agents as small
from offbeat.compat.skrl.memories.jax import Memory
from offbeat.compat.skrl.models.jax import Model
from offbeat.compat.skrl.utils import set_seed

GAMMA, POLYAK, RATES = 0.9, 0.1, (1e-2, 2e-2, 3e-2)
CRITICS = ("critic_1", "critic_2")


class Plain:
    """SAC as documented: one model and one formula after the other. limit: of actions, or None."""

    def __init__(self, models: dict[str, Any], learned: bool, clip: float, limit: float | None) -> None:
        self.models, self.learned, self.limit = models, learned, limit
        params = {name: model.state_dict.params for name, model in models.items()}
        params |= {f"target_{name}": params[name] for name in CRITICS}
        before = [clip_by_norm(clip)] if clip else []
        self.adams = [optax.chain(*(before if index < 2 else []), optax.adam(rate)) for index, rate in enumerate(RATES)]
        log_coefficient = jnp.log(jnp.array([0.3]))
        first = params["policy"], [params[name] for name in CRITICS], log_coefficient
        moments = [adam.init(own) for adam, own in zip(self.adams, first, strict=True)]
        self.state: dict[str, Any] = {"params": params, "log_coefficient": log_coefficient, "moments": moments}
        self.update = jax.jit(self._update)

    def draw(self, params: Any, inputs: dict[str, Any], key: Any) -> tuple[Any, Any, Any]:
        """Actions, their log-probability, and how many of them were clipped."""
        mean, outputs = self.models["policy"].apply(params, inputs, "policy")
        std = jnp.exp(outputs["log_std"])
        drawn = mean + std * jax.random.normal(key, mean.shape, jnp.float64)
        action = drawn if self.limit is None else jnp.clip(drawn, -self.limit, self.limit)
        density = jax.scipy.stats.norm.logpdf(action, mean, std)
        return action, density.sum(-1, keepdims=True), (drawn != action).mean()

    def value(self, params: Any, name: str, inputs: dict[str, Any], action: Any) -> Any:
        return self.models[name].apply(params, {**inputs, "taken_actions": action}, name)[0]

    def stepped(self, state: dict[str, Any], which: int, gradient: Any, own: Any) -> Any:
        change, state["moments"][which] = self.adams[which].update(gradient, state["moments"][which], own)
        return optax.apply_updates(own, change)

    def _update(self, state: dict[str, Any], rows: dict[str, Any], key: Any) -> tuple[dict[str, Any], Any]:
        params = state["params"]
        now_key, then_key = jax.random.split(key)
        now = {"observations": rows["observations"], "states": rows.get("states")}
        then = {"observations": rows["next_observations"], "states": rows.get("next_states")}
        coefficient = jnp.exp(state["log_coefficient"])
        action, log_prob, clipped = self.draw(params["policy"], then, then_key)
        names = [f"target_{name}" for name in CRITICS]
        smaller = jnp.minimum(*(self.value(params[name], name, then, action) for name in names))
        target = rows["rewards"] + GAMMA * ~rows["terminated"] * (smaller - coefficient * log_prob)

        def critic_loss(both: Any) -> Any:
            pairs = zip(both, CRITICS, strict=True)
            values = [self.value(each, name, now, rows["actions"]) for each, name in pairs]
            return 0.5 * sum(((each - target) ** 2).mean() for each in values)

        critics = [params[name] for name in CRITICS]
        critics = self.stepped(state, 1, jax.grad(critic_loss)(critics), critics)

        def policy_loss(own: Any) -> tuple[Any, Any]:
            action, log_prob, _ = self.draw(own, now, now_key)
            pairs = zip(critics, CRITICS, strict=True)
            values = jnp.minimum(*(self.value(each, name, now, action) for each, name in pairs))
            return (coefficient * log_prob - values).mean(), log_prob

        gradient, log_prob = jax.grad(policy_loss, has_aux=True)(params["policy"])
        params["policy"] = self.stepped(state, 0, gradient, params["policy"])
        if self.learned:
            slope = -(log_prob - 1.5).mean()[None]  # of  -mean(log coefficient * (log_prob + target entropy))
            state["log_coefficient"] = self.stepped(state, 2, slope, state["log_coefficient"])
        for name, fast in zip(CRITICS, critics, strict=True):
            params[name] = fast
            params[f"target_{name}"] = jax.tree.map(
                lambda slow, fast: (1 - POLYAK) * slow + POLYAK * fast, params[f"target_{name}"], fast
            )
        return state, clipped


def clip_by_norm(most: float) -> optax.GradientTransformation:
    """As torch's clip_grad_norm_, which has 1e-6 in the denominator."""

    def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        factor = jnp.minimum(most / (optax.tree.norm(gradient) + 1e-6), 1.0)
        return jax.tree.map(lambda each: each * factor, gradient), state

    return optax.GradientTransformation(lambda params: (), update)


class Given(Memory):
    """A user's memory whose batch is the rows that it was given, in float64."""

    def __init__(self, rows: dict[str, Any]) -> None:
        super().__init__(memory_size=8)
        self.rows = rows

    def sample(self, names: list[str], **options: Any) -> list[list[Any]]:
        return [[self.rows.get(name) for name in names]]


@pytest.mark.parametrize(
    ("learned", "clip", "states", "limit"),
    [
        (True, 0.0, None, None),
        pytest.param(False, 0.05, small.STATES, None, marks=pytest.mark.slow),
        pytest.param(True, 0.05, None, 0.8, marks=pytest.mark.slow),
    ],
    ids=["plain", "fixed coefficient, clipped gradients, states", "clipped actions"],
)
def test_an_update_equals_the_documented_formulas(
    tmp_path: Path, learned: bool, clip: float, states: Any, limit: float | None
) -> None:
    set_seed(0)  # the random key of an update is the seed plus the number of updates before
    drawn = small.transitions(16, states=states is not None).items()
    rows = {name: each if each.dtype == bool else each.astype(np.float64) for name, each in drawn}
    with jax.enable_x64(True):
        models, own = (
            small.make_models(states=states, dtype=np.float64, clip_actions=limit is not None) for _ in range(2)
        )
        if limit is not None:
            for each in (models, own):
                each["policy"]._limits = -np.full(2, limit), np.full(2, limit)
        plain = Plain(own, learned, clip, limit)
    settings = {"discount_factor": GAMMA, "polyak": POLYAK, "learning_rate": RATES, "initial_entropy_value": 0.3}
    settings |= {"learn_entropy": learned, "target_entropy": -1.5, "grad_norm_clip": clip, "batch_size": 16}
    agent = small.make_agent(tmp_path, Given(rows), models, states, **settings)
    state, clipped = plain.state, []
    for number in range(3):
        with jax.enable_x64(True):
            key = jax.random.wrap_key_data(np.array([0, number], np.uint32), impl="threefry2x32")
            state, share = plain.update(state, rows, key)
            clipped.append(float(share))
        agent.update(timestep=number, timesteps=3)
        for name in small.NAMES:
            mine, theirs = (jax.tree.leaves(each) for each in (models[name].state_dict.params, state["params"][name]))
            for one, other in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)
        np.testing.assert_allclose(agent.log_entropy_coefficient.value, state["log_coefficient"], rtol=0, atol=1e-9)
    assert 0.2 < np.mean(clipped) < 0.7 if limit is not None else not any(clipped), clipped


def test_the_models_hold_the_trained_weights_and_can_be_set(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, polyak=1.0)
    first = small.weights(agent)
    agent.memory.add_samples(**small.transitions(20))
    agent.update(timestep=0, timesteps=1)
    trained = small.weights(agent)
    assert all(np.abs(trained[name] - first[name]).max() > 0 for name in trained)
    policy: Model = agent.policy
    new = jax.tree.map(jnp.ones_like, policy.state_dict.params)
    policy.state_dict = policy.state_dict.replace(params=new)
    assert all(np.all(np.asarray(each) == 1.0) for each in jax.tree.leaves(policy.state_dict.params))
    inputs = {"observations": jnp.zeros((1, 3)), "states": None}
    _, outputs = agent.act(inputs["observations"], None, timestep=9, timesteps=9)
    np.testing.assert_allclose(outputs["mean_actions"], policy.apply(new, inputs, "policy")[0], rtol=1e-6)
    agent.update(timestep=1, timesteps=1)
    after = small.weights(agent)
    moved = [after[name] - 1.0 for name in after if name.startswith("policy")]
    assert 0 < max(np.abs(each).max() for each in moved) < 0.01
