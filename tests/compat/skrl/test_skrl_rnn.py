"""`SAC_RNN`: states in acting, in the memory and in updates."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from test_skrl_numbers import GAMMA, POLYAK, RATES, Given, Plain
from torch import Tensor, nn

import skrl_agents as small
from offbeat.compat import skrl
from offbeat.compat.skrl.trainers.torch import SequentialTrainer
from offbeat.errors import UsageError

LENGTH, HIDDEN, LAYERS = 4, 5, 2
QUIET = {"headless": True, "disable_progressbar": True, "close_environment_at_exit": False}


class Trunk(nn.Module):
    """An LSTM, one step after the other; zeros where the step before ended an episode."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(size, HIDDEN, LAYERS)

    def forward(self, inputs: dict[str, Any], first: int) -> tuple[Tensor, list[Tensor]]:
        x = inputs["observations"]
        if "terminated" not in inputs:
            out, new = self.lstm(x[None], tuple(inputs["rnn"]))
            return out[0], list(new)
        x = x.view(-1, LENGTH, x.shape[-1])
        states = [each.view(LAYERS, -1, LENGTH, HIDDEN)[:, :, first].contiguous() for each in inputs["rnn"]]
        ended = (inputs["terminated"] | inputs["truncated"]).view(-1, LENGTH)
        outs = []
        for step in range(LENGTH):
            out, new = self.lstm(x[None, :, step], tuple(states))
            outs.append(out[0])
            states = [each * ~ended[:, step, None] for each in new]
        return torch.stack(outs, 1).flatten(0, 1), states


class Policy(skrl.GaussianMixin, skrl.Model):
    def __init__(self, num_envs: int = 1) -> None:
        skrl.Model.__init__(
            self, observation_space=small.OBSERVATIONS, action_space=small.ACTIONS, device=torch.device("cpu")
        )
        skrl.GaussianMixin.__init__(self)
        self.num_envs, self.trunk, self.head = num_envs, Trunk(3), nn.Linear(HIDDEN, 2)
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def get_specification(self) -> dict[str, Any]:
        return {"rnn": {"sequence_length": LENGTH, "sizes": [(LAYERS, self.num_envs, HIDDEN)] * 2}}

    def compute(self, inputs: dict[str, Any], role: str) -> Any:
        features, states = self.trunk(inputs, 0)
        return self.head(features), {"log_std": self.log_std, "rnn": states}


class Critic(skrl.DeterministicMixin, skrl.Model):
    def __init__(self) -> None:
        skrl.Model.__init__(
            self, observation_space=small.OBSERVATIONS, action_space=small.ACTIONS, device=torch.device("cpu")
        )
        skrl.DeterministicMixin.__init__(self)
        self.trunk, self.head = Trunk(3), nn.Linear(HIDDEN + 2, 1)

    def compute(self, inputs: dict[str, Any], role: str) -> Any:
        features, _ = self.trunk(inputs, 1 if role.startswith("target") else 0)
        return self.head(torch.cat((features, inputs["taken_actions"]), 1)), {}


def make_models(num_envs: int = 1, dtype: Any = torch.float32) -> dict[str, Any]:
    torch.manual_seed(0)
    models = {name: Policy(num_envs) if name == "policy" else Critic() for name in small.NAMES}
    return {name: model.to(dtype) for name, model in models.items()}


def make_agent(directory: Path, memory: Any = None, models: Any = None, num_envs: int = 1, **settings: Any) -> Any:
    quiet = {"directory": str(directory), "experiment_name": "run", "write_interval": 0, "checkpoint_interval": 0}
    quiet |= settings.pop("experiment", {})
    return skrl.SAC_RNN(
        models=make_models(num_envs) if models is None else models,
        memory=skrl.RandomMemory(memory_size=64, num_envs=num_envs) if memory is None else memory,
        observation_space=small.OBSERVATIONS,
        action_space=small.ACTIONS,
        device="cpu",
        cfg={"batch_size": 6, "experiment": quiet, **settings},
    )


def sequences(count: int, dtype: Any = torch.float64) -> dict[str, Tensor]:
    """Random rows of so many sequences, with episode ends of both kinds inside."""
    rows: dict[str, Tensor] = small.transitions(count * LENGTH)
    rng = np.random.default_rng(7)
    rows["truncated"] = torch.from_numpy(rng.random((count * LENGTH, 1)) < 0.3) & ~rows["terminated"]
    for index in range(2):
        drawn = rng.standard_normal((count * LENGTH, LAYERS, HIDDEN)).astype(np.float32)
        rows[f"rnn_policy_{index}"] = torch.from_numpy(drawn)
    return {name: each.to(dtype) if each.is_floating_point() else each for name, each in rows.items()}


class PlainRecurrent(Plain):
    """`Plain` with states: the policy at next observations begins with the states of the sequence's next step."""

    def update(self, rows: dict[str, Tensor]) -> None:
        ended = (rows["terminated"] | rows["truncated"])[:, 0]
        now: list[Tensor] = [rows[f"rnn_policy_{index}"] for index in range(2)]
        then = [each.clone() for each in now]
        for row in range(len(ended)):
            if (row + 1) % LENGTH and not ended[row]:
                for mine, own in zip(then, now, strict=True):
                    mine[row] = own[row + 1]
        flags = {name: rows[name] for name in ("terminated", "truncated")}
        self.now, self.then = ({"rnn": [each.transpose(0, 1) for each in own], **flags} for own in (now, then))
        self.next_rows = rows["next_observations"]
        super().update(rows)

    def draw(self, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        is_next = inputs["observations"] is self.next_rows
        return super().draw({**inputs, **(self.then if is_next else self.now)})

    def value(self, name: str, inputs: dict[str, Any], action: Tensor) -> Tensor:
        return super().value(name, {**inputs, **self.now}, action)


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_an_update_equals_the_formulas_written_out_with_episode_ends_inside_sequences(
    tmp_path: Path, clip: float
) -> None:
    rows = sequences(6)
    ended = (rows["terminated"] | rows["truncated"]).view(-1, LENGTH)
    assert ended[:, :-1].any()
    assert rows["truncated"].view(-1, LENGTH)[:, :-1].any()
    models = make_models(dtype=torch.float64)
    plain = PlainRecurrent(models, 0.3, True, clip, target=-1.5)
    settings = {"discount_factor": GAMMA, "polyak": POLYAK, "learning_rate": RATES, "initial_entropy_value": 0.3}
    agent = make_agent(tmp_path, Given(rows), models, target_entropy=-1.5, grad_norm_clip=clip, **settings)
    agent.init()
    agent.enable_training_mode(True)
    for number in range(3):
        torch.manual_seed(number)
        plain.update(rows)
        torch.manual_seed(number)
        agent.update(timestep=number, timesteps=3)
        for name in small.NAMES:
            for mine, theirs in zip(models[name].parameters(), plain.models[name].parameters(), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
        torch.testing.assert_close(agent.log_entropy_coefficient, plain.log_coefficient, rtol=0, atol=1e-9)


def trained(agent: Any, env: Any, timesteps: int) -> Any:
    trainer = SequentialTrainer(env=env, agents=agent, cfg={"timesteps": timesteps, **QUIET})
    trainer.train()
    return trainer


def test_the_state_before_each_step_is_stored_and_reset_at_episode_ends(tmp_path: Path) -> None:
    """Replayed through the policy, stored states give those of the next rows; also after random actions."""
    agent = make_agent(tmp_path, learning_starts=100, random_timesteps=4)
    trained(agent, small.still(steps=7), 30)
    own = {name: agent.memory.get_tensor_by_name(name)[:30, 0] for name in agent.memory.get_tensor_names()}
    ended = (own["terminated"] | own["truncated"])[:, 0]
    assert ended.nonzero()[:, 0].tolist() == [6, 13, 20, 27]
    states: list[Tensor] = [torch.zeros(LAYERS, 1, HIDDEN)] * 2
    for row in range(30):
        for index, state in enumerate(states):
            torch.testing.assert_close(own[f"rnn_policy_{index}"][row], state[:, 0], rtol=0, atol=1e-6)
        inputs = {"observations": own["observations"][row, None], "rnn": states}
        states = agent.policy.compute(inputs, "policy")[1]["rnn"]
        assert all(state.abs().min() > 0 for state in states)
        states = [torch.zeros_like(state) if ended[row] else state.detach() for state in states]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_sequences_are_of_one_environment_and_never_reach_across_the_newest_row(tmp_path: Path, mode: Any) -> None:
    memory = skrl.RandomMemory(memory_size=16, num_envs=3)
    agent = make_agent(tmp_path, memory, num_envs=3, learning_starts=10**6)
    trained(agent, small.still(3, mode=mode, steps=5), 60)
    assert memory.filled
    batches = agent._draws(50, 6, 0.9)
    assert batches.columns["obs"].shape == (50, 6 * LENGTH, 3)
    now = batches.columns["obs"][..., 0].reshape(-1, LENGTH)
    ended = batches.columns["truncated"].reshape(-1, LENGTH)
    np.testing.assert_array_equal(np.where(ended[:, :-1], 0, now[:, :-1] + 1), now[:, 1:])
    assert ended[:, :-1].any()
    first = batches.columns["rnn_policy_0"].reshape(-1, LENGTH, LAYERS, HIDDEN)
    np.testing.assert_array_equal(now == 0, (first == 0).all((2, 3)))
    rows = batches.rows.reshape(-1, LENGTH)
    assert (np.diff(rows) > 0).all()
    assert rows.min() >= memory.shard.oldest
    assert rows.max() < memory.shard.committed
    env = memory.shard.column("env")[rows % memory.shard.capacity]
    assert (env == env[:, :1]).all()
    assert set(env[:, 0]) == {0, 1, 2}


def test_our_replay_gives_the_same_update_as_a_memory_of_the_user(tmp_path: Path) -> None:
    ours = make_agent(tmp_path, learning_starts=10**6)
    trained(ours, small.still(steps=7), 40)
    drawn = copy.deepcopy(ours.streams.sampling).choice(40 - LENGTH + 1, 6, replace=False)
    indexes = (drawn[:, None] + np.arange(LENGTH)).reshape(-1)
    rows = {name: ours.memory.get_tensor_by_name(name)[indexes, 0] for name in ours.memory.get_tensor_names()}
    theirs = make_agent(tmp_path, Given(rows))
    theirs.init()
    for agent in (ours, theirs):
        torch.manual_seed(1)
        agent.update(timestep=0, timesteps=1)
    for name, tensor in small.weights(ours).items():
        torch.testing.assert_close(tensor, small.weights(theirs)[name], rtol=1e-5, atol=1e-7)


def test_save_and_load(tmp_path: Path) -> None:
    one, other = make_agent(tmp_path), make_agent(tmp_path, models=None)
    trained(one, small.still(steps=7), 20)
    one.save(str(tmp_path / "agent.pt"))
    other.load(str(tmp_path / "agent.pt"))
    assert all(torch.equal(each, small.weights(other)[name]) for name, each in small.weights(one).items())


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    """The checkpoint is in the middle of an episode, so the policy's states matter."""
    ends = []
    for name in ("whole", "resumed"):
        skrl.set_seed(3)
        agent = make_agent(tmp_path / name, experiment={"checkpoint_interval": 25})
        trained(agent, small.still(steps=7), 50 if name == "whole" else 25)
        if name == "resumed":
            skrl.set_seed(3)
            agent = make_agent(tmp_path / name, experiment={"checkpoint_interval": 25})
            trainer = SequentialTrainer(env=small.still(steps=7), agents=agent, cfg={"timesteps": 50, **QUIET})
            assert agent.resume() == 25
            assert all(state.abs().sum() > 0 for state in agent._now)
            trainer.train()
        ends.append((small.weights(agent), agent))
    assert all(torch.equal(each, ends[1][0][name]) for name, each in ends[0][0].items())
    for mine, theirs in zip(ends[0][1]._now, ends[1][1]._now, strict=True):
        assert torch.equal(mine, theirs)


def test_states_begin_anew_between_training_and_evaluation(tmp_path: Path) -> None:
    agent = make_agent(tmp_path)
    trainer = trained(agent, small.still(steps=7), 10)
    assert all(state.abs().sum() > 0 for state in agent._now)
    agent.enable_training_mode(False)
    assert all(state.abs().sum() == 0 for state in agent._now)
    before = len(agent.memory)
    trainer.eval()
    assert len(agent.memory) == before
    assert all(state.abs().sum() > 0 for state in agent._now)


def test_learning_waits_for_the_first_sequence(tmp_path: Path) -> None:
    agent = make_agent(tmp_path)
    trained(agent, small.still(steps=7), LENGTH + 2)
    assert agent.learner.updates == 3
    fresh = make_agent(tmp_path)
    fresh.init()
    with pytest.raises(UsageError, match=r"holds 0 rows, and in them no 4 consecutive steps .*sequence_length=4"):
        fresh.update(timestep=0, timesteps=1)


def test_models_without_states_make_it_sac(tmp_path: Path) -> None:
    plain = small.make_agent(tmp_path, models=small.make_models(seed=2), init=False)
    recurrent = make_agent(tmp_path, skrl.RandomMemory(memory_size=64), small.make_models(seed=2), batch_size=8)
    for agent in (plain, recurrent):
        skrl.set_seed(1)
        agent.memory.replacement = True
        agent.streams = type(agent.streams)(1)
        agent._draws = agent._make_draws(torch.float32)
        trained(agent, small.still(steps=7), 12)
    assert all(torch.equal(each, small.weights(recurrent)[name]) for name, each in small.weights(plain).items())


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"rnn": {"sequence_length": 0, "sizes": [(1, 1, 5)]}}, "with positive integers"),
        ({"rnn": {"sequence_length": 4, "sizes": [(1, 5)]}}, r"write it as .*sequence_length"),
        ({"rnn": {"sequence_length": 4, "sizes": [(2, 1, 5), (2, 2, 5)]}}, "the same num_envs in all sizes"),
        ({"rnn": {"sequence_length": 4, "sizes": [(2, 1, 6), (2, 1, 5)]}}, r"models\['policy'\] raised RuntimeError"),
        (
            {"rnn": {"sequence_length": 4, "sizes": [(2, 1, 5)] * 3}},
            r"models\['policy'\] raised RuntimeError.*two hidden states",
        ),
    ],
)
def test_wrong_specifications_are_refused(tmp_path: Path, found: Any, says: str) -> None:
    models = make_models()
    models["policy"].get_specification = lambda: found
    with pytest.raises(UsageError, match=says):
        make_agent(tmp_path, models=models)


def test_wrong_states_and_memories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sequence_length=4 is more than the memory keeps .*memory_size=3"):
        make_agent(tmp_path, skrl.RandomMemory(memory_size=3))
    agent = make_agent(tmp_path)
    with pytest.raises(UsageError, match=r"2 observations, but .*num_envs=1 environments; .* num_envs=2"):
        agent.act(torch.zeros(2, 3), None, timestep=0, timesteps=1)
    models = make_models()
    compute = models["policy"].compute
    models["policy"].compute = lambda inputs, role: (compute(inputs, role)[0], {"log_std": models["policy"].log_std})
    with pytest.raises(UsageError, match=r"gave no states in outputs\['rnn'\]; by its get_specification"):
        make_agent(tmp_path, models=models)
