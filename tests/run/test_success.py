"""Success: from the final info of episodes to metrics, evaluations, the summary and callbacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat
from offbeat.observe.jsonl import read
from offbeat.run.callbacks import ChunkEvent
from offbeat.types import Episode
from reaching import Reaching
from short_runs import train

BESIDE = {"collectors": 2, "num_envs": 4, "slack": 0, "eval_every": 60, "updates_per_step": 0.2}
ROLLOUTS = {"hidden": (8,), "rollout_steps": 10, "epochs": 1, "minibatches": 1, "num_envs": 4, "total_steps": 120}


class Episodes:
    def __init__(self) -> None:
        self.ended: list[Episode] = []

    def on_chunk(self, event: ChunkEvent) -> None:
        self.ended += event.chunk.finished


@pytest.mark.parametrize("settings", [{}, BESIDE], ids=["in process", "collectors"])
def test_success_reaches_metrics_evaluations_summary_and_callbacks(settings: dict[str, Any], tmp_path: Path) -> None:
    seen = Episodes()
    run = train(tmp_path, "reaching:Reaching", callbacks=[seen], **settings)
    assert len(seen.ended) >= 20
    assert all(each.success == (each.total_reward > 0) and each.info["steps"] == 5 for each in seen.ended)
    assert all(each.info["place"].tolist() == [5, 5] for each in seen.ended)
    assert all(("self" in each.info) == (not settings) for each in seen.ended)
    last = read(run.path / "metrics.jsonl")[-1]
    heard = [each.success for each in seen.ended[: last["episodes"]]]
    assert last["success_100"] == pytest.approx(np.mean(heard[-100:]))
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["success_100"] == pytest.approx(np.mean([each.success for each in seen.ended][-100:]))
    for line, result in zip(read(run.path / "evaluations.jsonl"), run.history, strict=True):
        assert tuple(line["successes"]) == result.successes == tuple(value > 0 for value in result.returns)
        assert line["success_rate"] == result.success_rate == np.mean(result.successes)
    assert summary["evaluation"]["success_rate"] == run.evaluation.success_rate
    again = offbeat.resume(run.path)  # what was read back from the files is what was written
    assert again.history == run.history
    assert json.loads((run.path / "summary.json").read_text())["success_100"] == summary["success_100"]


def test_rollouts_of_collectors_tell_of_success_and_final_infos(tmp_path: Path) -> None:
    seen, quiet = Episodes(), {"quiet": True, "logger": (), "threads": 1, "out": str(tmp_path), "eval_episodes": 1}
    run = offbeat.train("ppo", Reaching, callbacks=[seen], collectors=2, **ROLLOUTS, **quiet)
    assert len(seen.ended) >= 20
    assert all(each.success == (each.total_reward > 0) and each.info["steps"] == 5 for each in seen.ended)
    assert "success_100" in json.loads((run.path / "summary.json").read_text())


def test_where_no_info_tells_of_success_nothing_is_said_of_it(tmp_path: Path) -> None:
    run = train(tmp_path, "reaching:Reaching", env_kwargs={"key": None})
    assert run.evaluation.success_rate is None
    for name in ("metrics.jsonl", "evaluations.jsonl", "summary.json", "log.txt"):
        assert "success" not in (run.path / name).read_text()


def test_the_last_lines_of_a_run_have_the_success_of_its_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, "reaching:Reaching", quiet=False)
    assert f", success {run.evaluation.success_rate:.2f} over" in capsys.readouterr().out.splitlines()[-1]
