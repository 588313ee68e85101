"""Networks with a recurrent trunk over packed observations, in every algorithm, and a user's recurrent module."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from offbeat import flat
from offbeat.algorithms.configs import APPO, DQN, PPO, SAC, TD3
from offbeat.algorithms.configs.checks import check_config
from offbeat.algorithms.configs.groups import learned_rows
from offbeat.algorithms.packing import Packing
from offbeat.algorithms.torch import appo, dqn, sac, sac_discrete, td3
from offbeat.algorithms.torch.actor_critic import make_actor_and_critics
from offbeat.algorithms.torch.memory import UserRecurrent, WithMemory
from offbeat.algorithms.torch.networks import MLP
from offbeat.algorithms.torch.recurrent import Recurrent
from offbeat.errors import UsageError
from recurrent_parts import (
    OwnGRU,
    Sequences,
    config_of,
    random_sequences,
    sequence_batch,
)
from specs import choice_spec, vector_spec

TOLERANCE = {"rtol": 0, "atol": 1e-9}
CPU = torch.device("cpu")
OFF_POLICY = {
    "sac": (sac, SAC, vector_spec(state=2)),
    "redq": (sac, partial(config_of, SAC, critics=3, target_subset=2, actor_value="mean"), vector_spec()),
    "discrete sac": (sac_discrete, SAC, choice_spec()),
    "td3": (td3, TD3, vector_spec()),
    "dqn": (dqn, DQN, choice_spec()),
    "dueling dqn": (dqn, partial(config_of, DQN, dueling=True), choice_spec()),
}
off_policy = pytest.mark.parametrize("algorithm", OFF_POLICY)
every_network = pytest.mark.parametrize("network", ["rnn", "gru", "lstm", OwnGRU], ids=str)


def make(algorithm: str, **settings: Any) -> tuple[Any, Any, Any, Any]:
    module, kind, spec = OFF_POLICY[algorithm]
    config = kind(**settings) if isinstance(kind, partial) else config_of(kind, **settings)
    return module, config, spec, module.init(config, spec, np.random.default_rng(0), CPU, torch.float64)


def update(module: Any, config: Any, spec: Any, state: Any, batch: Any, updates: int = 0) -> Any:
    noise = torch.from_numpy(np.random.default_rng(3).standard_normal(module.noise_shape(config, spec)))
    rates = {"actor": 1e-2, "critic": 1e-2, "temperature": 1e-2}
    with torch.no_grad():
        return module.update(state, config, spec, batch, noise, rates, updates)


def network(trunk: Any, burn_in: int, *, stored: bool = True, ahead: int = 0) -> WithMemory:
    mlp = MLP((trunk.size, 8, 2), activation="tanh", layer_norm=False, rng=np.random.default_rng(2))
    return WithMemory(trunk, mlp, Packing(5, trunk.state_size, burn_in, ahead), stored).double()


def trunks() -> dict[str, Any]:
    made: dict[str, Any] = {kind: Recurrent(kind, 5, 6, 2, np.random.default_rng(1)) for kind in ("rnn", "gru", "lstm")}
    torch.manual_seed(0)
    return made | {"own": UserRecurrent(OwnGRU(vector_spec()), 5)}


@pytest.mark.parametrize("kind", trunks())
@pytest.mark.parametrize("stored", [True, False])
def test_rows_are_those_of_each_sequence_step_by_step(kind: str, stored: bool) -> None:
    trunk = trunks()[kind].double()
    whole = network(trunk, 2, stored=stored)
    data = random_sequences(7, 3, 5, trunk.state_size)
    found, after = whole(data.packed), whole(data.next_packed)
    assert found.shape == after.shape == (5 * 3, 2)
    for row in range(3):
        state = trunk.initial_state(1)
        for step in range(7):
            if data.broken[step, row]:
                state = data.start[step, row].unsqueeze(0) if stored else trunk.initial_state(1)
            features, state = trunk.step(data.obs[step, row].unsqueeze(0), state)
            following, _ = trunk.step(data.following[step, row].unsqueeze(0), state)
            if step >= 2:
                index = (step - 2) * 3 + row
                torch.testing.assert_close(found[index], whole.mlp(features)[0], **TOLERANCE)
                torch.testing.assert_close(after[index], whole.mlp(following)[0], **TOLERANCE)


@pytest.mark.parametrize("kind", trunks())
def test_with_n_steps_the_bootstrapped_observation_follows_a_later_state(kind: str) -> None:
    trunk = trunks()[kind].double()
    whole = network(trunk, 1, ahead=2)
    data = random_sequences(6, 3, 5, trunk.state_size)
    rng = np.random.default_rng(5)
    offset = torch.from_numpy(rng.integers(0, 3, (6, 3)))
    packed = torch.cat((data.next_packed, offset.unsqueeze(2)), 2)
    found = whole(packed)
    assert found.shape == (3 * 3, 2)
    _, states = trunk(data.obs, data.start[0], data.broken, data.start)
    for step in range(1, 4):
        for row in range(3):
            state = states[step + offset[step, row], row].unsqueeze(0)
            features, _ = trunk.step(data.following[step, row].unsqueeze(0), state)
            torch.testing.assert_close(found[(step - 1) * 3 + row], whole.mlp(features)[0], **TOLERANCE)
    assert whole(data.packed[:4]).shape == (3 * 3, 2)


def test_a_packed_observation_of_another_width_is_refused() -> None:
    trunk = trunks()["gru"].double()
    with pytest.raises(ValueError, match="has 19 columns; it must have 18, or as a next observation 23"):
        network(trunk, 0)(torch.zeros(3, 2, 19, dtype=torch.float64))


@pytest.mark.parametrize("kind", trunks())
def test_burn_in_has_no_gradient(kind: str) -> None:
    trunk = trunks()[kind].double()
    data = random_sequences(7, 3, 5, trunk.state_size)
    data = dataclasses.replace(data, broken=data.broken & (torch.arange(7) < 1).unsqueeze(1))
    with torch.no_grad():
        state = trunk(data.obs[:2], data.start[0], data.broken[:2], data.start[:2])[1][-1]
    later = dataclasses.replace(data, obs=data.obs[2:], broken=data.broken[:5], following=data.following[2:])
    later = dataclasses.replace(later, start=state.expand(5, *state.shape))
    weight = torch.from_numpy(np.random.default_rng(4).standard_normal((15, 2)))
    with_burn_in, without = network(trunk, 2), network(trunk, 0)
    gradients = [
        torch.autograd.grad((each(packed) * weight).sum(), list(trunk.parameters()))
        for each, packed in ((with_burn_in, data.packed), (without, later.packed))
    ]
    for mine, its in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, its, **TOLERANCE)


@off_policy
@every_network
@pytest.mark.parametrize("start_state", ["stored", "zero"])
def test_an_update_changes_every_network(algorithm: str, network: Any, start_state: str) -> None:
    settings = {"burn_in": 2, "sequence_length": 4, "batch_size": 3, "target_every": 1}
    module, config, spec, state = make(algorithm, network=network, start_state=start_state, **settings)
    carry = {"rnn": 6, "gru": 6, "lstm": 12}.get(network, 6) if start_state == "stored" else 0
    batch = sequence_batch(spec, random_sequences(6, 3, 5, carry), 4)
    assert len(batch) == learned_rows(config) == 12
    networks = {each.name: getattr(state, each.name) for each in dataclasses.fields(state)}
    networks = {name: each for name, each in networks.items() if hasattr(each, "flat")}
    before = {name: each.flat.clone() for name, each in networks.items()}
    for updates in range(2):
        metrics, errors = update(module, config, spec, state, batch, updates)
    assert errors.shape[-1] == 12
    assert all(torch.isfinite(value).all() for value in metrics.values())
    for name, each in networks.items():
        trunk = [view for key, view in each.named() if key.startswith("trunk/")]
        assert trunk, name
        assert not torch.equal(each.flat, before[name]), name


@off_policy
def test_steps_that_all_begin_anew_are_learned_from_like_sequences_of_one_step(algorithm: str) -> None:
    long, short = (make(algorithm, sequence_length=length, batch_size=12 // length) for length in (4, 1))
    data = random_sequences(4, 3, 5, 6)
    data = dataclasses.replace(data, broken=torch.ones_like(data.broken))
    apart = Sequences(*(getattr(data, each.name).flatten(0, 1).unsqueeze(0) for each in dataclasses.fields(data)))
    for made, sequences, learned in ((long, data, 4), (short, apart, 1)):
        module, config, spec, state = made
        update(module, config, spec, state, sequence_batch(spec, sequences, learned))
    torch.testing.assert_close(long[3].critic.flat, short[3].critic.flat, **TOLERANCE)
    if hasattr(long[3], "actor"):
        torch.testing.assert_close(long[3].actor.flat, short[3].actor.flat, **TOLERANCE)


@pytest.mark.parametrize("kind", [PPO, APPO])
@pytest.mark.parametrize("spec", [vector_spec(state=2), choice_spec()], ids=["box", "discrete"])
@every_network
def test_actor_and_value_of_ppo_take_sequences(kind: type, spec: Any, network: Any) -> None:
    config = config_of(kind, network=network, sequence_length=4)
    state = appo.init(config, spec, np.random.default_rng(0), CPU, torch.float64)
    data = random_sequences(4, 3, 5, 12 if network == "lstm" else 6)
    out, tape = state.actor.forward(data.packed)
    assert out.shape == (12, spec.choices or spec.action_size)
    state.actor.backward(tape, torch.ones_like(out))
    assert state.actor.gradient.count_nonzero() > 100
    assert state.critic(data.packed, torch.zeros(12, spec.state_size, dtype=torch.float64)).shape == (12, 1)


def test_weights_are_named_by_layer_below_and_above_the_trunk() -> None:
    names = {}
    for network in ("gru", OwnGRU):
        config = config_of(SAC, network=network)
        actor, critic = make_actor_and_critics(config, vector_spec(), np.random.default_rng(0), CPU, torch.float32, 4)
        names[network] = [name for name, _ in actor.named()]
        shapes = {name: tuple(tensor.shape) for name, tensor in critic.named()}
        assert shapes["0/weight"] == (2, 6 + 2, 8)
    parts = ("input_weight", "state_weight", "input_bias", "state_bias")
    above = ["0/weight", "0/bias", "1/weight", "1/bias"]
    assert names["gru"] == [f"trunk/0/{part}" for part in parts] + above
    own = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    assert names[OwnGRU] == [f"trunk/cell.{part}" for part in own] + above


def test_a_users_module_computes_what_the_same_built_in_one_does() -> None:
    own = UserRecurrent(OwnGRU(vector_spec()).double(), 5)
    built_in = Recurrent("gru", 5, 6, 1, np.random.default_rng(0)).double()
    pairs = [("weight_ih", "input_weight"), ("weight_hh", "state_weight"), ("bias_ih", "input_bias")]
    with torch.no_grad():
        for theirs, ours in [*pairs, ("bias_hh", "state_bias")]:
            getattr(built_in.layers[0], ours).copy_(getattr(own.own.cell, theirs).t())
    data = random_sequences(7, 3, 5, 6)
    results = [each(data.obs, data.start[0], data.broken, data.start) for each in (own, built_in)]
    for mine, its in zip(*results, strict=True):
        torch.testing.assert_close(mine, its, **TOLERANCE)


def test_a_users_module_is_told_where_its_state_is_the_initial_one() -> None:
    class Recorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.seen = nn.Parameter(torch.ones(1)), []

        def initial_state(self, batch: int) -> torch.Tensor:
            return torch.full((batch, 1), 0.5)

        def forward(self, x: Any, state: Any, mask: Any) -> Any:
            self.seen.append((state[:, 0].tolist(), mask[:, 0].tolist()))
            return x * self.weight, state + 1.0

    module = Recorder()
    trunk = UserRecurrent(module, 2)
    module.seen.clear()
    broken = torch.tensor([[True, True], [False, True]])
    start = torch.tensor([[[0.5], [7.0]], [[9.0], [0.5]]])
    trunk(torch.zeros(2, 2, 2), trunk.initial_state(2), broken, start)
    assert module.seen == [([0.5, 7.0], [0.0, 1.0]), ([1.5, 0.5], [1.0, 0.0])]


class _Wrong(nn.Module):
    """initial: the shape of the initial state for 2 rows; (2, C) is (batch, C). after: what forward returns."""

    def __init__(self, initial: Any, after: Any = None) -> None:
        super().__init__()
        self.weight, self._initial, self._after = nn.Parameter(torch.ones(1)), initial, after

    def initial_state(self, batch: int) -> Any:
        if not isinstance(self._initial, tuple):
            return self._initial
        return torch.zeros((batch, *self._initial[1:]) if self._initial[0] == 2 else self._initial)

    def forward(self, x: Any, state: Any, mask: Any) -> Any:
        return self._after


class Stubborn(_Wrong):
    """Its initial state has two rows for every batch."""

    def __init__(self) -> None:
        super().__init__(torch.zeros(2, 4))


PAIR = torch.zeros(2, 3), torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (_Wrong((1, 2, 4)), r"initial_state\(2\) gave a state \(1, 2, 4\) for 2 rows; .* Concatenate"),
        (_Wrong(list(PAIR)), "gave a state of type list"),
        (_Wrong((2, 4), PAIR[0]), "forward returned a Tensor, not a pair"),
        (_Wrong((2, 4), (torch.zeros(1, 3), PAIR[1])), r"features \(1, 3\) for 2 rows"),
        (_Wrong((2, 3), PAIR), r"forward gave a state \(2, 4\) for 2 rows, but the state before was \(2, 3\)"),
        (Stubborn(), r"initial_state\(1\) gave a state \(2, 4\) for 1 row; initial_state"),
        (nn.GRU(5, 6), "GRU is not a recurrent nn.Module with initial_state"),
    ],
)
def test_a_users_module_with_another_shape_is_refused_with_the_rule(module: nn.Module, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        UserRecurrent(module, 5)
    assert "forward(x, state, mask), for x (batch, 5)" in str(caught.value)


def test_an_error_in_a_users_module_is_reported_with_the_rule() -> None:
    class Failing(OwnGRU):
        def forward(self, x: Any, state: Any, mask: Any) -> Any:
            raise RuntimeError("mat1 and mat2")

    with pytest.raises(UsageError, match="two rows of zeros raised RuntimeError: mat1 and mat2; initial_state"):
        UserRecurrent(Failing(vector_spec()), 5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"network": "gruu"}, "network='gruu' is none of mlp, rnn, gru, lstm.*gru"),
        ({"network": "mlp", "burn_in": 3}, "burn_in=3 has no effect, because network is mlp.*rnn, gru or lstm"),
        ({"network": OwnGRU, "recurrent_size": 9}, "recurrent_size=9 has no effect, because your own recurrent module"),
        ({"network": "gru", "compile": "default"}, "compile='default' has no effect"),
        ({"network": "gru", "actor": OwnGRU}, "actor is a network of your own.*network=module:callable"),
        ({"network": "gru", "burn_in": -1}, "burn_in=-1 is out of range"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_config(_overlaid(**settings))


def test_settings_of_recurrent_networks_are_accepted() -> None:
    for network in ("rnn", "gru", "lstm", OwnGRU, "some.module:make"):
        check_config(_overlaid(network=network, burn_in=3, sequence_length=5, start_state="zero"))


def _overlaid(**settings: Any) -> Any:
    return flat.overlay(SAC(), settings)
