"""What an agent writes and reads: .pt files, checkpoints, TensorBoard, Weights & Biases."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import skrl_agents as small
from offbeat.compat import skrl
from offbeat.errors import UsageError

SCHEDULE: dict[str, Any] = {
    "learning_rate_scheduler": torch.optim.lr_scheduler.StepLR,
    "learning_rate_scheduler_kwargs": {"step_size": 1, "gamma": 0.9},
    "observation_preprocessor": skrl.RunningStandardScaler,
    "observation_preprocessor_kwargs": {"size": 3, "device": "cpu"},
    "mixed_precision": True,
}


def learned(directory: Path, updates: int = 3, **settings: Any) -> Any:
    agent = small.make_agent(directory, **settings)
    agent.memory.add_samples(**small.transitions(20))
    for timestep in range(updates):
        agent.update(timestep=timestep, timesteps=updates)
    return agent


def interact(agent: Any, steps: int, reward: float = 1.0, episode: int = 2, start: int = 0) -> None:
    """Records and learns for so many steps, in episodes of so many steps."""
    for timestep in range(start, start + steps):
        rows = {**small.transitions(1, seed=timestep), "terminated": torch.zeros(1, 1, dtype=torch.bool)}
        rows["rewards"] = torch.full((1, 1), reward)
        truncated = torch.tensor([[(timestep + 1) % episode == 0]])
        own = {"states": None, "next_states": None, "infos": {}, "timestep": timestep, "timesteps": steps}
        agent.record_transition(**rows, **own, truncated=truncated)
        agent.post_interaction(timestep=timestep, timesteps=steps)


# save and load


def test_a_saved_agent_is_loaded_whole(tmp_path: Path) -> None:
    one, other = learned(tmp_path, **SCHEDULE), small.make_agent(tmp_path, models=small.make_models(seed=9), **SCHEDULE)
    one.save(str(tmp_path / "agent.pt"))
    other.load(str(tmp_path / "agent.pt"))
    assert all(torch.equal(each, small.weights(other)[name]) for name, each in small.weights(one).items())
    assert torch.equal(other.log_entropy_coefficient, one.log_entropy_coefficient)
    assert other.policy_scheduler.state_dict() == one.policy_scheduler.state_dict()
    assert [each.rate for each in other._optimizers] == [each.rate for each in one._optimizers]
    assert other.scaler.state_dict() == one.scaler.state_dict()
    scaler = one._observation_preprocessor
    assert torch.equal(other._observation_preprocessor.running_mean, scaler.running_mean)
    # Both continue alike: optimisers, too, are where they were.
    other.memory.add_samples(**small.transitions(20))
    other.streams.restore(one.streams.state())
    for agent in (one, other):
        torch.manual_seed(0)
        agent.update(timestep=3, timesteps=4)
    assert all(torch.equal(each, small.weights(other)[name]) for name, each in small.weights(one).items())


def test_the_file_is_as_skrl_writes_it(tmp_path: Path) -> None:
    agent = learned(tmp_path)
    agent.save(str(tmp_path / "agent.pt"))
    saved = torch.load(tmp_path / "agent.pt", weights_only=True)
    assert set(saved) == {*small.NAMES, "policy_optimizer", "critic_optimizer", "entropy_optimizer",
                          "log_entropy_coefficient"}  # fmt: skip
    plain = torch.optim.Adam(small.make_models()["policy"].parameters(), lr=0.1)
    plain.load_state_dict(saved["policy_optimizer"])
    assert [float(state["step"]) for state in plain.state.values()] == [3.0] * 5
    assert saved["policy"]["net.0.weight"].untyped_storage().nbytes() == 4 * saved["policy"]["net.0.weight"].numel()


@pytest.mark.skipif(importlib.util.find_spec("skrl") is None, reason="skrl is not installed")
def test_files_of_skrl_are_read_and_ours_by_skrl(tmp_path: Path) -> None:
    import skrl.agents.torch.sac as theirs
    import skrl.memories.torch as their_memories
    import skrl.models.torch as library

    cfg = theirs.SAC_CFG(batch_size=8)
    cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
    agent = theirs.SAC(
        models=small.make_models(library),
        memory=their_memories.RandomMemory(memory_size=64),
        observation_space=small.OBSERVATIONS,
        action_space=small.ACTIONS,
        device="cpu",
        cfg=cfg,
    )
    agent.init()
    for row in range(20):
        agent.memory.add_samples(**{name: each[row : row + 1] for name, each in small.transitions(20).items()})
    agent.update(timestep=0, timesteps=1)
    agent.save(str(tmp_path / "theirs.pt"))
    ours = small.make_agent(tmp_path, models=small.make_models(seed=5))
    ours.load(str(tmp_path / "theirs.pt"))
    assert all(torch.equal(each, small.weights(agent)[name]) for name, each in small.weights(ours).items())
    assert float(ours.policy_optimizer._adam.steps) == 1.0
    ours.memory.add_samples(**small.transitions(20))
    ours.update(timestep=0, timesteps=1)
    ours.save(str(tmp_path / "ours.pt"))
    agent.load(str(tmp_path / "ours.pt"))
    assert all(torch.equal(each, small.weights(agent)[name]) for name, each in small.weights(ours).items())
    agent.update(timestep=0, timesteps=1)


def test_an_unknown_module_in_a_file_is_skipped_with_a_warning(tmp_path: Path, caplog: Any) -> None:
    learned(tmp_path, observation_preprocessor=skrl.RunningStandardScaler,
            observation_preprocessor_kwargs={"size": 3}).save(str(tmp_path / "a.pt"))  # fmt: skip
    skrl.logger.propagate = True
    try:
        small.make_agent(tmp_path).load(str(tmp_path / "a.pt"))
    finally:
        skrl.logger.propagate = False
    assert "'observation_preprocessor', which this agent does not have; it is skipped" in caplog.text


class Own:
    """Something that only pickle would read."""


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    agent, path = small.make_agent(tmp_path), tmp_path / "a.pt"
    with pytest.raises(UsageError, match="there is no file"):
        agent.load(str(path))
    torch.save({"policy": Own()}, path)
    with pytest.raises(UsageError, match="not a file of weights that torch reads safely"):
        agent.load(str(path))
    torch.save({"policy": {"net.0.weight": torch.zeros(1)}}, path)
    with pytest.raises(UsageError, match=r"'policy' in .* does not fit this agent"):
        agent.load(str(path))
    torch.save([1], path)
    with pytest.raises(UsageError, match="holds a list"):
        agent.load(str(path))


# Checkpoints and the experiment's directory.


def test_checkpoints_are_named_by_timestep_or_time(tmp_path: Path) -> None:
    agent = learned(tmp_path)
    agent.write_checkpoint(timestep=12, timesteps=20)
    agent.write_checkpoint(timestep=None, timesteps=20)  # type: ignore[arg-type]
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names[0] == "agent_12.pt"
    assert len(names) == 2
    assert len(names[1]) == len("agent_26-11-18_09-27-00-123456.pt")


def test_intervals(tmp_path: Path) -> None:
    for interval, count in (("auto", 10), (7, 4), (0, 0), (-5, 0)):
        place = tmp_path / str(interval)
        agent = small.make_agent(place, experiment={"checkpoint_interval": interval}, learning_starts=99, init=False)
        agent.init(trainer_cfg={"timesteps": 30})
        agent.enable_training_mode(True)
        interact(agent, 30)
        found = list((place / "run" / "checkpoints").glob("agent_*"))
        assert len(found) == count
    with pytest.raises(UsageError, match="checkpoint_interval='often' must be an integer"):
        small.make_agent(tmp_path, experiment={"checkpoint_interval": "often"})


def test_store_separately_and_best_modules(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, experiment={"store_separately": True, "checkpoint_interval": 4})
    interact(agent, 4, reward=1.0)
    best = torch.load(tmp_path / "run" / "checkpoints" / "best_policy.pt", weights_only=True)
    agent.episodes.take()
    interact(agent, 4, reward=-1.0, start=4)  # worse: the best ones stay
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert {"policy_4.pt", "critic_1_8.pt", "policy_optimizer_8.pt", "best_policy.pt"} <= names
    again = torch.load(tmp_path / "run" / "checkpoints" / "best_policy.pt", weights_only=True)
    assert all(torch.equal(best[name], again[name]) for name in best)
    assert agent.checkpoint_best_modules["timestep"] == 4


def test_directory_and_name_of_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent = small.make_agent("", experiment={"directory": "", "experiment_name": ""})
    assert Path(agent.experiment_dir).parent == tmp_path / "runs"
    assert agent.experiment_dir.endswith("_SAC")
    assert small.make_agent("d", experiment={"experiment_name": "n"}).experiment_dir == str(Path("d") / "n")


# Tracking.


def points(directory: Path) -> Any:
    events = EventAccumulator(str(directory))
    events.Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tags_are_reduced_by_their_ends(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, experiment={"write_interval": 5})
    for value in (1.0, 2.0, 6.0):
        for tag in ("Own / x (min)", "Own / x (max)", "Own / x (mean)", "Own / x"):
            agent.track_data(tag, value)
    agent.write_tracking_data(timestep=5, timesteps=10)
    agent.track_data("Own / x", 4.0)
    agent.write_tracking_data(timestep=10, timesteps=10)
    found = points(tmp_path / "run")
    assert found["Own / x (min)"] == [(5, 1.0)]
    assert found["Own / x (max)"] == [(5, 6.0)]
    assert found["Own / x (mean)"] == [(5, 3.0)]
    assert found["Own / x"] == [(5, 3.0), (10, 4.0)]


def test_learning_is_tracked_with_skrls_tags(tmp_path: Path) -> None:
    settings = {name: value for name, value in SCHEDULE.items() if name != "mixed_precision"}
    agent = small.make_agent(tmp_path, experiment={"write_interval": 4}, **settings)
    interact(agent, 8, reward=2.0, episode=4)
    found = points(tmp_path / "run")
    tags = ["Reward / Instantaneous reward", "Reward / Total reward", "Episode / Total timesteps", "Q-network / Q1"]
    tags = [
        f"{tag} ({kind})" for tag in [*tags, "Q-network / Q2", "Target / Target"] for kind in ("max", "min", "mean")
    ]
    tags += ["Loss / Policy loss", "Loss / Critic loss", "Loss / Entropy loss", "Coefficient / Entropy coefficient"]
    tags += ["Learning / Policy learning rate", "Learning / Critic learning rate", "Stats / Algorithm update time (ms)"]
    assert set(tags) == set(found)
    assert found["Reward / Total reward (mean)"] == [(4, 8.0), (8, 8.0)]
    assert found["Episode / Total timesteps (max)"] == [(4, 4.0), (8, 4.0)]
    assert (
        found["Q-network / Q1 (min)"][0][1]
        <= found["Q-network / Q1 (mean)"][0][1]
        <= found["Q-network / Q1 (max)"][0][1]
    )


@pytest.mark.parametrize("interval", [0, -1])
@pytest.mark.parametrize("checkpoint_interval", [0, -1, 10])
def test_where_nothing_is_written_nothing_is_collected(tmp_path: Path, interval: int, checkpoint_interval: int) -> None:
    experiment = {"write_interval": interval, "checkpoint_interval": checkpoint_interval}
    agent = small.make_agent(tmp_path, experiment=experiment)
    interact(agent, 20, reward=2.0, episode=4)
    agent.track_data("Own / x", 1.0)
    assert not agent.tracking_data
    assert not agent.episodes._rewards
    assert list(agent.episodes.returns) == ([8.0] * 5 if checkpoint_interval > 0 else [])  # for the best modules


def test_write_intervals(tmp_path: Path) -> None:
    for interval, count in (("auto", 30), (7, 4), (0, 0), (-5, 0)):
        place = tmp_path / str(interval)
        agent = small.make_agent(place, experiment={"write_interval": interval}, learning_starts=999, init=False)
        agent.init(trainer_cfg={"timesteps": 100 if interval == "auto" else 30})
        agent.enable_training_mode(True)
        interact(agent, 30)
        found = points(place / "run") if (place / "run").exists() else {}
        # The first step is never written.
        assert len(found.get("Reward / Instantaneous reward (mean)", [])) == (
            count - 1 if interval == "auto" else count
        )


def test_weights_and_biases_gets_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **own: started.append(own)))
    own = {"wandb": True, "wandb_kwargs": {"project": "p", "config": {"mine": 1}}}
    agent = small.make_agent(tmp_path, experiment=own, init=False)
    agent.init(trainer_cfg=skrl.SequentialTrainerCfg(timesteps=3))
    (call,) = started
    assert (call["project"], call["name"], call["sync_tensorboard"]) == ("p", "run", True)
    assert (call["config"]["mine"], call["config"]["timesteps"], call["config"]["batch_size"]) == (1, 3, 8)


# Preprocessor and scheduler.


def test_running_standard_scaler() -> None:
    torch.manual_seed(0)
    scaler = skrl.RunningStandardScaler(small.OBSERVATIONS, clip_threshold=2.0, epsilon=1e-6, device="cpu")
    rows = torch.randn(500, 3) * 4.0 + 7.0
    assert torch.equal(scaler(rows * 0), rows * 0)  # nothing is learned without train
    first = scaler(rows[:250], train=True)
    scaler(rows[250:].reshape(5, 50, 3), train=True)
    assert first.shape == (250, 3)
    assert float(scaler(rows).abs().max()) == 2.0
    torch.testing.assert_close(scaler.running_mean.float(), rows.mean(0), rtol=0.01, atol=0.02)
    torch.testing.assert_close(scaler.running_variance.float().sqrt(), rows.std(0), rtol=0.05, atol=0.02)
    middle = rows.clamp(5.0, 9.0)
    torch.testing.assert_close(scaler(scaler(middle), inverse=True), middle, rtol=1e-3, atol=1e-3)
    assert scaler(None) is None
    assert scaler(rows.requires_grad_(), no_grad=False).requires_grad
    assert not scaler(rows).requires_grad
    wide = skrl.RunningStandardScaler(2, epsilon=1.0)
    assert float(wide(torch.ones(1, 2))[0, 0]) == 0.5
    wide(torch.ones(1, 2), train=True)  # a single row
    assert bool(wide.running_variance.isfinite().all())


def test_kl_adaptive_rate() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    scheduler = skrl.KLAdaptiveLR(optimizer, kl_threshold=0.1, min_lr=4e-4, max_lr=2e-3, kl_factor=3, lr_factor=2)
    rates = []
    for divergence in (None, 0.29, 0.31, 0.31, 0.04, 0.02, torch.tensor(0.02), 0.02):
        scheduler.step(divergence, epoch=None)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1e-3, 1e-3, 5e-4, 4e-4, 4e-4, 8e-4, 1.6e-3, 2e-3]
    assert scheduler.get_last_lr() == [2e-3]


def test_a_scheduler_that_goes_on_needs_the_first_rate_of_its_optimizer() -> None:
    fresh = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    with pytest.raises(KeyError, match="initial_lr"):  # as torch's own schedulers say
        skrl.KLAdaptiveLR(fresh, last_epoch=4)
    fresh.param_groups[0]["initial_lr"] = 5e-3
    going_on = skrl.KLAdaptiveLR(fresh, last_epoch=4)
    assert going_on.base_lrs == [5e-3]
    assert going_on.get_last_lr() == [1e-3]
