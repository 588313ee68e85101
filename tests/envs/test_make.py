"""make_vector: valid sources of environments, and errors for invalid ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from faulty import Bent, Walk
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from counting import Counting
from offbeat.envs import Vector, is_vector_env, make_vector
from offbeat.envs.batched import BatchedVector
from offbeat.envs.inline import InlineVector
from offbeat.errors import EnvironmentFault, OffbeatError, UsageError
from offbeat.streams import episode_seed


def test_importing_offbeat_and_its_environments_imports_no_gymnasium() -> None:
    code = (
        "import offbeat, offbeat.envs, offbeat.collect, sys; print('gymnasium' in sys.modules, 'torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


def test_an_id_is_made_with_its_arguments() -> None:
    vector = make_vector("Pendulum-v1", 2, env_kwargs={"g": 0.0})
    assert isinstance(vector, InlineVector)
    assert (vector.spec.name, vector.num_envs, vector.spec.observation_size) == ("Pendulum-v1", 2, 3)
    assert vector.spec.action_high == (2.0,)


def test_a_reference_a_callable_and_a_class_are_factories() -> None:
    for factory in (
        "counting:make",
        "counting:Counting",
        Counting,
        lambda length: Counting(length=length, ends="truncated"),
    ):
        vector = make_vector(factory, 2, env_kwargs={"length": 3})
        vector.reset()
        steps = [vector.step(np.zeros((2, 2), np.float32)) for _ in range(3)]
        assert len(steps[-1].finished) == 2
    assert make_vector("counting:make").spec.name == "counting:make"
    assert make_vector(Counting).spec.name == "counting:Counting"


def test_a_module_may_register_the_id_that_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registering_package.py").write_text(
        "import gymnasium\ngymnasium.register('Registered-v3', 'counting:Counting', max_episode_steps=7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert make_vector("registering_package:Registered-v3").spec.max_episode_steps == 7
        with pytest.raises(UsageError, match=r"register a Gymnasium id 'Registered'; did you mean Registered-v3\?"):
            make_vector("registering_package:Registered")
    finally:
        gymnasium.envs.registration.registry.pop("Registered-v3")
    with pytest.raises(UsageError, match=r"has no 'Absent-v0', nor did importing registering_package register"):
        make_vector("registering_package:Absent-v0")


def test_wrappers_are_applied_to_each_and_still_find_the_limit() -> None:
    vector = make_vector("Pendulum-v1", 2, env_wrapper=gymnasium.wrappers.TimeAwareObservation)
    assert vector.spec.observation_size == 4
    assert vector.spec.max_episode_steps == 200
    assert make_vector("Pendulum-v1", env_wrapper="gymnasium.wrappers:TimeAwareObservation").spec.observation_size == 4


def test_unknown_ids_get_a_suggestion() -> None:
    with pytest.raises(
        UsageError, match=r"env='Pendulm-v1' is not a registered Gymnasium id; did you mean Pendulum-v1"
    ):
        make_vector("Pendulm-v1")
    with pytest.raises(UsageError, match=r"did you mean .*HalfCheetah-v5"):
        make_vector("halfcheetah-v5")
    with pytest.raises(UsageError, match="not a registered Gymnasium id"):
        make_vector("not an id at all!")


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        ("no_such_module:make", {}, r"there is no module 'no_such_module'"),
        ("Pendulum-v1", {"num_envs": 0}, r"num_envs=0 is out of range"),
        ("Pendulum-v1", {"max_episode_steps": 0}, r"max_episode_steps=0 is out of range"),
        ("Pendulum-v1", {"first_env": -1}, r"first_env=-1 is out of range: it must be at least 0"),
        ("Pendulum-v1", {"max_faults": -1}, r"max_faults=-1 is out of range: it must be at least 0"),
        (
            "Pendulum-v1",
            {"env_kwargs": {"gravity": 1}},
            r"Pendulum-v1 could not be made with env_kwargs=\{'gravity': 1\}",
        ),
        ("Pendulum-v1", {"env_kwargs": {"max_episode_steps": 3}}, r"a separate setting: use max_episode_steps"),
        ("Pendulum-v1", {"env_wrapper": "no_colon"}, r"env_wrapper='no_colon' is not of the form"),
        ("Pendulum-v1", {"env_wrapper": lambda env: 3}, r"returned a int, but it must return a gymnasium.Env"),
        (lambda: "x", {}, r"returned a str, but it must return a gymnasium.Env"),
        (Bent(), {}, r"env is a Bent, but it must be .* pass the function that creates this environment"),
        (
            gymnasium.make("Pendulum-v1"),
            {},
            r"env is a PendulumEnv, but it must be .* pass the function that creates",
        ),
        (3, {}, r"env=3 is of type int, but it must be a Gymnasium id, .* or a VectorEnv$"),
    ],
)
def test_wrong_use_is_refused_with_its_value_and_a_remedy(env: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_vector(env, **options)


def test_a_factory_that_raises_is_a_fault_with_its_cause() -> None:
    def broken() -> Any:
        raise OSError("no simulator")

    with pytest.raises(EnvironmentFault, match="broken could not be made: OSError: no simulator") as caught:
        make_vector(broken)
    assert isinstance(caught.value.__cause__, OSError)


def test_an_exception_without_a_message_is_described_by_file_and_line() -> None:
    def wordless() -> Any:
        raise NotImplementedError

    place = r"NotImplementedError at \S+test_make.py:\d+ \(raise NotImplementedError\)"
    with pytest.raises(EnvironmentFault, match=f"wordless could not be made: {place}"):
        make_vector(wordless, 1)


def test_environments_of_a_vector_must_be_different_objects_with_the_same_spaces() -> None:
    shared = Counting()
    for wrapper in (None, gymnasium.Wrapper):
        with pytest.raises(UsageError, match="returned the same environment twice"):
            make_vector(lambda: shared, 2, env_wrapper=wrapper)
    supply = iter([Counting(), Bent()])
    with pytest.raises(UsageError, match=r"environment 1 .* has spaces .* but another one has"):
        make_vector(lambda: next(supply), 2)


@pytest.mark.parametrize("batched", [False, True])
def test_the_environments_from_a_number_on_are_those_of_a_bigger_vector(batched: bool) -> None:
    def make(num_envs: int, first_env: int) -> Vector:
        env = SyncVectorEnv([lambda: Walk(length=4)] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
        if batched:
            return make_vector(env, seed=6, first_env=first_env)
        return make_vector(Walk, num_envs, env_kwargs={"length": 4}, seed=6, first_env=first_env)

    whole, part = make(5, 0), make(2, 3)
    assert part.reset().vector.tobytes() == whole.reset().vector[3:].tobytes()
    for action in np.random.default_rng(0).uniform(-1, 1, (10, 5, 2)).astype(np.float32):
        big, small = whole.step(action), part.step(action[3:])
        for name in ("reward", "terminated", "truncated", "valid", "episode", "step"):
            np.testing.assert_array_equal(getattr(small, name), getattr(big, name)[3:])
        assert small.observation.vector.tobytes() == big.observation.vector[3:].tobytes()
        assert small.finished == big.finished[3:]
    assert {episode.env for episode in [*big.finished, *small.finished]} <= set(range(5))


@pytest.mark.parametrize("batched", [False, True])
def test_messages_name_an_environment_by_its_number_in_the_run(batched: bool) -> None:
    def broken(env: Bent, *values: Any) -> Any:
        return values[0] * np.nan, *values[1:]

    bent = [Bent(), Bent(broken)]
    supply = iter(bent)
    vector = make_vector(
        SyncVectorEnv([lambda: bent[0], lambda: bent[1]]) if batched else lambda: next(supply), 2, first_env=7
    )
    vector.reset()
    with pytest.raises(OffbeatError, match="the action for environment 8 "):
        vector.step(np.array([[0, 0], [0, np.nan]], np.float32))
    with pytest.raises(EnvironmentFault, match=rf"environment 8 .*, episode 0 \(reset seed {episode_seed(0, 8, 0)}\)"):
        vector.step(np.zeros((2, 2), np.float32))
    bent[0].at_step, bent[1].at_step = (lambda env, *values: values[:4]), None
    with pytest.raises(EnvironmentFault, match=r"environments 7 to 8 " if batched else "environment 7 "):
        vector.step(np.zeros((2, 2), np.float32))


def test_making_speaks_of_an_environments_number_in_the_run() -> None:
    def broken(env: Bent, *values: Any) -> Any:
        raise OSError("no simulator")

    place = rf"environment 4 .*, episode 0 \(reset seed {episode_seed(0, 4, 0)}\)"
    for env in (lambda: Bent(at_reset=broken), SyncVectorEnv([lambda: Bent(at_reset=broken)])):
        with pytest.raises(EnvironmentFault, match=place):
            make_vector(env, state_key="state", first_env=4)
    supply = iter([Counting(), Bent()])
    with pytest.raises(UsageError, match=r"environment 5 .* has spaces"):
        make_vector(lambda: next(supply), 2, first_env=4)


def sync(num_envs: int = 3, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> SyncVectorEnv:
    return SyncVectorEnv([Counting] * num_envs, autoreset_mode=mode)


def test_only_a_vector_env_is_recognised_as_one() -> None:
    vector_envs = [sync(), gymnasium.wrappers.vector.RecordEpisodeStatistics(sync())]
    assert [is_vector_env(each) for each in vector_envs] == [True, True]
    assert [is_vector_env(each) for each in (sync, Counting, Counting(), "Pendulum-v1", 3, None)] == [False] * 6


def test_a_vector_lists_its_unwrapped_environments() -> None:
    made: list[Counting] = []

    def factory() -> gymnasium.Env[Any, Any]:
        made.append(Counting())
        return gymnasium.wrappers.TimeLimit(made[-1], 5)

    assert make_vector(factory, 2, env_wrapper=gymnasium.Wrapper).unwrapped_envs == tuple(made)
    made.clear()
    batch = SyncVectorEnv([factory] * 2)
    assert make_vector(gymnasium.wrappers.vector.RecordEpisodeStatistics(batch)).unwrapped_envs == (batch, *made)


def test_a_vector_env_keeps_its_number_of_environments() -> None:
    for vector in (make_vector(sync()), make_vector(sync(), 3), make_vector(sync, 3), make_vector(sync)):
        assert isinstance(vector, BatchedVector)
        assert vector.num_envs == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_envs": 4}, r"num_envs=4, but the VectorEnv SyncVectorEnv has 3"),
        ({"env_kwargs": {"a": 1}}, r"env_kwargs was given with the VectorEnv"),
        ({"env_wrapper": Counting}, r"env_wrapper was given with the VectorEnv"),
        ({"max_episode_steps": 5}, r"which resets itself \(autoreset next_step\)"),
    ],
)
def test_options_that_a_vector_env_cannot_take_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_vector(sync(), **options)
