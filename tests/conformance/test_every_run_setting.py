"""Every setting of a run is shown to do something by a test that is named here; one without a test fails."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from offbeat.algorithms.configs import Run

TESTS = Path(__file__).parents[1]
RUNNER, ONE_BY_ONE = "run/test_runner.py", "run/test_run_settings.py"
BESIDE, FAULTS = "run/test_asynchronous.py", "run/test_asynchronous_faults.py"
RHYTHM = f"{ONE_BY_ONE}::test_log_evaluation_and_checkpoint_each_have_a_rhythm_of_their_own"
TWO_SETTINGS = f"{RUNNER}::test_random_steps_and_warmup_steps_are_two_settings"
OUT_AND_NAME = "run/test_directory.py::test_a_run_is_exactly_out_and_name_and_never_an_existing_one"
ENVIRONMENT = f"{ONE_BY_ONE}::test_env_and_env_kwargs_name_what_is_trained_and_evaluated_on"

# Setting to the test that fails where the setting does nothing, as file::function.
SHOWN_BY = {
    "env": ENVIRONMENT,
    "env_kwargs": ENVIRONMENT,
    "env_wrapper": f"{ONE_BY_ONE}::test_env_wrapper_is_around_every_environment",
    "max_episode_steps": f"{ONE_BY_ONE}::test_max_episode_steps_truncates_and_does_not_terminate",
    "state_key": f"{ONE_BY_ONE}::test_state_key_is_what_the_critic_alone_sees",
    "mask_key": "run/test_masks.py::test_mask_key_is_a_key_of_info_or_of_the_observation",
    "preset": "test_presets.py::test_none_switches_the_preset_off",
    "num_envs": f"{ONE_BY_ONE}::test_num_envs_are_stepped_side_by_side",
    "total_steps": f"{RUNNER}::test_resume_goes_on_to_a_larger_total",
    "total_updates": f"{RUNNER}::test_total_updates_ends_the_run_where_it_comes_first",
    "seed": f"{RUNNER}::test_the_config_of_a_run_repeats_it",
    "out": OUT_AND_NAME,
    "name": OUT_AND_NAME,
    "updates_per_step": f"{ONE_BY_ONE}::test_updates_per_step_is_the_ratio_after_the_warm_up",
    "random_steps": TWO_SETTINGS,
    "warmup_steps": TWO_SETTINGS,
    "capacity": f"{ONE_BY_ONE}::test_capacity_is_what_replay_keeps",
    "reward_shaping": f"{RUNNER}::test_reward_shaping_reaches_replay_but_not_the_returns",
    "collectors": f"{BESIDE}::test_every_collector_gets_its_share",
    "slack": f"{BESIDE}::test_with_slack_rows_come_from_older_weights",
    "collect_ahead": f"{BESIDE}::test_collect_ahead_reaches_who_permits_steps",
    "max_policy_lag": f"{BESIDE}::test_max_policy_lag_bounds_how_old_acting_weights_may_be",
    "hang_seconds": f"{FAULTS}::test_an_environment_that_hangs_is_interrupted_and_restarted_alone",
    "max_crashes": f"{FAULTS}::test_a_crash_loop_stops_the_run_with_a_checkpoint_and_words",
    "acting": f"{ONE_BY_ONE}::test_acting_is_what_the_policy_computes_with",
    "eval_every": RHYTHM,
    "eval_episodes": RHYTHM,
    "stop_return": "run/test_callbacks.py::test_stop_return_ends_the_run_at_the_first_evaluation_that_reaches_it",
    "checkpoint_every": RHYTHM,
    "keep_checkpoints": "run/test_hooks.py::test_keep_checkpoints_is_how_many_of_the_newest_stay",
    "log_every": RHYTHM,
    "logger": f"{RUNNER}::test_logger_none_writes_no_tensorboard",
    "device": f"{RUNNER}::test_what_cannot_work_is_refused_before_anything_is_created",
    "threads": "run/test_interruptions.py::test_threads_are_set_for_the_run_and_given_back",
    "precision": f"{ONE_BY_ONE}::test_precision_is_the_dtype_of_what_learns",
    "trace": f"{BESIDE}::test_the_trace_shows_what_every_process_does",
    "trace_cpu": f"{BESIDE}::test_trace_cpu_adds_processor_time",
    "quiet": f"{ONE_BY_ONE}::test_quiet_prints_nothing",
}


def test_no_entry_is_for_a_setting_that_is_gone() -> None:
    assert set(SHOWN_BY) <= {each.name for each in dataclasses.fields(Run)}


@pytest.mark.parametrize("setting", [each.name for each in dataclasses.fields(Run)])
def test_every_setting_of_a_run_has_a_test_that_names_it(setting: str) -> None:
    assert setting in SHOWN_BY, f"{setting} has no behavioural test: write one, and add it to SHOWN_BY"
    text = source(SHOWN_BY[setting])
    assert text is not None, f"{SHOWN_BY[setting]} does not exist"
    assert re.search(rf"\b{setting}\b", text), f"{SHOWN_BY[setting]} does not speak of {setting}"


def source(test: str) -> str | None:
    """The text of a test, its parameters included; None where there is no such test."""
    file, _, name = test.partition("::")
    path = TESTS / file
    text = path.read_text() if path.is_file() else ""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return "\n".join(ast.unparse(each) for each in (*node.decorator_list, node))
    return None


@pytest.mark.parametrize("test", ["nowhere.py::test", f"{RUNNER}::test_that_is_gone", f"{RUNNER}::train_nothing"])
def test_a_test_that_is_not_there_is_noticed(test: str) -> None:
    assert source(test) is None
