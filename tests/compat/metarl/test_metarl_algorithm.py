"""OffPolicyRLAlgorithm: what each documented parameter and method does."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metarl_parts import (
    Always,
    Line,
    ListBuffer,
    Reach,
    Recording,
    recording,
    runner_in,
    small_ddpg,
    small_dqn,
    states,
    updates,
)
from offbeat.compat.metarl import DQN, EnvSpec, MetaRLEnv, PathBuffer, set_seed
from offbeat.errors import UsageError


def trained(path: Path, algo: Any, epochs: int = 1, batch_size: int = 8, env: Any = None) -> Any:
    runner_in(path, algo, env).train(epochs, batch_size)
    return algo


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


# env_spec, policy, qf, replay_buffer, exploration_policy


def test_env_spec_says_how_observations_and_actions_are_flattened(tmp_path: Path) -> None:
    algo = trained(tmp_path, recording())
    assert algo.replay_buffer.rows("actions").tolist() == [[0.0, 1.0]] * 16
    assert algo.replay_buffer.rows("observations").shape == (16, 2)


def test_an_environment_with_other_spaces_than_env_spec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="spaces"):
        runner_in(tmp_path, recording(), MetaRLEnv(Reach()))


def test_policy_acts_in_evaluations_and_exploration_policy_in_training(tmp_path: Path) -> None:
    policy, exploration = Always(1), Always(0)
    algo = trained(tmp_path, recording(policy=policy, exploration_policy=exploration, max_path_length=5))
    assert exploration.calls == 16
    assert algo.replay_buffer.rows("rewards").max() == 0.0  # never left the start
    assert rows(tmp_path)[-1]["Evaluation/AverageReturn"] == 1 + 2 + 3 + 4
    assert policy.calls == 10 * 4


def test_without_an_exploration_policy_the_policy_acts_in_training(tmp_path: Path) -> None:
    algo = trained(tmp_path, recording(policy=Always(1)))
    assert algo.replay_buffer.rows("rewards").ravel().tolist() == [1.0, 2.0, 3.0, 4.0] * 4


def test_an_exploration_object_with_get_action_alone_is_called_for_each_environment(tmp_path: Path) -> None:
    class One:
        seen: list[Any] = []  # noqa: RUF012

        def get_action(self, observation: Any) -> Any:
            self.seen.append(observation.tolist())
            return 1

        def reset(self, dones: Any = None) -> None: ...

    algo = recording(exploration_policy=One(), rollout_batch_size=2)
    One.seen.clear()  # a copy was tried
    trained(tmp_path, algo)
    assert len(One.seen) == 16
    assert algo.replay_buffer.n_transitions_stored == 16


def test_exploration_is_reset_in_the_environments_whose_episode_begins(tmp_path: Path) -> None:
    exploration = Always(1)
    trained(tmp_path, recording(exploration_policy=exploration, rollout_batch_size=2), batch_size=12)
    # 12 vector steps in two batches: episodes of 4 steps in both environments.
    assert exploration.resets == [[True, True]] * 3


def test_a_replay_buffer_of_ones_own_is_filled_with_paths(tmp_path: Path) -> None:
    algo = trained(tmp_path, recording(max_path_length=3), batch_size=4)
    lengths = [len(path["rewards"]) for path in algo.replay_buffer.paths]
    assert lengths == [3, 1, 2, 2]  # cut where episodes end and where batches end
    assert set(algo.replay_buffer.paths[0]) == {
        *("observations", "next_observations", "actions", "rewards", "terminals"),
    }


def test_next_observations_are_the_final_ones_where_episodes_end(tmp_path: Path) -> None:
    algo = trained(tmp_path, recording(max_path_length=3), batch_size=4)
    positions = algo.replay_buffer.rows("next_observations")[:, 0].tolist()
    assert positions == [1, 2, 3, 1, 2, 3, 1, 2]


def test_policy_and_qf_log_diagnostics_of_the_paths() -> None:
    class Logs(Always):
        told: list[Any] = []  # noqa: RUF012

        def log_diagnostics(self, paths: Any) -> None:
            self.told.append(paths)

    algo = recording(policy=Logs())
    algo.qf = Logs()
    algo.log_diagnostics([{"a": 1}])
    assert Logs.told == [[{"a": 1}]] * 2


# use_target, discount, n_train_steps, buffer_batch_size, min_buffer_size


@pytest.mark.parametrize("make", [small_dqn, small_ddpg])
def test_without_use_target_the_targets_come_from_the_learned_networks(make: Any, tmp_path: Path) -> None:
    env, acting = (Reach(), Always([0.5])) if make is small_ddpg else (Line(), Always(1))
    slow = trained(tmp_path / "with", make(exploration_policy=acting), env=MetaRLEnv(env))
    none = trained(tmp_path / "without", make(exploration_policy=acting, use_target=False), env=MetaRLEnv(env))
    assert updates(slow) == updates(none) == 3
    assert not torch.equal(states(slow).target.flat, states(slow).critic.flat)
    assert torch.equal(states(none).target.flat, states(none).critic.flat)


def test_discount_is_that_of_the_targets_and_of_the_evaluation(tmp_path: Path) -> None:
    trained(tmp_path, recording(discount=0.5))
    assert rows(tmp_path)[-1]["Evaluation/AverageDiscountedReturn"] == 1 + 2 / 2 + 3 / 4 + 4 / 8
    set_seed(0)
    settings = {"qf_lr": 0.02, "n_train_steps": 150, "buffer_batch_size": 32, "target_network_update_freq": 1}
    algo = small_dqn(discount=0.5, exploration_policy=Always(1), **settings)
    runner_in(tmp_path / "dqn", algo).train(4, 20)
    # From position 3 the goal gives 4; from 2 it is 3 + 0.5 * 4.
    obs = torch.tensor([[3.0, 1.0], [2.0, 1.0]])
    with torch.no_grad():
        values = algo.qf(obs)[:, 1]
    assert values[0] == pytest.approx(4.0, abs=0.5)
    assert values[1] == pytest.approx(5.0, abs=0.7)


def test_n_train_steps_is_the_number_of_updates_per_train_once(tmp_path: Path) -> None:
    assert updates(trained(tmp_path / "a", small_dqn(n_train_steps=3), epochs=2)) == 9  # the first call has 8 rows only
    assert updates(trained(tmp_path / "b", small_dqn(n_train_steps=5), epochs=2)) == 15


def test_buffer_batch_size_is_what_each_update_samples(tmp_path: Path) -> None:
    algo = trained(tmp_path, small_dqn(buffer_batch_size=7, replay_buffer=ListBuffer()))
    assert algo.replay_buffer.sizes == [7, 7, 7]


def test_learning_begins_with_min_buffer_size_transitions(tmp_path: Path) -> None:
    assert updates(trained(tmp_path / "a", small_dqn(min_buffer_size=17))) == 0
    assert not (tmp_path / "a" / "metrics.jsonl").read_text()  # nothing was learned, so nothing is evaluated
    assert updates(trained(tmp_path / "b", small_dqn(min_buffer_size=16))) == 3


# steps_per_epoch, rollout_batch_size, path lengths


def test_steps_per_epoch_is_the_number_of_train_once_calls(tmp_path: Path) -> None:
    algo = trained(tmp_path, recording(steps_per_epoch=3), epochs=2)
    assert [itr for itr, _ in algo.calls] == [0, 1, 2, 3, 4, 5]


def test_process_samples_of_a_subclass_gets_the_number_of_the_iteration(tmp_path: Path) -> None:
    class Processed(DQN):
        def process_samples(self, itr: int, paths: Any) -> Any:
            self.processed = [*getattr(self, "processed", []), itr]
            return super().process_samples(itr, paths)

    algo = small_dqn(steps_per_epoch=3)
    algo.__class__ = Processed
    assert trained(tmp_path, algo, epochs=2).processed == [0, 1, 2, 3, 4, 5]


def test_rollout_batch_size_environments_are_stepped_in_parallel(tmp_path: Path) -> None:
    algo = trained(tmp_path, recording(rollout_batch_size=4, steps_per_epoch=1))
    assert [len(path["rewards"]) for path in algo.calls[0][1]] == [2, 2, 2, 2]


def test_max_path_length_truncates_episodes_and_a_time_limit_is_no_terminal(tmp_path: Path) -> None:
    short = trained(tmp_path / "short", recording(max_path_length=3, steps_per_epoch=1), batch_size=6)
    (_, paths) = short.calls[0]
    assert [path["running_length"] for path in paths] == [3, 3]
    assert not short.replay_buffer.rows("terminals").any()
    assert short.process_samples(0, paths)["complete"] == [True, True]
    whole = trained(tmp_path / "whole", recording(max_path_length=4, steps_per_epoch=1))
    assert whole.replay_buffer.rows("terminals").ravel().tolist() == [False, False, False, True] * 2


@pytest.mark.parametrize(("limits", "length"), [((5, 3), 3), ((3, None), 3), ((None, 2), 2), ((None, None), 4)])
def test_max_eval_path_length_limits_evaluations_and_is_max_path_length_for_none(
    limits: tuple[int | None, int | None], length: int, tmp_path: Path
) -> None:
    algo = recording(max_path_length=limits[0], max_eval_path_length=limits[1])
    paths = algo._obtain_evaluation_samples(MetaRLEnv(Line()))
    assert {len(path["rewards"]) for path in paths} == {length}


def test_evaluation_ends_where_nothing_else_ends_it() -> None:
    algo = recording(policy=Always(0))
    assert {len(each["rewards"]) for each in algo._obtain_evaluation_samples(MetaRLEnv(Line()), num_trajs=1)} == {1_000}


def test_evaluation_episodes_are_counted(tmp_path: Path) -> None:
    algo = trained(tmp_path, recording(), epochs=3)
    assert [row["Evaluation/NumTrajs"] for row in rows(tmp_path)] == [10, 10, 10]
    assert [row["Evaluation/TotalTrajs"] for row in rows(tmp_path)] == [10, 20, 30]
    assert algo.evaluation_episodes == 30


def test_evaluation_takes_the_mean_of_a_stochastic_policy() -> None:
    class Stochastic(Always):
        def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
            return np.array([-2.0]), {"mean": np.array([1.0])}

    algo = recording(env=Reach(), policy=Stochastic())
    (path,) = algo._obtain_evaluation_samples(MetaRLEnv(Reach()), num_trajs=1)
    assert path["undiscounted_return"] == 0.0


# reward_scale, smooth_return


def test_reward_scale_scales_what_is_learned_and_not_the_reported_return(tmp_path: Path) -> None:
    algo = trained(tmp_path, recording(reward_scale=10.0, steps_per_epoch=1), batch_size=4)
    assert algo.replay_buffer.rows("rewards").ravel().tolist() == [10.0, 20.0, 30.0, 40.0]
    ((_, (path,)),) = algo.calls
    assert path["rewards"].tolist() == [10.0, 20.0, 30.0, 40.0]
    assert path["undiscounted_return"] == 10.0
    assert rows(tmp_path)[-1]["Evaluation/AverageReturn"] == 10.0


def worse_and_worse(smooth: bool) -> float:
    """An epoch with returns 1 and 2, then one with 30 and 40."""
    algo = recording(smooth_return=smooth)
    for itr, total in enumerate((1.0, 2.0, 30.0, 40.0)):
        found = algo._average_return(itr, [{"undiscounted_return": total, "success_count": 0, "dones": [True]}])
    return found


def test_smooth_return_averages_over_earlier_epochs_too() -> None:
    assert worse_and_worse(smooth=True) == 73.0 / 4
    assert worse_and_worse(smooth=False) == 35.0


def test_only_finished_episodes_are_in_the_average_return() -> None:
    algo = recording()
    assert math.isnan(algo._average_return(0, [{"undiscounted_return": 5.0, "success_count": 0, "dones": [False]}]))


# Methods.


def test_process_samples_has_one_entry_per_path(tmp_path: Path) -> None:
    algo = trained(tmp_path, recording(steps_per_epoch=2), batch_size=6)
    (_, first), (_, second) = algo.calls
    assert algo.process_samples(0, first) == {
        "undiscounted_returns": [10.0, 3.0],
        "success_history": [1.0, 0.0],
        "complete": [True, False],
    }
    # The second batch goes on with the episode: its return is that of the whole.
    assert algo.process_samples(1, second) == {
        "undiscounted_returns": [10.0, 10.0],
        "success_history": [1.0, 1.0],
        "complete": [True, True],
    }


def test_paths_hold_infos_lengths_and_successes(tmp_path: Path) -> None:
    algo = trained(tmp_path, recording(steps_per_epoch=1), batch_size=4)
    ((_, (path,)),) = algo.calls
    assert path["env_infos"]["position"].tolist() == [1, 2, 3, 4]
    assert path["env_infos"]["is_success"].tolist() == [False, False, False, True]
    assert (path["running_length"], path["success_count"], path["undiscounted_return"]) == (4, 1, 10.0)
    assert path["dones"].tolist() == path["terminals"].tolist() == [False, False, False, True]


def test_train_returns_the_last_train_once_or_else_the_average_return(tmp_path: Path) -> None:
    algo = recording()
    assert runner_in(tmp_path / "a", algo).train(1, 8) == 10.0
    algo.returns = 3.5
    assert runner_in(tmp_path / "b", algo).train(1, 8) == 3.5


def test_train_once_has_to_be_written_and_init_opt_is_called_by_the_constructor() -> None:
    assert recording().calls == []  # made by init_opt
    from offbeat.compat.metarl import OffPolicyRLAlgorithm

    with pytest.raises(TypeError, match="train_once"):
        OffPolicyRLAlgorithm(MetaRLEnv(Line()).spec, Always(), None, PathBuffer(1))  # type: ignore[abstract]


# Bad input.


class NoMethods:
    pass


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": NoMethods()}, "policy is a NoMethods without get_action"),
        ({"exploration_policy": NoMethods()}, "exploration_policy is a NoMethods"),
        ({"replay_buffer": NoMethods()}, "replay_buffer is a NoMethods without add_path"),
        ({"steps_per_epoch": 0}, "steps_per_epoch=0"),
        ({"n_train_steps": 0}, "n_train_steps=0"),
        ({"buffer_batch_size": 0}, "buffer_batch_size=0"),
        ({"rollout_batch_size": 0}, "rollout_batch_size=0"),
        ({"max_path_length": 0}, "max_path_length=0"),
        ({"max_eval_path_length": 0}, "max_eval_path_length=0"),
        ({"discount": 1.5}, "discount=1.5"),
        ({"min_buffer_size": -1}, "min_buffer_size=-1"),
        ({"steps_per_epoch": 2.5}, "steps_per_epoch=2.5 is a float; it must be a whole number"),
        ({"reward_scale": "a"}, "reward_scale='a' is a str; it must be a number"),
        ({"min_buffer_size": 11, "replay_buffer": PathBuffer(10)}, "min_buffer_size=11 is more than the 10"),
    ],
)
def test_an_argument_that_cannot_work_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        recording(**changes)


def test_an_env_spec_without_spaces_and_a_runner_without_methods_are_refused() -> None:
    with pytest.raises(UsageError, match="env_spec is a NoMethods without observation_space"):
        Recording(NoMethods(), Always(), None, PathBuffer(1))
    with pytest.raises(UsageError, match="runner is a NoMethods without step_epochs"):
        recording().train(NoMethods())
    with pytest.raises(UsageError, match="observation_space is a int"):
        EnvSpec(3, 4)


@pytest.mark.parametrize(
    ("action", "words"), [(np.array([1, 1]), "shape"), (7, "integers from 0 to 1"), ("a", "shape"), (0.5, "integers")]
)
def test_an_action_that_the_environment_cannot_take_is_refused_before_anything_is_made(
    action: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"exploration_policy gave .*{words}"):
        recording(exploration_policy=Always(action))
    later = Always()
    algo = recording(exploration_policy=later)
    assert (later.calls, later.resets) == (0, [])  # a copy was tried
    later.action = action
    with pytest.raises(UsageError, match=f"exploration_policy gave .*{words}"):
        trained(tmp_path, algo)
