"""UniLab's documented off-policy runner and APPO learner, over our core. Paths below are UniLab's own."""

from offbeat.compat.unilab.algos.torch.appo.learner import APPOLearner, vtrace_advantages
from offbeat.compat.unilab.algos.torch.fast_sac.learner import SACLearner
from offbeat.compat.unilab.algos.torch.fast_td3.learner import TD3Learner
from offbeat.compat.unilab.algos.torch.offpolicy.runner import (
    OffPolicyRunner,
    build_reward_comparison_metrics,
    compute_train_start_threshold,
    replay_buffer_ready_for_learning,
)
from offbeat.compat.unilab.ipc.async_runner import AsyncRunner
from offbeat.compat.unilab.registry import register_env
from offbeat.compat.unilab.rsl_rl.models import MLPModel

__all__ = [
    "APPOLearner",
    "AsyncRunner",
    "MLPModel",
    "OffPolicyRunner",
    "SACLearner",
    "TD3Learner",
    "build_reward_comparison_metrics",
    "compute_train_start_threshold",
    "register_env",
    "replay_buffer_ready_for_learning",
    "vtrace_advantages",
]
