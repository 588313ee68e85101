"""Names, order, kinds and defaults of every documented class and function; where skrl is installed, also its own."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from typing import Any

import pytest

FACTORY = "<factory>"
STEP = "self, *, timestep, timesteps"
SPACES = "observation_space=None, state_space=None, action_space=None, device=None"
TRAINER = "*, env, agents, scopes=None, cfg={}"
TRAINER_CFG = (
    "*, timesteps=100000, headless=False, render_interval=1, disable_progressbar=False, "
    "close_environment_at_exit=True, environment_info='episode', stochastic_evaluation=False"
)
CFG = (
    "*, experiment=FACTORY, gradient_steps=1, batch_size=64, discount_factor=0.99, polyak=0.005, learning_rate=0.001, "
    "learning_rate_scheduler=None, learning_rate_scheduler_kwargs=FACTORY, observation_preprocessor=None, "
    "observation_preprocessor_kwargs=FACTORY, state_preprocessor=None, state_preprocessor_kwargs=FACTORY, "
    "random_timesteps=0, learning_starts=0, grad_norm_clip=0, learn_entropy=True, initial_entropy_value=0.2, "
    "target_entropy=None, rewards_shaper=None, mixed_precision=False"
)
EXPERIMENT = (
    "*, directory='', experiment_name='', write_interval='auto', checkpoint_interval='auto', store_separately=False, "
    "wandb=False, wandb_kwargs=FACTORY"
)
TRANSITION = (
    "self, *, observations, states, actions, rewards, next_observations, next_states, terminated, truncated, infos, "
    "timestep, timesteps"
)
CLIPS = "*, clip_actions=False, clip_mean_actions=False, clip_log_std=True, min_log_std=-20, max_log_std=2"
MEMORY = "*, memory_size, num_envs=1, device=None, export=False, export_format='pt', export_directory=''"

# The agent's page documents these, word for word.
DOCUMENTED = {
    "agents.torch.sac:SAC_CFG": CFG,
    "agents.torch.sac:SAC": "*, models, memory=None, observation_space=None, state_space=None, action_space=None, "
    "device=None, cfg={}",
    "agents.torch.sac:SAC.act": "self, observations, states, *, timestep, timesteps",
    "agents.torch.sac:SAC.enable_models_training_mode": "self, enabled=True",
    "agents.torch.sac:SAC.enable_training_mode": "self, enabled=True, *, apply_to_models=False",
    "agents.torch.sac:SAC.init": "self, *, trainer_cfg=None",
    "agents.torch.sac:SAC.load": "self, path",
    "agents.torch.sac:SAC.post_interaction": STEP,
    "agents.torch.sac:SAC.pre_interaction": STEP,
    "agents.torch.sac:SAC.record_transition": TRANSITION,
    "agents.torch.sac:SAC.save": "self, path",
    "agents.torch.sac:SAC.track_data": "self, tag, value",
    "agents.torch.sac:SAC.update": STEP,
    "agents.torch.sac:SAC.write_checkpoint": STEP,
    "agents.torch.sac:SAC.write_tracking_data": STEP,
}
# What the page refers to.
REFERRED = {
    "agents.torch:Agent": f"*, cfg, models, memory=None, {SPACES}",
    "agents.torch:AgentCfg": "*, experiment=FACTORY",
    "agents.torch:ExperimentCfg": EXPERIMENT,
    "models.torch:Model": f"*, {SPACES}",
    "models.torch:Model.update_parameters": "self, model, *, polyak=1.0",
    "models.torch:Model.random_act": "self, inputs, *, role=''",
    "models.torch:Model.act": "self, inputs, *, role=''",
    "models.torch:Model.forward": "self, inputs, *, role=''",
    "models.torch:Model.init_state_dict": "self, inputs={}, *, role=''",
    "models.torch:Model.init_parameters": "self, method_name='normal_', *args, **kwargs",
    "models.torch:Model.init_weights": "self, method_name='orthogonal_', *args, **kwargs",
    "models.torch:Model.init_biases": "self, method_name='constant_', *args, **kwargs",
    "models.torch:Model.freeze_parameters": "self, freeze=True",
    "models.torch:Model.enable_training_mode": "self, enabled=True",
    "models.torch:Model.get_specification": "self",
    "models.torch:Model.save": "self, path, *, state_dict=None",
    "models.torch:Model.load": "self, path",
    "models.torch:GaussianMixin": f"{CLIPS}, reduction='sum', role=''",
    "models.torch:GaussianMixin.act": "self, inputs, *, role=''",
    "models.torch:GaussianMixin.get_entropy": "self, *, role=''",
    "models.torch:GaussianMixin.distribution": "self, *, role=''",
    "models.torch:MultivariateGaussianMixin": f"{CLIPS}, role=''",
    "models.torch:DeterministicMixin": "*, clip_actions=False, role=''",
    "memories.torch:Memory": MEMORY,
    "memories.torch:Memory.create_tensor": "self, name, *, size, dtype=None, keep_dimensions=False",
    "memories.torch:Memory.add_samples": "self, **tensors",
    "memories.torch:Memory.sample": "self, names, *, batch_size, mini_batches=1, sequence_length=1",
    "memories.torch:Memory.sample_by_index": "self, names, *, indexes, mini_batches=1",
    "memories.torch:Memory.sample_all": "self, names, *, mini_batches=1, sequence_length=1",
    "memories.torch:Memory.get_tensor_by_name": "self, name",
    "memories.torch:Memory.set_tensor_by_name": "self, name, tensor",
    "memories.torch:Memory.get_tensor_names": "self",
    "memories.torch:Memory.get_sampling_indexes": "self",
    "memories.torch:Memory.reset": "self",
    "memories.torch:Memory.share_memory": "self",
    "memories.torch:Memory.save": "self, directory='', *, format='pt'",
    "memories.torch:Memory.load": "self, path",
    "memories.torch:RandomMemory": f"{MEMORY}, replacement=False",
    "trainers.torch:TrainerCfg": TRAINER_CFG,
    "trainers.torch:Trainer": "*, cfg, env, agents, scopes=None",
    "trainers.torch:SequentialTrainer": TRAINER,
    "trainers.torch:SequentialTrainerCfg": TRAINER_CFG,
    "trainers.torch:SequentialTrainer.train": "self",
    "trainers.torch:SequentialTrainer.eval": "self",
    "trainers.torch:ParallelTrainer": TRAINER,
    "trainers.torch:ParallelTrainerCfg": TRAINER_CFG,
    "trainers.torch:ParallelTrainer.train": "self",
    "trainers.torch:ParallelTrainer.eval": "self",
    "trainers.torch:StepTrainer": TRAINER,
    "trainers.torch:StepTrainerCfg": TRAINER_CFG,
    "trainers.torch:StepTrainer.train": "self, timestep=None, timesteps=None",
    "trainers.torch:StepTrainer.eval": "self, timestep=None, timesteps=None",
    "trainers.torch:StepTrainer.reset": "self",
    "envs.wrappers.torch:Wrapper": "env",
    "envs.wrappers.torch:wrap_env": "env, wrapper='auto', verbose=True",
    "resources.preprocessors.torch:RunningStandardScaler": "size, *, epsilon=1e-08, clip_threshold=5.0, device=None",
    "resources.preprocessors.torch:RunningStandardScaler.forward": "self, x, *, train=False, inverse=False, "
    "no_grad=True",
    "resources.schedulers.torch:KLAdaptiveLR": "optimizer, *, kl_threshold=0.008, min_lr=1e-06, max_lr=0.01, "
    "kl_factor=2, lr_factor=1.5, last_epoch=-1, verbose=False",
    "resources.schedulers.torch:KLAdaptiveLR.step": "self, kl=None, *, epoch=None",
    "utils:set_seed": "seed=None, deterministic=False",
}
# The page of JAX's classes: the same methods; no mixed precision.
JAX_DOCUMENTED = {name.replace("agents.torch", "agents.jax"): text for name, text in DOCUMENTED.items()}
JAX_DOCUMENTED["agents.jax.sac:SAC_CFG"] = CFG.removesuffix(", mixed_precision=False")
_SAME = ("agents", "memories", "trainers", "envs")
JAX_REFERRED = {
    name.replace(".torch:", ".jax:"): text
    for name, text in REFERRED.items()
    if name.startswith(_SAME) and "Parallel" not in name and ".reset" not in name and "share_memory" not in name
} | {
    "models.jax:Model": f"*, {SPACES}, parent=None, name=None",
    "models.jax:Model.init_state_dict": "self, inputs={}, *, role='', key=None",
    "models.jax:Model.random_act": "self, inputs, *, role='', params=None",
    "models.jax:Model.act": "self, inputs, *, role='', params=None",
    "models.jax:Model.init_parameters": "self, method_name='normal', *args, **kwargs",
    "models.jax:Model.init_weights": "self, method_name='normal', *args, **kwargs",
    "models.jax:Model.init_biases": "self, method_name='constant_', *args, **kwargs",
    "models.jax:Model.update_parameters": "self, model, *, polyak=1.0",
    "models.jax:Model.freeze_parameters": "self, freeze=True",
    "models.jax:Model.enable_training_mode": "self, enabled=True",
    "models.jax:Model.get_specification": "self",
    "models.jax:Model.save": "self, path, *, state_dict=None",
    "models.jax:Model.load": "self, path",
    "models.jax:GaussianMixin": f"{CLIPS}, reduction='sum', role=''",
    "models.jax:GaussianMixin.act": "self, inputs, *, role='', params=None",
    "models.jax:GaussianMixin.get_entropy": "self, stddev, *, role=''",
    "models.jax:DeterministicMixin": "*, clip_actions=False, role=''",
    "models.jax:DeterministicMixin.act": "self, inputs, *, role='', params=None",
    "memories.jax:Memory.reset": "self",
    "memories.jax:Memory.share_memory": "self",
    "trainers.jax:StepTrainer.reset": "self",
    "resources.preprocessors.jax:RunningStandardScaler": "size, *, epsilon=1e-08, clip_threshold=5.0, device=None",
    "resources.preprocessors.jax:RunningStandardScaler.__call__": "self, x, *, train=False, inverse=False",
    "resources.schedulers.jax:KLAdaptiveLR": "*, kl_threshold=0.008, min_lr=1e-06, max_lr=0.01, kl_factor=2, "
    "lr_factor=1.5",
    "resources.schedulers.jax:kl_adaptive": "*, kl_threshold=0.008, min_lr=1e-06, max_lr=0.01, kl_factor=2, "
    "lr_factor=1.5",
    "resources.optimizers.jax:Adam": "*, model, lr=0.001, grad_norm_clip=0, scale=True",
}
# The page documents SAC_RNN with the same constructor and methods.
DOCUMENTED |= {
    name.replace(":SAC", ":SAC_RNN"): signature
    for name, signature in DOCUMENTED.items()
    if name.partition(":")[2].partition(".")[0] == "SAC"
}
EVERYTHING = {**DOCUMENTED, **REFERRED, **JAX_DOCUMENTED, **JAX_REFERRED}


def found(package: str, name: str) -> Any:
    module, _, path = name.partition(":")
    value: Any = importlib.import_module(f"{package}.{module}")
    for part in path.split("."):
        value = getattr(value, part)
    return value


def signature_of(thing: Any) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter; factories of dataclasses all count as the same default."""
    parameters = inspect.signature(thing).parameters.values()
    return [(each.name, each.kind, FACTORY if repr(each.default) == FACTORY else each.default) for each in parameters]


def expected(text: str) -> list[tuple[str, Any, Any]]:
    scope: dict[str, Any] = {"FACTORY": FACTORY}
    exec(f"def documented({text}): ...", scope)
    return signature_of(scope["documented"])


@pytest.mark.parametrize("name", EVERYTHING)
def test_signature_is_the_documented_one(name: str) -> None:
    assert signature_of(found("offbeat.compat.skrl", name)) == expected(EVERYTHING[name])


@pytest.mark.skipif(importlib.util.find_spec("skrl") is None, reason="skrl is not installed")
@pytest.mark.parametrize("name", EVERYTHING)
def test_signature_is_that_of_skrl(name: str) -> None:
    assert signature_of(found("skrl", name)) == expected(EVERYTHING[name])


def test_short_imports_are_the_same_objects() -> None:
    package = importlib.import_module("offbeat.compat.skrl")
    for name in ("agents.torch.sac:SAC", "agents.torch.sac:SAC_CFG", "memories.torch:RandomMemory", "utils:set_seed"):
        assert found("offbeat.compat.skrl", name) is getattr(package, name.partition(":")[2])
    assert found("offbeat.compat.skrl", "envs.torch:wrap_env") is package.wrap_env
    assert package.KLAdaptiveRL is package.KLAdaptiveLR


def test_only_jaxs_classes_import_jax_and_without_it_they_say_what_to_install() -> None:
    script = """
import importlib, sys
import offbeat.compat.skrl as skrl
skrl.set_seed(1)
print(sys.modules.keys() & {"jax", "flax"})
sys.modules.update({"jax": None, "flax": None, "optax": None})
for name in ("agents.jax.sac", "models.jax", "memories.jax", "trainers.jax", "envs.wrappers.jax"):
    try:
        importlib.import_module(f"offbeat.compat.skrl.{name}")
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, *others = done.stdout.splitlines()
    assert first == "set()"
    assert len(others) == 5
    for line in others:
        assert re.fullmatch(r"offbeat.compat.skrl.\S+ needs \w+; install it with: pip install 'offbeat\[jax\]'", line)


def test_importing_classes_that_are_missing_says_what_to_use() -> None:
    with pytest.raises(ImportError, match=r"CategoricalMixin is not .* yet; use .*GaussianMixin"):
        from offbeat.compat.skrl.models.torch import CategoricalMixin  # noqa: F401
    with pytest.raises(ImportError, match=r"MultiAgentEnvWrapper is not .* yet"):
        from offbeat.compat.skrl.envs.wrappers.torch import MultiAgentEnvWrapper  # noqa: F401
    with pytest.raises(ImportError, match=r"MultiCategoricalMixin for JAX is not .* yet; use .*GaussianMixin"):
        from offbeat.compat.skrl.models.jax import MultiCategoricalMixin  # noqa: F401
    with pytest.raises(ImportError, match=r"ParallelTrainer for JAX is not .* yet; use SequentialTrainer"):
        from offbeat.compat.skrl.trainers.jax import ParallelTrainer  # noqa: F401
    with pytest.raises(AttributeError, match=r"config\.warp is not there yet"):
        _ = importlib.import_module("offbeat.compat.skrl").config.warp
