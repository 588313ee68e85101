"""Every preset against what its source says (preset_sources.yaml), converted to our names and units."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml

from offbeat import presets
from offbeat.algorithms.registry import ALGORITHMS
from offbeat.cli import read_train
from offbeat.settings import flat_values

Values = dict[str, Any]
TABLE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "preset_sources.yaml").read_text())
CASES = [
    pytest.param(algorithm, name, id=f"{algorithm}-{name}")
    for algorithm in ALGORITHMS
    for name in TABLE[algorithm].get("presets", ())
]
NOT_TAKEN = {"use_sde", "sde_sample_freq", "ortho_init"}
"""State-dependent exploration and plain first weights are RL Zoo's own."""


def rate(value: float | str) -> tuple[float, str]:
    """`lin_3e-4` falls to 0 over the run."""
    return (float(value.removeprefix("lin_")), "linear") if isinstance(value, str) else (value, "constant")


def zoo_ppo(values: Values, bound: float) -> Values:
    learning_rate, schedule = rate(values.pop("learning_rate"))
    clip, clip_schedule = rate(values.pop("clip_range"))
    rows = values["n_steps"] * values["n_envs"]
    normalise = values.pop("normalize")
    return {
        "total_steps": values.pop("n_timesteps"),
        "num_envs": values.pop("n_envs"),
        "rollout_steps": values.pop("n_steps"),
        "minibatches": max(1, rows // values.pop("batch_size")),
        "epochs": values.pop("n_epochs"),
        "gamma": values.pop("gamma"),
        "gae_lambda": values.pop("gae_lambda"),
        "clip": clip,
        "clip_schedule": clip_schedule,
        "value_clip": values.pop("clip_range_vf"),
        "learning_rate": learning_rate,
        "schedule": schedule,
        "entropy_coefficient": values.pop("ent_coef"),
        "value_coefficient": 2 * values.pop("vf_coef"),  # our loss is half the squared error
        "max_grad_norm": values.pop("max_grad_norm"),
        "adam_epsilon": values.pop("adam_eps"),
        "normalise_observations": normalise,
        "normalise_rewards": normalise,
        "hidden": values.pop("net_arch"),
        "activation": values.pop("activation_fn"),
        "initial_log_std": values.pop("log_std_init") - math.log(bound),  # for actions in [-1, 1]
    }


def zoo_replay(values: Values) -> Values:
    """What the Zoo's off-policy algorithms have in common."""
    steps, every = values.pop("gradient_steps"), values.pop("train_freq")
    start = values.pop("learning_starts")
    return {
        "total_steps": values.pop("n_timesteps"),
        "capacity": values.pop("buffer_size"),
        "random_steps": start,
        "warmup_steps": start,
        "batch_size": values.pop("batch_size"),
        "tau": values.pop("tau"),
        "gamma": values.pop("gamma"),
        "updates_per_step": 1.0 if steps == -1 else steps / every,  # -1: as many as steps were taken
        "hidden": values.pop("net_arch"),
        "env_kwargs": {"continuous": True} if values.pop("continuous", False) else {},
    }


def zoo_sac(values: Values, bound: float) -> Values:
    learning_rate, schedule = rate(values.pop("learning_rate"))
    assert values.pop("ent_coef") == "auto"
    groups = ("actor", "critic", "temperature")
    return {
        **zoo_replay(values),
        "temperature": "learned",
        **{f"{group}_learning_rate": learning_rate for group in groups},
        **{f"{group}_schedule": schedule for group in groups},
    }


def zoo_td3(values: Values, bound: float) -> Values:
    learning_rate = values.pop("learning_rate")
    noise, noise_clip = values.pop("target_policy_noise"), values.pop("target_noise_clip")
    delay, drift = values.pop("policy_delay"), values.pop("noise_type") == "ornstein-uhlenbeck"
    return {
        **zoo_replay(values),
        "actor_learning_rate": learning_rate,
        "critic_learning_rate": learning_rate,
        "critics": values.pop("n_critics"),
        "actor_every": delay,
        "target_every": delay,
        "target_noise": noise if noise_clip else 0.0,
        "exploration": "ornstein_uhlenbeck" if drift else "gaussian",
        "exploration_scale": values.pop("noise_std"),
    }


def zoo_dqn(values: Values, bound: float) -> Values:
    shared = zoo_replay(values)
    learning_rate, schedule = rate(values.pop("learning_rate"))
    return {
        **shared,
        "learning_rate": learning_rate,
        "schedule": schedule,
        "n_step": values.pop("n_steps"),
        "double_q": values.pop("double_q"),
        # theirs counts environment steps
        "target_every": max(1, round(values.pop("target_update_interval") * shared["updates_per_step"])),
        "exploration_initial": values.pop("exploration_initial_eps"),
        "exploration_final": values.pop("exploration_final_eps"),
        "exploration_steps": values.pop("exploration_fraction") * shared["total_steps"],
        "max_grad_norm": values.pop("max_grad_norm"),
    }


def tianshou(values: Values, bound: float) -> Values:
    start = values.pop("start_timesteps")
    return {
        "total_steps": values.pop("epoch") * values.pop("step_per_epoch"),
        "num_envs": values.pop("training_num"),
        "updates_per_step": values.pop("update_per_step") / values.pop("step_per_collect"),
        "capacity": values.pop("buffer_size"),
        "random_steps": start,
        "warmup_steps": start,
        "batch_size": values.pop("batch_size"),
        "n_step": values.pop("n_step"),
        "hidden": values.pop("hidden_sizes"),
        "actor_learning_rate": values.pop("actor_lr"),
        "critic_learning_rate": values.pop("critic_lr"),
        "temperature": "learned" if values.pop("auto_alpha") else f"fixed at {values.pop('alpha')}",
        "temperature_learning_rate": values.pop("alpha_lr"),
        "gamma": values.pop("gamma"),
        "tau": values.pop("tau"),
    }


def td3_authors(values: Values, bound: float) -> Values:
    start, delay, learning_rate = (values.pop(name) for name in ("start_timesteps", "policy_freq", "lr"))
    return {
        "total_steps": values.pop("max_timesteps"),
        "capacity": values.pop("replay_max_size"),
        "random_steps": start,
        "warmup_steps": start,
        "updates_per_step": 1.0,
        "batch_size": values.pop("batch_size"),
        "gamma": values.pop("discount"),
        "tau": values.pop("tau"),
        "hidden": values.pop("hidden"),
        "actor_learning_rate": learning_rate,
        "critic_learning_rate": learning_rate,
        "actor_every": delay,
        "target_every": delay,
        "target_noise": values.pop("policy_noise"),
        "target_noise_clip": values.pop("noise_clip"),
        "exploration": "gaussian",
        "exploration_scale": values.pop("expl_noise"),
    }


def cleanrl(values: Values, bound: float) -> Values:
    start, delay, learning_rate = (
        values.pop(name) for name in ("learning_starts", "policy_frequency", "learning_rate")
    )
    return {
        "total_steps": values.pop("total_timesteps"),
        "capacity": values.pop("buffer_size"),
        "random_steps": start,
        "warmup_steps": start,
        "updates_per_step": 1.0,
        "batch_size": values.pop("batch_size"),
        "gamma": values.pop("gamma"),
        "tau": values.pop("tau"),
        "hidden": values.pop("hidden"),
        "actor_learning_rate": learning_rate,
        "critic_learning_rate": learning_rate,
        "critics": 1,
        "actor_every": delay,
        "target_every": delay,  # it moves the targets when it moves the actor
        "target_noise": 0.0,
        "exploration": "gaussian",
        "exploration_scale": values.pop("exploration_noise"),
    }


def redq_authors(values: Values, bound: float) -> Values:
    start, learning_rate = values.pop("start_steps"), values.pop("lr")
    return {
        "total_steps": values.pop("epochs") * values.pop("steps_per_epoch"),
        "capacity": values.pop("replay_size"),
        "random_steps": start,
        "warmup_steps": start,
        "updates_per_step": values.pop("utd_ratio"),
        "actor_every": values.pop("policy_update_delay"),
        "batch_size": values.pop("batch_size"),
        "hidden": values.pop("hidden_sizes"),
        "actor_learning_rate": learning_rate,
        "critic_learning_rate": learning_rate,
        "temperature_learning_rate": learning_rate,
        "temperature": "learned" if values.pop("auto_alpha") else "fixed",
        "temperature_target_entropy": values.pop("target_entropy"),
        "gamma": values.pop("gamma"),
        "tau": 1 - values.pop("polyak"),
        "critics": values.pop("num_Q"),
        "target_subset": values.pop("num_min"),
        "actor_value": "mean",
    }


Converter = Callable[[Values, float], Values]
OF_ZOO: dict[str, Converter] = {"ppo": zoo_ppo, "sac": zoo_sac, "td3": zoo_td3, "ddpg": zoo_td3, "dqn": zoo_dqn}
OTHERS: dict[str, Converter] = {
    "tianshou": tianshou,
    "td3_authors": td3_authors,
    "cleanrl": cleanrl,
    "redq_authors": redq_authors,
    "none": lambda values, bound: {},
}


def from_source(algorithm: str, name: str) -> Values:
    """What the source of a preset says, in our names and units."""
    entry = TABLE[algorithm]["presets"][name]
    source, values = entry["source"], dict(entry.get("values", {}))
    if source == "rl_zoo":
        values = TABLE[algorithm]["defaults"] | values
    values = {key: value for key, value in values.items() if key not in NOT_TAKEN}
    wanted = (OF_ZOO[algorithm] if source == "rl_zoo" else OTHERS[source])(values, entry.get("action_bound", 1.0))
    assert not values, f"{algorithm} on {name}: not converted: {', '.join(values)}"
    return wanted | entry.get("besides", {}).get("values", {})


def ours(algorithm: str, name: str) -> Values:
    entry = TABLE[algorithm].get("presets", {}).get(name) or {"ours": TABLE[algorithm]["ours"].get(name, {})}
    return {key: value for key, (value, why) in entry.get("ours", {}).items() if why}


def effective(algorithm: str, name: str) -> Values:
    """All settings of a run with the preset. Replay that is never full is as large as the run is long."""
    config = read_train(algorithm, ["--env", name])
    values = flat_values(config.run) | flat_values(config.learner)
    return values | {"capacity": min(values["capacity"], values["total_steps"])}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool) or not isinstance(other, int | float):
        return one == (tuple(other) if isinstance(other, list) else other)
    return one == pytest.approx(other, rel=1e-5, abs=1e-12)


def compare(algorithm: str, name: str, wanted: Values) -> None:
    """Each value is the source's, or ours where preset and table say so; a preset sets nothing else."""
    found, own = effective(algorithm, name), ours(algorithm, name)
    total = found["total_steps"]
    wanted = {key: min(value, total) if key == "capacity" else value for key, value in wanted.items()}
    for key, value in (wanted | own).items():
        assert same(found.get(key), value), f"{algorithm} on {name}: {key}={found.get(key)}, and its source has {value}"
    for key in own:
        assert key not in wanted or not same(own[key], wanted[key]), f"{algorithm} on {name}: {key} is the source's"
        said = presets.sources_of(algorithm)[name]
        assert key == "env_kwargs" or key in said.partition(";")[2], f"{algorithm} on {name}: {key} is ours, unsaid"
    assert set(presets.presets_of(algorithm)[name]) <= set(wanted | own), f"{algorithm} on {name}: of no source"


@pytest.mark.parametrize(("algorithm", "name"), CASES)
def test_every_preset_has_the_values_of_its_source_but_for_those_that_are_said_to_be_ours(
    algorithm: str, name: str
) -> None:
    compare(algorithm, name, from_source(algorithm, name))


@pytest.mark.parametrize("name", presets.presets_of("appo"))
def test_appo_has_the_figures_of_ppo(name: str) -> None:
    """For two collectors with four environments each: as many rows per minibatch, and half as many epochs."""
    theirs, found = effective("ppo", name), effective("appo", name)
    rows = theirs["num_envs"] * theirs["rollout_steps"] // theirs["minibatches"]
    of_one_collector = found["num_envs"] * found["rollout_steps"] // found["collectors"]
    settings = presets.presets_of("ppo")[name]
    compare(
        "appo",
        name,
        {
            **{key: theirs[key] for key in settings},
            "num_envs": 8,
            "collectors": 2,
            "rollout_steps": found["rollout_steps"],
            "minibatches": max(1, of_one_collector // rows),
            "epochs": math.ceil(theirs["epochs"] / 2),
        },
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_preset_is_in_the_table_and_names_its_source(algorithm: str) -> None:
    said = presets.sources_of(algorithm)
    assert set(said) == set(presets.presets_of(algorithm))
    if algorithm == "appo":
        assert all(each.startswith("PPO's preset") for each in said.values())
        return
    table = TABLE[algorithm]["presets"]
    assert set(table) == set(said)
    for name, entry in table.items():
        assert said[name].startswith(TABLE["sources"][entry["source"]]["called"])
        besides = entry.get("besides", {})
        assert not besides or TABLE["sources"][besides["source"]]["called"] in said[name]


@pytest.mark.parametrize("name", [name for name in TABLE["ppo"]["presets"] if name != "LunarLander-v3"])
def test_bounds_of_actions_are_those_of_the_environment(name: str) -> None:
    space = gymnasium.make(name).action_space
    if isinstance(space, gymnasium.spaces.Box):
        bound = TABLE["ppo"]["presets"][name].get("action_bound", 1.0)
        assert (-space.low == space.high).all()
        assert space.high == pytest.approx(bound)
