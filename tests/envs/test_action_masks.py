"""Action masks from environments to rows, and errors for invalid masks."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from guarded import BRANCHES, CHOICES, Guarded
from offbeat.envs import check_env, make_vector
from offbeat.errors import EnvironmentFault, SpaceError, UsageError
from offbeat.masks import BadMask, as_mask, sample
from offbeat.types import Array


class Bent(Guarded):
    """Guarded, with `bend` applied to its info."""

    def __init__(self, bend: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._bend = bend

    def _show(self, over: bool = False) -> tuple[Any, dict[str, Any]]:
        raw, info = super()._show(over)
        return raw, self._bend(self._step, info)


def walk(vector: Any, steps: int = 12, seed: int = 0) -> list[Array]:
    """Next masks and masks (N, 2K) of each step with random allowed actions, only of valid rows."""
    rng, shown = np.random.default_rng(seed), vector.reset()
    found = []
    for _ in range(steps):
        step = vector.step(vector.spec.random_actions(rng, vector.num_envs, shown.mask))
        live = step.valid & ~step.terminated
        found.append(np.hstack((step.next.mask[live], shown.mask[live])))
        shown = step.observation
    return found


@pytest.mark.parametrize("where", ["info", "observation"])
@pytest.mark.parametrize("ends", ["terminated", "gone", "truncated"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_environments_return_the_masks_of_their_environments(mode: AutoresetMode, ends: str, where: str) -> None:
    kwargs = {"ends": ends, "mask": where}
    batch = SyncVectorEnv([lambda: Guarded(**kwargs)] * 2, autoreset_mode=mode)
    theirs = walk(make_vector(batch, mask_key="allowed"), 3)
    ours = walk(make_vector(Guarded, 2, env_kwargs=kwargs, mask_key="allowed"), 3)
    for one, other in zip(ours, theirs, strict=True):  # only the first episode has the same seeds in every mode
        np.testing.assert_array_equal(one, other)
    for masks in walk(make_vector(batch, mask_key="allowed"), 15):  # and no forbidden action in those that follow
        assert masks.reshape(-1, CHOICES).any(1).all()


def test_the_final_mask_of_a_truncated_episode_belongs_to_that_episode() -> None:
    vector = make_vector(Guarded, env_kwargs={"ends": "truncated", "length": 1}, mask_key="allowed")
    rng, shown = np.random.default_rng(0), vector.reset()
    for _ in range(20):
        step = vector.step(vector.spec.random_actions(rng, 1, shown.mask))
        assert step.truncated.all()
        shown = step.observation
        if (step.next.mask != shown.mask).any():
            return
    raise AssertionError("the mask of the next episode's beginning always stood for the final one")


@pytest.mark.parametrize(
    ("bend", "words"),
    [
        (
            lambda step, info: {"allowed": np.ones(3)},
            r"the mask info\['allowed'\] has shape \(3,\), but it must have shape \(5,\)",
        ),
        (lambda step, info: {"allowed": [0, 1, 2, 0, 1]}, r"is \[0, 1, 2, 0, 1\], but it must hold 1 for each"),
        (
            lambda step, info: {"allowed": np.zeros(5)},
            r"allows no action, but must allow at least one .*\[0, 0, 0, 0, 0\]",
        ),
        (lambda step, info: {"allowed": ["a"] * 5}, r"must hold 1 for each allowed action and 0 for the others"),
        (lambda step, info: info if step == 0 else {"x": 1}, r"step 0: info has no 'allowed' \(its keys: 'x'\)"),
    ],
)
@pytest.mark.parametrize("batched", [False, True])
def test_an_invalid_mask_is_a_fault(bend: Any, words: str, batched: bool) -> None:
    env = SyncVectorEnv([lambda: Bent(bend)]) if batched else lambda: Bent(bend)
    with pytest.raises(EnvironmentFault, match=rf"environment 0.*{words}"):
        walk(make_vector(env, mask_key="allowed"))


def test_a_branch_without_an_allowed_choice_is_named() -> None:
    empty = np.array([1, 0, 1, 0, 0, 0, 0])
    with pytest.raises(BadMask, match="allows no choice in branch 1"):
        as_mask(empty, BRANCHES)
    assert as_mask(empty, BRANCHES, terminated=True).all()


def test_invalid_mask_settings_are_refused_when_the_environment_is_created() -> None:
    with pytest.raises(SpaceError, match=r"mask_key='allowed'.*has Box actions.*leave mask_key out"):
        make_vector("Pendulum-v1", mask_key="allowed")
    with pytest.raises(UsageError, match=r"mask_key='nothing' is neither a key of the observation space"):
        make_vector(Guarded, mask_key="nothing")
    with pytest.raises(SpaceError, match="state_key and mask_key are both 'allowed'"):
        make_vector(Guarded, state_key="allowed", mask_key="allowed")
    with pytest.raises(
        EnvironmentFault, match=r"the mask observation\['a'\] has shape \(2,\), but it must have shape \(3,\)"
    ):
        make_vector(Short, mask_key="a").reset()


class Short(gymnasium.Env):
    observation_space = Dict({"a": Box(0, 1, (2,)), "b": Box(0, 1, (2,))})
    action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)}, {}


@pytest.mark.parametrize("branches", [(CHOICES,), BRANCHES])
def test_random_actions_are_uniform_over_the_allowed_actions(branches: tuple[int, ...]) -> None:
    rng, count = np.random.default_rng(0), 20_000
    mask = rng.random(sum(branches)) < 0.6
    mask[[0, -1]] = True
    action = sample(rng, np.tile(mask, (count, 1)), branches)
    assert action.dtype == np.float32
    for own, part in zip(action.T, np.split(mask, np.cumsum(branches)[:-1]), strict=True):
        share = np.bincount(own.astype(int), minlength=len(part)) / count
        np.testing.assert_allclose(share, part / part.sum(), atol=5 * 0.5 / np.sqrt(count))
        assert not share[~part].any()


def test_check_env_uses_the_mask_and_reports_one_without_mask_key() -> None:
    def words(severity: str, **options: Any) -> str:
        findings = check_env(Guarded, steps=60, **options)
        return " ".join(f"{each.what}; {each.remedy}" for each in findings if each.severity == severity)

    assert words("error", mask_key="allowed") == ""
    assert words("error", mask_key="allowed", env_kwargs={"mask": "observation", "several": True}) == ""
    assert "forbidden" in words("error", env_kwargs={"key": "action_mask"})
    note = words("note", env_kwargs={"key": "action_mask"})
    assert "info has 'action_mask'" in note
    assert "--mask-key action_mask" in note
    assert "the mask 'other' is missing" in words("error", mask_key="other")


def test_masks_are_saved_and_rebuilt() -> None:
    def vector() -> Any:
        return make_vector(Guarded, 2, env_kwargs={"length": 9}, mask_key="allowed")

    one, other = vector(), vector()
    rng, shown = np.random.default_rng(0), one.reset()
    for _ in range(5):
        shown = one.step(one.spec.random_actions(rng, 2, shown.mask)).observation
    arrays, values = one.snapshot()
    np.testing.assert_array_equal(arrays["mask"], shown.mask)
    again, sentences = other.restore(arrays, values)
    assert sentences == []
    np.testing.assert_array_equal(again.mask, shown.mask)
    _, (sentence, *_) = vector().restore({**arrays, "mask": ~arrays["mask"]}, values)
    assert "its observation differs" in sentence
