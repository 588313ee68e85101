"""Torch and JAX agree from the same weights, batches and noise: states, metrics and TD errors, setting by setting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offbeat.algorithms.registry import ALGORITHMS
from offbeat.settings import own_settings
from offbeat.types import EnvSpec
from small_backends import BOX, CASES, CHOICE, CHOICE_WITH_STATE, MASKED, STATE, batches, learn, make, metrics_of, part

CLOSE = {"float32": 1e-5, "float64": 1e-9}
ADAMW = {"optimiser": "adamw", "weight_decay": 0.5, "adam_betas": (0.5, 0.9), "adam_epsilon": 1e-2}
DELAYED: dict[str, Any] = {"actor_every": 3, "target_every": 2, "tau": 0.3}
SETTINGS: dict[str, tuple[str, EnvSpec, dict[str, Any]]] = {
    "sac adamw": (
        "sac",
        BOX,
        {**ADAMW, "layer_norm": True, "max_grad_norm": 0.1, "temperature_target_entropy": 5.0, "actor_value": "mean"},
    ),
    "sac rmsprop delayed": (
        "sac",
        STATE,
        {**DELAYED, "optimiser": "rmsprop", "activation": "gelu", "temperature": "fixed", "temperature_value": 0.7},
    ),
    "sac sgd of a subset": (
        "sac",
        BOX,
        {"optimiser": "sgd", "critics": 3, "target_subset": 2, "critic_layer_norm": True, "temperature_initial": 0.3}
        | {"hidden": (6, 4), "critic_hidden": (8,), "batch_size": 12, "log_std_min": -0.2, "log_std_max": 0.1},
    ),
    "sac of choices delayed": (
        "sac",
        CHOICE_WITH_STATE,
        {
            **DELAYED,
            "critics": 3,
            "target_subset": 2,
            "actor_value": "mean",
            "temperature": "fixed",
            "activation": "silu",
        },
    ),
    "sac of masked choices": ("sac", MASKED, {"layer_norm": True, "max_grad_norm": 0.1}),
    "td3 adamw": (
        "td3",
        STATE,
        {**ADAMW, **DELAYED, "max_grad_norm": 0.1, "layer_norm": True, "target_noise": 0.9, "target_noise_clip": 0.2},
    ),
    "ddpg rmsprop": (
        "ddpg",
        BOX,
        {"optimiser": "rmsprop", "activation": "elu", "critics": 2, "critic_hidden": (8, 4), "batch_size": 12}
        | {"hidden": (6,), "target_noise": 0.3, "actor_every": 2},
    ),
    "dqn dueling": (
        "dqn",
        CHOICE,
        {**ADAMW, "dueling": True, "loss": "mse", "layer_norm": True, "target_every": 3, "activation": "leaky_relu"},
    ),
    "dqn of masked choices": ("dqn", MASKED, {"max_grad_norm": 0.1, "target_every": 3, "tau": 0.5}),
    "dqn of masked choices, single": (
        "dqn",
        MASKED,
        {"double_q": False, "dueling": True, "optimiser": "rmsprop", "target_every": 1, "activation": "tanh"}
        | {"hidden": (6, 4), "batch_size": 12},
    ),
}
"""Algorithm, environment and settings by name: each setting that an update reads once, several in a case."""
ELSEWHERE = {
    "the learner, whatever the backend": (
        *("actor_learning_rate", "critic_learning_rate", "temperature_learning_rate", "learning_rate"),
        *("actor_schedule", "critic_schedule", "temperature_schedule", "schedule", "schedule_kwargs"),
        *("normalise_observations", "preprocessor", "observation_clip", "reward_scale", "normalise_rewards"),
    ),
    "replay": ("gamma", "n_step"),
    "policies": ("exploration",),
    "torch alone": ("gradients", "compile"),
    "recurrent networks (test_jax_recurrent)": (
        *("network", "recurrent_size", "recurrent_layers", "sequence_length", "burn_in", "start_state"),
    ),
    "a user's own networks": ("actor", "critic"),
    "each backend's own randomness": ("critic_dropout",),
}
"""Settings that are read elsewhere."""


def compare(given: tuple[str, EnvSpec, dict[str, Any]], precision: str, weight: bool) -> None:
    algorithm, spec, settings = given
    torch, jax = (make(algorithm, spec, backend, precision, **settings) for backend in ("torch", "jax"))
    assert_agree(torch.arrays(), jax.arrays(), 0.0)
    every, close = batches(spec, 10, torch.config.replay.batch_size, weight), CLOSE[precision]
    for start, stop in ((0, 1), (1, 10)):
        found = [learn(each, part(every, slice(start, stop)), start, td_errors=True) for each in (torch, jax)]
        assert_agree(torch.arrays(), jax.arrays(), close)
        assert_agree(*map(metrics_of, found), close)
        assert_agree(*({"td errors": each.td_errors} for each in found), close)


def assert_agree(left: dict[str, Any], right: dict[str, Any], close: float) -> None:
    assert left.keys() == right.keys()
    for name, values in left.items():
        assert np.isfinite(values).all(), name
        assert np.asarray(values).dtype == np.asarray(right[name]).dtype, name
        np.testing.assert_allclose(right[name], values, rtol=close, atol=close, err_msg=name)


@pytest.mark.parametrize(
    ("case", "precision"),
    [
        pytest.param(case, precision, marks=[pytest.mark.slow] * (precision == "float32" and case != "sac"))
        for case in CASES
        for precision in CLOSE
        if "dropout" not in case
    ],
)
def test_torch_and_jax_agree_after_one_and_after_ten_updates(case: str, precision: str) -> None:
    compare(CASES[case], precision, weight=False)


@pytest.mark.parametrize("case", SETTINGS)
def test_torch_and_jax_agree_with_other_settings_and_weights_per_row(case: str) -> None:
    compare(SETTINGS[case], "float64", weight=True)


@pytest.mark.parametrize("algorithm", ["sac", "td3", "dqn"])
def test_every_setting_that_an_update_reads_is_compared(algorithm: str) -> None:
    families = {"sac": ("sac", "redq"), "td3": ("td3", "ddpg"), "dqn": ("dqn",)}
    compared = {name for kind, _, settings in SETTINGS.values() if kind in families[algorithm] for name in settings}
    elsewhere = {name for names in ELSEWHERE.values() for name in names}
    own = {each.name for name in families[algorithm] for each in own_settings(name)}
    own = {name for name in own - elsewhere if not name.startswith("exploration")}
    assert own == compared
    assert all("jax" in ALGORITHMS[name].modules for name in families[algorithm])
