"""The in-process collector: every row is one that the environment saw, in order, and nothing else is."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from counting import Counting, make
from offbeat.collect import InProcess, Stepper
from offbeat.envs import Vector, make_vector
from offbeat.errors import OffbeatError
from offbeat.replay.queue import RolloutQueue
from offbeat.replay.shard import Shard
from offbeat.trace import NO_TRACE
from offbeat.types import Array, Chunk, Field, Schema
from offbeat.weights.publication import Publication

ROWS = {1: 5_000, 3: 10_000, 64: 20_000}
"""By the number of environments; the conformance test of the data path has more than 100,000 in each mode."""


class Scripted:
    """Acts at random, remembers how often it acted since its carry was reset, and reports both as extras."""

    def __init__(self, carry_size: int = 1) -> None:
        self.carry_size, self.loaded = carry_size, {}

    def load(self, weights: Any) -> None:
        self.loaded = weights

    def initial_carry(self, num_envs: int) -> Array:
        return np.zeros((num_envs, self.carry_size), np.float32)

    def act(self, obs: Array, carry: Array, rng: Any, step: int = 0) -> tuple[Array, Array, dict[str, Array]]:
        assert rng is not None
        action = rng.uniform(-1, 1, (len(obs), 2)).astype(np.float32)
        return action, carry + 1, {"acted": carry.sum(axis=1), "unwanted": obs}


def counting_vector(kind: str, num_envs: int, **kwargs: Any) -> tuple[Vector, list[Counting]]:
    envs = [Counting(**kwargs) for _ in range(num_envs)]
    supply = iter(envs)
    if kind == "inline":
        return make_vector(lambda: next(supply), num_envs, state_key="state" if kwargs.get("state") else None), envs
    vector = SyncVectorEnv([lambda: next(supply)] * num_envs, autoreset_mode=AutoresetMode[kind.upper()])
    return make_vector(vector, state_key="state" if kwargs.get("state") else None), envs


def collector(
    vector: Vector,
    policy: Any = None,
    extras: tuple[Field, ...] = (),
    shard: Shard | None = None,
    rng: np.random.Generator | None = None,
    **options: Any,
) -> InProcess:
    """A collector that may make any number of steps."""
    schema = Schema.transitions(vector.spec, extras)
    writer = Shard(schema, 40) if shard is None else shard
    stepper = Stepper(vector, policy or Scripted(), schema, writer, rng or np.random.default_rng(0), **options)
    inline = InProcess(stepper)
    inline.allow(1 << 62)
    return inline


def poll(inline: InProcess) -> Chunk:
    [chunk] = inline.poll(0.0)
    return chunk


def join(chunks: list[Chunk]) -> dict[str, Array]:
    return {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}


@pytest.mark.parametrize("kind", ["inline", "next_step", "same_step", "disabled"])
@pytest.mark.parametrize(
    ("num_envs", "rows_wanted"),
    ROWS.items(),
)
def test_rows_are_the_environments_own_log_and_nothing_else(kind: str, num_envs: int, rows_wanted: int) -> None:
    vector, envs = counting_vector(kind, num_envs)
    inline = collector(vector, Scripted(0))
    chunks = []
    rows_made = 0
    while rows_made < rows_wanted:
        chunks.append(poll(inline))
        rows_made += len(chunks[-1])
    assert [chunk.sequence for chunk in chunks] == np.cumsum([0, *map(len, chunks)])[:-1].tolist()
    rows = join(chunks)
    assert sum(len(env.log) for env in envs) == len(rows["reward"]) == rows_made
    finished = [episode for chunk in chunks for episode in chunk.finished]
    for index, env in enumerate(envs):
        mine = {name: column[rows["env"] == index] for name, column in rows.items()}
        compare_with_log(mine, env, vector)
        ends = [entry for entry in env.log if entry.terminated or entry.truncated]
        own = [episode for episode in finished if episode.env == index]
        assert [(each.episode, each.length) for each in own] == [(entry.episode, entry.step + 1) for entry in ends]
        assert [each.total_reward for each in own] == [
            entry.episode * (entry.step + 1) + sum(range(entry.step + 1)) / 8 for entry in ends
        ]


def compare_with_log(mine: dict[str, Array], env: Counting, vector: Vector) -> None:
    """Rows in order, next = step + 1 of the same episode (the true final observation too), all else as logged."""
    episode, step, action, reward, terminated, truncated = (np.array(column) for column in zip(*env.log, strict=True))
    np.testing.assert_array_equal(mine["obs"], np.stack([episode, step], 1))
    np.testing.assert_array_equal(mine["next_obs"], np.stack([episode, step + 1], 1))
    np.testing.assert_array_equal(mine["episode"], episode)
    np.testing.assert_array_equal(mine["step"], step)
    np.testing.assert_array_equal(mine["reward"], reward.astype(np.float32))
    np.testing.assert_array_equal(mine["terminated"], terminated)
    np.testing.assert_array_equal(mine["truncated"], truncated)
    np.testing.assert_array_equal(vector.spec.to_environment(mine["action"]), action.astype(np.float32))


@pytest.mark.parametrize("kind", ["inline", "next_step", "same_step", "disabled"])
@pytest.mark.parametrize("where", ["info", "observation"])
def test_structured_rows_and_privileged_states_are_the_true_ones(kind: str, where: str) -> None:
    vector, _ = counting_vector(kind, 3, structure="dict", state=where)
    inline = collector(vector)
    rows = join([poll(inline) for _ in range(500)])
    # Sorted keys, depth first: flag (one-hot of 5 and 6), where/episode, where/step.
    for obs, state, ahead in ((rows["obs"], rows["state"], 0), (rows["next_obs"], rows["next_state"], 1)):
        np.testing.assert_array_equal(obs[:, 3], rows["step"] + ahead)
        np.testing.assert_array_equal(obs[:, 1], (rows["step"] + ahead) % 2)
        np.testing.assert_array_equal(obs[:, 0], 1 - obs[:, 1])
        np.testing.assert_array_equal(state, np.stack([obs[:, 2], obs[:, 3], np.ones(len(obs))], 1))
    np.testing.assert_array_equal(rows["obs"][:, 2], rows["next_obs"][:, 2])


@pytest.mark.parametrize("kind", ["inline", "next_step", "same_step", "disabled"])
def test_the_carry_starts_afresh_with_each_episode_and_wanted_extras_become_columns(kind: str) -> None:
    vector, _ = counting_vector(kind, 3)
    inline = collector(vector, extras=(Field("acted", (), "float32"),))
    rows = join([poll(inline) for _ in range(200)])
    np.testing.assert_array_equal(rows["acted"], rows["step"])
    assert "unwanted" not in rows


@pytest.mark.parametrize("kind", ["inline", "next_step"])
def test_an_extra_that_stands_beside_the_rows_comes_with_them(kind: str) -> None:
    class Remembering(Scripted):
        def act(self, obs: Array, carry: Array, rng: Any, step: int = 0) -> tuple[Array, Array, dict[str, Array]]:
            action, carry, extras = super().act(obs, carry, rng)
            return action, carry, {**extras, "seen": np.concatenate((obs, obs), axis=1)}

    vector, _ = counting_vector(kind, 3)
    inline = collector(vector, Remembering(), extras=(Field("seen", (4,), "float64"), Field("acted", (), "int16")))
    rows = join([poll(inline) for _ in range(100)])
    np.testing.assert_array_equal(rows["seen"], np.concatenate((rows["obs"], rows["obs"]), axis=1))
    np.testing.assert_array_equal(rows["acted"], rows["step"])


def test_an_extra_of_the_wrong_shape_is_refused() -> None:
    vector, _ = counting_vector("inline", 3)
    with pytest.raises(ValueError, match=r"'acted' has shape \(3,\); the schema asks for \(3, 2\)"):
        poll(collector(vector, extras=(Field("acted", (2,), "float32"),)))


class Filming(gymnasium.Env):
    """Shows the number of the step as a vector and as a picture; an episode ends after seven."""

    observation_space = gymnasium.spaces.Dict(
        camera=gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8), vector=gymnasium.spaces.Box(0, 7, (2,))
    )
    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.number = 0
        return self._shown(), {}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.number += 1
        return self._shown(), 1.0, self.number == 7, False, {}

    def _shown(self) -> dict[str, Array]:
        return {"camera": np.full((4, 4, 3), self.number, np.uint8), "vector": np.full(2, self.number, np.float32)}


@pytest.mark.parametrize("env", [Filming, SyncVectorEnv([Filming] * 3)])
def test_images_come_with_their_rows_into_the_ring(env: Any) -> None:
    vector = make_vector(env, 3) if env is Filming else make_vector(env)
    shard = Shard(Schema.transitions(vector.spec), 40)
    inline = collector(vector, shard=shard)
    for _ in range(50):
        poll(inline)
    rows = shard.read(shard.oldest, shard.committed).columns
    for when, ahead in (("obs", 0), ("next_obs", 1)):
        assert rows[f"{when}/camera"].dtype == np.uint8
        expected = np.broadcast_to((rows["step"] + ahead)[:, None, None, None], (40, 4, 4, 3))
        np.testing.assert_array_equal(rows[f"{when}/camera"], expected)
        np.testing.assert_array_equal(rows[when][:, 0], rows["step"] + ahead)
    np.testing.assert_array_equal(rows["terminated"], rows["step"] == 6)


def test_columns_have_the_schemas_names_shapes_and_dtypes() -> None:
    for kind in ("inline", "next_step"):
        vector, _ = counting_vector(kind, 3, structure="dict", state="info")
        schema = Schema.transitions(vector.spec)
        inline = collector(vector)
        for _ in range(20):
            chunk = poll(inline)
            assert set(chunk.columns) == set(schema.names)
            for field in schema:
                assert chunk.columns[field.name].shape == (len(chunk), *field.shape)
                assert chunk.columns[field.name].dtype == field.dtype


def test_the_version_column_is_the_version_that_acted() -> None:
    vector, _ = counting_vector("inline", 2)
    policy = Scripted()
    inline = collector(vector, policy)
    first = poll(inline)
    inline.publish(Publication(7, {"actor/0/weight": np.zeros(1)}))
    second = poll(inline)
    assert policy.loaded.keys() == {"actor/0/weight"}
    assert first.columns["version"].tolist() == [0, 0]
    assert second.columns["version"].tolist() == [7, 7]


class Still(Scripted):
    def act(self, obs: Array, carry: Array, rng: Any, step: int = 0) -> tuple[Array, Array, dict[str, Array]]:
        return np.zeros((len(obs), 2), np.float32), carry, {}


def test_exactly_the_first_random_steps_act_uniformly() -> None:
    vector, _ = counting_vector("inline", 3)
    inline = collector(vector, Still(), random_steps=1_000)
    action = join([poll(inline) for _ in range(400)])["action"]
    np.testing.assert_array_equal((action != 0).all(axis=1), np.arange(1_200) < 1_000)
    assert action.min() < -0.99
    assert action.max() > 0.99
    assert abs(action[:1_000].mean()) < 0.05


def test_reward_shaping_sees_rows_so_far_and_the_total_and_leaves_returns_unshaped() -> None:
    calls = []

    def shape(reward: Array, step: int, total_steps: int) -> Array:
        calls.append((reward.shape, step, total_steps))
        return reward + 100

    vector, _ = counting_vector("inline", 3, length=4)
    inline = collector(vector, reward_shaping=shape, total_steps=99)
    chunks = [poll(inline) for _ in range(4)]
    assert calls == [((3,), 0, 99), ((3,), 3, 99), ((3,), 6, 99), ((3,), 9, 99)]
    assert join(chunks)["reward"][:6].tolist() == [100, 100, 100, 100.125, 100.125, 100.125]
    assert [episode.total_reward for episode in chunks[-1].finished] == [0.75] * 3


@pytest.mark.parametrize(
    ("shaped", "words"),
    [
        (lambda reward, step, total: reward[:1], r"returned shape \(1,\)"),
        (lambda reward, step, total: reward * np.nan, r"made \[nan, nan\] of"),
        (lambda reward, step, total: reward.astype(str), "returned shape"),
        (lambda reward, step, total: reward + {}, "raised TypeError"),
    ],
)
def test_a_wrong_reward_shaping_is_named(shaped: Any, words: str) -> None:
    shaped.__qualname__ = "my_shaping"
    vector, _ = counting_vector("inline", 2)
    with pytest.raises(OffbeatError, match=rf"reward_shaping my_shaping {words}"):
        poll(collector(vector, reward_shaping=shaped))


def test_environments_are_reset_at_the_first_poll_and_not_before() -> None:
    vector, envs = counting_vector("inline", 2, length=5)
    inline = collector(vector)
    assert [env.seeds for env in envs] == [[], []]
    poll(inline)
    assert [len(env.seeds) for env in envs] == [1, 1]


@pytest.mark.parametrize("taken", [0, 1, 57])
def test_a_restored_collector_goes_on_as_if_never_interrupted(taken: int) -> None:
    def build() -> tuple[InProcess, Shard, np.random.Generator]:
        vector = make_vector("Pendulum-v1", 2, max_episode_steps=40)
        rng = np.random.default_rng(3)
        extras = (Field("acted", (), "float32"),)
        shard = Shard(Schema.transitions(vector.spec, extras), 1_000)
        return collector(vector, Narrow(), extras, shard, rng, random_steps=70), shard, rng

    straight, shard, rng = build()
    for _ in range(taken):
        poll(straight)
    state = straight.snapshot()
    resumed, other_shard, other = build()
    other.bit_generator.state = rng.bit_generator.state
    other_shard.restore([shard.read(0, shard.committed)] if taken else [])
    assert resumed.restore(state.arrays, state.values) == []
    assert (state.chunks, state.ends) == ([], None)
    for _ in range(100):
        one, two = poll(straight), poll(resumed)
        assert one.sequence == two.sequence
        assert one.finished == two.finished
        for name, column in one.columns.items():
            np.testing.assert_array_equal(column, two.columns[name])


@pytest.mark.parametrize("error", [KeyboardInterrupt, OffbeatError("an environment has ended")])
def test_a_step_that_fails_while_the_run_stops_is_left_out_where_it_cannot_be_repeated(error: Any) -> None:
    """Ctrl-C also reaches environments in processes of their own; their failure then is part of the stop."""
    vector, _ = counting_vector("disabled", 2)
    inline, stopping = collector(vector), []
    inline.connect(note=print, trace=NO_TRACE, stop=lambda: bool(stopping))
    poll(inline)

    def fail(action: Array) -> Any:
        raise error

    vector.step = fail  # type: ignore[method-assign]
    with pytest.raises((KeyboardInterrupt, OffbeatError)):
        inline.poll(0.0)
    stopping.append(True)
    assert not vector.rebuilds
    assert inline.poll(0.0) == []
    vector.rebuilds = True
    with pytest.raises((KeyboardInterrupt, OffbeatError)):
        inline.poll(0.0)


def test_nothing_is_made_before_it_is_allowed_and_weights_change_between_two_rollouts_only() -> None:
    vector, _ = counting_vector("inline", 2)
    schema, policy = Schema.transitions(vector.spec), Scripted()
    queue = RolloutQueue(schema, 3, 2, slots=1)
    inline = InProcess(Stepper(vector, policy, schema, queue, np.random.default_rng(0)))
    assert inline.poll(0.0) == []
    inline.allow(0)
    inline.publish(Publication(5, {"actor/0/weight": np.zeros(1)}))
    poll(inline)
    inline.publish(Publication(8, {"actor/0/weight": np.ones(1)}))
    assert [poll(inline).sequence, poll(inline).sequence] == [2, 4]
    assert inline.poll(0.0) == [], "there is no room for another rollout, and it is not allowed"
    inline.allow(100)
    assert inline.poll(0.0) == [], "there is no room for another rollout"
    rollout = queue.take()
    assert rollout is not None
    assert set(rollout.columns["version"].ravel()) == {5}
    assert poll(inline).columns["version"].tolist() == [8, 8]
    inline.allow(-1)
    assert inline.poll(0.0) == []


class Narrow(Scripted):
    def act(self, obs: Array, carry: Array, rng: Any, step: int = 0) -> tuple[Array, Array, dict[str, Array]]:
        action, carry, extras = super().act(obs, carry, rng)
        return action[:, :1], carry, extras


def test_the_counting_environment_is_found_by_name_and_writes_its_log(tmp_path: Any) -> None:
    kwargs = {"length": 5, "log_dir": str(tmp_path)}
    vector = make_vector("counting:make", 2, env_kwargs=kwargs)
    inline = collector(vector)
    for _ in range(12):
        poll(inline)
    inline.close()
    logs = sorted(tmp_path.iterdir())
    assert [len(log.read_text().splitlines()) for log in logs] == [12, 12]
    assert isinstance(make(length=3), Counting)
