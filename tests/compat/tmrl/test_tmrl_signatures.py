"""Names, order, kinds and defaults of the parameters are those that tmrl documents."""

from __future__ import annotations

import importlib
import inspect
import math
import subprocess
import sys
from typing import Any

import pytest

import offbeat.compat.tmrl as tmrl
from offbeat.compat.tmrl.training_offline import TorchTrainingOffline, TrainingOffline

REQUIRED = inspect.Parameter.empty
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


INF = math.inf
NETWORKING: dict[str, dict[str, Any]] = {
    "Server": {
        **{"port": 55555, "password": "YourRandomPasswordHere", "local_port": 55556, "header_size": 12},
        **{"security": None, "keys_dir": None, "max_workers": None},
    },
    "Server.close": {},
    "Trainer": {
        **{"training_cls": REQUIRED, "server_ip": None, "server_port": 55555, "password": "YourRandomPasswordHere"},
        **{"local_com_port": 55557, "header_size": 12, "max_buf_len": 536870912, "security": None, "keys_dir": None},
        **{"hostname": "default", "model_path": None, "checkpoint_path": None, "dump_run_instance_fn": None},
        **{"load_run_instance_fn": None, "updater_fn": None},
    },
    "Trainer.run": {},
    "Trainer.run_with_wandb": {"entity": None, "project": None, "run_id": None, "key": None},
    "RolloutWorker": {
        **{"env_cls": REQUIRED, "actor_module_cls": REQUIRED, "sample_compressor": None, "device": "cpu"},
        **{"max_samples_per_episode": INF, "model_path": None, "obs_preprocessor": None, "crc_debug": False},
        **{"model_path_history": None, "model_history": 0, "standalone": False, "server_ip": None},
        **{"server_port": 55555, "password": "YourRandomPasswordHere", "local_port": 55558, "header_size": 12},
        **{"max_buf_len": 536870912, "security": None, "keys_dir": None, "hostname": "default"},
    },
    "RolloutWorker.act": {"obs": REQUIRED, "test": False},
    "RolloutWorker.reset": {"collect_samples": REQUIRED},
    "RolloutWorker.step": {"obs": REQUIRED, "test": REQUIRED, "collect_samples": REQUIRED, "last_step": False},
    "RolloutWorker.collect_train_episode": {"max_samples": None},
    "RolloutWorker.run_episodes": {"max_samples_per_episode": None, "nb_episodes": INF, "train": False},
    "RolloutWorker.run_episode": {"max_samples": None, "train": False},
    "RolloutWorker.run": {"test_episode_interval": 0, "nb_episodes": INF, "verbose": True, "expert": False},
    "RolloutWorker.run_synchronous": {
        **{"test_episode_interval": 0, "nb_steps": INF, "initial_steps": 1, "max_steps_per_update": INF},
        **{"end_episodes": True, "verbose": False},
    },
    "RolloutWorker.run_env_benchmark": {"nb_steps": REQUIRED, "test": False, "verbose": True},
    "RolloutWorker.send_and_clear_buffer": {},
    "RolloutWorker.update_actor_weights": {"verbose": True, "blocking": False},
    "RolloutWorker.ignore_actor_weights": {},
    "Buffer": {"maxlen": 500000},
    "Buffer.append_sample": {"sample": REQUIRED},
    "Buffer.clear": {},
    "ActorModule": {"observation_space": REQUIRED, "action_space": REQUIRED},
    "ActorModule.save": {"path": REQUIRED},
    "ActorModule.load": {"path": REQUIRED, "device": REQUIRED},
    "ActorModule.to_device": {"device": REQUIRED},
    "ActorModule.act": {"obs": REQUIRED, "test": False},
    "TorchActorModule": {"observation_space": REQUIRED, "action_space": REQUIRED, "device": "cpu"},
    "TrainingAgent": {"observation_space": REQUIRED, "action_space": REQUIRED, "device": REQUIRED},
    "TrainingAgent.train": {"batch": REQUIRED},
    "TrainingAgent.get_actor": {},
    "Memory": {
        **{"device": REQUIRED, "nb_steps": REQUIRED, "sample_preprocessor": None, "memory_size": 1000000},
        **{"batch_size": 256, "dataset_path": "", "crc_debug": False},
    },
    "Memory.append_buffer": {"buffer": REQUIRED},
    "Memory.append": {"buffer": REQUIRED},
    "Memory.get_transition": {"item": REQUIRED},
    "Memory.collate": {"batch": REQUIRED, "device": REQUIRED},
    "GenericGymEnv": {"id": "Pendulum-v1", "gym_kwargs": None, "obs_scale": 0.0, "to_float32": False},
}
"""As tmrl's modules have them. Its defaults of addresses, ports and paths are those of its config file, here as it is
shipped; paths and training_cls, which that file also names, have no counterpart here."""


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


@pytest.mark.parametrize("name", NETWORKING)
def test_the_other_classes_have_the_parameters_of_tmrl(name: str) -> None:
    owner, _, method = name.partition(".")
    called = getattr(getattr(tmrl, owner), method) if method else getattr(tmrl, owner)
    found = parameters(called)
    assert {each.name: each.default for each in found} == NETWORKING[name]
    assert [each.name for each in found] == list(NETWORKING[name])
    assert {each.kind for each in found} <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}


@pytest.mark.parametrize("name", tmrl.__all__)
def test_short_imports_give_what_the_modules_have(name: str) -> None:
    module = importlib.import_module(f"offbeat.compat.tmrl.{tmrl._MODULES[name]}")
    assert getattr(tmrl, name) is getattr(module, name)


def test_importing_offbeat_does_not_import_the_adapters() -> None:
    script = "import sys, offbeat, offbeat.run.api; print(*(name for name in sys.modules if 'compat.' in name))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
