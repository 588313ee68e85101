"""A run that is moved to the other backend: the same arrays, to the last bit, and training that goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offbeat
from faults import Crash, FaultyOs
from offbeat import durable
from offbeat.algorithms.registry import ALGORITHMS, Algorithm, find
from offbeat.cli import main
from offbeat.errors import CheckpointError, OffbeatError, RunBusyError, UsageError
from offbeat.run.checkpoint import Checkpoints, Snapshot, digest
from offbeat.run.convert import Conversion
from offbeat.run.directory import RunDirectory
from offbeat.settings import read_yaml
from offbeat.types import EnvSpec
from recurrent_parts import OwnGRU
from short_runs import SETTINGS, train
from specs import choice_spec, vector_spec


def backend_of(path: Path, checkpoint: str = "latest") -> str:
    return str(Checkpoints(path).load(checkpoint).notes["config"]["backend"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in torch, after 120 steps."""
    path: Path = train(tmp_path_factory.mktemp("trained"), name="run").path
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_there_and_back_leaves_every_number_as_it_was(run: Path) -> None:
    before, newest = digest(run), Checkpoints(run).folder_name()
    assert offbeat.convert(run, backend="jax") == Conversion(run, "torch", "jax", f"{newest}-2", 120)
    assert backend_of(run) == read_yaml(run / "config.yaml")["backend"] == "jax"
    assert backend_of(run, newest) == "torch"  # it is kept as it was
    assert digest(run) == before
    Checkpoints(run).verify()
    assert offbeat.convert(run, backend="torch").checkpoint == f"{newest}-3"
    assert backend_of(run) == read_yaml(run / "config.yaml")["backend"] == "torch"
    assert digest(run) == before
    assert "converted from jax to torch at step 120" in (run / "log.txt").read_text()


def test_the_run_goes_on_with_the_other_backend_and_back(run: Path) -> None:
    policy = offbeat.load_policy(run).act([1.0, 0.0, 0.0])
    offbeat.convert(run, backend="jax")
    np.testing.assert_array_equal(offbeat.load_policy(run).act([1.0, 0.0, 0.0]), policy)
    np.testing.assert_array_equal(offbeat.load_policy(run, Checkpoints(run).folder_name()).act([1.0, 0.0, 0.0]), policy)
    resumed = offbeat.resume(run, total_steps=160)
    assert (resumed.status, backend_of(run)) == ("finished", "jax")
    assert Checkpoints(run).load().arrays["learner/updates"] == 280
    with pytest.raises(UsageError, match=r"backend=torch cannot change .* offbeat convert RUN"):
        offbeat.resume(run, backend="torch", total_steps=200)
    offbeat.convert(run, backend="torch")
    assert offbeat.resume(run, total_steps=180, quiet=True).status == "finished"
    assert backend_of(run) == "torch"


def loop(agent: offbeat.Agent, steps: int, seed: int) -> None:
    """Observes and learns what is due, in an environment of noise."""
    rng, spec = np.random.default_rng(seed), agent.spec
    obs = rng.standard_normal((2, spec.observation_size)).astype(np.float32)
    for _ in range(steps):
        action = agent.act(obs)
        following = rng.standard_normal(obs.shape).astype(np.float32)
        agent.observe(obs, action, rng.standard_normal(2), following, rng.random(2) < 0.1, [False, False])
        agent.update()
        obs = following


SPECS: dict[str, EnvSpec] = {"box": vector_spec(3, 2), "discrete": choice_spec(3, 4)}
BOTH = [
    (name, kind)
    for name, each in ALGORITHMS.items()
    for kind in SPECS
    if kind in each.actions and "jax" in each.modules and name not in ("redq", "ddpg")  # variants of others
]
VARIANTS = [("sac", "discrete"), ("ppo", "discrete"), ("appo", "box")]
"""Of which one with the other kind of actions is in the default tests."""
MEMORY = {"network": "lstm", "recurrent_size": 6, "sequence_length": 4, "burn_in": 1}


@pytest.mark.parametrize(
    ("algorithm", "kind", "memory"),
    [
        *(pytest.param(*each, {}, marks=[pytest.mark.slow] * (each in VARIANTS)) for each in BOTH),
        pytest.param("sac", "box", MEMORY, marks=pytest.mark.slow, id="recurrent sac"),
        pytest.param("dqn", "discrete", {**MEMORY, "start_state": "zero"}, marks=pytest.mark.slow, id="recurrent dqn"),
    ],
)
def test_updates_agree_after_a_conversion(algorithm: str, kind: str, memory: dict[str, Any], tmp_path: Path) -> None:
    own: dict[str, Any] = {"rollout_steps": 8, "minibatches": 2}
    if find(algorithm).learns_from == "replay":
        own = {"batch_size": 8, "random_steps": 4, "warmup_steps": 8, "capacity": 100}
    settings = {"hidden": (8,), "normalise_observations": True, "critic_hidden": (6,), **own, **memory}
    if algorithm == "dqn":
        del settings["critic_hidden"]
    agent = offbeat.Agent(algorithm, SPECS[kind], **settings)
    loop(agent, 16, 0)
    assert agent.learner.updates > 0
    agent.save(tmp_path / "agent")
    other = offbeat.Agent(algorithm, SPECS[kind], backend="jax", **settings)
    with pytest.raises(CheckpointError, match=r"made with backend=torch: .* `offbeat convert RUN --backend jax`"):
        other.load(tmp_path / "agent")
    offbeat.convert(tmp_path / "agent", backend="jax")
    other.load(tmp_path / "agent")
    before, there = (each.learner.arrays() for each in (agent, other))
    del before["progress"], there["progress"]  # each turn with a rollout sets it
    assert before.keys() == there.keys()
    for name, array in before.items():
        assert array.dtype == there[name].dtype, name
        np.testing.assert_array_equal(array, there[name], err_msg=name)
    for each in (agent, other):
        loop(each, 8, 1)
    assert agent.learner.updates == other.learner.updates > before["updates"]
    for name, array in agent.learner.arrays().items():
        np.testing.assert_allclose(array, other.learner.arrays()[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_conversion_that_dies_at_any_moment_leaves_a_run_with_one_backend(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, count, found = digest(trained), 0, set()
    while True:
        run = Path(shutil.copytree(trained, tmp_path / f"run{count}"))
        monkeypatch.setattr(durable, "os", FaultyOs(count, "torn" if count % 2 else "crash"))
        monkeypatch.setattr("offbeat.run.convert._check", lambda *_: None)
        died = False
        try:
            offbeat.convert(run, backend="jax")
        except Crash:
            died = True
        monkeypatch.undo()
        found.add(backend_of(run))
        assert digest(run) == before
        monkeypatch.setattr("offbeat.run.convert._check", lambda *_: None)
        offbeat.convert(run, backend="jax")
        assert backend_of(run) == read_yaml(run / "config.yaml")["backend"] == "jax"
        Checkpoints(run).verify()
        shutil.rmtree(run)
        if not died:
            break
        count += 7
    assert found == {"torch", "jax"}
    assert count > 20


def own_actor(spec: EnvSpec) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(spec.observation_size, 2 * spec.action_size))


ONLY_TORCH = Algorithm(
    "only_torch",
    ALGORITHMS["sac"].config,
    {"torch": "offbeat.algorithms.torch.sac"},
    learns_from="replay",
    actions=("box",),
    groups=ALGORITHMS["sac"].groups,
)


@pytest.mark.parametrize(
    ("algorithm", "settings", "words"),
    [
        ("sac", {"gradients": "autograd"}, r"gradients=autograd is for backend=torch.*offbeat resume \S+ --SETTING"),
        ("sac", {"actor": own_actor}, r"actor=\S*own_actor\S* is a network of your own.*train a new run"),
        ("sac", {"network": OwnGRU}, r"network=\S*OwnGRU is a network of your own.*train a new run"),
        ("ppo", {"network": "gru"}, "network='gru' of PPO and APPO needs backend=torch"),
        ("sac", {"actor": lambda spec: torch.nn.Linear(3, 4)}, r"actor=.*lambda.* is a network of your own"),
        (
            "sac",
            {"actor_schedule": torch.optim.lr_scheduler.ExponentialLR, "schedule_kwargs": {"gamma": 0.9}},
            r"ExponentialLR is a class.*--SETTING",
        ),
        (ONLY_TORCH, {}, r"backend='jax' does not have only_torch; use torch"),
    ],
    ids=[
        *("gradients", "own network", "own recurrent network", "recurrent ppo"),
        *("own network without a name", "scheduler", "algorithm"),
    ],
)
def test_what_only_torch_has_is_refused_and_the_run_stays_as_it_was(
    algorithm: Any, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    layers = {"critic_hidden": (4,)} if "actor" in settings else {"hidden": (4,)}
    agent = offbeat.Agent(algorithm, vector_spec(3, 2), **layers, total_updates=10, **settings)
    agent.save(tmp_path / "agent")
    names = sorted((tmp_path / "agent" / "checkpoints").iterdir())
    with pytest.raises(UsageError, match=rf"{tmp_path / 'agent'} cannot be converted to jax: {words}"):
        offbeat.convert(tmp_path / "agent", backend="jax")
    assert sorted((tmp_path / "agent" / "checkpoints").iterdir()) == names
    assert backend_of(tmp_path / "agent") == "torch"


def test_a_compiled_run_is_refused(run: Path) -> None:
    there = Checkpoints(run).load()
    config = {**there.notes["config"], "compile": "default"}
    Checkpoints(run).save_again(Snapshot(there.arrays, there.values, {**there.notes, "config": config}))
    with pytest.raises(UsageError, match=r"compile=default is for backend=torch.*offbeat resume \S+ --SETTING"):
        offbeat.convert(run, backend="jax")


def test_code_of_the_user_that_no_file_can_hold_stays_to_be_given_again(tmp_path: Path) -> None:
    agent = offbeat.Agent(
        "td3",
        vector_spec(3, 2),
        hidden=(4,),
        total_updates=10,
        actor_schedule=lambda progress, *, least: max(least, 1.0 - progress),
        schedule_kwargs={"least": 0.5},
    )
    agent.save(tmp_path / "agent")
    recorded = Checkpoints(tmp_path / "agent").load().notes["config"]
    offbeat.convert(tmp_path / "agent", backend="jax")
    assert Checkpoints(tmp_path / "agent").load().notes["config"] == {**recorded, "backend": "jax"}


def test_a_run_in_use_and_what_is_no_run_are_refused(run: Path, tmp_path: Path) -> None:
    busy = RunDirectory(run)
    busy.lock()
    with pytest.raises(RunBusyError, match=r"is running in process \d+: wait until it ends, or stop it"):
        offbeat.convert(run, backend="jax")
    busy.unlock()
    assert backend_of(run) == "torch"
    with pytest.raises(UsageError, match="is not a run: it has no directory checkpoints/"):
        offbeat.convert(tmp_path, backend="jax")
    with pytest.raises(UsageError, match="backend='tensorflow' is not one of torch, jax"):
        offbeat.convert(run, backend="tensorflow")


def test_arrays_that_would_change_are_not_converted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from offbeat.learn.jax import JaxBackend

    arrays = JaxBackend.arrays
    monkeypatch.setattr(JaxBackend, "arrays", lambda self: {**arrays(self), "log_temperature": np.zeros(1, np.float32)})
    with pytest.raises(OffbeatError, match="log_temperature would not keep its values"):
        offbeat.convert(run, backend="jax")
    assert backend_of(run) == "torch"


def test_the_command_says_how_to_go_on(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(run)]) == 2
    assert "give --backend jax or --backend torch" in capsys.readouterr().err
    assert main(["convert", str(run), "--backend", "jax"]) == 0
    done = f"backend: jax, from torch, at step 120; go on with: offbeat resume {run}\nrun: {run}\n"
    assert capsys.readouterr().out == done
    assert main(["convert", str(run), "--backend", "jax"]) == 0
    assert capsys.readouterr().out == f"backend: jax already, at step 120; nothing was converted\nrun: {run}\n"


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_converted_run_goes_on_without_a_dip_and_back(tmp_path: Path) -> None:
    own = {**SETTINGS, "hidden": (64, 64), "batch_size": 128, "num_envs": 1, "updates_per_step": 1.0}
    own |= {"random_steps": 1_000, "warmup_steps": 1_000, "capacity": 20_000, "max_episode_steps": 200}
    own |= {"log_every": 1_000, "checkpoint_every": 0, "eval_every": 250, "eval_episodes": 20}
    path = offbeat.train("sac", "Pendulum-v1", out=str(tmp_path), **{**own, "total_steps": 7_000}).path
    for backend, total in (("jax", 9_000), ("torch", 11_000)):
        offbeat.convert(path, backend=backend)
        history = offbeat.resume(path, total_steps=total, quiet=True).history
    returns = {each.step: each.mean_return for each in history}
    before = [returns[step] for step in range(6_000, 7_001, 250)]
    after = [returns[step] for step in range(7_250, 11_001, 250)]
    print("before:", [round(each) for each in before], "after:", [round(each) for each in after])
    assert np.mean(before) > -250  # it had learned: a random policy's mean is about -1,200
    assert min(after) > min(before) - 75
