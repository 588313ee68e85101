"""A VectorEnv in each autoreset mode gives the same steps as environments in this process."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from faulty import Bent
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from switches import SEVERAL, Switches

from counting import Counting
from offbeat.envs import Vector, make_vector
from offbeat.errors import CheckpointError, EnvironmentFault, UsageError
from offbeat.streams import episode_seed
from offbeat.types import Step

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
ZERO = np.zeros((3, 2), np.float32)


def sync(mode: AutoresetMode, **kwargs: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Counting(**kwargs)] * 3, autoreset_mode=mode)


def run(vector: Vector, steps: int) -> None:
    for _ in range(steps):
        vector.step(ZERO[: vector.num_envs])


def assert_same(one: Step, other: Step) -> None:
    for name in ("reward", "terminated", "truncated", "valid", "episode", "step"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.next.vector, other.next.vector)
    np.testing.assert_array_equal(one.next.state, other.next.state)
    np.testing.assert_array_equal(one.observation.vector, other.observation.vector)
    np.testing.assert_array_equal(one.observation.state, other.observation.state)
    assert one.finished == other.finished


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_modes_without_reset_rows_give_the_same_steps_as_inline_environments(mode: AutoresetMode) -> None:
    kwargs = {"length": 4, "ends": "truncated", "structure": "dict", "state": "observation"}
    ours = make_vector(Counting, 3, env_kwargs=kwargs, state_key="state")
    theirs = make_vector(sync(mode, **kwargs), state_key="state")
    np.testing.assert_array_equal(ours.reset().vector, theirs.reset().vector)
    for _ in range(20):
        assert_same(ours.step(ZERO), theirs.step(ZERO))


def test_next_step_rows_that_only_reset_are_not_valid() -> None:
    vector = make_vector(sync(AutoresetMode.NEXT_STEP, length=2, ends="truncated"))
    vector.reset()
    steps = [vector.step(ZERO) for _ in range(6)]
    assert [step.valid[0] for step in steps] == [True, True, False, True, True, False]
    assert [step.episode[0] for step in steps] == [0, 0, 1, 1, 1, 2]
    assert [step.step[0] for step in steps] == [0, 1, -1, 0, 1, -1]
    assert [step.truncated[0] for step in steps] == [False, True, False, False, True, False]
    assert steps[1].next.vector[0].tolist() == [0, 2]
    assert steps[2].observation.vector[0].tolist() == [1, 0]
    assert [episode.total_reward for episode in steps[4].finished] == [2.125] * 3


@pytest.mark.parametrize("mode", MODES)
def test_an_asynchronous_vector_env_gives_what_the_synchronous_one_gives(mode: AutoresetMode) -> None:
    kwargs = {"length": 3, "state": "info"}
    processes = AsyncVectorEnv([lambda: Counting(**kwargs)] * 3, autoreset_mode=mode)
    one, other = make_vector(sync(mode, **kwargs), state_key="state"), make_vector(processes, state_key="state")
    one.reset(), other.reset()
    try:
        for _ in range(12):
            assert_same(one.step(ZERO), other.step(ZERO))
    finally:
        other.close()


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("space", [SEVERAL[1], SEVERAL[3], SEVERAL[-1]])
def test_independent_choices_give_the_same_steps_as_inline_environments(kind: Any, space: Any) -> None:
    ours = make_vector(Switches, 3, env_kwargs={"space": space})
    theirs = make_vector(kind([lambda: Switches(space)] * 3, autoreset_mode=AutoresetMode.SAME_STEP))
    assert (theirs.spec.branches, theirs.spec.action_low) == (ours.spec.branches, ours.spec.action_low)
    rng = np.random.default_rng(0)
    try:
        np.testing.assert_array_equal(ours.reset().vector, theirs.reset().vector)
        for _ in range(20):
            action = ours.spec.random_actions(rng, 3)
            assert_same(ours.step(action), theirs.step(action))
    finally:
        theirs.close()


@pytest.mark.parametrize("mode", MODES)
def test_first_episodes_have_our_seeds_and_where_autoreset_is_disabled_all_have(mode: AutoresetMode) -> None:
    env = sync(mode, length=2)
    vector = make_vector(env, seed=9)
    vector.reset()
    for _ in range(6):
        vector.step(ZERO)
    for index, counting in enumerate(env.envs):
        episodes = range(len(counting.seeds)) if mode is AutoresetMode.DISABLED else range(1)
        ours = [episode_seed(9, index, episode) for episode in episodes]
        assert counting.seeds == ours + [None] * (len(counting.seeds) - len(ours))
        assert len(counting.seeds) >= 3


def test_a_limit_can_be_set_if_autoreset_is_disabled() -> None:
    vector = make_vector(sync(AutoresetMode.DISABLED, length=10), max_episode_steps=4)
    vector.reset()
    steps = [vector.step(ZERO) for _ in range(8)]
    assert [step.truncated.all() for step in steps] == [False, False, False, True] * 2
    assert not any(step.terminated.any() for step in steps)
    assert steps[3].next.vector.tolist() == [[0, 4]] * 3
    assert steps[3].observation.vector.tolist() == [[1, 0]] * 3


class Own(VectorEnv[Any, Any, Any]):
    """A custom VectorEnv: one seed for all, no autoreset_mode in its metadata, so next-step."""

    def __init__(self) -> None:
        self.num_envs, self.seeds = 2, []
        self.single_observation_space = gymnasium.spaces.Box(-1, 99, (1,), np.float32)
        self.single_action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, 2)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, 2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.count, self.ended = np.zeros((2, 1), np.float32), np.zeros(2, bool)
        return self.count, {}

    def step(self, actions: Any) -> Any:
        self.count[self.ended] = -1
        self.count += 1
        self.ended = self.count[:, 0] >= [2, 3]
        return self.count, np.ones(2), self.ended.copy(), np.zeros(2, bool), {}


def test_a_custom_vector_env_is_taken_as_next_step_with_one_seed_and_its_arrays_copied() -> None:
    env = Own()
    vector = make_vector(env)
    vector.reset()
    steps = [vector.step(np.zeros((2, 2), np.float32)) for _ in range(4)]
    assert env.seeds == [episode_seed(0, 0, 0)]
    assert [step.valid.tolist() for step in steps] == [[True, True], [True, True], [False, True], [True, False]]
    assert [step.next.vector[:, 0].tolist() for step in steps] == [[1, 1], [2, 2], [0, 3], [1, 0]]


def test_an_unknown_autoreset_mode_is_refused() -> None:
    env = Own()
    env.metadata = {"autoreset_mode": "sometimes"}
    with pytest.raises(UsageError, match=r"metadata\['autoreset_mode'\]='sometimes'"):
        make_vector(env)


class Tampered(gymnasium.vector.VectorWrapper):
    """Changes the result of step, from the third step on."""

    def __init__(self, env: VectorEnv[Any, Any, Any], change: Any) -> None:
        super().__init__(env)
        self.change, self.count = change, 0

    def step(self, actions: Any) -> Any:
        self.count += 1
        values = self.env.step(actions)
        return self.change(*values) if self.count >= 3 else values


def put(array: Any, row: int, value: Any) -> Any:
    array[row] = value
    return array


def boom(*values: Any) -> Any:
    raise RuntimeError("no power")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda o, *rest: (put(o, (1, 0), np.nan), *rest),
            r"environment 1 .* step 2: .*element \[0\], is nan",
        ),
        (lambda o, r, *rest: (o, put(r, 2, np.inf), *rest), r"environment 2 .* step 2: the reward is inf"),
        (lambda o, r, *rest: (o, r[:2], *rest), r"one of environments 0 to 2 .*reward is .*shape \(2,\)"),
        (lambda o, r, t, *rest: (o, r, ["no"] * 3, *rest), r"terminated is .* and hold booleans"),
        (lambda o, *rest: (o[:, :1], *rest), r"at episodes \[0, 0, 0\] and steps \[2, 2, 2\]: .*shape \(3, 1\)"),
        (boom, r"step raised RuntimeError: no power"),
        (lambda raw, reward, *rest: (raw, reward, *rest[:2], None), r"info is None, but it must be a dict"),
    ],
)
def test_faults_name_the_environment_where_it_is_known(change: Any, words: str) -> None:
    vector = make_vector(Tampered(sync(AutoresetMode.SAME_STEP, length=9), change))
    vector.reset()
    vector.step(ZERO)
    vector.step(ZERO)
    with pytest.raises(EnvironmentFault, match=words):
        vector.step(ZERO)


@pytest.mark.parametrize("mode", MODES)
def test_a_fault_right_after_a_reset_names_the_reset(mode: AutoresetMode) -> None:
    def broken(env: Bent, raw: Any, info: Any) -> Any:
        env.resets = getattr(env, "resets", 0) + 1
        return (raw * np.nan if env.resets == 2 else raw), info

    vector = make_vector(SyncVectorEnv([lambda: Bent(at_reset=broken, length=2)], autoreset_mode=mode))
    vector.reset()
    with pytest.raises(EnvironmentFault, match=r"environment 0 \(SyncVectorEnv\), episode 1.*, reset: observation"):
        run(vector, 3)


@pytest.mark.parametrize("mode", MODES)
def test_a_privileged_state_that_goes_missing_is_a_fault(mode: AutoresetMode) -> None:
    def forget(env: Bent, *values: Any) -> Any:
        return *values[:4], ({} if env.count == 2 else {"state": np.ones(1)})

    def build() -> Bent:
        return Bent(forget, lambda env, raw, info: (raw, {"state": np.zeros(1)}), length=2)

    vector = make_vector(SyncVectorEnv([build] * 2, autoreset_mode=mode), state_key="state")
    vector.reset()
    vector.step(ZERO[:2])
    with pytest.raises(EnvironmentFault, match=r"environment 0 .*, episode 0 .*, step 1: .*info has no 'state'"):
        vector.step(ZERO[:2])


def test_a_same_step_vector_env_without_final_observations_is_a_fault() -> None:
    def drop(*values: Any) -> Any:
        values[-1].pop("final_obs", None)
        return values

    vector = make_vector(Tampered(sync(AutoresetMode.SAME_STEP, length=3), drop))
    vector.reset()
    with pytest.raises(EnvironmentFault, match=r"SAME_STEP, but infos has no 'final_obs'"):
        run(vector, 3)


def test_final_observations_may_also_be_batched_by_structure() -> None:
    def batch(*values: Any) -> Any:
        finals = values[-1].get("final_obs")
        if finals is not None:
            values[-1]["final_obs"] = {
                "flag": np.array([each["flag"] for each in finals]),
                "where": {key: np.stack([each["where"][key] for each in finals]) for key in ("episode", "step")},
            }
        return values

    kwargs = {"length": 3, "structure": "dict"}
    plain = make_vector(sync(AutoresetMode.SAME_STEP, **kwargs))
    batched = make_vector(Tampered(sync(AutoresetMode.SAME_STEP, **kwargs), batch))
    plain.reset(), batched.reset()
    for _ in range(9):
        np.testing.assert_array_equal(plain.step(ZERO).next.vector, batched.step(ZERO).next.vector)


@pytest.mark.parametrize("mode", MODES)
def test_a_restored_vector_env_starts_new_episodes_and_reports_it(mode: AutoresetMode) -> None:
    one, other = make_vector(sync(mode, length=3)), make_vector(sync(mode, length=3))
    assert other.restore(*one.snapshot())[1] == []
    one.reset()
    for _ in range(5):
        one.step(ZERO)
    arrays, values = one.snapshot()
    _, sentences = other.restore(arrays, values)
    assert "cannot be rebuilt: its 3 unfinished episodes are dropped" in sentences[0]
    assert other.step(ZERO).episode.tolist() == [2, 2, 2]
    with pytest.raises(CheckpointError, match="holds 2 environments, but the VectorEnv SyncVectorEnv has 3"):
        other.restore({}, {"envs": values["envs"][:2]})


def kill(env: AsyncVectorEnv, number: int) -> None:
    for process in env.processes[:number]:
        process.kill()
        process.join()


@pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting:UserWarning")
@pytest.mark.parametrize("killed", [1, 2])
@pytest.mark.parametrize("pending", [False, True])
def test_a_vector_env_whose_processes_are_gone_still_closes(killed: int, pending: bool) -> None:
    env = AsyncVectorEnv([Counting] * 2)
    vector = make_vector(env)
    vector.reset()
    if pending:
        env.step_async(np.zeros((2, 2), np.float32))
    kill(env, killed)
    vector.close()
    assert env.closed
    assert not any(process.is_alive() for process in env.processes)
    vector.close()


def test_other_errors_of_close_are_not_hidden() -> None:
    class Unclosing(Own):
        def close_extras(self) -> None:
            raise OSError("stuck")

    with pytest.raises(OSError, match="stuck"):
        make_vector(Unclosing()).close()


def test_render_shows_environment_0() -> None:
    env = SyncVectorEnv([lambda: Counting(render_mode="rgb_array")] * 2)
    vector = make_vector(env)
    vector.reset()
    picture = vector.render()
    assert picture is not None
    assert picture.shape == (8, 8, 3)
    assert make_vector(sync(AutoresetMode.DISABLED)).render() is None
