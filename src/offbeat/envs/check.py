"""Checks a user's environment. Faults of the environment become findings, never exceptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from offbeat.envs.env_slot import can_save_state
from offbeat.envs.inline import InlineVector
from offbeat.envs.make import (
    EnvSource,
    Factory,
    Keys,
    complete_spec,
    find_source,
    is_vector_env,
    make_vector,
    read_spec,
    wrap,
)
from offbeat.envs.spaces import action_problems, observation_problems, read_observation_space
from offbeat.envs.trial import Trial, run_trial
from offbeat.errors import OffbeatError
from offbeat.layout import Leaf
from offbeat.references import resolve

Severity = Literal["error", "warning", "note"]
LARGE_ACTION, LARGE_REWARD = 1e3, 1e3


@dataclass(frozen=True)
class Finding:
    """error: training would stop or be refused. warning: training would run, but not as expected. note: information."""

    severity: Severity
    what: str
    remedy: str


def check_env(
    env: str | Factory | Any,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    env_wrapper: str | Factory | None = None,
    max_episode_steps: int | None = None,
    state_key: str | None = None,
    mask_key: str | None = None,
    steps: int = 500,
    seed: int = 0,
) -> list[Finding]:
    """Checks an environment's spaces, steps it with random actions, and repeats that from the same seed.

    Closes the environments that it creates; a VectorEnv that is passed in stays open.
    """
    wrapper = resolve(env_wrapper, "env_wrapper") if env_wrapper is not None else None
    keys = state_key, mask_key
    options = {
        "env_wrapper": wrapper,
        "max_episode_steps": max_episode_steps,
        "state_key": state_key,
        "mask_key": mask_key,
    }
    if is_vector_env(env):
        return _check_batched(env, steps, seed, {**options, "env_kwargs": env_kwargs})
    source = find_source(env, env_kwargs, max_episode_steps)
    made: list[Any] = []
    try:
        made.append(source.make(None))
        if is_vector_env(made[0]):
            return _check_batched(made[0], steps, seed, options) + _close(made)
        made.append(source.make(None))
        envs = [wrap(each, wrapper, source.name) for each in made]
        if envs[0].unwrapped is envs[1].unwrapped:
            what = f"{source.name} returned the same environment twice, but training and evaluation each need their own"
            return [Finding("error", what, "create the environment inside the factory"), *_close(made[:1])]
        spaces = envs[0].observation_space, envs[0].action_space
    except (OffbeatError, AttributeError) as error:
        _close([each for each in made if hasattr(each, "close")])
        return [Finding("error", str(error), "correct the code that creates the environment")]
    findings = list(_check_spaces(*spaces, keys))
    first = run_trial(envs[0], steps, seed, _limit(envs[0], source), mask_key)
    findings += [Finding(*each) for each in first.findings]
    findings += _check_rewards_and_ends(first, steps)
    if first.completed:
        second = run_trial(envs[1], steps, seed, _limit(envs[1], source), mask_key)
        findings += _check_determinism(first, second, can_save_state(envs[0]))
    if not any(finding.severity == "error" for finding in findings):
        findings += _check_as_in_training(envs, source, keys, min(steps, 50), seed)
    return findings + _close(envs)


def _limit(env: Any, source: EnvSource) -> int | None:
    return source.limit if source.limit is not None else env.spec.max_episode_steps if env.spec is not None else None


def _check_spaces(observation_space: Any, action_space: Any, keys: Keys) -> Iterator[Finding]:
    problems = observation_problems(observation_space, *keys)
    if not problems:
        yield from _check_images(read_observation_space(observation_space, *keys).layout.images)
    unusable = action_problems(action_space)
    for problem in (*problems, *unusable):
        yield Finding("error", problem.what, problem.remedy)
    if unusable or not hasattr(action_space, "low"):
        return
    low, high = action_space.low.ravel(), action_space.high.ravel()
    if not np.array_equal(low, -high):
        at = int(np.flatnonzero(low != -high)[0])
        yield Finding(
            "note",
            f"action dimension {at} ranges from {low[at]:g} to {high[at]:g}, which is not "
            f"symmetric around 0, so an untrained policy acts around {(low[at] + high[at]) / 2:g}",
            "no change is needed if that is a good neutral action; otherwise choose bounds around one",
        )
    largest = float(max(np.abs(low).max(), np.abs(high).max()))
    if largest > LARGE_ACTION:
        what = f"actions reach {largest:g}; the policy's [-1, 1] is scaled to that whole range"
        yield Finding("note", what, "narrow the bounds to the useful range")


def _check_images(images: Sequence[Leaf]) -> Iterator[Finding]:
    for image in images:
        yield Finding(
            "error",
            f"the observation {image.name!r} is an image {image.shape}, but this version has no pixel encoder and "
            "passes no images to your own networks, so training would refuse it",
            "flatten it with gymnasium.wrappers.FlattenObservation as env_wrapper, or remove it",
        )


def _check_rewards_and_ends(trial: Trial, steps: int) -> Iterator[Finding]:
    rewards = np.abs(trial.rewards)
    if len(rewards) and not rewards.any():
        what = f"every reward of {len(rewards)} random steps was 0"
        remedy = "no change is needed if rewards are sparse; otherwise check that step returns the reward"
        yield Finding("note", what, remedy)
    if len(rewards) and rewards.max() > LARGE_REWARD:
        what = f"rewards reach {rewards.max():g} in size, which causes large critic errors"
        yield Finding("note", what, "scale them in the environment, or with reward_scale or normalise_rewards")
    if trial.completed and trial.endless:
        what = f"no episode ended within {steps} random steps, and the environment has no time limit"
        yield Finding("note", what, "set max_episode_steps if episodes should end")


def _check_determinism(first: Trial, second: Trial, can_save_state: bool) -> list[Finding]:
    """Findings if a second environment, with the same seeds and actions, returned something else."""
    if first.record == second.record:
        return []
    pairs = zip(first.record, second.record, strict=False)
    at = next((index for index, (one, other) in enumerate(pairs) if one != other), len(second.record))
    if at < len(first.record) and first.record[at][0] == "reset":
        what = "reset with the same seed gave another first observation"
        remedy = "call super().reset(seed=seed) and take random numbers from self.np_random only"
    else:
        what = f"the same seed and actions gave another result after {at} calls"
        remedy = "use self.np_random only, keep no state across resets, or offer save_state and load_state"
    if can_save_state:
        return [Finding("note", f"{what}, so an episode cannot be repeated from its seed", remedy)]
    what += ": an interrupted episode cannot be rebuilt by replaying its actions, so resume will not be exact"
    return [Finding("warning", what, remedy)]


def _check_as_in_training(envs: list[Any], source: EnvSource, keys: Keys, steps: int, seed: int) -> list[Finding]:
    """Steps the environments as training does, and if they offer save_state, restores one from the other's snapshot."""
    rng = np.random.default_rng(seed)
    try:
        spec = complete_spec(read_spec(envs[0], source, keys), envs[0], seed)
        one, other = (InlineVector([env], spec, seed=seed, purpose="check", limit=source.limit) for env in envs)
        mask = one.reset().mask
        for _ in range(steps):
            mask = one.step(spec.random_actions(rng, 1, mask)).observation.mask
        if not can_save_state(envs[0]):
            return []
        _, messages = other.restore(*one.snapshot())
        for _ in range(steps):
            action = spec.random_actions(rng, 1, mask)
            step = one.step(action)
            mask = step.observation.mask
            if step.next.vector.tobytes() != other.step(action).next.vector.tobytes():
                messages.append("after load_state the environment continues differently from the saved one")
                break
    except OffbeatError as error:
        return [Finding("error", str(error), "correct the environment; training would stop here")]
    remedy = "save everything that step depends on, including the random generator's state"
    return [Finding("warning", message, remedy) for message in messages]


def _check_batched(env: Any, steps: int, seed: int, options: Mapping[str, Any]) -> list[Finding]:
    keys = options["state_key"], options["mask_key"]
    findings = list(_check_spaces(env.single_observation_space, env.single_action_space, keys))
    if any(finding.severity == "error" for finding in findings):
        return findings
    rng = np.random.default_rng(seed)
    try:
        vector = make_vector(env, seed=seed, purpose="check", **options)
        mask = vector.reset().mask
        for _ in range(-(-steps // vector.num_envs)):
            mask = vector.step(vector.spec.random_actions(rng, vector.num_envs, mask)).observation.mask
    except OffbeatError as error:
        findings.append(Finding("error", str(error), "correct the VectorEnv; training would stop here"))
    what = "a VectorEnv cannot be rebuilt, so a resumed run starts new episodes and is not exact"
    remedy = "for an exact resume, use an id or a factory that creates a single environment"
    return [*findings, Finding("note", what, remedy)]


def _close(envs: list[Any]) -> list[Finding]:
    for env in envs:
        try:
            env.close()
        except Exception as error:
            what = f"close raised {type(error).__name__}: {error}"
            return [Finding("warning", what, "make close work at any time, also when called twice")]
    return []
