"""Fine-tuning: a new run that begins with the weights and statistics of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat
from offbeat import presets
from offbeat.errors import CheckpointError, UsageError
from offbeat.run.checkpoint import Checkpoints
from offbeat.settings import read, read_yaml, train_settings
from short_runs import SETTINGS, train

STILL = {"learning_rate": 0.0, "tau": 1e-9}
"""Settings with which nothing moves, so that the end of a run shows its beginning."""


def arrays(path: Path, which: str = "latest") -> dict[str, Any]:
    found = Checkpoints(path).load(which).arrays
    return {name.removeprefix("learner/"): array for name, array in found.items() if name.startswith("learner/")}


def heavy() -> Any:
    """The same spaces under another name."""
    import gymnasium

    return gymnasium.make("Pendulum-v1", g=12.0)


def test_a_new_run_begins_with_the_weights_of_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = train(tmp_path, name="first", normalise_observations=True, normalise_rewards=True)
    second = offbeat.train(
        "sac",
        heavy,
        **{**SETTINGS, "out": str(tmp_path), "name": "second", "init_from": str(first.path), "quiet": False},
        **{"seed": 7, "normalise_observations": True, "normalise_rewards": True, **STILL},
    )
    there, here = arrays(first.path), arrays(second.path)
    for name in there:
        if name.split("/")[0] in ("actor", "critic", "log_temperature"):
            np.testing.assert_array_equal(there[name], here[name])
        if name.startswith("target/"):
            np.testing.assert_allclose(there[name], here[name], atol=1e-5)
    assert here["observations/count"] > there["observations/count"]  # they went on
    assert not any(np.array_equal(there[name], here[name]) for name in there if name.startswith("actor_optimiser/m"))
    (latest,) = {(first.path / "checkpoints" / "latest").read_text().strip()}
    assert read_yaml(second.path / "config.yaml")["init_from"] == f"{first.path}:{latest}"
    assert (
        f"init_from: {first.path}:{latest} (sac on Pendulum-v1, 120 steps): actor, critic, " in capsys.readouterr().out
    )
    other = train(tmp_path, seed=7, normalise_observations=True, normalise_rewards=True, **STILL)
    assert not np.array_equal(arrays(other.path)["actor/0/weight"], there["actor/0/weight"])


def test_a_checkpoint_can_be_named_and_random_steps_are_none_unless_set(tmp_path: Path) -> None:
    first = train(tmp_path, name="first")
    second = train(tmp_path, name="second", init_from=f"{first.path}:best", **STILL)
    np.testing.assert_array_equal(arrays(second.path)["actor/0/weight"], arrays(first.path, "best")["actor/0/weight"])
    given = {"env": "X", "init_from": "runs/first"}
    for settings, expected in (({}, 0), ({"random_steps": 5}, 5)):
        config = presets.assemble("sac", read(train_settings("sac"), {**given, **settings}))
        assert config.run.pace.random_steps == expected
    assert offbeat.resume(second.path, total_steps=140, quiet=True).status == "finished"


def test_what_an_agent_of_ones_own_loop_saved_is_taken_too(tmp_path: Path) -> None:
    agent = offbeat.Agent("sac", "Pendulum-v1", hidden=(8,), seed=9)
    agent.save(tmp_path / "agent")
    run = train(tmp_path, init_from=str(tmp_path / "agent"), **STILL)
    np.testing.assert_array_equal(arrays(run.path)["actor/0/weight"], agent.learner.arrays()["actor/0/weight"])


def test_critics_that_do_not_fit_stay_new_and_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = train(tmp_path, name="first")
    second = train(tmp_path, name="second", init_from=str(first.path), critics=3, quiet=False, **STILL)
    assert "new, because they do not fit: critic, target" in capsys.readouterr().out
    np.testing.assert_array_equal(arrays(second.path)["actor/0/weight"], arrays(first.path)["actor/0/weight"])


def test_what_does_not_fit_is_refused_and_nothing_is_created(tmp_path: Path) -> None:
    first = train(tmp_path, name="first")
    source = {"init_from": str(first.path), "name": "second"}
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"hidden": (9,)}, CheckpointError, r"the actor there is another network \(actor/0/bias is \(8,\) there"),
        (
            {"env": "MountainCarContinuous-v0"},
            CheckpointError,
            r"other spaces than Mountain.*\('box', 3\)\] there",
        ),
        ({"normalise_observations": True}, CheckpointError, "use normalise_observations=False"),
        ({"init_from": str(tmp_path)}, UsageError, "is not a run: it has no directory checkpoints/"),
        ({"init_from": f"{first.path}:beast"}, CheckpointError, "'beast' is not a checkpoint name"),
    ]
    for settings, error, words in refused:
        with pytest.raises(error, match=words):
            train(tmp_path, **{**source, **settings})
        assert not (tmp_path / "second").exists()
