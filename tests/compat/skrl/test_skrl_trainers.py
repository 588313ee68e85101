"""Trainers: steps, resets, scopes, and every setting."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import skrl_agents as small
from offbeat.compat import skrl
from offbeat.compat.skrl.trainers.torch import ParallelTrainerCfg, Trainer, TrainerCfg
from offbeat.compat.skrl.trainers.torch.agent_process import work
from offbeat.compat.skrl.trainers.torch.parallel import AgentProcess
from offbeat.errors import OffbeatError, UsageError
from skrl_agents import still

QUIET = {"headless": True, "disable_progressbar": True, "close_environment_at_exit": False}


class Calls(skrl.Agent):
    """An agent of a user that records what a trainer calls, and acts with a number of its own."""

    def __init__(self, number: float = 1.0) -> None:
        super().__init__(cfg=skrl.AgentCfg(), models={}, device="cpu")
        self.number, self.calls, self.rows, self.totals = number, [], [], []  # type: ignore[var-annotated]
        self.memory = None

    def init(self, *, trainer_cfg: Any = None) -> None:
        self.calls.append(("init", trainer_cfg.timesteps))
        self.write_interval = self.checkpoint_interval = 0

    def act(self, observations: Any, states: Any, *, timestep: int, timesteps: int) -> Any:
        self.calls.append(("act", timestep))
        self.totals.append(timesteps)
        drawn = torch.full((len(observations), 2), self.number)
        return drawn, {"mean_actions": drawn * 0.5}

    def record_transition(self, **step: Any) -> None:
        self.calls.append(("record", step["timestep"]))
        self.rows.append(step)

    def pre_interaction(self, *, timestep: int, timesteps: int) -> None:
        self.calls.append(("pre", timestep))

    def post_interaction(self, *, timestep: int, timesteps: int) -> None:
        self.calls.append(("post", timestep))

    def update(self, *, timestep: int, timesteps: int) -> None: ...


def trained(env: Any, agents: Any, kind: Any = skrl.SequentialTrainer, scopes: Any = None, **cfg: Any) -> Any:
    trainer = kind(env=env, agents=agents, scopes=scopes, cfg={"timesteps": 7, **QUIET, **cfg})
    trainer.train()
    return trainer


# The loop.


@pytest.mark.parametrize("kind", [skrl.SequentialTrainer, skrl.ParallelTrainer])
def test_a_trainer_calls_its_agent_in_order(kind: Any) -> None:
    agent = Calls()
    trained(still(), agent, kind, timesteps=2)
    each = [("pre", 0), ("act", 0), ("record", 0), ("post", 0), ("pre", 1), ("act", 1), ("record", 1), ("post", 1)]
    assert agent.calls == [("init", 2), *each]
    assert agent.training is True


def test_a_single_environment_is_reset_after_its_true_final_observation() -> None:
    agent = Calls()
    trained(still(steps=3), agent)
    shown = [(int(row["observations"][0, 0]), int(row["next_observations"][0, 0])) for row in agent.rows]
    assert shown == [(0, 1), (1, 2), (2, 3), (0, 1), (1, 2), (2, 3), (0, 1)]
    assert [bool(row["truncated"]) for row in agent.rows] == [False, False, True, False, False, True, False]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_replay_has_the_same_rows_in_every_autoreset_mode(mode: Any, tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, skrl.RandomMemory(memory_size=64, num_envs=2), learning_starts=99, init=False)
    trained(still(2, mode, steps=3), agent, timesteps=12)
    columns = agent.memory.tensors_view
    rows = {
        (int(obs[0]), int(following[0]))
        for obs, following in zip(
            columns["observations"][: len(agent.memory)], columns["next_observations"], strict=False
        )
    }
    assert rows == {(0, 1), (1, 2), (2, 3)}  # final observations, and no row for a mere reset
    assert len(agent.memory) == 2 * (9 if mode is AutoresetMode.NEXT_STEP else 12)
    assert not columns["terminated"][: len(agent.memory)].any()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_returns_of_unequal_episodes_are_right_in_every_autoreset_mode(mode: Any, tmp_path: Path) -> None:
    makers = [lambda steps=steps: small.Still(steps=steps) for steps in (5, 7, 9, 11)]
    env = skrl.wrap_env(SyncVectorEnv(makers, autoreset_mode=mode), verbose=False)
    experiment = {"write_interval": 1000}
    agent = small.make_agent(
        tmp_path, skrl.RandomMemory(memory_size=64), learning_starts=99, init=False, experiment=experiment
    )
    trained(env, agent, timesteps=60)
    resets = 1 if mode is AutoresetMode.NEXT_STEP else 0  # steps between two episodes
    expected = Counter({steps: (60 + resets) // (steps + resets) for steps in (5, 7, 9, 11)})
    assert Counter(agent.episodes.returns) == expected
    assert Counter(agent.episodes.lengths) == expected
    tracked = agent.episodes.take()
    assert tracked["Reward / Instantaneous reward (min)"] == 1.0  # a mere reset has no reward


def test_termination_and_truncation_are_told_apart(tmp_path: Path) -> None:
    for terminates in (False, True):
        agent = small.make_agent(tmp_path, learning_starts=99, init=False)
        trained(still(steps=3, terminates=terminates), agent, timesteps=6)
        assert int(agent.memory.tensors["terminated"].sum()) == (2 if terminates else 0)


def test_privileged_states_belong_to_their_observations() -> None:
    agent, env = Calls(), still(steps=3, state=True)
    assert env.state_space is small.STATES
    trained(env, agent)
    for row in agent.rows:
        assert torch.equal(row["states"][:, 0], -row["observations"][:, 0])
        assert torch.equal(row["next_states"][:, 0], -row["next_observations"][:, 0])  # also where an episode ended


def test_drawn_actions_reach_the_environment_as_they_are() -> None:
    env = still()
    trained(env, Calls(number=7.0), timesteps=1)
    assert env.unwrapped.taken[0].tolist() == [7.0, 7.0]  # beyond the limits of +-2


# Settings.


def test_evaluation_uses_mean_actions_unless_asked_otherwise() -> None:
    for stochastic, taken in ((False, 0.5), (True, 1.0)):
        env, agent = still(), Calls()
        trainer = skrl.SequentialTrainer(
            env=env, agents=agent, cfg={**QUIET, "timesteps": 2, "stochastic_evaluation": stochastic}
        )
        trainer.eval()
        assert env.unwrapped.taken[0].tolist() == [taken, taken]
        assert agent.training is False


def test_evaluation_does_not_learn(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, init=False)
    trainer = skrl.SequentialTrainer(env=still(), agents=agent, cfg={**QUIET, "timesteps": 6})
    trainer.eval()
    assert agent.learner.updates == 0
    assert len(agent.memory) == 0


def test_rendering_each_so_many_steps() -> None:
    for options, count in (({"headless": False, "render_interval": 2}, 4), ({"headless": True}, 0)):
        env, shown = still(), []
        env.render = lambda shown=shown: shown.append(1)
        trained(env, Calls(), **options)
        assert len(shown) == count


def test_the_progress_bar_can_be_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    for disabled, visible in ((False, True), (True, False), (None, False)):
        trained(still(), Calls(), disable_progressbar=disabled)
        assert ("7/7" in capsys.readouterr().out) == visible


def test_the_environment_is_closed_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    monkeypatch.setattr("atexit.register", registered.append)
    for close in (False, True):
        env = still()
        trained(env, Calls(), close_environment_at_exit=close)
        assert registered == ([env.close] if close else [])


def test_environment_info_is_tracked_under_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calls, "init", lambda self, trainer_cfg: setattr(self, "write_interval", 1000))
    agent = Calls()
    trained(still(), agent, timesteps=3)
    assert agent.tracking_data["Info / height"] == [1.0, 2.0, 3.0]
    assert agent.tracking_data["Own / depth"] == [2.0] * 3
    assert not any("name" in tag for tag in agent.tracking_data)
    other = Calls()
    trained(still(), other, environment_info="log")
    assert not any("height" in tag for tag in other.tracking_data)


def test_settings_may_be_an_object_and_wrong_ones_are_named() -> None:
    agent = Calls()
    skrl.SequentialTrainer(env=still(), agents=agent, cfg=skrl.SequentialTrainerCfg(timesteps=3, **QUIET)).train()
    assert agent.calls[0] == ("init", 3)
    with pytest.raises(KeyError, match=r"no configuration key 'timestep'.*timesteps"):
        skrl.SequentialTrainer(env=still(), agents=Calls(), cfg={"timestep": 3})
    with pytest.raises(UsageError, match="timesteps=-1 must be an integer of at least 0"):
        skrl.SequentialTrainer(env=still(), agents=Calls(), cfg={"timesteps": -1})
    assert issubclass(ParallelTrainerCfg, TrainerCfg)


# Several agents.


def test_scopes_share_out_the_environments() -> None:
    env, agents = still(4), [Calls(1.0), Calls(2.0)]
    trainer = trained(env, agents, scopes=[1, 3])
    assert trainer.num_simultaneous_agents == 2
    assert [len(agent.rows[0]["observations"]) for agent in agents] == [1, 3]
    taken = [member.unwrapped.taken[0][0] for member in env.unwrapped.envs]
    assert taken == [1.0, 2.0, 2.0, 2.0]
    equal = trained(still(5), [Calls(), Calls()])
    assert equal.scopes == [(0, 2), (2, 5)]
    assert "scope: 2 environments (0:2)" in str(equal)


@pytest.mark.parametrize("kind", [skrl.ParallelTrainer, skrl.StepTrainer])
def test_every_trainer_has_scopes_and_settings(kind: Any) -> None:
    settings = {"timesteps": 1, "headless": True, "close_environment_at_exit": False}
    for cfg in (settings, getattr(skrl, f"{kind.__name__}Cfg")(**settings)):
        trainer = kind(env=still(4), agents=[Calls(1.0), Calls(2.0)], scopes=[1, 3], cfg=cfg)
        assert trainer.scopes == [(0, 1), (1, 4)]
        assert (trainer.cfg.timesteps, trainer.cfg.headless) == (1, True)
    trainer = skrl.StepTrainer(env=still(4), agents=[Calls(1.0), Calls(2.0)], scopes=[1, 3], cfg=settings)
    trainer.train()
    taken = [member.unwrapped.taken[0][0] for member in trainer.env.unwrapped.envs]
    assert taken == [1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("agents", "scopes", "message"),
    [
        (0, None, "has no agent"),
        (3, None, "3 agents cannot share num_envs=2"),
        (2, [1], r"scopes=\[1\] must be 2 positive numbers"),
        (2, [1, 2], "whose sum is num_envs=2"),
    ],
)
def test_wrong_scopes(agents: int, scopes: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        skrl.SequentialTrainer(env=still(2), agents=[Calls() for _ in range(agents)], scopes=scopes, cfg=QUIET)


def test_several_agents_learn_one_after_the_other(tmp_path: Path) -> None:
    agents = [
        small.make_agent(tmp_path, skrl.RandomMemory(memory_size=32), models=small.make_models(seed=each), init=False)
        for each in range(2)
    ]
    trained(still(2), agents)
    assert [agent.learner.updates for agent in agents] == [7, 7]


class Counting(Calls):
    """An agent of a user whose only module counts the rows that it recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = torch.nn.Linear(1, 1, bias=False)
        self.checkpoint_modules["counter"] = self.counter
        self.counter.weight.data.zero_()

    def record_transition(self, **step: Any) -> None:
        self.counter.weight.data += len(step["observations"])


def test_parallel_agents_learn_in_processes_of_their_own(tmp_path: Path) -> None:
    agents = [
        small.make_agent(
            tmp_path,
            skrl.RandomMemory(memory_size=32),
            models=small.make_models(seed=each),
            experiment={"experiment_name": f"agent{each}", "checkpoint_interval": interval},
            init=False,
        )
        for each, interval in enumerate((6, "auto"))
    ]
    counting, before = Counting(), [small.weights(agent) for agent in agents]
    trained(still(4), [*agents, counting], skrl.ParallelTrainer, scopes=[1, 2, 1], timesteps=10)
    saved = [sorted(path.name for path in tmp_path.glob(f"agent{each}/checkpoints/agent_*.pt")) for each in range(2)]
    assert saved == [["agent_6.pt"], sorted(f"agent_{each}.pt" for each in range(2, 11))]  # auto: a tenth of timesteps
    for number, (agent, fresh) in enumerate(zip(agents, before, strict=True)):
        after = small.weights(agent)
        assert all(not torch.equal(after[name], fresh[name]) for name in fresh)  # in the modules that were passed
        assert len(agent.memory) == 9 * (1 + number)  # of ten steps, one only reset
        checkpoint = torch.load(tmp_path / f"agent{number}" / "checkpoints" / "agent_6.pt", weights_only=True)
        assert "critic_optimizer" in checkpoint
    assert counting.counter.weight.item() == 10


def test_parallel_agents_are_trained_or_evaluated_with_the_trainers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    class Here:
        """In place of a process."""

        def __init__(self, number: int, agent: Any, cfg: Any) -> None:
            self.agent, self.asked = agent, []  # type: ignore[var-annotated]
            agent.init(trainer_cfg=cfg)

        def begin(self, method: str, arguments: Any, named: Any) -> None:
            self.asked.append((method, arguments, named))

        def result(self) -> Any:
            method, arguments, named = self.asked.pop(0)
            return getattr(self.agent, method)(*arguments, **named)

        def call(self, method: str, *arguments: Any) -> Any:
            return getattr(self.agent, method)(*arguments)

        def close(self) -> None: ...

    monkeypatch.setattr("offbeat.compat.skrl.trainers.torch.parallel.AgentProcess", Here)
    for run, training, taken in (("train", True, [1.0, 2.0, 2.0]), ("eval", False, [0.5, 1.0, 1.0])):
        env, agents = still(3), [Calls(1.0), Calls(2.0)]
        trainer = skrl.ParallelTrainer(env=env, agents=agents, scopes=[1, 2], cfg={**QUIET, "timesteps": 2})
        getattr(trainer, run)()
        assert [member.unwrapped.taken[0][0] for member in env.unwrapped.envs] == taken
        assert [agent.training for agent in agents] == [training] * 2
        assert [agent.calls[0] for agent in agents] == [("init", 2)] * 2
        assert [len(agent.rows) for agent in agents] == [2, 2]


def test_the_process_of_an_agent_has_the_seed_and_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, float]] = []
    started: list[Any] = []

    class Draws(Calls):
        def init(self, *, trainer_cfg: Any = None) -> None:
            drawn.append((skrl.config.torch.key, float(torch.rand(()))))

    class Process:
        """Keeps what would be sent to a process; as its parent, has no message for it."""

        def __init__(self, name: str, module: str, job: Any, *others: Any) -> None:
            self.job = job()
            started.append(self)

        def start(self) -> None: ...

        def receive(self) -> None: ...

    monkeypatch.setattr("offbeat.compat.skrl.trainers.torch.parallel.Child", Process)
    for number, seed in ((0, 5), (1, 5), (0, 5), (0, 6)):
        monkeypatch.setattr(skrl.config.torch, "key", seed)
        AgentProcess(number, Draws(), TrainerCfg())
        monkeypatch.setattr(skrl.config.torch, "key", 0)  # as in a new process
        work(started[-1], started[-1].job)
    assert [key for key, _ in drawn] == [5, 5, 5, 6]
    assert drawn[0] == drawn[2]
    assert drawn[0][1] != drawn[1][1]


@pytest.mark.slow
def test_a_parallel_agent_that_fails_is_named(tmp_path: Path) -> None:
    agents = [small.make_agent(tmp_path, skrl.RandomMemory(memory_size=32), init=False) for _ in range(2)]
    agents[1].cfg.rewards_shaper = lambda *arguments: 1 / 0
    with pytest.raises(OffbeatError, match=r"agent 1 ended(.|\n)*ZeroDivisionError"):
        trained(still(2), agents, skrl.ParallelTrainer)


# One step per call.


def test_step_trainer_makes_one_step_per_call() -> None:
    agent = Calls()
    trainer = skrl.StepTrainer(env=still(steps=2), agents=agent, cfg={"timesteps": 9, **QUIET})
    assert trainer.observations is None
    observations, rewards, terminated, truncated, infos = trainer.train()
    assert (int(observations[0, 0]), float(rewards), bool(terminated), bool(truncated)) == (1, 1.0, False, False)
    assert "episode" in infos
    trainer.train(timestep=50, timesteps=60)
    trainer.eval()
    trainer.eval(timestep=70, timesteps=80)
    acts = [call[1] for call in agent.calls if call[0] == "act"]
    assert list(zip(acts, agent.totals, strict=True)) == [(1, 9), (50, 60), (2, 9), (70, 80)]
    assert agent.training is False
    assert int(trainer.observations[0, 0]) == 0  # after the reset
    assert trainer.states is None
    trainer.reset()
    trainer.train()
    assert agent.calls[-1] == ("post", 1)


def test_a_trainer_of_the_user() -> None:
    class Own(Trainer):
        def train(self) -> str:
            return f"{self.num_simultaneous_agents} agent, {self.cfg.timesteps}"

    assert Own(cfg=TrainerCfg(timesteps=4, **QUIET), env=still(), agents=Calls()).train() == "1 agent, 4"
