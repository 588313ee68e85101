"""Names, order, kinds and defaults of the parameters are those that metarl documents."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch

import offbeat.compat.metarl as metarl
from offbeat.compat.metarl.np.algos.off_policy_rl_algorithm import OffPolicyRLAlgorithm
from offbeat.compat.metarl.np.algos.rl_algorithm import RLAlgorithm

# The signatures as the documentation of metarl.np.algos.off_policy_rl_algorithm has them.
DOCUMENTED = {
    "__init__": "(self, env_spec, policy, qf, replay_buffer, *, use_target=False, discount=0.99, steps_per_epoch=20, "
    "max_path_length=None, max_eval_path_length=None, n_train_steps=50, buffer_batch_size=64, min_buffer_size=10000, "
    "rollout_batch_size=1, reward_scale=1.0, smooth_return=True, exploration_policy=None)",
    "init_opt": "(self)",
    "log_diagnostics": "(self, paths)",
    "process_samples": "(self, itr, paths)",
    "train": "(self, runner)",
    "train_once": "(self, itr, paths)",
}
# Those of metarl's source, for what the document refers to.
OF_THE_SOURCE = {
    "LocalRunner.__init__": "(self, snapshot_config, max_cpus=1)",
    "LocalRunner.train": "(self, n_epochs, batch_size=None, plot=False, store_paths=False, pause_for_plot=False)",
    "LocalRunner.resume": "(self, n_epochs=None, batch_size=None, plot=None, store_paths=None, pause_for_plot=None)",
    "LocalRunner.restore": "(self, from_dir, from_epoch='last')",
    "LocalRunner.save": "(self, epoch)",
    "LocalRunner.step_epochs": "(self)",
    "LocalRunner.obtain_samples": "(self, itr, batch_size=None, agent_update=None, env_update=None)",
    "LocalRunner.get_env_copy": "(self)",
    "EnvSpec.__init__": "(self, observation_space, action_space)",
    "PathBuffer.__init__": "(self, capacity_in_transitions)",
    "PathBuffer.add_path": "(self, path)",
    "PathBuffer.sample_transitions": "(self, batch_size)",
    "PathBuffer.sample_path": "(self)",
    "EpsilonGreedyPolicy.__init__": "(self, env_spec, policy, *, total_timesteps, max_epsilon=1.0, min_epsilon=0.02, "
    "decay_ratio=0.1)",
    "AddGaussianNoise.__init__": "(self, env_spec, policy, max_sigma=1.0, min_sigma=0.1, decay_period=1000000)",
    "AddOrnsteinUhlenbeckNoise.__init__": "(self, env_spec, policy, *, mu=0, sigma=0.3, theta=0.15, dt=0.01, x0=None)",
}
DQN = (
    "(env_spec, policy, qf, replay_buffer, exploration_policy=None, steps_per_epoch=20, min_buffer_size=10000, "
    "buffer_batch_size=64, rollout_batch_size=1, n_train_steps=50, max_path_length=None, qf_lr=0.001, "
    "qf_optimizer=Adam, discount=1.0, target_network_update_freq=5, grad_norm_clipping=None, double_q=False, "
    "reward_scale=1.0, smooth_return=True, name='DQN')"
)
DDPG = (
    "(env_spec, policy, qf, replay_buffer, *, steps_per_epoch=20, n_train_steps=50, max_path_length=None, "
    "max_eval_path_length=None, buffer_batch_size=64, min_buffer_size=10000, rollout_batch_size=1, "
    "exploration_policy=None, target_update_tau=0.01, discount=0.99, policy_weight_decay=0, qf_weight_decay=0, "
    "policy_optimizer=Adam, qf_optimizer=Adam, policy_lr=1e-4, qf_lr=1e-3, clip_pos_returns=False, "
    "clip_return=inf, max_action=None, reward_scale=1.0, smooth_return=True)"
)


def shape(signature: inspect.Signature) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in signature.parameters.values()]


def parsed(text: str) -> inspect.Signature:
    namespace: dict[str, Any] = {"Adam": torch.optim.Adam, "inf": float("inf")}
    exec(f"def documented{text}: ...", namespace)
    return inspect.signature(namespace["documented"])


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_algorithm_has_the_documented_signatures(name: str) -> None:
    assert shape(inspect.signature(getattr(OffPolicyRLAlgorithm, name))) == shape(parsed(DOCUMENTED[name]))


@pytest.mark.parametrize("name", OF_THE_SOURCE)
def test_what_the_document_refers_to_has_the_signatures_of_the_source(name: str) -> None:
    owner, method = name.split(".")
    found = inspect.signature(getattr(getattr(metarl, owner), method))
    assert shape(found) == shape(parsed(OF_THE_SOURCE[name]))


def test_setup_has_the_parameters_of_the_source() -> None:
    """Its defaults n_workers (the CPUs) and worker_class (a class that is not here) are None."""
    optional = "sampler_cls=None, sampler_args=None, n_workers=None, worker_class=None, worker_args=None"
    assert shape(inspect.signature(metarl.LocalRunner.setup)) == shape(parsed(f"(self, algo, env, {optional})"))


@pytest.mark.parametrize(("kind", "documented", "added"), [("DQN", DQN, 2), ("DDPG", DDPG, 1)])
def test_dqn_and_ddpg_have_the_parameters_of_the_source_first(kind: str, documented: str, added: int) -> None:
    found = shape(inspect.signature(getattr(metarl, kind)))
    names = [name for name, *_ in found[len(found) - added :]]
    assert found[: len(found) - added] == shape(parsed(documented))
    assert "use_target" in names
    assert all(parameter[1] is inspect.Parameter.KEYWORD_ONLY for parameter in found[len(found) - added :])


def test_the_algorithm_is_an_abstract_subclass_of_rl_algorithm() -> None:
    assert OffPolicyRLAlgorithm.__bases__ == (RLAlgorithm,)
    assert OffPolicyRLAlgorithm.__abstractmethods__ == {"train_once"}
    assert RLAlgorithm.__abstractmethods__ == {"train"}


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("np.algos.off_policy_rl_algorithm", ["OffPolicyRLAlgorithm"]),
        ("np.algos.rl_algorithm", ["RLAlgorithm"]),
        ("np.algos", ["OffPolicyRLAlgorithm", "RLAlgorithm"]),
        ("np.policies", ["Policy"]),
        (
            "np.exploration_policies",
            ["AddGaussianNoise", "AddOrnsteinUhlenbeckNoise", "EpsilonGreedyPolicy", "ExplorationPolicy"],
        ),
        ("experiment", ["LocalRunner", "SnapshotConfig", "wrap_experiment"]),
        ("experiment.deterministic", ["set_seed", "get_seed"]),
        ("replay_buffer", ["PathBuffer"]),
        ("envs", ["EnvSpec", "MetaRLEnv", "normalize"]),
        ("sampler", ["OffPolicyVectorizedSampler", "WorkerFactory"]),
        ("torch.algos", ["DQN", "DDPG"]),
        ("torch.policies", ["DeterministicMLPPolicy", "DiscreteQfDerivedPolicy", "Policy"]),
        ("torch.q_functions", ["ContinuousMLPQFunction", "DiscreteMLPQFunction"]),
        ("torch.modules", ["MLPModule"]),
    ],
)
def test_the_module_paths_are_those_of_metarl(path: str, names: list[str]) -> None:
    module = importlib.import_module(f"offbeat.compat.metarl.{path}")
    assert [name for name in names if not hasattr(module, name)] == []


def test_everything_can_be_imported_from_the_package_itself() -> None:
    assert sorted(metarl._FOUND_IN) == sorted(metarl.__all__)
    for name, module in metarl._FOUND_IN.items():
        found = getattr(importlib.import_module(f"offbeat.compat.metarl.{module}"), name)
        assert getattr(metarl, name) is found  # also once the modules are loaded, one of which could have its name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = metarl.nonsense


def test_the_tensorflow_half_says_where_its_classes_are() -> None:
    with pytest.raises(ImportError, match=r"torch\.algos"):
        importlib.import_module("offbeat.compat.metarl.tf")


def test_importing_offbeat_loads_no_interface() -> None:
    script = "import sys, offbeat; print(*[name for name in sys.modules if name.startswith('offbeat.compat')])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
