"""LocalRunner: epochs, samples, checkpoints, and a resume that equals a run that was never interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
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
    updates,
)
from offbeat.compat.metarl import (
    DQN,
    AddOrnsteinUhlenbeckNoise,
    DiscreteMLPQFunction,
    DiscreteQfDerivedPolicy,
    EpsilonGreedyPolicy,
    LocalRunner,
    MetaRLEnv,
    OffPolicyRLAlgorithm,
    PathBuffer,
    SnapshotConfig,
    set_seed,
)
from offbeat.compat.metarl.experiment.local_runner import NotSetupError
from offbeat.errors import CheckpointError, RunBusyError, UsageError
from offbeat.run.checkpoint import Checkpoints, digest
from offbeat.run.lock import RunLock

# Epochs and samples.


class Scripted(Recording):
    """A `train` of its own, as metarl's on-policy algorithms have."""

    def train(self, runner: Any) -> Any:
        self.epochs = []
        for epoch in runner.step_epochs():
            runner.step_path = runner.obtain_samples(runner.step_itr, batch_size=4)
            self.epochs.append((epoch, runner.step_itr, runner.total_env_steps))
            runner.step_itr += 1
        return "done"


def scripted() -> Scripted:
    return Scripted(MetaRLEnv(Line()).spec, Always(), None, ListBuffer())


def test_step_epochs_yields_each_epoch_and_the_algorithm_counts_step_itr(tmp_path: Path) -> None:
    algo = scripted()
    assert runner_in(tmp_path, algo).train(3) == "done"
    assert algo.epochs == [(0, 0, 4), (1, 1, 8), (2, 2, 12)]


def test_batch_size_is_the_number_of_environment_steps_in_whole_vector_steps(tmp_path: Path) -> None:
    runner = runner_in(tmp_path, recording(rollout_batch_size=3))
    assert sum(len(path["rewards"]) for path in runner.obtain_samples(0, 7)) == 9
    assert runner.total_env_steps == 9
    with pytest.raises(UsageError, match="batch_size"):
        runner.obtain_samples(0)
    with pytest.raises(UsageError, match="agent_update"):
        runner.obtain_samples(0, 4, agent_update={})


def test_env_copies_are_independent(tmp_path: Path) -> None:
    env = MetaRLEnv(Line())
    runner = runner_in(tmp_path, recording(), env)
    first, second = runner.get_env_copy(), runner.get_env_copy()
    first.reset()
    first.step(1)
    assert [each.unwrapped.position for each in (env, first, second)] == [0, 1, 0]


def test_an_environment_that_cannot_be_copied_is_refused_with_the_remedy(tmp_path: Path) -> None:
    class Stuck(Line):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies")

    with pytest.raises(UsageError, match="__deepcopy__"):
        runner_in(tmp_path, recording(), MetaRLEnv(Stuck())).get_env_copy()


def test_sampler_args_reach_the_sampler_and_an_own_sampler_works(tmp_path: Path) -> None:
    runner = runner_in(tmp_path / "a", recording(), sampler_args={"n_envs": 2, "no_reset": False})
    assert [len(path["rewards"]) for path in runner.obtain_samples(0, 4)] == [2, 2]
    assert [path["running_length"] for path in runner.obtain_samples(1, 4)] == [2, 2]  # began anew

    class Own:
        def __init__(self, algo: Any, env: Any, note: str) -> None:
            self.note = note

        def obtain_samples(self, itr: int, batch_size: int) -> Any:
            return [{"rewards": np.zeros(batch_size), "note": (self.note, itr)}]

    runner = runner_in(tmp_path / "b", recording(), sampler_cls=Own, sampler_args={"note": "mine"})
    assert runner.obtain_samples(3, 5)[0]["note"] == ("mine", 3)
    assert runner.total_env_steps == 5


def test_environments_of_the_old_gym_work(tmp_path: Path) -> None:
    class Old:
        observation_space, action_space = Line().observation_space, Line().action_space
        seeds: list[Any] = []  # noqa: RUF012

        def seed(self, seed: int) -> None:
            self.seeds.append(seed)

        def reset(self) -> Any:
            self.steps = 0
            return np.zeros(2, np.float32)

        def step(self, action: Any) -> Any:
            self.steps += 1
            return np.full(2, self.steps, np.float32), 1.0, self.steps == 3, {"TimeLimit.truncated": self.steps == 3}

    algo = recording(steps_per_epoch=1, min_buffer_size=100)
    runner_in(tmp_path, algo, Old()).train(1, 6)
    assert [path["running_length"] for path in algo.calls[0][1]] == [3, 3]
    assert not algo.replay_buffer.rows("terminals").any()
    assert len(set(Old.seeds)) == 3


def test_structured_observations_are_flattened_for_policies_and_replay(tmp_path: Path) -> None:
    class Structured(Line):
        def __init__(self) -> None:
            super().__init__()
            parts = {"where": gymnasium.spaces.Discrete(6), "line": self.observation_space}
            self.observation_space = gymnasium.spaces.Dict(parts)  # type: ignore[assignment]

        def _observation(self) -> Any:
            return {"where": self.position, "line": super()._observation()}

    env = MetaRLEnv(Structured())
    qf = DiscreteMLPQFunction(env.spec, hidden_sizes=(8,))
    policy = DiscreteQfDerivedPolicy(env.spec, qf)
    algo = DQN(env.spec, policy, qf, ListBuffer(), Always(1), min_buffer_size=8, steps_per_epoch=1, max_path_length=6)
    runner_in(tmp_path, algo, env).train(1, 8)
    rows = algo.replay_buffer.rows("observations")
    flat = [env.spec.observation_space.flatten({"where": n, "line": [n, 1.0]}) for n in (0, 1, 2, 3)]
    assert np.array_equal(rows, np.concatenate([flat, flat]))
    assert updates(algo) == 50


# Checkpoints.


def test_snapshot_modes_say_which_epochs_are_kept(tmp_path: Path) -> None:
    kept = {}
    for mode in ("all", "last", "gap", "none"):
        runner_in(tmp_path / mode, recording(), mode=mode, gap=2).train(5, 8)
        names = Checkpoints(tmp_path / mode).names()
        kept[mode] = [int(name.split("-")[1]) for name in names]
    assert kept == {"all": [0, 1, 2, 3, 4], "last": [3, 4], "gap": [0, 2, 4], "none": []}


def test_restore_finds_the_first_the_last_and_a_numbered_epoch(tmp_path: Path) -> None:
    runner_in(tmp_path, small_dqn(), mode="all").train(4, 8)
    found = {}
    for epoch in ("first", "last", 2, "1"):
        runner = runner_in(tmp_path, small_dqn(), mode="all")
        found[epoch] = runner.restore(tmp_path, epoch).start_epoch
    assert found == {"first": 1, "last": 4, 2: 3, "1": 2}
    with pytest.raises(CheckpointError, match="no checkpoint of epoch 9; it has 0, 1, 2, 3"):
        runner_in(tmp_path, small_dqn()).restore(tmp_path, 9)
    with pytest.raises(UsageError, match="from_epoch='newest'"):
        runner_in(tmp_path, small_dqn()).restore(tmp_path, "newest")


def test_restore_returns_the_arguments_of_train_and_resume_may_change_them(tmp_path: Path) -> None:
    runner_in(tmp_path, small_dqn()).train(2, 8, store_paths=True)
    algo = small_dqn()
    runner = runner_in(tmp_path, algo)
    arguments = runner.restore(tmp_path)
    assert (arguments.n_epochs, arguments.batch_size, arguments.store_paths) == (2, 8, True)
    assert updates(algo) == 9
    assert len(runner._stats.last_path or []) >= 1
    runner.resume(n_epochs=3, batch_size=6, store_paths=False)
    assert (updates(algo), runner.total_env_steps, runner._stats.last_path) == (15, 32 + 12, None)


def test_a_run_that_is_complete_resumes_to_the_same_return(tmp_path: Path) -> None:
    made = runner_in(tmp_path, recording()).train(2, 8)
    runner = runner_in(tmp_path, recording())
    runner.restore(tmp_path)
    assert runner.resume() == made == 10.0


def test_a_run_can_be_continued_in_another_directory(tmp_path: Path) -> None:
    runner_in(tmp_path / "a", small_dqn()).train(2, 8)
    before = digest(tmp_path / "a")
    runner = runner_in(tmp_path / "b", small_dqn())
    runner.restore(tmp_path / "a")
    runner.resume(n_epochs=4)
    assert digest(tmp_path / "a") == before
    assert Checkpoints(tmp_path / "b").names() == ["step-000000000002", "step-000000000003"]


class OwnAlgorithm(OffPolicyRLAlgorithm):
    """Everything of its own: networks, optimiser, a scheduler, NumPy's and torch's global generators, counters."""

    def init_opt(self) -> None:
        self.networks = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)]
        parameters = [parameter for each in self.networks for parameter in each.parameters()]
        self.optimizer = torch.optim.RMSprop(parameters, lr=0.01, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.statistics = {"losses": [0.0], 3: np.zeros(2), "nested": {"best": (float("-inf"), None)}}
        self.count = 0

    def train_once(self, itr: int, paths: list[dict[str, Any]]) -> None:
        batch = self.replay_buffer.sample_transitions(self.buffer_batch_size)
        inputs = torch.as_tensor(batch["observations"]) + 0.01 * torch.randn(self.buffer_batch_size, 2)
        loss = self.networks[1](self.networks[0](inputs).tanh()).square().mean() + float(np.random.random())  # noqa: NPY002
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.count += 1
        self.statistics["losses"].append(loss.item())
        self.statistics[3] += loss.item()


class Wandering:
    """An exploration object of the user's own with a state and NumPy's global generator."""

    def __init__(self) -> None:
        self.drift, self.resets = np.zeros(1), 0

    def reset(self, dones: Any = None) -> None:
        self.resets += 1
        self.drift[:] = 0.0

    def get_actions(self, observations: Any) -> Any:
        self.drift += np.random.standard_normal(1)  # noqa: NPY002
        return (np.full(len(observations), self.drift[0]) > 0).astype(int), {}


def own_algorithm() -> Any:
    env = MetaRLEnv(Line())
    return OwnAlgorithm(
        env.spec, Always(), None, ListBuffer(), exploration_policy=Wandering(), steps_per_epoch=2, buffer_batch_size=4
    )


def epsilon_dqn() -> Any:
    algo = small_dqn(rollout_batch_size=2, qf_optimizer=(torch.optim.Adagrad, {"lr": 0.01, "lr_decay": 0.1}))
    algo.exploration_policy = EpsilonGreedyPolicy(algo.env_spec, algo.policy, total_timesteps=100, decay_ratio=1.0)
    return algo


def noisy_ddpg() -> Any:
    algo = small_ddpg(rollout_batch_size=3, qf_weight_decay=0.01, clip_return=3.0)
    algo.exploration_policy = AddOrnsteinUhlenbeckNoise(algo.env_spec, algo.policy)
    return algo


@pytest.mark.parametrize(
    ("make", "env"), [(epsilon_dqn, Line), (noisy_ddpg, Reach), (own_algorithm, Line)], ids=["dqn", "ddpg", "own"]
)
def test_a_resumed_run_equals_one_that_was_never_interrupted(make: Any, env: Any, tmp_path: Path) -> None:
    def runner(path: Path) -> LocalRunner:
        set_seed(3)
        return runner_in(path, make(), MetaRLEnv(env()))

    runner(tmp_path / "whole").train(5, 18)
    runner(tmp_path / "cut").train(2, 18)
    np.random.seed(99)  # noqa: NPY002 - of another process
    again = runner(tmp_path / "cut")
    again.restore(tmp_path / "cut")
    again.resume(n_epochs=5)
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")
    assert (tmp_path / "cut" / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()


def test_the_log_goes_back_to_the_checkpoint(tmp_path: Path) -> None:
    runner_in(tmp_path, recording(), mode="all").train(4, 8)
    runner = runner_in(tmp_path, recording(), mode="all")
    runner.restore(tmp_path, 1)
    epochs = [json.loads(line)["epoch"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert epochs == [0, 1]


def test_what_a_checkpoint_cannot_hold_is_named_once(tmp_path: Path) -> None:
    algo = recording()
    algo.handle = object()  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match=r"algo\.handle \(object\)") as told:
        runner_in(tmp_path, algo).train(3, 8)
    assert len([each for each in told if "algo.handle" in str(each.message)]) == 1


def test_no_pickle_is_in_the_files_of_a_run(tmp_path: Path) -> None:
    runner_in(tmp_path, small_dqn()).train(1, 16)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {
        *(
            "metrics.jsonl",
            "latest",
            "arrays.safetensors",
            "state.json",
            "manifest.json",
            "buffer0-000001.chunks",
            ".lock",
        ),
    }


# Bad input.


def test_a_runner_says_what_to_call_first(tmp_path: Path) -> None:
    runner = LocalRunner(SnapshotConfig(str(tmp_path), "last", 1))
    for call in (
        lambda: runner.train(1),
        lambda: runner.save(0),
        lambda: runner.restore(tmp_path),
        runner.get_env_copy,
    ):
        with pytest.raises(NotSetupError, match="setup"):
            call()
    with pytest.raises(NotSetupError, match="restore"):
        runner.resume()
    runner.setup(recording(), MetaRLEnv(Line()))
    with pytest.raises(CheckpointError, match="no checkpoint"):
        runner.restore(tmp_path)


def test_training_into_the_directory_of_another_run_is_refused(tmp_path: Path) -> None:
    runner_in(tmp_path, recording()).train(2, 8)
    with pytest.raises(UsageError, match=r"holds checkpoints of another run.*restore"):
        runner_in(tmp_path, recording()).train(2, 8)


def test_a_directory_is_used_by_one_runner_at_a_time(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.take()
    with pytest.raises(RunBusyError, match="running in process"):
        runner_in(tmp_path, recording()).train(1, 8)
    lock.release()
    runner_in(tmp_path, recording()).train(1, 8)


def test_paths_that_could_not_be_stored_are_refused_before_the_first_step(tmp_path: Path) -> None:
    acting = Always(0)
    algo = recording(exploration_policy=acting, replay_buffer=PathBuffer(10))
    with pytest.raises(UsageError, match="up to 11 transitions, but replay_buffer holds 10"):
        runner_in(tmp_path, algo).train(1, 11)
    assert acting.calls == 0
    runner_in(tmp_path, recording(exploration_policy=acting, replay_buffer=PathBuffer(10), max_path_length=5)).train(
        1, 11
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (SnapshotConfig("x", "some", 1), "snapshot_mode='some'"),
        (SnapshotConfig("x", "gap", 0), "snapshot_gap=0"),
        (None, "snapshot_config is a NoneType without snapshot_dir"),
    ],
)
def test_a_wrong_snapshot_config_is_refused(config: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        LocalRunner(config)


def test_wrong_arguments_of_setup_and_train_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="env is a int without reset"):
        runner_in(tmp_path, recording(), 3)
    with pytest.raises(UsageError, match="algo is a int without train"):
        runner_in(tmp_path, 3)
    for arguments, words in (((0, 8), "n_epochs=0"), ((1, 0), "batch_size=0")):
        with pytest.raises(UsageError, match=words):
            runner_in(tmp_path, recording()).train(*arguments)
    with pytest.raises(UsageError, match="max_cpus=0"):
        LocalRunner(SnapshotConfig(str(tmp_path), "last", 1), max_cpus=0)


def test_restoring_other_objects_than_were_saved_is_refused(tmp_path: Path) -> None:
    runner_in(tmp_path, small_dqn(rollout_batch_size=2)).train(1, 16)
    with pytest.raises(CheckpointError, match="environments"):
        runner_in(tmp_path, small_dqn(rollout_batch_size=3)).restore(tmp_path)
    with pytest.raises(CheckpointError, match="PathBuffer"):
        runner_in(tmp_path, small_dqn(replay_buffer=ListBuffer())).restore(tmp_path)
