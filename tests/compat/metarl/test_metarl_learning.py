"""DQN and DDPG of the metarl interface: each update against a written-out loop, each parameter, and that they learn."""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import re
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import commands
from metarl_parts import Line, ListBuffer, Reach, runner_in, small_ddpg, small_dqn, states, transitions, updates
from offbeat.compat.metarl import (
    ContinuousMLPQFunction,
    DiscreteMLPQFunction,
    MetaRLEnv,
    OffPolicyRLAlgorithm,
    PathBuffer,
    set_seed,
)
from offbeat.errors import UsageError
from offbeat.run.checkpoint import digest

EXAMPLE = Path(__file__).parents[3] / "examples" / "coming_from_metarl.py"


def tensors(samples: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {key: torch.as_tensor(value, dtype=torch.float32) for key, value in samples.items()}


def close(module: Any, other: Any) -> bool:
    pairs = zip(module.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(mine, theirs, atol=2e-6) for mine, theirs in pairs)


# DQN


def plain_dqn(qf: Any, samples: list[dict[str, Any]], optimizer: Any, discount: float, double: bool, every: int) -> Any:
    """metarl's DQN, written out."""
    target = copy.deepcopy(qf)
    for number, each in enumerate(samples, start=1):
        batch = tensors(each)
        with torch.no_grad():
            following = target(batch["next_observations"])
            chosen = (qf(batch["next_observations"]) if double else following).argmax(1, keepdim=True)
            y = batch["rewards"] + discount * (1 - batch["terminals"]) * following.gather(1, chosen)
        value = (qf(batch["observations"]) * batch["actions"]).sum(1, keepdim=True)
        optimizer.zero_grad()
        functional.huber_loss(value, y).backward()
        optimizer.step()
        if number % every == 0:
            target.load_state_dict(qf.state_dict())
    return qf


@pytest.mark.parametrize("double", [False, True])
def test_updates_of_dqn_equal_a_written_out_loop(double: bool) -> None:
    algo = small_dqn(qf_lr=0.05, discount=0.9, double_q=double, n_train_steps=3, target_network_update_freq=2)
    samples = [transitions(seed, 16, 2, 2, True) for seed in range(8)]
    with_double, without = copy.deepcopy(algo.qf), copy.deepcopy(algo.qf)
    for expected, is_double in ((with_double, True), (without, False)):
        plain_dqn(expected, samples, torch.optim.Adam(expected.parameters(), 0.05), 0.9, is_double, every=6)
    for each in samples:
        algo.optimize_policy(each)
    assert close(algo.qf, with_double) == double
    assert close(algo.qf, without) != double
    assert updates(algo) == 8


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (torch.optim.Adagrad, {"lr": 0.05, "lr_decay": 0.5}),
        (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
        (torch.optim.RMSprop, {"lr": 0.01, "centered": True}),
        (torch.optim.Adam, {"lr": 0.01, "betas": (0.5, 0.9)}),
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
        (torch.optim.Adamax, {"lr": 0.01}),
        (torch.optim.Adadelta, {"lr": 0.5}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_qf_optimizer_may_be_any_of_these_classes_of_torch(kind: Any, arguments: dict[str, Any]) -> None:
    algo = small_dqn(qf_optimizer=(kind, arguments), discount=0.9, target_network_update_freq=100)
    samples = [transitions(seed, 16, 2, 2, True) for seed in range(4)]
    expected = copy.deepcopy(algo.qf)
    plain_dqn(expected, samples, kind(expected.parameters(), **arguments), 0.9, False, every=300)
    for each in samples:
        algo.optimize_policy(each)
    assert close(algo.qf, expected)


def test_target_network_update_freq_counts_calls_of_train_once() -> None:
    algo = small_dqn(n_train_steps=2, target_network_update_freq=3, min_buffer_size=1)
    algo.replay_buffer.add_path(transitions(0, 30, 2, 2, True))
    equal = []
    for itr in range(6):
        algo.train_once(itr, [])
        equal.append(torch.equal(states(algo).target.flat, states(algo).critic.flat))
    assert equal == [False, False, True, False, False, True]


def test_grad_norm_clipping_shortens_the_step_of_gradient_descent() -> None:
    sizes = []
    for limit in (None, 0.01):
        set_seed(0)
        algo = small_dqn(qf_optimizer=(torch.optim.SGD, {"lr": 1.0}), grad_norm_clipping=limit)
        before = states(algo).critic.flat.clone()
        algo.optimize_policy(transitions(0, 16, 2, 2, True))
        sizes.append(float((states(algo).critic.flat - before).norm()))
    assert sizes[0] > 0.02
    assert sizes[1] == pytest.approx(0.01, rel=1e-3)


def test_the_name_is_that_of_the_logged_numbers(tmp_path: Path) -> None:
    runner_in(tmp_path, small_dqn(name="Mine")).train(1, 8)
    assert '"Mine/QFunctionLoss":' in (tmp_path / "metrics.jsonl").read_text()


def test_the_given_q_function_holds_the_learned_weights(tmp_path: Path) -> None:
    algo = small_dqn()
    runner_in(tmp_path, algo).train(1, 16)
    own = torch.cat([parameter.detach().reshape(-1) for parameter in algo.qf.parameters()])
    assert torch.equal(own, states(algo).critic.flat)


# DDPG


def plain_ddpg(
    policy: Any,
    qf: Any,
    samples: list[dict[str, Any]],
    optimizers: Any,
    discount: float,
    tau: float,
    clip: tuple[float, float] = (-math.inf, math.inf),
) -> None:
    """metarl's DDPG, written out, with the target's actions clipped to the action space."""
    target_policy, target_qf = copy.deepcopy(policy), copy.deepcopy(qf)
    of_policy, of_qf = optimizers
    for each in samples:
        batch = tensors(each)
        with torch.no_grad():
            action = target_policy(batch["next_observations"]).clamp(-2.0, 2.0)
            y = batch["rewards"] + discount * (1 - batch["terminals"]) * target_qf(batch["next_observations"], action)
            y = y.clamp(*clip)
        of_qf.zero_grad()
        functional.mse_loss(qf(batch["observations"], batch["actions"]), y).backward()
        of_qf.step()
        of_policy.zero_grad()
        (-qf(batch["observations"], policy(batch["observations"])).mean()).backward()
        of_policy.step()
        for slow, fast in ((target_policy, policy), (target_qf, qf)):
            for mine, theirs in zip(slow.parameters(), fast.parameters(), strict=True):
                mine.data.lerp_(theirs.data, tau)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_updates_of_ddpg_equal_a_written_out_loop(decay: float) -> None:
    settings = {"policy_lr": 0.003, "qf_lr": 0.01, "discount": 0.9, "target_update_tau": 0.2}
    algo = small_ddpg(**settings, policy_weight_decay=decay, qf_weight_decay=2 * decay)
    samples = [transitions(seed, 16, 3, 1, False) for seed in range(8)]
    policy, qf = copy.deepcopy(algo.policy), copy.deepcopy(algo.qf)
    of_policy = torch.optim.Adam(policy.parameters(), 0.003, weight_decay=decay)
    of_qf = torch.optim.Adam(qf.parameters(), 0.01, weight_decay=2 * decay)
    plain_ddpg(policy, qf, samples, (of_policy, of_qf), 0.9, 0.2)
    for each in samples:
        algo.optimize_policy(each)
    assert close(algo.policy, policy)
    assert close(algo.qf, qf)


def test_policy_and_q_function_may_have_different_optimizers() -> None:
    given = {"policy_optimizer": (torch.optim.SGD, {"lr": 0.05}), "qf_optimizer": (torch.optim.Adagrad, {"lr": 0.02})}
    algo = small_ddpg(**given, discount=0.9, target_update_tau=0.2)
    samples = [transitions(seed, 16, 3, 1, False) for seed in range(4)]
    policy, qf = copy.deepcopy(algo.policy), copy.deepcopy(algo.qf)
    optimizers = torch.optim.SGD(policy.parameters(), 0.05), torch.optim.Adagrad(qf.parameters(), 0.02)
    plain_ddpg(policy, qf, samples, optimizers, 0.9, 0.2)
    for each in samples:
        algo.optimize_policy(each)
    assert close(algo.policy, policy)
    assert close(algo.qf, qf)


@pytest.mark.parametrize(("positive", "clip"), [(False, (-0.3, 0.3)), (True, (-0.3, 0.0))])
def test_clip_return_and_clip_pos_returns_clip_the_targets(positive: bool, clip: tuple[float, float]) -> None:
    settings = {"policy_lr": 0.003, "qf_lr": 0.01, "discount": 0.9, "target_update_tau": 0.2}
    algo = small_ddpg(**settings, clip_return=0.3, clip_pos_returns=positive)
    samples = [transitions(seed, 16, 3, 1, False) for seed in range(4)]
    policy, qf = copy.deepcopy(algo.policy), copy.deepcopy(algo.qf)
    optimizers = torch.optim.Adam(policy.parameters(), 0.003), torch.optim.Adam(qf.parameters(), 0.01)
    plain_ddpg(policy, qf, samples, optimizers, 0.9, 0.2, clip)
    for each in samples:
        algo.optimize_policy(each)
    assert close(algo.policy, policy)
    assert close(algo.qf, qf)


def test_max_action_limits_the_actions_of_the_target() -> None:
    losses = []
    for limit in (None, 0.05):
        set_seed(0)
        losses.append(small_ddpg(max_action=limit).optimize_policy(transitions(0, 16, 3, 1, False))[0])
    assert losses[0] != losses[1]


# What DQN and DDPG have of OffPolicyRLAlgorithm, whose tests show what each does.


@pytest.mark.parametrize("make", [small_dqn, small_ddpg])
def test_dqn_and_ddpg_have_the_parameters_of_their_superclass(make: Any) -> None:
    given = {
        **{"steps_per_epoch": 7, "n_train_steps": 6, "max_path_length": 11, "max_eval_path_length": 13},
        **{"buffer_batch_size": 5, "min_buffer_size": 17, "rollout_batch_size": 3, "discount": 0.7},
        **{"reward_scale": 0.1, "smooth_return": False, "use_target": False, "replay_buffer": PathBuffer(30)},
    }
    exploration = make().policy
    algo = make(**given, exploration_policy=exploration)
    assert {name: getattr(algo, name) for name in given} == given
    assert algo.exploration_policy is exploration


# Own buffers, and bad input


def test_dqn_learns_from_a_replay_buffer_of_ones_own(tmp_path: Path) -> None:
    algo = small_dqn(replay_buffer=ListBuffer())
    before = states(algo).critic.flat.clone()
    runner_in(tmp_path, algo).train(1, 16)
    assert updates(algo) == 6
    assert not torch.equal(states(algo).critic.flat, before)


def test_a_buffer_that_samples_other_keys_is_refused(tmp_path: Path) -> None:
    class Renamed(ListBuffer):
        def sample_transitions(self, batch_size: int) -> dict[str, Any]:
            return {"obs": np.zeros((batch_size, 2))}

    with pytest.raises(UsageError, match="no 'observations'"):
        runner_in(tmp_path, small_dqn(replay_buffer=Renamed())).train(1, 16)


class NoSampling:
    n_transitions_stored = 0

    def add_path(self, path: Any) -> None: ...


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qf": ContinuousMLPQFunction(MetaRLEnv(Reach()).spec, hidden_sizes=(4,))}, "qf raised TypeError"),
        ({"qf": torch.nn.Linear(2, 3)}, r"qf gave \(2, 3\) for 2 observations; it must give \(2, 2\)"),
        ({"qf": torch.nn.Identity()}, "qf has no parameter"),
        ({"replay_buffer": NoSampling()}, "replay_buffer is a NoSampling without sample_transitions"),
        ({"qf_optimizer": torch.optim.LBFGS}, "qf_optimizer=LBFGS"),
        ({"qf_optimizer": "adam"}, "qf_optimizer='adam'"),
        ({"qf_optimizer": (torch.optim.Adam, {"lr": 0.1}), "qf_lr": 0.2}, "qf_lr=0.2 was given with qf_optimizer"),
        ({"target_network_update_freq": 0}, "target_network_update_freq=0"),
    ],
)
def test_dqn_refuses_what_cannot_learn_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        small_dqn(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clip_return": 0.0}, "clip_return=0.0"),
        ({"max_action": -1.0}, "max_action=-1"),
        ({"policy_optimizer": torch.optim.NAdam}, "policy_optimizer=NAdam"),
    ],
)
def test_ddpg_refuses_what_it_does_not_do(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        small_ddpg(**changes)


def test_algorithms_refuse_the_other_kind_of_actions() -> None:
    from offbeat.compat.metarl import DDPG, DQN, DeterministicMLPPolicy

    reach, line = MetaRLEnv(Reach()).spec, MetaRLEnv(Line()).spec
    qf = DiscreteMLPQFunction(line, hidden_sizes=(4,))
    policy = DeterministicMLPPolicy(reach, hidden_sizes=(4,))
    with pytest.raises(UsageError, match="DQN needs Discrete"):
        DQN(reach, policy, qf, PathBuffer(10), min_buffer_size=1)
    with pytest.raises(UsageError, match="DDPG needs a Box"):
        DDPG(line, policy, qf, PathBuffer(10), min_buffer_size=1)
    with pytest.raises(UsageError, match=r"policy gave \(2, 2\)"):
        DDPG(reach, DeterministicMLPPolicy(line_like(), hidden_sizes=(4,)), qf, PathBuffer(10), min_buffer_size=1)


def line_like() -> Any:
    """Observations of Reach with two actions."""
    from gymnasium import spaces

    from offbeat.compat.metarl import EnvSpec

    return EnvSpec(Reach().observation_space, spaces.Box(-1.0, 1.0, (2,)))


# The example.

SHORT = ["--epochs", "2", "--calls", "3", "--steps", "200"]


def example(directory: Path, *arguments: str) -> str:
    return commands.run_in(directory, EXAMPLE, arguments)


def _killed(directory: Path, arguments: list[str], at: int) -> None:
    """Runs the example, and kills its process when `train_once` has been called `at` times."""
    os.chdir(directory)
    sys.argv = [str(EXAMPLE), *arguments]
    obtain, calls = OffPolicyRLAlgorithm.process_samples, 0

    def counted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return obtain(*given)

    OffPolicyRLAlgorithm.process_samples = counted  # type: ignore[method-assign]
    runpy.run_path(str(EXAMPLE), run_name="__main__")


@pytest.mark.parametrize("kind", ["dqn", *(pytest.param(each, marks=pytest.mark.slow) for each in ("ddpg", "own"))])
def test_the_example_resumes_after_kill_9_as_if_nothing_had_happened(kind: str, tmp_path: Path) -> None:
    whole = example(tmp_path, kind, *SHORT, "--out", "whole")
    assert re.search(rf"^{kind}: 1200 steps, average return -?\d+\.\d$", whole, re.MULTILINE)
    context: Any = multiprocessing.get_context("forkserver")
    process = context.Process(target=_killed, args=(tmp_path, [kind, *SHORT, "--out", "cut"], 5))
    process.start()
    assert commands.finish(process) == -signal.SIGKILL
    assert example(tmp_path, kind, *SHORT, "--out", "cut", "--resume") == whole
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")
