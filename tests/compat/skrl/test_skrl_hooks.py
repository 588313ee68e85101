"""What reaches the methods that a user's subclass overrides: the time, the transition and the role."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import skrl_agents as small
from offbeat.compat import skrl

QUIET = {"headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
TIMED = ("act", "pre_interaction", "post_interaction", "update", "write_tracking_data", "write_checkpoint")


class Timed(skrl.SAC):
    """Records the keywords of each method that gets the time."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.seen: dict[str, list[Any]] = {}

    def record_transition(self, **step: Any) -> None:
        self.seen.setdefault("record_transition", []).append(step)
        super().record_transition(**step)


def _timed(name: str) -> Any:
    def method(self: Timed, *parts: Any, timestep: int, timesteps: int) -> Any:
        self.seen.setdefault(name, []).append((timestep, timesteps))
        return getattr(skrl.SAC, name)(self, *parts, timestep=timestep, timesteps=timesteps)

    return method


for each in TIMED:
    setattr(Timed, each, _timed(each))


class RandomRoles(small.model_classes().Policy):  # type: ignore[misc]
    """Records the role with which random actions are drawn."""

    def random_act(self, inputs: Any, *, role: str = "") -> Any:
        self.roles = [*getattr(self, "roles", []), role]
        return super().random_act(inputs, role=role)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Timed:
    models = small.make_models()
    models["policy"] = RandomRoles(observation_space=small.OBSERVATIONS, action_space=small.ACTIONS, state_space=None)
    experiment = {"directory": str(tmp_path_factory.mktemp("hooks")), "write_interval": 2, "checkpoint_interval": 3}
    made = Timed(
        models=models,
        memory=skrl.RandomMemory(memory_size=64, replacement=True),
        observation_space=small.OBSERVATIONS,
        action_space=small.ACTIONS,
        device="cpu",
        cfg={"batch_size": 8, "learning_starts": 4, "random_timesteps": 2, "experiment": experiment},
    )
    cfg = {"timesteps": 6, **QUIET}
    skrl.SequentialTrainer(env=small.still(steps=4), agents=made, cfg=cfg).train()
    return made


@pytest.mark.parametrize(
    ("method", "timesteps"),
    [
        ("act", [0, 1, 2, 3, 4, 5]),
        ("pre_interaction", [0, 1, 2, 3, 4, 5]),
        ("post_interaction", [0, 1, 2, 3, 4, 5]),
        ("update", [4, 5]),
        ("write_tracking_data", [2, 4, 6]),
        ("write_checkpoint", [3, 6]),
    ],
)
def test_a_method_of_a_subclass_gets_the_timestep_and_their_number(
    agent: Timed, method: str, timesteps: list[int]
) -> None:
    assert agent.seen[method] == [(timestep, 6) for timestep in timesteps]


def test_record_transition_of_a_subclass_gets_the_whole_transition(agent: Timed) -> None:
    steps = agent.seen["record_transition"]
    assert [(step["timestep"], step["timesteps"]) for step in steps] == [(timestep, 6) for timestep in range(6)]
    for before, after in itertools.pairwise(steps[:4]):
        assert (before["next_observations"] == after["observations"]).all()
    assert [bool(step["terminated"].any() or step["truncated"].any()) for step in steps].index(True) == 3
    assert all(step["actions"].shape == (len(step["rewards"]), 2) for step in steps)


def test_random_actions_of_a_policy_of_your_own_are_drawn_in_the_role_of_the_policy(agent: Timed) -> None:
    assert agent.models["policy"].roles == ["policy", "policy"]
