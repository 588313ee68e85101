"""check_env reports environments with one error each, and reports nothing for correct ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from faulty import Bent, SavedWalk, Walk
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import FlattenObservation
from switches import SEVERAL, Switches

from counting import Counting
from offbeat.envs import Finding, check_env
from offbeat.errors import UsageError


def words(findings: list[Finding], severity: str) -> str:
    assert all(finding.what and finding.remedy for finding in findings)
    return " | ".join(f"{finding.what}; {finding.remedy}" for finding in findings if finding.severity == severity)


@pytest.mark.parametrize("env", ["Pendulum-v1", "HalfCheetah-v5", "InvertedPendulum-v5", Walk, SavedWalk, Bent])
def test_good_environments_give_no_error_and_no_warning(env: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    findings = check_env(env, steps=300)
    assert words(findings, "error") == ""
    assert words(findings, "warning") == ""
    assert ("cannot be repeated from its seed" in words(findings, "note")) == (env is SavedWalk)


def bent(at_step: Any = None, **kwargs: Any) -> list[Finding]:
    return check_env(lambda: Bent(at_step, **kwargs), steps=30)


def test_every_unsupported_space_is_reported() -> None:
    space = spaces.Dict({"a": spaces.Text(3), "b": spaces.MultiBinary(2)})
    action = spaces.Box(np.float32([-np.inf, 1]), np.float32([1, 1]))
    found = words(bent(observation_space=space, action_space=action), "error")
    for each in ("part 'a'", "part 'b'", "dimension 0 ranges from -inf", "dimension 1 ranges from 1.0 to 1.0"):
        assert each in found


def test_an_unserved_action_space_does_not_keep_the_rest_from_being_checked() -> None:
    def at_step(env: Bent, raw: Any, *rest: Any) -> Any:
        return raw * np.nan, *rest

    found = words(bent(at_step, action_space=spaces.Tuple((spaces.Discrete(3),))), "error")
    assert "declare one Box of floats" in found
    assert "is not finite" in found


def test_a_discrete_action_space_is_fine() -> None:
    assert not words(bent(action_space=spaces.Discrete(3, start=-1)), "error")


@pytest.mark.parametrize("space", SEVERAL)
def test_independent_choices_are_fine_alone_and_in_a_vector_env(space: Any) -> None:
    for env in (lambda: Switches(space), lambda: SyncVectorEnv([lambda: Switches(space)] * 2)):
        findings = check_env(env, steps=30)
        assert words(findings, "error") == ""
        assert words(findings, "warning") == ""


@pytest.mark.parametrize(
    ("space", "every"),
    [
        (spaces.Discrete(3, start=-1), {-1, 0, 1}),
        (spaces.MultiDiscrete([2, 2], start=[-1, 4]), {(-1, 4), (-1, 5), (0, 4), (0, 5)}),
    ],
)
def test_every_choice_is_tried_in_the_form_in_which_training_gives_it(space: Any, every: set[Any]) -> None:
    seen, kinds = set(), set()

    class Noting(Bent):
        def step(self, action: Any) -> Any:
            kinds.add((type(action), action.dtype))
            seen.add(tuple(action) if action.shape else action)  # a 0-d array is not hashable
            return super().step(action)

    assert words(check_env(lambda: Noting(action_space=space), steps=50), "error") == ""
    assert seen == every
    assert len(kinds) == 1


@pytest.mark.parametrize(
    ("at_step", "severity", "expected"),
    [
        (lambda env, raw, *rest: (raw + 1000, *rest), "warning", "outside its declared [-100.0, 100.0]"),
        (lambda env, raw, *rest: (raw.astype(float), *rest), "note", "is float64, but declared float32"),
        (lambda env, raw, *rest: (raw + np.inf, *rest), "error", "is not finite"),
        (lambda env, raw, *rest: (raw[:2], *rest), "error", "has shape (2,), but its space declares (3,)"),
        (lambda env, raw, r, t, u, i: (raw, r, t, i), "error", "4 values, which is the old API"),
        (lambda env, raw, r, t, u, i: [raw], "error", "step returned [array"),
        (lambda env, raw, r, *rest: (raw, None, *rest), "error", "the reward is a NoneType"),
        (lambda env, raw, r, *rest: (raw, "1.5", *rest), "error", "the reward is a str, not a number"),
        (lambda env, raw, r, *rest: (raw, 1e6, *rest), "note", "rewards reach 1e+06"),
        (lambda env, raw, r, *rest: (raw, 0.0, *rest), "note", "every reward of 30 random steps was 0"),
        (lambda env, raw, r, t, *rest: (raw, r, "no", *rest), "error", "terminated is 'no'"),
        (lambda env, raw, r, t, u, i: (raw, r, t, u, None), "error", "None as info"),
        (lambda env, *values: 1 / 0, "error", "step 0 raised ZeroDivisionError"),
    ],
)
def test_errors_of_step_are_reported(at_step: Any, severity: str, expected: str) -> None:
    assert expected in words(bent(at_step), severity)


def test_errors_of_reset_are_reported() -> None:
    assert "reset returned array" in words(bent(at_reset=lambda env, raw, info: raw), "error")
    assert "reset raised ZeroDivisionError" in words(bent(at_reset=lambda *values: 1 / 0), "error")

    class Seedless(Bent):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset(seed=3)

    assert "reset does not take a seed" in words(check_env(Seedless, steps=30), "error")


def test_an_ignored_seed_and_unseeded_randomness_are_distinguished() -> None:
    class Unseeded(Bent):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=None)

    assert "reset with the same seed gave another first observation" in words(check_env(Unseeded), "warning")
    free = words(check_env(Walk, env_kwargs={"drift": "free"}), "warning")
    assert "the same seed and actions gave another result after 1 calls" in free


def test_an_observation_that_changes_after_it_was_returned_is_reported() -> None:
    class Reusing(Bent):
        def _look(self) -> Any:
            self.array = getattr(self, "array", np.zeros(3, np.float32))
            self.array[1] = self.count
            return self.array

    assert "both use the same memory" in words(check_env(Reusing, steps=30), "warning")


def test_endless_episodes_and_odd_bounds_are_noted() -> None:
    assert "no episode ended within 30" in words(bent(length=1000), "note")
    assert "no episode ended" not in words(check_env(lambda: Bent(length=99), steps=30, max_episode_steps=50), "note")
    assert "dimension 1 ranges from 0 to 10, which is not symmetric" in words(check_env(Counting), "note")
    assert "actions reach 5000" in words(bent(action_space=spaces.Box(-5000, 5000, (2,), np.float32)), "note")


def test_a_load_state_that_forgets_something_is_a_warning() -> None:
    class Forgetful(SavedWalk):
        def load_state(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    found = words(check_env(Forgetful), "warning")
    assert "after load_state the environment continues differently" in found
    assert "after load_state" not in words(check_env(SavedWalk), "warning")


def test_a_missing_privileged_state_is_an_error() -> None:
    assert "state_key='hidden' is neither" in words(check_env(Bent, state_key="hidden"), "error")
    assert words(check_env(Counting, env_kwargs={"state": "info"}, state_key="state"), "error") == ""


def test_an_environment_that_cannot_be_made_or_closed_is_a_finding() -> None:
    def broken() -> Any:
        raise OSError("no simulator")

    class Unclosing(Bent):
        def close(self) -> None:
            raise OSError("stuck")

    class Spaceless(Bent):
        def __init__(self) -> None:
            self.at_step = None

    assert "could not be made: OSError: no simulator" in words(check_env(broken), "error")
    assert "returned a str" in words(check_env(lambda: "x"), "error")
    assert "has no attribute 'observation_space'" in words(check_env(Spaceless), "error")
    assert "close raised OSError: stuck" in words(check_env(Unclosing, steps=30), "warning")


def test_a_vector_env_is_checked_as_one() -> None:
    findings = check_env(SyncVectorEnv([Counting] * 2), steps=50)
    assert words(findings, "error") == ""
    assert "a VectorEnv cannot be rebuilt" in words(findings, "note")
    wrong = SyncVectorEnv([lambda: Bent(lambda env, raw, *rest: (raw * np.nan, *rest))])
    assert "is nan as float32" in words(check_env(wrong), "error")


def test_an_image_is_an_error_with_a_remedy() -> None:
    space = spaces.Dict({"camera": spaces.Box(0, 255, (4, 5, 3), np.uint8), "arm": spaces.Box(-1, 1, (2,), np.float32)})

    def seen(env: Bent, raw: Any, *rest: Any) -> Any:
        return {"camera": np.zeros((4, 5, 3), np.uint8), "arm": np.zeros(2, np.float32)}, *rest

    for env in (
        lambda: Bent(seen, seen, observation_space=space),
        lambda: SyncVectorEnv([lambda: Bent(seen, seen, observation_space=space)]),
    ):
        found = words(check_env(env, steps=30), "error")
        assert "the observation 'camera' is an image (4, 5, 3), but this version has no pixel encoder" in found
        assert "passes no images to your own networks" in found
        assert "FlattenObservation" in found
    flat = check_env(lambda: Bent(seen, seen, observation_space=space), steps=30, env_wrapper=FlattenObservation)
    assert words(flat, "error") == ""


@pytest.mark.parametrize("env", [SyncVectorEnv([Counting]), lambda: SyncVectorEnv([Counting])])
def test_a_wrapper_around_a_vector_env_is_an_error_as_it_is_in_training(env: Any) -> None:
    found = words(check_env(env, env_wrapper=FlattenObservation), "error")
    assert "env_wrapper was given with the VectorEnv" in found


class Closing(Bent):
    """Counts the open environments of its class."""

    open = 0

    def __init__(self) -> None:
        super().__init__()
        Closing.open += 1

    def close(self) -> None:
        Closing.open -= 1


def refuse(env: Any) -> Any:
    raise OSError("no")


@pytest.mark.parametrize(
    ("env", "wrapper"),
    [
        (Closing, None),
        (Closing, refuse),
        (lambda: SyncVectorEnv([Closing] * 2), None),
        (lambda: SyncVectorEnv([Closing] * 2), refuse),
    ],
)
def test_check_env_closes_the_environments_that_it_creates(env: Any, wrapper: Any) -> None:
    assert bool(words(check_env(env, env_wrapper=wrapper, steps=20), "error")) == (wrapper is not None)
    assert Closing.open == 0


def test_a_vector_env_that_is_passed_in_stays_open() -> None:
    env = SyncVectorEnv([Counting])
    check_env(env, steps=20)
    assert not env.closed


def test_an_unknown_name_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="did you mean Pendulum-v1"):
        check_env("Pendulum-v11")


def test_returning_the_same_object_twice_is_an_error() -> None:
    shared = Bent()
    found = words(check_env(lambda: shared, steps=30), "error")
    assert "returned the same environment twice" in found
    assert "inside the factory" in found
