"""Wrong arguments of TrainingOffline: one sentence that names the argument, the rule and the remedy."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from offbeat.compat.tmrl.own_agent import SACAgent
from offbeat.compat.tmrl.training_offline import TrainingOffline
from offbeat.errors import UsageError
from tmrl_parts import SMALL, ListMemory, RegressingAgent, ScriptedInterface, episode


def training(**changes: Any) -> TrainingOffline:
    return TrainingOffline(**{**SMALL, **changes})


def plenty() -> ScriptedInterface:
    """Enough samples at once."""
    return ScriptedInterface([episode(1, steps=50)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": -1}, "epochs=-1 is out of range"),
        ({"rounds": 0}, "rounds=0 is out of range: it must be a whole number, at least 1"),
        ({"steps": 2.5}, "steps=2.5 is out of range"),
        ({"update_model_interval": 0}, "update_model_interval=0"),
        ({"update_buffer_interval": True}, "update_buffer_interval=True"),
        ({"max_training_steps_per_env_step": 0}, "max_training_steps_per_env_step=0"),
        ({"sleep_between_buffer_retrieval_attempts": -1.0}, "sleep_between_buffer_retrieval_attempts=-1.0"),
        ({"agent_scheduler": 3}, "agent_scheduler=3 cannot be called"),
        ({"start_training": -1}, "start_training=-1"),
        ({"memory_cls": 3}, "memory_cls=3 is not a class"),
        ({"memory_cls": dict}, "memory_cls: dict has no append"),
        ({"training_agent_cls": functools.partial(object)}, "training_agent_cls: object has no train, get_actor"),
        ({"training_agent_cls": lambda **_: object()}, "training_agent_cls: object has no train, get_actor"),
    ],
)
def test_a_wrong_argument_is_named_with_its_rule(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        training(**change)


def test_a_wrong_class_is_refused_before_anything_is_made() -> None:
    made: list[Any] = []

    class Recorded(ListMemory):
        def __init__(self, **arguments: Any) -> None:
            made.append(self)
            super().__init__(**arguments)

    with pytest.raises(UsageError, match="training_agent_cls: int has no train"):
        training(memory_cls=Recorded, training_agent_cls=int)
    assert made == []


def test_an_interface_without_a_method_is_refused_before_the_epoch() -> None:
    calls: list[int] = []
    found = training(agent_scheduler=lambda agent, epoch: calls.append(epoch))
    for name in ("retrieve_buffer", "broadcast_model"):
        interface = type("Half", (), {name: lambda self: None})()
        with pytest.raises(UsageError, match="interface: Half has no"):
            found.run_epoch(interface)
    assert calls == []


def test_wrong_returns_of_user_code_are_named() -> None:
    with pytest.raises(UsageError, match="retrieve_buffer returned a NoneType"):
        training(memory_cls=None).run_epoch(ScriptedInterface([], more=lambda number: None))

    class Silent(RegressingAgent):
        def train(self, batch: Any) -> Any:
            return None

    with pytest.raises(UsageError, match="train returned a NoneType"):
        training(training_agent_cls=Silent).run_epoch(plenty())
    with pytest.raises(UsageError, match=r"the batch has 4 rows, but .* batch_size=256"):
        training(training_agent_cls=SACAgent).run_epoch(plenty())
    with pytest.raises(UsageError, match="n_step needs more than the transitions of a batch"):
        training(training_agent_cls=functools.partial(SACAgent, n_step=3))
