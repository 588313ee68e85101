"""Every documented class and function has the documented parameters: names, order, kinds and defaults."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any

import pytest

from offbeat.compat import unilab

RUNNER = "offbeat.compat.unilab.algos.torch.offpolicy.runner"
LEARNER = "offbeat.compat.unilab.algos.torch.appo.learner"

# As the documents write them, word for word; MLPModel as rsl_rl has it.
DOCUMENTED = {
    (RUNNER, "compute_train_start_threshold"): "(batch_size, learning_starts, num_envs)",
    (RUNNER, "replay_buffer_ready_for_learning"): "(replay_buffer_size, *, batch_size, learning_starts, num_envs)",
    (RUNNER, "build_reward_comparison_metrics"): "(reward_history, smoothed_reward)",
    (RUNNER, "OffPolicyRunner"): (
        "(learner, env_name, algo_type, num_envs=4096, replay_buffer_n=1024, batch_size=8192, learning_starts=0, "
        "updates_per_step=8, policy_frequency=4, sync_collection=True, env_steps_per_sync=1, device=None, "
        "actor_hidden_dim=512, use_layer_norm=True, obs_normalization=False, sim_backend='mujoco', "
        "env_cfg_override=None, actor_kwargs=None, seed=None, trace_enabled=False, trace_output_dir=None, "
        "trace_thread_time=False, trace_cuda_events=True)"
    ),
    (RUNNER, "OffPolicyRunner.learn"): (
        "(max_iterations=1500, save_interval=50, log_dir='logs', logger_type='tensorboard')"
    ),
    (RUNNER, "OffPolicyRunner.close"): "()",
    (LEARNER, "vtrace_advantages"): (
        "(behavior_log_probs, target_log_probs, rewards, values, bootstrap_values, dones, gamma=0.99, clip_rho=1.0, "
        "clip_c=1.0)"
    ),
    (LEARNER, "APPOLearner"): (
        "(actor, critic, num_learning_epochs=5, num_mini_batches=4, clip_param=0.2, gamma=0.99, lam=0.95, "
        "value_loss_coef=1.0, entropy_coef=0.01, learning_rate=0.001, max_grad_norm=1.0, use_clipped_value_loss=True, "
        "schedule='fixed', desired_kl=0.01, adaptive_kl_factor=1.2, adaptive_lr_factor=1.1, device='cpu', "
        "optimizer='adam', tau=1.0, target_update_freq=1, vtrace_clip_rho=1.0, vtrace_clip_c=1.0, "
        "enable_compile=False, **kwargs)"
    ),
    (LEARNER, "APPOLearner.update_target_network"): "()",
    (LEARNER, "APPOLearner.sync_target_actor_buffers"): "()",
    (LEARNER, "APPOLearner.get_weights"): "()",
    (LEARNER, "APPOLearner.get_state_dict"): "()",
    (LEARNER, "APPOLearner.process_batch"): "(batch)",
    (LEARNER, "APPOLearner.update"): "(batch)",
    (LEARNER, "MLPModel"): (
        "(obs, obs_groups, obs_set, output_dim, hidden_dims=(256, 256, 256), activation='elu', "
        "obs_normalization=False, distribution_cfg=None)"
    ),
}


def documented(text: str) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter, as the document has them."""
    arguments = ast.parse(f"def function{text}: ...").body[0].args  # type: ignore[attr-defined]
    found: list[tuple[str, Any, Any]] = []
    missing = len(arguments.args) - len(arguments.defaults)
    for index, each in enumerate(arguments.args):
        default = inspect.Parameter.empty
        if index >= missing:
            default = ast.literal_eval(arguments.defaults[index - missing])
        found.append((each.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD, default))
    found += [(each.arg, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty) for each in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        found.append((arguments.kwarg.arg, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.empty))
    return found


@pytest.mark.parametrize(("module", "name"), DOCUMENTED)
def test_the_signature_is_the_documented_one(module: str, name: str) -> None:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    parameters = [each for each in inspect.signature(found).parameters.values() if each.name != "self"]
    own = [(each.name, each.kind, each.default) for each in parameters]
    assert own == documented(DOCUMENTED[module, name])


def test_a_wrong_default_would_be_found() -> None:
    assert documented("(a, b=1)") != documented("(a, b=2)")
    assert documented("(a, *, b)") != documented("(a, b)")


def test_short_imports_are_the_same_objects() -> None:
    for (module, name), _ in DOCUMENTED.items():
        if "." not in name:
            assert getattr(unilab, name) is getattr(importlib.import_module(module), name)


def test_the_runner_has_its_documented_base() -> None:
    assert unilab.OffPolicyRunner.__bases__ == (unilab.AsyncRunner,)
    assert unilab.APPOLearner.__bases__ == (object,)
