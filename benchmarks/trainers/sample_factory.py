"""Sample Factory's APPO through `make_runner`: rollout workers, an inference worker and a learner, one process each.

The package requires Gymnasium below 1.0, which has no HalfCheetah-v5, but it runs with the common version. It fails
with the common NumPy, so it has NumPy below 2.0, as it requires (requirements/sample_factory.txt).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sf_examples.mujoco.mujoco_params import mujoco_override_defaults

from trainers.on_policy import ENVIRONMENTS, EPOCHS, GAMMA, HIDDEN, LAMBDA, MINIBATCH, RATE, ROLLOUT_STEPS

LAYOUTS: dict[str, dict[str, Any]] = {
    "2 workers": {"num_workers": 2, "worker_num_splits": 1},
    "2 workers, double-buffered": {"num_workers": 2, "worker_num_splits": 2},
    "2 workers, batched": {"num_workers": 2, "worker_num_splits": 1, "batched_sampling": True},
    "1 worker, double-buffered": {"num_workers": 1, "worker_num_splits": 2},
}
"""Ways to distribute 8 environments over two cores; the fastest is found by trial."""

_TRIAL = ("HalfCheetah-v5", 16_384, 49_152, 0)
_NEVER = 10**6  # seconds


def make_environment(name: str, *_: Any, render_mode: str | None = None) -> gymnasium.Env:
    return gymnasium.make(name, render_mode=render_mode)


class _Clock(AlgoObserver):
    """Records time and number of steps after every training iteration."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        if steps := runner.env_steps.get(0):
            self.seen.append((steps, time.perf_counter()))


class Contestant:
    """layout: one of LAYOUTS; None selects the fastest in a trial of all."""

    def __init__(self, threads: int, layout: str | None = None) -> None:
        self.versions = {name: version(name) for name in ("sample-factory", "torch", "numpy")}
        self._layout = layout or self._fastest()
        tried = "" if layout else f" (the fastest of {len(LAYOUTS)} layouts in a trial)"
        self.setting = (
            f"`make_runner`, async_rl, {self._layout}{tried}, 1 thread in each process; rollout, clipping and loss "
            "weights of its own MuJoCo example"
        )

    def _fastest(self) -> str:
        rates = {name: self._rate(name, *_TRIAL) for name in LAYOUTS}
        shown = ", ".join(f"{name}: {rate:,.0f}" for name, rate in rates.items())
        print(f"sample-factory in a trial, steps/s: {shown}", file=sys.stderr, flush=True)
        return max(rates, key=rates.__getitem__)

    def steps_per_second(self, environment: str, first: int, last: int, seed: int) -> float:
        """Steps per second between the steps `first` and `last`, in whole training iterations."""
        return self._rate(self._layout, environment, first, last, seed)

    @staticmethod
    def _rate(layout: str, environment: str, first: int, last: int, seed: int) -> float:
        with tempfile.TemporaryDirectory() as out:
            seen = _train(environment, last, seed, Path(out), LAYOUTS[layout])
        begun, ended = (next(moment for moment in seen if moment[0] >= step) for step in (first, last))
        return (ended[0] - begun[0]) / (ended[1] - begun[1])


def _train(environment: str, steps: int, seed: int, out: Path, layout: dict[str, Any]) -> list[tuple[int, float]]:
    clock, messages = _Clock(), out / "messages.txt"
    with _printed_to(messages):
        register_env(environment, make_environment)
        _, runner = make_runner(_settings(environment, steps, seed, out, layout))
        runner.register_observer(clock)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
    if status != ExperimentStatus.SUCCESS:
        raise RuntimeError(f"Sample Factory ended with status {status}:\n{messages.read_text()[-4000:]}")
    return clock.seen


def _settings(environment: str, steps: int, seed: int, out: Path, layout: dict[str, Any]) -> Any:
    """Sample Factory's settings for MuJoCo, overridden by those of the task."""
    arguments = [f"--env={environment}", "--experiment=appo", f"--train_dir={out}", f"--seed={seed}"]
    parser, _ = parse_sf_args(arguments)
    mujoco_override_defaults(environment, parser)
    parser.set_defaults(
        device="cpu",
        async_rl=True,
        train_for_env_steps=steps,
        num_envs_per_worker=ENVIRONMENTS // layout["num_workers"],
        encoder_mlp_layers=list(HIDDEN),
        nonlinearity="tanh",
        actor_critic_share_weights=False,
        use_rnn=False,
        batch_size=MINIBATCH,
        num_batches_per_epoch=ROLLOUT_STEPS * ENVIRONMENTS // MINIBATCH,
        num_epochs=EPOCHS,
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        learning_rate=RATE,
        lr_schedule="constant",
        normalize_input=True,
        normalize_returns=True,
        save_every_sec=_NEVER,
        save_best_every_sec=_NEVER,
        **layout,
    )
    return parse_full_cfg(parser, arguments)


@contextmanager
def _printed_to(path: Path) -> Iterator[None]:
    """Redirects the output of this process and its children, hundreds of lines, to a file."""
    kept = [os.dup(descriptor) for descriptor in (1, 2)]
    with path.open("w") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        for descriptor, before in zip((1, 2), kept, strict=True):
            os.dup2(before, descriptor)
            os.close(before)
