"""Samplers with workers, plots, and experiments in directories of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from metarl_parts import Always, Line, recording, runner_in
from offbeat.compat.metarl import LocalRunner, MetaRLEnv, SnapshotConfig, set_seed, wrap_experiment
from offbeat.compat.metarl.sampler import WorkerFactory
from offbeat.errors import UsageError
from offbeat.run.checkpoint import Checkpoints

# Samplers with workers.


class Worker:
    """Keeps what it was made with."""

    def __init__(self, *, worker_number: int, seed: int, max_path_length: int, note: str = "") -> None:
        self.made = (worker_number, seed, max_path_length, note)


class Trajectories:
    """What metarl's samplers return."""

    def __init__(self, paths: list[dict[str, Any]]) -> None:
        self.paths = paths

    def to_trajectory_list(self) -> list[dict[str, Any]]:
        return self.paths


class WithWorkers:
    """A sampler of the user's own, as metarl's newer ones are: its workers come from a factory."""

    @classmethod
    def from_worker_factory(cls, worker_factory: Any, agents: Any, envs: Any, more: int = 0) -> WithWorkers:
        made = cls()
        made.workers = [worker_factory(number) for number in range(worker_factory.n_workers)]
        made.agents, made.envs, made.more, made.calls = agents, envs, more, []
        return made

    workers: list[Worker]
    agents: Any
    envs: Any
    more: int
    calls: list[Any]

    def obtain_samples(self, itr: int, num_samples: int, agent_update: Any, env_update: Any = None) -> Trajectories:
        self.calls.append((itr, num_samples, agent_update, env_update))
        return Trajectories([{"rewards": np.zeros(num_samples + self.more)}])

    def shutdown_worker(self) -> None: ...


class Bare:
    """An algorithm with nothing but `train`."""

    def train(self, runner: Any) -> None: ...


class Parametrised(Always):
    def get_param_values(self) -> str:
        return "the newest parameters"


def with_workers(path: Path, max_cpus: int = 1, **given: Any) -> tuple[LocalRunner, Any, Any]:
    set_seed(7)
    algo, env = recording(policy=Parametrised(), max_path_length=9), MetaRLEnv(Line())
    runner = LocalRunner(SnapshotConfig(str(path), "last", 1), max_cpus)
    runner.setup(algo, env, **{"sampler_cls": WithWorkers, "worker_class": Worker, **given})
    sampler: Any = runner._sampler
    assert (sampler.agents, sampler.envs) == (algo.policy, env)
    return runner, sampler, env


def test_workers_are_made_as_setup_says(tmp_path: Path) -> None:
    _, sampler, _ = with_workers(tmp_path, n_workers=3, worker_args={"note": "mine"})
    assert [worker.made for worker in sampler.workers] == [(number, 7, 9, "mine") for number in range(3)]
    _, sampler, _ = with_workers(tmp_path, max_cpus=2)
    assert [worker.made for worker in sampler.workers] == [(number, 7, 9, "") for number in range(2)]


def test_a_sampler_with_workers_gets_the_updates_of_agent_and_environment(tmp_path: Path) -> None:
    runner, sampler, env = with_workers(tmp_path, sampler_args={"more": 1})
    assert len(runner.obtain_samples(4, 8)[0]["rewards"]) == 9
    runner.obtain_samples(5, 8, agent_update="other parameters", env_update=env)
    assert sampler.calls == [(4, 8, "the newest parameters", None), (5, 8, "other parameters", env)]
    assert runner.total_env_steps == 18


def test_a_factory_gives_each_worker_its_message() -> None:
    factory = WorkerFactory(seed=1, max_path_length=9, n_workers=2, worker_class=Worker)
    assert factory.prepare_worker_messages("one") == ["one", "one"]
    assert factory.prepare_worker_messages(["one", "two"], preprocess=str.upper) == ["ONE", "TWO"]
    with pytest.raises(UsageError, match=r"a list of 3 was given for n_workers=2"):
        factory.prepare_worker_messages([1, 2, 3])
    with pytest.raises(UsageError, match="worker_number=2"):
        factory(2)


def test_what_a_sampler_with_workers_needs_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="WithWorkers collects with workers, but worker_class is None"):
        with_workers(tmp_path, worker_class=None)
    with pytest.raises(UsageError, match="n_workers=0 is out of range"):
        with_workers(tmp_path, n_workers=0)
    with pytest.raises(UsageError, match="algo needs policy"):
        runner_in(tmp_path, Bare(), sampler_cls=WithWorkers, worker_class=Worker)


@pytest.mark.parametrize("given", [{"n_workers": 4}, {"worker_class": Worker}, {"worker_args": {"note": "mine"}}])
def test_a_sampler_without_workers_says_what_has_no_effect(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"{next(iter(given))} has no effect: the sampler has no workers"):
        runner = runner_in(tmp_path, recording(), **given)
    for update in ({"agent_update": 1}, {"env_update": 1}):
        with pytest.raises(UsageError, match="need a sampler with workers"):
            runner.obtain_samples(0, 4, **update)


# Plots.


class Shown(Line):
    """Records the positions that a window would show."""

    metadata = {"render_modes": ["human"]}  # noqa: RUF012
    shown: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.render_mode = "human"

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if self.render_mode == "human":
            self.shown.append(self.position)
        return result


def test_plot_shows_one_episode_after_each_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shown, "shown", [])
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", asked.append)
    env, algo = MetaRLEnv(Shown()), recording(max_path_length=3)
    runner_in(tmp_path, algo, env).train(1, 8)
    assert Shown.shown == []  # neither training nor evaluations are shown
    runner = runner_in(tmp_path, algo, env)
    runner.restore(tmp_path)
    runner.resume(n_epochs=2, plot=True)
    assert (Shown.shown, asked) == ([1, 2, 3], [])
    runner = runner_in(tmp_path, algo, env)
    assert runner.restore(tmp_path).plot
    runner.resume(n_epochs=4, pause_for_plot=True)
    assert Shown.shown == [1, 2, 3] * 3
    assert [text.split(":")[0] for text in asked] == ["epoch 2", "epoch 3"]
    runner = runner_in(tmp_path, algo, env)
    runner.restore(tmp_path)
    runner.resume(n_epochs=5, plot=False)
    assert (len(Shown.shown), len(asked)) == (9, 2)
    runner_in(tmp_path / "new", algo, env).train(1, 8, plot=True, pause_for_plot=True)
    assert (len(Shown.shown), len(asked)) == (12, 3)


def test_a_plot_needs_an_environment_with_a_window(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"plot=True .* render_mode=None; make it with render_mode=\"human\""):
        runner_in(tmp_path, recording()).train(1, 8, plot=True)
    with pytest.raises(UsageError, match="pause_for_plot=True waits after a plot"):
        runner_in(tmp_path, recording()).train(1, 8, pause_for_plot=True)
    with pytest.raises(UsageError, match=r"plot=True shows algo.policy, but Bare has no policy"):
        runner_in(tmp_path, Bare(), MetaRLEnv(Shown())).train(1, 8, plot=True)


# Experiments.


def test_an_experiment_runs_in_a_new_directory_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @wrap_experiment
    def line(ctxt: Any = None, seed: int = 1) -> Any:
        set_seed(seed)
        with LocalRunner(ctxt) as runner:
            runner.setup(recording(), MetaRLEnv(gymnasium.wrappers.TimeLimit(Line(), 10)))
            return runner.train(2, 8)

    assert line(seed=2) == line(seed=2) == 10.0
    assert sorted(path.name for path in (tmp_path / "data/local/experiment").iterdir()) == ["line", "line_1"]
    with pytest.raises(UsageError, match="ctxt"):
        wrap_experiment(lambda seed: None)


def test_an_experiment_has_the_directory_and_the_snapshots_that_its_arguments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def line(ctxt: Any) -> Any:
        runner = LocalRunner(ctxt)
        runner.setup(recording(), MetaRLEnv(Line()))
        runner.train(4, 8)
        return Path(ctxt.snapshot_dir), len(Checkpoints(Path(ctxt.snapshot_dir)).names())

    local = tmp_path / "data" / "local"
    assert wrap_experiment(line, prefix="mine")() == (local / "mine" / "line", 2)
    assert wrap_experiment(line, name="other", snapshot_mode="all")() == (local / "experiment" / "other", 4)
    gap = {"snapshot_mode": "gap", "snapshot_gap": 3}
    assert wrap_experiment(**gap)(line)() == (local / "experiment" / "line", 2)  # epochs 0 and 3
    (tmp_path / "here").mkdir()
    assert wrap_experiment(line, log_dir=str(tmp_path / "here"))() == (tmp_path / "here_1", 2)
    assert wrap_experiment(line, log_dir=str(tmp_path / "here"), use_existing_dir=True)() == (tmp_path / "here", 2)
