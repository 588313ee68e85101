"""Names, order, kinds and defaults of the parameters are those that tmrl documents."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest

import offbeat.compat.tmrl as tmrl
from offbeat.compat.tmrl.training_offline import TorchTrainingOffline, TrainingOffline

TRAINING: dict[str, Any] = {
    "env_cls": None,
    "memory_cls": None,
    "training_agent_cls": None,
    "epochs": 10,
    "rounds": 50,
    "steps": 2000,
    "update_model_interval": 100,
    "update_buffer_interval": 100,
    "max_training_steps_per_env_step": 1.0,
    "sleep_between_buffer_retrieval_attempts": 1.0,
    "profiling": False,
    "agent_scheduler": None,
    "start_training": 0,
    "device": None,
}
"""As the documentation of tmrl.training_offline has them."""


def parameters(called: Any) -> list[inspect.Parameter]:
    return [each for each in inspect.signature(called).parameters.values() if each.name != "self"]


@pytest.mark.parametrize("called", [TrainingOffline, TorchTrainingOffline])
def test_trainings_have_the_documented_parameters_in_order_with_their_defaults(called: Any) -> None:
    found = parameters(called)
    assert [each.name for each in found] == list(TRAINING)
    assert {each.kind for each in found} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    for each in found:
        assert (type(each.default), each.default) == (type(TRAINING[each.name]), TRAINING[each.name]), each.name


def test_the_torch_variant_is_a_training_and_run_epoch_takes_an_interface() -> None:
    assert TorchTrainingOffline.__bases__ == (TrainingOffline,)
    assert TrainingOffline.__bases__ == (object,)
    assert [each.name for each in parameters(TrainingOffline.run_epoch)] == ["interface"]


@pytest.mark.parametrize("name", tmrl.__all__)
def test_short_imports_give_what_the_modules_have(name: str) -> None:
    module = importlib.import_module(f"offbeat.compat.tmrl.{tmrl._MODULES[name]}")
    assert getattr(tmrl, name) is getattr(module, name)


def test_importing_offbeat_does_not_import_the_adapters() -> None:
    script = "import sys, offbeat, offbeat.run.api; print(*(name for name in sys.modules if 'compat.' in name))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
