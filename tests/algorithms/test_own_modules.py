"""Networks of a user's own: they learn, repeat, resume, and are refused in words where they cannot work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import offbeat
from driven_learner import Learner
from offbeat import presets
from offbeat.algorithms.torch.seeding import seeded
from offbeat.errors import UsageError
from offbeat.settings import flatten, make_config, make_learner_config, read, train_settings
from offbeat.types import EnvSpec
from small_learners import SPEC, batches, make, same, updated
from specs import choice_spec, vector_spec


class OwnActor(nn.Module):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.body = nn.Linear(spec.observation_size, 8)
        self.mean, self.log_std = nn.Linear(8, spec.action_size), nn.Linear(8, spec.action_size)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.body(obs))
        return self.mean(hidden), self.log_std(hidden)


class OwnCritic(nn.Module):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.body = nn.Linear(spec.observation_size + spec.action_size, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.body(torch.cat((obs, action), 1))


def test_own_modules_learn_and_are_saved_by_their_own_names() -> None:
    learner = make(actor=OwnActor, critic=OwnCritic)
    before = learner.arrays()
    assert {"actor/body.weight", "critic/members.1.body.bias", "target/members.0.seen"} <= before.keys()
    updated(learner, 2)
    after = learner.arrays()
    for name in (
        "actor/mean.weight",
        "actor/log_std.bias",
        "critic/members.1.body.weight",
        "target/members.0.body.bias",
    ):
        assert not np.array_equal(before[name], after[name]), name
    other = make(actor=OwnActor, critic=OwnCritic)
    other.restore(after)
    assert same(other, learner)


def test_own_actor_may_supply_its_own_sample() -> None:
    class Uniform(OwnActor):
        def sample(self, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tanh(self.mean(torch.tanh(self.body(obs))) + noise), -noise.square().sum(1)

    learner = updated(make(actor=Uniform), 2)
    assert learner.drain()["entropy"] > 0


def test_own_modules_of_the_wrong_shape_are_refused_in_words() -> None:
    class WrongActor(OwnActor):
        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(obs), 3)

    class WrongCritic(OwnCritic):
        def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            return action

    with pytest.raises(UsageError, match="log_std"):
        make(actor=WrongActor, precision="float32")
    with pytest.raises(UsageError, match="one value per row"):
        make(critic=WrongCritic)


class Dropping(OwnCritic):
    """Draws from torch at every forward."""

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return nn.functional.dropout(super().forward(obs, action), 0.5, self.training)


def test_own_modules_that_draw_random_numbers_repeat_and_resume_exactly() -> None:
    first, second = (updated(make(critic=Dropping), 4) for _ in range(2))
    assert same(first, second)
    resumed = make(critic=Dropping)
    torch.rand(7)  # whatever else the process drew
    resumed.restore(updated(make(critic=Dropping), 2).arrays())
    for batch, noise in batches(4)[2:]:
        resumed.update_once(batch, noise)
    assert same(resumed, first)


def test_own_modules_start_from_the_runs_seed() -> None:
    torch.rand(3)
    assert same(make(actor=OwnActor), make(actor=OwnActor))
    other = Learner(
        "sac", make_learner_config("sac", actor=OwnActor), SPEC, rng=np.random.default_rng(2), precision="float64"
    )
    assert not np.array_equal(other.arrays()["actor/body.weight"], make(actor=OwnActor).arrays()["actor/body.weight"])


def test_buffers_of_own_modules_are_copied_to_the_target() -> None:
    learner = updated(make(critic=Dropping), 2)
    arrays = learner.arrays()
    assert arrays["critic/members.0.seen"] > 0
    np.testing.assert_array_equal(arrays["target/members.0.seen"], arrays["critic/members.0.seen"])


def test_own_actors_see_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.algorithms.torch.batch.BLOCK_ROWS", 8)
    sizes = []

    class Watching(OwnActor):
        def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            if self.training:
                sizes.append(len(obs))
            return super().forward(obs)

    updated(make(actor=Watching))
    assert set(sizes) == {32}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"actor": lambda spec: nn.Identity()}, "your actor has no parameter"),
        ({"actor": lambda spec: nn.Linear(3, 4)}, "your actor raised RuntimeError"),
        ({"critic": lambda spec: nn.Linear(3, 4)}, "your critic raised"),
        ({"actor_schedule": lambda progress: 1 / 0, "planned": 5}, "ZeroDivisionError"),
        ({"actor_schedule": lambda progress: float("nan"), "planned": 5}, "nan"),
    ],
)
def test_own_code_that_cannot_work_is_refused_in_words(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(**settings)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("sac", {"critic_hidden": (8,)}),
        ("td3", {"critic_hidden": (8,)}),
        ("ppo", {"critic_hidden": (8,)}),
        ("redq", {"critic_layer_norm": True}),
        ("sac", {"critic_dropout": 0.1}),
    ],
)
def test_layers_of_the_built_in_critics_are_refused_beside_an_own_one(algorithm: str, settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(UsageError, match=f"{name}=.* your own critic has its own layers: leave {name} out"):
        make_learner_config(algorithm, critic=OwnCritic, **settings)
    make_learner_config(algorithm, **settings)


OWN = {"actor": OwnActor, "critic": OwnCritic}


@pytest.mark.parametrize(
    ("algorithm", "company", "name", "value", "words"),
    [
        ("dqn", {"critic": OwnCritic}, "hidden", (8,), "your own networks have their own layers"),
        ("dqn", {"critic": OwnCritic}, "activation", "tanh", "your own networks have their own layers"),
        ("dqn", {"critic": OwnCritic}, "layer_norm", True, "your own networks have their own layers"),
        ("dqn", {"critic": OwnCritic}, "dueling", True, "your own critic has its own outputs"),
        ("sac", OWN, "hidden", (8,), "your own networks have their own layers"),
        ("ppo", OWN, "hidden", (8,), "your own networks have their own layers"),
        ("sac", {}, "observation_clip", 5.0, "normalise_observations, but .* is False: set normalise_observations"),
        ("sac", {"temperature": "fixed"}, "temperature_learning_rate", 1e-2, "temperature is fixed: .*temperature lea"),
        ("redq", {"temperature": "fixed"}, "temperature_schedule", "linear", "temperature is fixed: .*temperature lea"),
        ("ddpg", {}, "target_noise_clip", 0.1, "target_noise, but .* is 0.0: set target_noise, or leave"),
        ("td3", {"target_noise": 0.0}, "target_noise_clip", 0.1, "target_noise, but target_noise is 0"),
        ("appo", {}, "tau", 0.5, "target_every, but .* is None: set target_every, or leave tau out"),
    ],
)
def test_a_setting_without_effect_in_its_company_is_refused(
    algorithm: str, company: dict[str, Any], name: str, value: Any, words: str
) -> None:
    given = {"env": "CartPole-v1" if algorithm == "dqn" else "Pendulum-v1", **company}
    with pytest.raises(UsageError, match=f"{name}=.* (has no effect, because|needs) {words}"):
        presets.assemble(algorithm, read(train_settings(algorithm), {**given, name: value}))
    config = presets.assemble(algorithm, read(train_settings(algorithm), given))  # a preset does not stand in the way
    assert make_config(algorithm, flatten(config)) == config, "what a run writes can be read again"


@pytest.mark.parametrize("company", [{"actor": OwnActor}, {"critic": OwnCritic}])
def test_hidden_has_an_effect_while_one_network_is_built_in(company: dict[str, Any]) -> None:
    for algorithm in ("sac", "td3", "ppo"):
        assert make_learner_config(algorithm, hidden=(8,), **company).networks.hidden == (8,)


def test_a_schedule_that_turns_bad_later_ends_in_words() -> None:
    learner = make(actor_schedule=lambda progress: 1.0 - 2.0 * progress, planned=4)
    assert learner.rates()["actor"] > 0
    learner.updates = 3
    with pytest.raises(UsageError, match=r"actor_schedule: your schedule returned -0\.5 at progress 0\.75"):
        learner.rates()


class Sampling(OwnActor):
    def sample(self, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError


class Labelled(nn.Linear):
    """Gives a dict where a tensor is asked for."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec.observation_size, 3)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return {"values": super().forward(inputs[0])}


@pytest.mark.parametrize(
    ("algorithm", "spec", "settings", "words"),
    [
        ("sac", SPEC, {"actor": Labelled}, r"your actor returned a dict: return \(mean, log_std\)"),
        ("sac", SPEC, {"critic": Labelled}, "your critic gave a dict for a batch of 2; return one value per row"),
        ("sac", choice_spec(5, 3), {"actor": Labelled}, "your actor returned a dict: return one logit per action"),
        (
            "sac",
            choice_spec(5, 3),
            {"actor": Sampling},
            r"sample, which SAC and REDQ with Discrete actions never call: return logits from forward, and remove",
        ),
        ("td3", SPEC, {"actor": Labelled}, r"your actor returned a dict: return actions in \[-1, 1\]"),
        (
            "td3",
            SPEC,
            {"actor": Sampling},
            r"sample, which TD3 and DDPG never call: return actions from forward, and remove",
        ),
        ("ddpg", SPEC, {"actor": Sampling}, r"sample, which TD3 and DDPG never call"),
        ("dqn", choice_spec(5, 3), {"critic": Labelled}, "your critic returned a dict: return one value per action"),
        ("dqn", choice_spec(5, 3), {"critic": lambda spec: nn.Linear(5, 4)}, r"your critic gave \(2, 4\) for 2 rows"),
        ("dqn", choice_spec(5, 3), {"critic": lambda spec: nn.Identity()}, "your critic has no parameter"),
    ],
)
def test_each_algorithm_calls_an_own_module_by_its_name_and_says_what_it_must_return(
    algorithm: str, spec: EnvSpec, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        Learner(algorithm, make_learner_config(algorithm, **settings), spec, rng=np.random.default_rng(0))


def test_torchs_generators_are_seeded_for_the_devices_in_use_alone_and_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forked, fork = [], torch.random.fork_rng

    def watched(devices: Any = None) -> Any:
        forked.append(devices)
        return fork(devices)

    monkeypatch.setattr(torch.random, "fork_rng", watched)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", None)  # would seed every GPU
    drawn = []
    for _ in range(2):
        before = torch.get_rng_state()
        with seeded(3, torch.device("cpu")):
            drawn.append(torch.rand(4))
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(1)
    assert torch.equal(*drawn)
    assert forked == [[], []]


@pytest.mark.parametrize("algorithm", ["sac", "td3", "ppo", "appo"])
@pytest.mark.parametrize("key", ["actor", "critic"])
def test_a_module_that_is_made_already_is_refused_with_the_remedy(algorithm: str, key: str) -> None:
    with pytest.raises(UsageError, match=rf"{key} is an existing Linear, .*{key}=lambda spec: Linear\(...\)"):
        offbeat.Agent(algorithm, vector_spec(5, 2), **{key: nn.Linear(5, 2)})


@pytest.mark.parametrize("algorithm", ["sac", "td3", "ppo"])
@pytest.mark.parametrize("frozen", [False, True])
def test_an_encoder_that_actor_and_critic_share_is_refused_unless_it_is_frozen(algorithm: str, frozen: bool) -> None:
    shared = nn.Linear(5, 4).requires_grad_(not frozen)

    class Actor(nn.Module):
        def __init__(self, spec: EnvSpec) -> None:
            super().__init__()
            self.encoder, self.out = shared, nn.Linear(4, 4 if algorithm == "sac" else 2)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return self.out(self.encoder(obs))

    class Critic(nn.Module):
        def __init__(self, spec: EnvSpec) -> None:
            super().__init__()
            self.encoder, self.out = shared, nn.Linear(4 if algorithm == "ppo" else 6, 1)

        def forward(self, obs: torch.Tensor, *action: torch.Tensor) -> torch.Tensor:
            return self.out(torch.cat((self.encoder(obs), *action), -1))

    if frozen:
        offbeat.Agent(algorithm, vector_spec(5, 2), actor=Actor, critic=Critic)
        return
    words = r"actor and critic.* share the parameter encoder\.weight: each network has its own"
    with pytest.raises(UsageError, match=words):
        offbeat.Agent(algorithm, vector_spec(5, 2), actor=Actor, critic=Critic)


def test_critics_that_are_one_module_are_refused() -> None:
    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(7, 1)

        def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            return self.out(torch.cat((obs, action), -1))

    one = Critic()
    with pytest.raises(UsageError, match=r"critic 0 and critic 1 share the parameter out\.weight"):
        offbeat.Agent("sac", vector_spec(5, 2), critic=lambda spec: one)
