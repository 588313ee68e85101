"""APPO with `offbeat.train`, with evaluation and checkpoints only at the end."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml

import offbeat
import published
from offbeat.presets import presets_of
from trainers.on_policy import ENVIRONMENTS, EPOCHS, GAMMA, HIDDEN, LAMBDA, MINIBATCH, RATE, ROLLOUT_STEPS

WITHOUT_PRESET = {"num_envs": ENVIRONMENTS, "normalise_observations": True, "normalise_rewards": True}


class Contestant:
    """The learner has one thread, which is the default if there are no more cores than collectors."""

    def __init__(self, threads: int, collectors: int = 2) -> None:
        self._collectors = collectors
        self.versions = {"offbeat": offbeat.__version__, "torch": torch.__version__}
        # The learner takes the rollout of one collector, so this number gives minibatches of the common size.
        self._minibatches = ROLLOUT_STEPS * ENVIRONMENTS // collectors // MINIBATCH
        self.setting = (
            f'`offbeat.train("appo", ...)`, {collectors} collectors, 1 thread for the learner; rollouts of '
            f"{ROLLOUT_STEPS} steps, turns of {self._minibatches} minibatches"
        )

    def steps_per_second(self, environment: str, first: int, last: int, seed: int) -> float:
        """Steps per second between the steps `first` and `last`, from the log of the run."""
        with tempfile.TemporaryDirectory() as out:
            run = offbeat.train(
                "appo",
                environment,
                preset=None,
                total_steps=last,
                seed=seed,
                num_envs=ENVIRONMENTS,
                rollout_steps=ROLLOUT_STEPS,
                minibatches=self._minibatches,
                epochs=EPOCHS,
                hidden=HIDDEN,
                gamma=GAMMA,
                gae_lambda=LAMBDA,
                learning_rate=RATE,
                normalise_observations=True,
                normalise_rewards=True,
                collectors=self._collectors,
                threads=1,
                eval_every=0,
                eval_episodes=1,
                checkpoint_every=0,
                quiet=True,
                out=out,
            )
            lines = _lines(run.path / "metrics.jsonl")
        begun, ended = (next(line for line in lines if line["step"] >= step) for step in (first, last))
        return float((ended["step"] - begun["step"]) / (ended["wall"] - begun["wall"]))

    def learned(self, environment: str, steps: int, seed: int, episodes: int, path: str) -> dict[str, Any]:
        """Trains or resumes the run at `path`, with the preset of the environment: returns, time, settings."""
        run = Path(path)
        if not run.exists():
            offbeat.train(
                "appo",
                environment,
                **({} if environment in presets_of("appo") else WITHOUT_PRESET),
                total_steps=steps,
                seed=seed,
                collectors=self._collectors,
                threads=1,
                eval_every=0,
                eval_episodes=episodes,
                checkpoint_every=steps // 10,
                quiet=True,
                out=str(run.parent),
                name=run.name,
            )
        elif not published.finished(run):
            offbeat.resume(run, quiet=True)
        if not published.finished(run):
            raise RuntimeError(f"{run} was interrupted; the next call goes on with it")
        return {
            "returns": _lines(run / "evaluations.jsonl")[-1]["returns"],
            "wall_seconds": _lines(run / "metrics.jsonl")[-1]["wall"],  # without the final evaluation
            "settings": yaml.safe_load((run / "config.yaml").read_text()),
        }


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
