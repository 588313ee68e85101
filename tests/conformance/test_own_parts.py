"""Parts of a user's own (tests/own_parts): passed as objects and by name, saved, and known to nothing in src/.

The suites of our own parts run over them, too: test_probe_values, test_probe_rollouts, test_data_path and
test_collectors beside this file, and tests/run/test_resume.py.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat
from offbeat.replay.settings import ReplaySettings
from offbeat.replay.shard import Shard
from offbeat.replay.transitions import split_keys
from offbeat.run.checkpoint import Checkpoints, digest
from offbeat.settings import read_yaml
from own_parts.collector import Background
from own_parts.expectile import ALGORITHM
from own_parts.exploration import PinkNoise
from own_parts.preprocessor import LargestScale
from own_parts.recent import Recent
from own_parts.replay import Prioritised
from own_parts.schedules import InverseRoot, warm_up_and_fall
from rows import SCHEMA, Counting
from short_runs import SETTINGS
from specs import vector_spec

ROOT = Path(__file__).parents[2]
SHORT = {**SETTINGS, "num_envs": 4, "updates_per_step": 0.5, "preset": "none"}


@dataclass(frozen=True)
class Part:
    """A setting with a part of a user's own as its value, the name of the part, and what goes with it."""

    setting: str
    value: Any
    name: str
    algorithm: Any = "td3"
    beside: Any = None


PARTS = {
    "replay": Part("replay", Prioritised, "own_parts.replay:Prioritised", beside={"replay_kwargs": {"alpha": 0.9}}),
    "recent": Part("replay", Recent, "own_parts.recent:Recent"),
    "collector": Part("collector", Background, "own_parts.collector:Background", beside={"slack": 0, "eval_every": 0}),
    "exploration": Part("exploration", PinkNoise, "own_parts.exploration:PinkNoise"),
    "schedule": Part("actor_schedule", warm_up_and_fall, "own_parts.schedules:warm_up_and_fall"),
    "scheduler": Part(
        *("critic_schedule", InverseRoot, "own_parts.schedules:InverseRoot"),
        beside={"schedule_kwargs": {"constant": 5}},
    ),
    "preprocessor": Part("preprocessor", LargestScale, "own_parts.preprocessor:LargestScale"),
    "algorithm": Part("algorithm", ALGORITHM, "own_parts.expectile:ALGORITHM"),
    "algorithm on jax": Part("algorithm", ALGORITHM, "own_parts.expectile:ALGORITHM", beside={"backend": "jax"}),
}


def train(out: Path, part: Part, given: Any, **more: Any) -> Any:
    settings = {**SHORT, **(part.beside or {}), **more}
    if part.setting == "algorithm":
        return offbeat.train(given, "Pendulum-v1", out=str(out), **settings)
    return offbeat.train(part.algorithm, "Pendulum-v1", out=str(out), **{part.setting: given}, **settings)


def arrays(run: Any) -> dict[str, np.ndarray]:
    return dict(Checkpoints(run.path).load("latest").arrays)


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_is_the_same_as_an_object_and_by_its_name(kind: str, tmp_path: Path) -> None:
    part = PARTS[kind]
    by_object, by_name = train(tmp_path / "object", part, part.value), train(tmp_path / "name", part, part.name)
    first, second = arrays(by_object), arrays(by_name)
    assert first.keys() == second.keys()
    assert all(np.array_equal(array, second[name]) for name, array in first.items())
    saved = read_yaml(by_object.path / "config.yaml")[part.setting]
    wanted = {"exploration": {"kind": "own", "make": part.name}}.get(kind, part.name)
    assert saved == wanted
    plain = offbeat.train("td3", "Pendulum-v1", out=str(tmp_path / "plain"), **SHORT)
    same = np.array_equal(arrays(plain)["learner/actor/0/weight"], first["learner/actor/0/weight"])
    assert same == (kind == "collector"), "with slack=0, another collector of the same steps changes nothing"


# A schedule over 60 steps is another one than over 120: test_resume has one, in a run that is killed.
@pytest.mark.parametrize("kind", [kind for kind in PARTS if not kind.startswith("schedule")])
def test_a_part_is_the_same_after_a_resume(kind: str, tmp_path: Path) -> None:
    part = PARTS[kind]
    whole = train(tmp_path / "whole", part, part.name, max_episode_steps=50)
    half = train(tmp_path / "half", part, part.name, max_episode_steps=50, total_steps=60)
    offbeat.resume(half.path, total_steps=120, quiet=True)
    assert digest(half.path) == digest(whole.path)


def test_parts_travel_to_collector_processes(tmp_path: Path) -> None:
    own = {"replay": Prioritised, "exploration": PinkNoise, "preprocessor": LargestScale}
    run = offbeat.train(ALGORITHM, "Pendulum-v1", out=str(tmp_path), collectors=2, **own, **SHORT)
    assert run.status == "finished"
    saved = arrays(run)
    assert {"experience/priorities/0", "experience/priorities/1"} <= saved.keys()
    assert saved["learner/observations/largest"].max() > 1.0
    policy = offbeat.load_policy(run.path, preprocessor=LargestScale)
    assert policy.act([1.0, 0.0, 0.0]).shape == (1,)


# Each part does what it says.


def prioritised(rows: int, workers: int = 1, **options: Any) -> Prioritised:
    replay = Prioritised(SCHEMA, ReplaySettings(capacity=100, batch_size=50), **options)
    for worker in range(workers):
        shard = Shard(SCHEMA, 100, worker=worker)
        shard.write(Counting(1, worker).chunk(rows))
        replay.attach(shard)
    return replay


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("rows", [20, 130])
def test_rows_are_drawn_in_proportion_to_their_priority_and_weighted_by_it(rows: int, workers: int) -> None:
    replay, rng = prioritised(rows, workers, alpha=1.0, beta=1.0), np.random.default_rng(0)
    keys = np.unique(replay.draw(rng, 100).rows)
    assert len(keys) == workers * min(rows, 100), "rows without a TD error are all drawn"
    errors = rng.uniform(0.1, 2.0, len(keys))
    replay.feedback(keys, errors)
    batches = replay.draw(rng, 2_000)
    drawn = np.searchsorted(keys, batches.rows)
    share = np.bincount(drawn.ravel(), minlength=len(keys)) / drawn.size
    np.testing.assert_allclose(share, errors / errors.sum(), atol=0.004)
    product = batches.weight * errors[drawn]  # weight is 1 / priority, relative to the largest of the batch
    np.testing.assert_allclose(product, product[:, :1].repeat(50, 1), rtol=1e-4)
    assert (batches.weight.max(1) == 1.0).all()


def test_feedback_of_a_row_that_was_overwritten_meanwhile_is_dropped() -> None:
    replay, rng = prioritised(100, alpha=1.0), np.random.default_rng(0)
    rows = replay.draw(rng, 1).rows
    (shard,) = replay.reader.shards
    shard.write(Counting(1, 5).chunk(100))
    replay.feedback(rows, np.full(rows.shape, 9.0))
    replay.draw(rng, 1)
    _, sequences = split_keys(rows)
    assert (sequences < shard.oldest).all()
    assert set(replay.arrays()["priorities/0"]) == {9.000001}, "new rows begin with the largest priority"


@pytest.mark.parametrize("capacity", [60, 100, 160])
@pytest.mark.parametrize("rows", [20, 130])
def test_priorities_stay_with_their_rows_when_a_run_resumes_with_another_capacity(rows: int, capacity: int) -> None:
    replay, rng = prioritised(rows, alpha=1.0), np.random.default_rng(0)
    keys = np.unique(replay.draw(rng, 100).rows)
    replay.feedback(keys, keys + 1.0)
    resumed = Prioritised(SCHEMA, ReplaySettings(capacity=capacity, batch_size=50), alpha=1.0)
    (before,), after = replay.reader.shards, Shard(SCHEMA, capacity)
    resumed.attach(after)
    resumed.restore(replay.arrays())
    after.restore([before.read(before.oldest, before.committed)])
    after.write(Counting(1, 1).chunk(5))
    held = np.arange(after.oldest, after.committed)
    largest = float(replay.arrays()["largest"][0])
    expected = np.where(held < rows, held + 1.000001, largest)
    np.testing.assert_allclose(resumed.held(after, after.oldest, after.committed), expected)


@pytest.mark.parametrize("capacity", [40, 200])
def test_a_run_with_priorities_resumes_with_another_capacity(capacity: int, tmp_path: Path) -> None:
    run = train(tmp_path, PARTS["replay"], Prioritised, capacity=60)
    assert offbeat.resume(run.path, total_steps=240, capacity=capacity, quiet=True).status == "finished"
    assert arrays(run)["experience/priorities/0"].shape == (capacity,)


def test_new_rows_are_drawn_more_often() -> None:
    replay, rng = Recent(SCHEMA, ReplaySettings(capacity=100, batch_size=50), power=3.0), np.random.default_rng(0)
    shard = Shard(SCHEMA, 100)
    shard.write(Counting(1).chunk(150))
    replay.attach(shard)
    ages = 149 - replay.draw(rng, 1_000).rows
    assert ages.min() == 0
    assert ages.max() == 99
    assert np.mean(ages < 100 * 0.5**3) == pytest.approx(0.5, abs=0.02)


def test_pink_noise_has_its_scale_and_is_correlated_over_steps() -> None:
    agent = offbeat.Agent("td3", vector_spec(3, 2), random_steps=0, exploration=PinkNoise, hidden=(4,))
    policy, rng = agent.policy(200), np.random.default_rng(0)
    policy.load(agent.publication().weights)
    obs, carry, noise = np.zeros((200, 3), np.float32), policy.initial_carry(200), []
    plain, _, _ = policy.act(obs, carry, None)
    for _ in range(60):
        action, carry, _ = policy.act(obs, carry, rng)
        noise.append(action - plain)
    late = np.stack(noise[40:])
    assert late.std() == pytest.approx(0.3, rel=0.1)
    assert np.corrcoef(late[:-1].ravel(), late[1:].ravel())[0, 1] == pytest.approx(
        (0.0 + 0.5 + 0.75 + 0.875) / 4, abs=0.05
    )


# Nothing in Offbeat knows them, and they know nothing of the tests.


def test_nothing_in_src_knows_the_parts() -> None:
    names = {"own_parts", *(part.name.rpartition(":")[2] for part in PARTS.values())} - {"ALGORITHM"}
    for path in (ROOT / "src").rglob("*.py"):
        words = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert not names & words, path
        assert "own_parts" not in path.read_text(), path


def test_the_parts_import_only_what_the_page_names() -> None:
    page, used = (ROOT / "docs" / "extending.md").read_text(), set()
    for path in (ROOT / "tests" / "own_parts").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.ImportFrom) or node.level == 0, path
            if isinstance(node, ast.ImportFrom):
                used.add(node.module)
            elif isinstance(node, ast.Import):
                used |= {each.name for each in node.names}
    ours = {name for name in used if name and name.startswith("offbeat")}
    others = {name.split(".")[0] for name in used - ours if name}
    assert others <= {"numpy", "torch", "jax", "flax", *sys.stdlib_module_names}
    assert all(f"`{name}`" in page for name in ours)
