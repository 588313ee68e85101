"""Exploration of a user's own: given as an object or by its name, in process and with collectors, saved and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat
from offbeat.errors import UsageError
from offbeat.policies import Policy
from offbeat.run.checkpoint import Checkpoints, digest
from offbeat.settings import make_config, read_yaml
from offbeat.types import Array, EnvSpec, Weights
from short_runs import SETTINGS
from specs import vector_spec

HERE = "test_own_exploration"


class Walk:
    """A random walk on top of the actions; where it stands is the carry, which checkpoints keep."""

    def __init__(self, policy: Policy, spec: EnvSpec) -> None:
        self._policy, self._size = policy, spec.action_size

    def load(self, weights: Weights) -> None:
        self._policy.load(weights)

    def initial_carry(self, num_envs: int) -> Array:
        return np.concatenate((self._policy.initial_carry(num_envs), np.zeros((num_envs, self._size), np.float32)), 1)

    def act(
        self, obs: Array, carry: Array, rng: np.random.Generator | None, step: int = 0, mask: Array | None = None
    ) -> tuple[Array, Array, dict[str, Array]]:
        inner = carry.shape[1] - self._size
        action, kept, extras = self._policy.act(obs, carry[:, :inner], rng, step, mask)
        walked = carry[:, inner:]
        if rng is not None:
            walked = walked + 0.1 * rng.standard_normal(walked.shape, np.float32)
            action = np.clip(action + walked, -1.0, 1.0)
        return action, np.concatenate((kept, walked), 1), extras


def shorter(**changes: Any) -> dict[str, Any]:
    return {**SETTINGS, "num_envs": 4, "updates_per_step": 0.5, **changes}


def train(out: Path, exploration: Any, **changes: Any) -> offbeat.run.api.RunResult:  # type: ignore[name-defined]
    return offbeat.train("td3", "Pendulum-v1", out=str(out), exploration=exploration, **shorter(**changes))


@pytest.mark.parametrize("given", [{"exploration": Walk}, {"exploration": f"{HERE}:Walk"}])
def test_a_callable_or_its_name_is_the_kind_own(given: dict[str, Any]) -> None:
    whole = {"exploration": "own", "exploration_make": f"{HERE}:Walk"}
    assert make_config("td3", given) == make_config("td3", whole)
    assert make_config("dqn", given).learner.exploration == make_config("dqn", whole).learner.exploration


@pytest.mark.parametrize(
    ("algorithm", "settings", "words"),
    [
        ("td3", {"exploration": "own"}, "exploration=own needs exploration_make"),
        ("td3", {"exploration_make": f"{HERE}:Walk"}, "exploration_make needs exploration own"),
        ("td3", {"exploration": f"{HERE}:Walk", "exploration_scale": 0.3}, "exploration_scale needs exploration gau"),
        ("sac", {"exploration": Walk}, "there is no setting 'exploration'"),
        ("sac", {"temperature": "a:b"}, "temperature='a:b' is not one of learned, fixed"),
    ],
)
def test_what_does_not_fit_is_refused(algorithm: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_config(algorithm, settings)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (lambda policy, spec: 3, "made a int without load, initial_carry, act; it needs"),
        (lambda policy: policy, r"calling it with \(MLPPolicy, EnvSpec\) raised TypeError"),
        (f"{HERE}:missing", "has no 'missing'"),
    ],
)
def test_what_makes_no_policy_is_refused_before_the_run_begins(own: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        train(tmp_path, own)
    assert not list(tmp_path.iterdir())


def test_it_acts_while_exploring_and_not_otherwise() -> None:
    obs = np.ones((3, 5), np.float32)
    plain, own = (offbeat.Agent("td3", vector_spec(5, 2), random_steps=0, exploration=each) for each in (None, Walk))
    assert np.array_equal(plain.act(obs, deterministic=True), own.act(obs, deterministic=True))
    assert not np.array_equal(plain.act(obs), own.act(obs))


@pytest.mark.parametrize("collectors", [0, 1])
def test_a_resumed_run_equals_one_that_was_not_interrupted(collectors: int, tmp_path: Path) -> None:
    """The second half begins in the middle of episodes, whose walks go on."""
    more = {"collectors": 1, "slack": 0} if collectors else {}
    whole = train(tmp_path / "whole", Walk, total_steps=120, max_episode_steps=50, **more)
    half = train(tmp_path / "half", f"{HERE}:Walk", total_steps=60, max_episode_steps=50, **more)
    assert read_yaml(half.path / "config.yaml")["exploration"] == {"kind": "own", "make": f"{HERE}:Walk"}
    offbeat.resume(half.path, total_steps=120, quiet=True)
    theirs, ours = (Checkpoints(run.path).load("latest").arrays for run in (whole, half))
    assert theirs.keys() == ours.keys()
    assert all(np.array_equal(theirs[name], ours[name]) for name in theirs)
    if not collectors:  # a collector's own record also counts how often it was started
        assert digest(half.path, "latest") == digest(whole.path, "latest")


def test_with_collectors_the_numbers_are_those_of_one_process(tmp_path: Path) -> None:
    def own(policy: Policy, spec: EnvSpec) -> Policy:
        return Walk(policy, spec)

    runs = [train(tmp_path / str(count), own, collectors=count, **({"slack": 0} if count else {})) for count in (0, 1)]
    assert runs[0].history[-1].returns == runs[1].history[-1].returns


def test_a_callable_without_a_name_has_to_be_given_again(tmp_path: Path) -> None:
    def own(policy: Policy, spec: EnvSpec) -> Policy:
        return Walk(policy, spec)

    run = train(tmp_path, own)
    with pytest.raises(UsageError, match=r"exploration_make was <function .* give it again"):
        offbeat.resume(run.path, total_steps=140)
    assert offbeat.resume(run.path, total_steps=140, exploration=own, quiet=True).status == "finished"
    assert offbeat.resume(run.path, total_steps=160, exploration_make=own, quiet=True).status == "finished"
    assert offbeat.evaluate(run.path, episodes=1).episodes == 1


def test_a_loaded_policy_imports_nothing_and_acts_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(tmp_path, f"{HERE}:Walk")
    monkeypatch.setattr("offbeat.references.find", lambda *arguments: pytest.fail("something was imported"))
    policy = run.policy()
    obs = np.zeros(3, np.float32)
    assert np.array_equal(policy.act(obs), policy.act(obs, deterministic=False))
