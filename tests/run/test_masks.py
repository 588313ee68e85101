"""Runs with action masks: no forbidden action is ever taken, in training, evaluation or later; rows hold the masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat
from guarded import BRANCHES, CHOICES, Guarded
from offbeat.errors import SpaceError, UsageError
from offbeat.masks import permits
from offbeat.run.callbacks import ChunkEvent
from offbeat.run.checkpoint import digest

SHARED: dict[str, Any] = {
    **{"hidden": (8,), "num_envs": 2, "total_steps": 120, "threads": 1, "quiet": True, "logger": ()},
    **{"eval_every": 60, "eval_episodes": 2, "log_every": 60, "checkpoint_every": 0, "max_crashes": 1},
}
REPLAY = {"batch_size": 8, "random_steps": 40, "warmup_steps": 30, "capacity": 500, "updates_per_step": 0.5}
ROLLOUTS = {"rollout_steps": 15, "epochs": 2, "minibatches": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {**REPLAY, "n_step": 2, "exploration_final": 0.5, "exploration_steps": 60},
    "sac": REPLAY,
    "ppo": {**ROLLOUTS, "entropy_coefficient": 0.01},
    "appo": ROLLOUTS,
}


class Watching:
    def __init__(self) -> None:
        self.chunks: list[dict[str, np.ndarray]] = []

    def on_chunk(self, event: ChunkEvent) -> None:
        self.chunks.append({name: np.array(column) for name, column in event.chunk.columns.items()})

    def column(self, name: str) -> np.ndarray:
        return np.concatenate([chunk[name] for chunk in self.chunks])


def train(algorithm: str, out: Path, callbacks: Any = None, **settings: Any) -> Any:
    settings = {"mask_key": "allowed", **SHARED, **SETTINGS[algorithm], **settings}
    settings = settings if settings.get("collectors") else {**settings, "max_crashes": 5}
    return offbeat.train(algorithm, "guarded:make", out=str(out), callbacks=callbacks, **settings)


def check_rows(watching: Watching, counts: tuple[int, ...]) -> None:
    mask, next_mask = watching.column("mask"), watching.column("next_mask")
    assert mask.dtype == next_mask.dtype == np.bool_
    assert permits(mask, watching.column("action"), counts)
    assert not mask.all()
    assert next_mask.any(1).all()
    # Within an episode, a row's next mask is the mask of the row that follows it.
    for env in np.unique(watching.column("env")):
        mine = watching.column("env") == env
        goes_on = watching.column("episode")[mine][1:] == watching.column("episode")[mine][:-1]
        np.testing.assert_array_equal(mask[mine][1:][goes_on], next_mask[mine][:-1][goes_on])


@pytest.mark.parametrize("collectors", [0, 1])
@pytest.mark.parametrize("algorithm", sorted(SETTINGS))
def test_no_forbidden_action_is_taken(algorithm: str, collectors: int, tmp_path: Path) -> None:
    watching = Watching()
    run = train(algorithm, tmp_path, [watching], collectors=collectors)
    assert run.status == "finished"
    assert json.loads((run.path / "summary.json").read_text())["restarts"] == 0
    check_rows(watching, (CHOICES,))
    assert np.isfinite(run.evaluation.returns).all()
    policy, env = run.policy(), Guarded()
    for deterministic in (True, False):
        obs, info = env.reset(seed=5)
        for _ in range(4):
            obs, _, _, _, info = env.step(policy.act(obs, deterministic, mask=info["allowed"]))


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
@pytest.mark.parametrize("where", ["info", "observation"])
def test_branches_are_masked_one_after_the_other(algorithm: str, where: str, tmp_path: Path) -> None:
    watching, kwargs = Watching(), {"several": True, "mask": where}
    run = train(algorithm, tmp_path, [watching], env_kwargs=kwargs)
    check_rows(watching, BRANCHES)
    policy, env = run.policy(), Guarded(**kwargs)
    obs, info = env.reset(seed=5)
    for _ in range(4):
        obs, _, _, _, info = env.step(policy.act(obs, **({"mask": info["allowed"]} if where == "info" else {})))


@pytest.mark.parametrize("ends", ["gone", "truncated"])
@pytest.mark.parametrize("where", ["info", "observation"])
def test_mask_key_is_a_key_of_info_or_of_the_observation(where: str, ends: str, tmp_path: Path) -> None:
    watching = Watching()
    kwargs = {"mask": where, "ends": ends}
    run = train("dqn", tmp_path, [watching], mask_key="allowed", env_kwargs=kwargs, total_steps=60)
    check_rows(watching, (CHOICES,))
    assert run.policy().spec.observation_size == 3
    assert len(offbeat.evaluate(run.path, episodes=3).returns) == 3


@pytest.mark.parametrize("algorithm", sorted(SETTINGS))
def test_a_resumed_run_equals_one_that_was_never_interrupted(algorithm: str, tmp_path: Path) -> None:
    whole = train(algorithm, tmp_path)
    part = train(algorithm, tmp_path, total_steps=70, eval_every=0)
    resumed = offbeat.resume(part.path, total_steps=120, quiet=True)
    assert resumed.status == "finished"
    assert digest(part.path) == digest(whole.path)


@pytest.mark.parametrize("collectors", [0, 1])
def test_a_mask_that_no_mask_key_names_is_told_of(
    collectors: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {"env_kwargs": {"key": "action_mask"}, "env_wrapper": "guarded:unguarded", "total_steps": 40}
    train("dqn", tmp_path, mask_key=None, collectors=collectors, **given)
    said = capfd.readouterr().err
    assert said.count("--mask-key action_mask") == 1
    if not collectors:
        train("dqn", tmp_path, mask_key="action_mask", **given)
        assert "--mask-key" not in capfd.readouterr().err


def test_box_actions_have_no_mask(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="has Box actions"):
        offbeat.train("sac", "Pendulum-v1", mask_key="action_mask", out=str(tmp_path), quiet=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("algorithm", sorted(SETTINGS))
@pytest.mark.parametrize("where", ["info", "observation"])
def test_an_agent_in_a_loop_of_ones_own_acts_and_learns_under_masks(algorithm: str, where: str) -> None:
    env = Guarded(mask=where)
    settings = {key: value for key, value in SETTINGS[algorithm].items() if key != "updates_per_step"}
    agent = offbeat.Agent(algorithm, env, mask_key="allowed", hidden=(8,), **settings)
    assert agent.spec.mask_size == CHOICES

    def masks(**infos: Any) -> dict[str, Any]:
        return {name: info["allowed"] for name, info in infos.items()} if where == "info" else {}

    obs, info = env.reset(seed=1)
    for _ in range(60):
        action = agent.act(obs, **masks(mask=info))
        following, reward, terminated, truncated, after = env.step(action)
        agent.observe(obs, action, reward, following, terminated, truncated, **masks(mask=info, next_mask=after))
        obs, info = env.reset() if terminated or truncated else (following, after)
        assert all(np.isfinite(value) for value in agent.update().values())
        greedy = agent.act(obs, deterministic=True, **masks(mask=info))
        assert env._mask[int(greedy) - 1]
    assert agent.learner.updates > 0


def test_an_agent_says_what_is_wrong_with_a_mask() -> None:
    agent = offbeat.Agent("dqn", Guarded(), mask_key="allowed", hidden=(8,), random_steps=0)
    obs, mask = np.zeros(3, np.float32), np.array([1, 0, 0, 0, 0])
    with pytest.raises(UsageError, match=r"mask is missing, but .*pass mask=info\['allowed'\]"):
        agent.act(obs)
    with pytest.raises(UsageError, match=r"mask allows no action"):
        agent.act(obs, mask=0 * mask)
    with pytest.raises(UsageError, match=r"mask has 1 rows, but it must have one row for each of the 2"):
        agent.act(np.stack((obs, obs)), mask=mask[None])
    assert agent.act(np.stack((obs, obs)), mask=np.stack((mask, mask))).tolist() == [1, 1]
    with pytest.raises(UsageError, match="next_mask is missing"):
        agent.observe(obs, 1, 0.0, obs, False, False, mask=mask)
    with pytest.raises(UsageError, match=r"observe: the mask forbids an action of \[\[1.0\]\]"):
        agent.observe(obs, 2, 0.0, obs, False, False, mask=mask, next_mask=mask)
    with pytest.raises(UsageError, match="next_mask allows no action"):
        agent.observe(obs, 1, 0.0, obs, False, True, mask=mask, next_mask=0 * mask)
    agent.observe(obs, 1, 0.0, obs, True, False, mask=mask, next_mask=0 * mask)
    with pytest.raises(UsageError, match="learns without masks: make it with mask_key="):
        offbeat.Agent("dqn", "CartPole-v1", hidden=(8,)).act(np.zeros(4), mask=[1, 1])
    ppo = offbeat.Agent("ppo", Guarded(), mask_key="allowed", hidden=(8,))
    action = ppo.act(obs, mask=np.ones(5))
    with pytest.raises(UsageError, match="mask is not the one that act was given"):
        ppo.observe(obs, action, 0.0, obs, False, False, mask=np.arange(1, 6) == action, next_mask=mask)


def test_a_loaded_policy_takes_a_mask_also_where_it_was_trained_without(tmp_path: Path) -> None:
    run = train("dqn", tmp_path, total_steps=40)
    policy, obs = run.policy(), np.zeros((3, 3), np.float32)
    with pytest.raises(UsageError, match=r"pass mask=info\['allowed'\]"):
        policy.act(obs)
    only = np.eye(CHOICES, dtype=int)[[4, 0, 2]]
    for deterministic in (True, False):
        assert policy.act(obs, deterministic, mask=only).tolist() == [5, 1, 3]
    free = train("dqn", tmp_path, mask_key=None, env_wrapper="guarded:unguarded", total_steps=40).policy()
    assert free.act(obs, mask=only).tolist() == [5, 1, 3]
    assert free.act(obs).shape == (3,)
