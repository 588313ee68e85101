"""What a part of a user's own may get wrong, and what the error says of it: the value, the rule and the remedy."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat
from offbeat.errors import OffbeatError, UsageError
from own_parts.collector import Background
from own_parts.exploration import PinkNoise
from own_parts.preprocessor import LargestScale
from own_parts.recent import Recent
from short_runs import SETTINGS
from small_agents import agent, observed, updated

# A replay.


class OneBatch(Recent):
    def draw(self, rng: Any, count: int) -> Any:
        return super().draw(rng, 1)


class Columns(Recent):
    def draw(self, rng: Any, count: int) -> Any:
        return super().draw(rng, count).columns


class Unweighted(Recent):
    def draw(self, rng: Any, count: int) -> Any:
        return dataclasses.replace(super().draw(rng, count), weight=np.ones(4))


class NoReward(Recent):
    def draw(self, rng: Any, count: int) -> Any:
        found = super().draw(rng, count)
        return dataclasses.replace(found, columns={"obs": found.columns["obs"]})


class Beyond(Recent):
    def positions(self, rng: Any, shape: Any, total: int) -> Any:
        return np.full(shape[0] * shape[1], total)


class Shares(Recent):
    def positions(self, rng: Any, shape: Any, total: int) -> Any:
        return rng.random(shape[0] * shape[1])


class Few(Recent):
    def positions(self, rng: Any, shape: Any, total: int) -> Any:
        return super().positions(rng, (1, 2), total)


class AList(Recent):
    def positions(self, rng: Any, shape: Any, total: int) -> Any:
        return [0] * (shape[0] * shape[1])


class Shapeless(Recent):
    def positions(self, rng: Any, total: int) -> Any:  # type: ignore[override]
        return np.zeros(total)


class NotANumber(Recent):
    def draw(self, rng: Any, count: int) -> Any:
        found = super().draw(rng, count)
        return dataclasses.replace(found, weight=np.full(found.rows.shape, np.nan))


class Unsaved(Recent):
    def restore(self, arrays: Any) -> None:
        pass


class Unrestored(Recent):
    def arrays(self) -> Any:
        return {}


class NoArrays(Unsaved):
    def arrays(self) -> Any:
        return None


class Numbers(Unsaved):
    def arrays(self) -> Any:
        return {"largest": 3.0}


class Unasked(Recent):
    def feedback(self, rows: Any, td_errors: Any) -> None:
        pass


class Unheard(Recent):
    wants_td_errors = True


class OnlyRows(Recent):
    def feedback(self, rows: Any) -> None:  # type: ignore[override]
        pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"replay": "prioritised"}, "replay='prioritised' is neither uniform nor module:callable"),
        ({"replay": "unifrom"}, "replay='unifrom' is neither .*; did you mean uniform?"),
        ({"replay": Unsaved}, "Unsaved has restore without arrays, so a resume would lose its state; define both"),
        ({"replay": Unrestored}, "Unrestored has arrays without restore"),
        ({"replay": "own_parts.replay:Prioritized"}, "has no 'Prioritized'; did you mean Prioritised?"),
        (
            {"replay": Recent, "replay_kwargs": {"exponent": 2}},
            r"\(Schema, ReplaySettings, exponent=\) raised TypeError",
        ),
        ({"replay": lambda schema, settings: 3}, "made a int without schema, shards, .*; it needs"),
        (
            {"replay": Unasked},
            "Unasked has a feedback of its own, but wants_td_errors=False: .*; set it to True",
        ),
        ({"replay": Unheard}, "Unheard has no feedback of its own, but wants_td_errors=True: .*; set it to False"),
        ({"replay": Shapeless}, r"positions of Shapeless must take \(rng, shape, total\): too many positional"),
        ({"replay": OnlyRows}, r"feedback of OnlyRows must take \(rows, td_errors\): too many positional arguments"),
    ],
)
def test_a_replay_that_cannot_be_made_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        agent(**settings)


class NotAttached(Recent):
    def attach(self, store: Any) -> None:
        self.store = store


def test_a_replay_that_does_not_keep_its_store_is_refused(tmp_path: Path) -> None:
    words = r"attach of NotAttached did not keep the store in shards; call super\(\).attach\(store\)"
    with pytest.raises(UsageError, match=words):
        observed(agent(replay=NotAttached))
    with pytest.raises(UsageError, match=words):
        offbeat.train("td3", "Pendulum-v1", out=str(tmp_path), **{**SETTINGS, "replay": NotAttached})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("replay", "words"),
    [
        (OneBatch, r"rows with the shape \(1, 4\); it must begin with \(K, B\) = \(3, 4\)|obs with the shape"),
        (Columns, "draw of your replay returned a dict; return offbeat.types.Batches"),
        (Unweighted, r"weight with the shape \(4,\); it must begin with \(K, B\)"),
        (NoReward, "batches without action, reward, discount, next_obs; add them to columns"),
        (Beyond, "returned int64 from 6 to 6; return whole numbers from 0 to 5"),
        (Few, r"positions of your replay returned the shape \(2,\); return an int64 array \(12,\)"),
        (AList, r"positions of your replay returned a list; return an int64 array \(12,\)"),
        (NotANumber, "returned a weight that is not finite; return finite numbers"),
        (NoArrays, "arrays of your replay returned None; return a dict of names to NumPy arrays"),
        (Numbers, "arrays of your replay returned {'largest': 'float'}; return a dict of names to NumPy arrays"),
        (Shares, "returned float64 from .*; return whole numbers from 0 to 5, as int64"),
    ],
)
def test_what_a_replay_draws_is_checked(replay: Any, words: str) -> None:
    with pytest.raises(OffbeatError, match=words):
        updated(agent(replay=replay), 3)


def test_a_replay_that_is_not_ready_holds_no_collector_up(tmp_path: Path) -> None:
    """Updates that are due wait for it, and are made when it is."""

    class Late(Recent):
        def ready(self) -> bool:
            return len(self) >= 80

    run = offbeat.train("td3", "Pendulum-v1", out=str(tmp_path), **{**SETTINGS, "replay": Late, "num_envs": 4})
    summary = json.loads((run.path / "summary.json").read_text())
    assert (run.status, summary["env_steps"], summary["updates"]) == ("finished", 120, 200)


# A collector.


class NoReport(Background):
    def report(self) -> None:
        return None


class Alone(Background):
    def poll(self, timeout: Any) -> Any:
        return (super().poll(timeout) or [[]])[0]


class Stateless(Background):
    def snapshot(self) -> None:
        return None


@pytest.mark.parametrize(
    ("collector", "words"),
    [
        (lambda: None, r"calling it with \(CollectorContext\) raised TypeError"),
        (lambda context: None, "made a NoneType without num_envs, connect, publish"),
        (NoReport, "report of the collector returned a NoneType; return a CollectorReport"),
        (Stateless, "snapshot of the collector returned a NoneType; return a CollectorState"),
        (Alone, "poll of the collector returned a Chunk; return a list"),
    ],
)
def test_a_collector_that_breaks_the_protocol_is_named(collector: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(OffbeatError, match=words):
        offbeat.train("td3", "Pendulum-v1", out=str(tmp_path), **{**SETTINGS, "collector": collector, "num_envs": 2})


# An exploration.


class ActionOnly(PinkNoise):
    def act(self, *arguments: Any) -> Any:
        return super().act(*arguments)[0]


class FirstRow(PinkNoise):
    def act(self, *arguments: Any) -> Any:
        action, carry, extras = super().act(*arguments)
        return action[0], carry, extras


class NoColumns(PinkNoise):
    def initial_carry(self, num_envs: int) -> Any:
        return np.zeros(num_envs)


@pytest.mark.parametrize(
    ("exploration", "words"),
    [
        (ActionOnly, r"act returned a ndarray; return \(action, carry, extras\)"),
        (FirstRow, r"act returned the action \(2,\) for 2 environments.* the action must be \(2, 2\)"),
        (NoColumns, "acting on 2 observations of zeros raised IndexError"),
    ],
)
def test_an_exploration_is_tried_before_a_run_begins(exploration: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        agent(exploration=exploration)


# A preprocessor.


class FewerNumbers(LargestScale):
    def __call__(self, observations: Any) -> Any:
        return observations[..., :1]


class Listed(LargestScale):
    def arrays(self) -> Any:
        return [self.largest]


class Forgetful(LargestScale):
    def restore(self, arrays: Any) -> None:
        self.largest = arrays["other"]


@pytest.mark.parametrize(
    ("preprocessor", "words"),
    [
        (lambda: 3, r"calling it with \(EnvSpec\) raised TypeError"),
        (lambda spec: 3, "made a int without update, __call__, arrays, restore"),
        (FewerNumbers, r"returned the shape \(2, 1\) for observations \(2, 3\); keep the shape"),
        (Listed, "arrays returned a list; return a dict of NumPy arrays"),
        (Forgetful, "a trial with observations of zeros raised KeyError: 'other'"),
    ],
)
def test_a_preprocessor_is_tried_before_a_run_begins(preprocessor: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        agent("sac", preprocessor=preprocessor)


# A schedule.


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("cosin", "actor_schedule='cosin' is none of constant, linear, cosine.* did you mean cosine?"),
        (lambda: 1.0, "your schedule raised TypeError.*; it is called with the progress"),
        (lambda progress: None, "your schedule raised TypeError.* returns a factor"),
        (lambda progress: -1.0, r"returned -1.0 at progress 0; return a factor >= 0"),
        (dict, "dict is not a class of torch.optim.lr_scheduler; use one, or a function of the progress"),
    ],
)
def test_a_schedule_is_tried_before_a_run_begins(schedule: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        agent(actor_schedule=schedule, total_steps=100)
