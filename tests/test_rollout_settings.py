"""Settings of algorithms that learn from rollouts: what is about replay is none of theirs."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from offbeat.algorithms.configs import Run
from offbeat.errors import UsageError
from offbeat.settings import flatten, make_config, run_settings, settings_of, train_settings, with_changes, write_yaml

OF_REPLAY = {"updates_per_step", "random_steps", "warmup_steps", "capacity", "slack", "collect_ahead"} | {
    *("pace", "replay", "replay_kwargs", "update_every")
}


@pytest.mark.parametrize(("algorithm", "without"), [("ppo", OF_REPLAY | {"max_policy_lag"}), ("appo", OF_REPLAY)])
def test_what_is_about_replay_is_no_setting_of_who_learns_from_rollouts(algorithm: str, without: set[str]) -> None:
    assert {each.name for each in train_settings("sac")} >= OF_REPLAY | {"max_policy_lag"}
    assert without == {each.name for each in settings_of(Run)} - {each.name for each in run_settings(algorithm)}
    for name in (*without, "batch_size", "n_step"):
        with pytest.raises(UsageError, match=f"there is no setting '{name}'"):
            make_config(algorithm, {name: 5})
    config = make_config(algorithm, {"rollout_steps": 64})
    assert not without & flatten(config).keys()
    assert not without & yaml.safe_load(write_yaml(config, {})).keys()
    assert with_changes(config, total_steps=5).learner == config.learner


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"rate_control": "adaptve"}, ["rate_control='adaptve'", "did you mean adaptive?"]),
        ({"rate_control_factor": 2}, ["rate_control_factor needs rate_control adaptive", "rate_control is fixed"]),
        ({"rate_control": {"kind": "adaptive", "lowest": 0.1}}, ["rate_control_lowest=0.1", "rate_control_highest"]),
        ({"schedule": "linaer"}, ["schedule='linaer'", "did you mean linear?"]),
        ({"optimiser": "adma"}, ["optimiser='adma'", "did you mean adam?"]),
        ({"clip": 0}, ["clip=0", "more than 0"]),
        ({"when_full": "drop"}, ["when_full='drop'", "block, drop-oldest"]),
    ],
)
def test_a_wrong_value_of_ppo_or_appo_is_refused_by_name(mapping: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as refusal:
        make_config("appo", mapping)
    for word in words:
        assert word in str(refusal.value)
