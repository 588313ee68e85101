"""Policies with a recurrent state: equal to torch's cells and to the learner's network, and loaded from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offbeat.algorithms.configs import DQN, SAC, TD3
from offbeat.algorithms.torch import dqn, sac, td3
from offbeat.deploy import export_policy, load_policy
from offbeat.errors import CheckpointError, UsageError
from offbeat.policies import make_policy, widths
from offbeat.policies.mlp import MLPPolicy
from offbeat.policies.recurrent import PARTS
from offbeat.types import Array
from offbeat.weights.publication import Publication
from recurrent_parts import OwnGRU, config_of
from specs import choice_spec, vector_spec

CELLS = {"rnn": torch.nn.RNNCell, "gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}
OF_TORCH = dict(zip(PARTS, ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), strict=True))
every_kind = pytest.mark.parametrize("kind", CELLS)
every_backend = pytest.mark.parametrize("backend", ["numpy", "torch"])
SPEC = vector_spec()


def described(kind: str, size: int = 16, layers: int = 1) -> dict[str, Any]:
    recurrent = {"kind": kind, "size": size, "layers": layers}
    return {"kind": "deterministic", "head": "deterministic", "activation": "tanh", "recurrent": recurrent}


def weights_of(cells: list[Any], rng: np.random.Generator) -> dict[str, Array]:
    weights = {
        f"actor/trunk/{layer}/{part}": getattr(cell, name).detach().numpy().T
        for layer, cell in enumerate(cells)
        for part, name in OF_TORCH.items()
    }
    above = {"actor/0/weight": rng.standard_normal((16, 2)), "actor/0/bias": rng.standard_normal(2)}
    return weights | {name: array.astype(np.float32) for name, array in above.items()}


@every_kind
@every_backend
@pytest.mark.parametrize("layers", [1, 2])
def test_acting_equals_torchs_cells_over_200_steps_with_resets(kind: str, backend: str, layers: int) -> None:
    torch.manual_seed(0)
    rng, num_envs = np.random.default_rng(0), 3
    cells = [CELLS[kind](5 if layer == 0 else 16, 16) for layer in range(layers)]
    policy, weights = make_policy(described(kind, layers=layers), acting=backend), weights_of(cells, rng)
    policy.load(weights)
    carry = policy.initial_carry(num_envs)
    states: list[Any] = [None] * layers
    for _ in range(200):
        obs, before = rng.standard_normal((num_envs, 5), np.float32), carry.copy()
        action, carry, extras = policy.act(obs, carry, None)
        np.testing.assert_array_equal(extras["carry"], before)
        x: Any = torch.from_numpy(obs)
        with torch.no_grad():
            for layer, cell in enumerate(cells):
                states[layer] = cell(x, states[layer])
                x = states[layer][0] if kind == "lstm" else states[layer]
        wanted = torch.cat([part for state in states for part in (state if kind == "lstm" else (state,))], 1)
        np.testing.assert_allclose(carry, wanted.numpy(), rtol=0, atol=1e-6)
        expected = np.tanh(x.numpy() @ weights["actor/0/weight"] + weights["actor/0/bias"])
        np.testing.assert_allclose(action, expected, rtol=0, atol=5e-6)
        ended = rng.random(num_envs) < 0.05
        carry = np.where(ended[:, None], policy.initial_carry(num_envs), carry)
        kept = torch.from_numpy(~ended).unsqueeze(1)
        for layer, state in enumerate(states):
            states[layer] = tuple(part * kept for part in state) if kind == "lstm" else state * kept


@pytest.mark.parametrize("network", [*CELLS, OwnGRU], ids=str)
@pytest.mark.parametrize(
    ("module", "kind", "spec"),
    [(sac, SAC, SPEC), (td3, TD3, SPEC), (dqn, DQN, choice_spec())],
    ids=["sac", "td3", "dqn"],
)
def test_stored_states_replayed_through_the_learners_network_give_the_actions(
    network: Any, module: Any, kind: type, spec: Any
) -> None:
    config = config_of(kind, network=network)
    state = module.init(config, spec, np.random.default_rng(0), torch.device("cpu"), torch.float32)
    learner = state.critic if module is dqn else state.actor
    policy = make_policy(
        module.policy_description(config, spec), spec=spec, actor=network if callable(network) else None
    )
    policy.load({f"actor/{name}": tensor.detach().numpy().copy() for name, tensor in learner.named()})
    rng, carry, rows, actions = np.random.default_rng(1), policy.initial_carry(2), [], []
    for step in range(20):
        obs = rng.standard_normal((2, 5), np.float32)
        action, after, extras = policy.act(obs, carry, None)
        broken = np.full((2, 1), step in (0, 7), np.float32)
        rows.append(np.concatenate((obs, broken, extras["carry"]), 1))
        actions.append(action)
        carry = policy.initial_carry(2) if step == 6 else after
    out = learner(torch.from_numpy(np.stack(rows))).numpy()
    found = out.argmax(1)[:, None] if module is dqn else np.tanh(out[:, :2])
    np.testing.assert_allclose(found, np.concatenate(actions), rtol=0, atol=1e-6)


def test_noise_with_a_memory_keeps_its_part_of_the_carry_apart() -> None:
    drift = {"kind": "ornstein_uhlenbeck", "scale": 0.2, "spread": 1.0, "pull": 0.15, "time_step": 0.01}
    policy = make_policy({**described("gru"), "exploration": drift}, spec=SPEC, num_envs=3)
    policy.load(weights_of([torch.nn.GRUCell(5, 16)], np.random.default_rng(0)))
    carry = policy.initial_carry(3)
    assert carry.shape == (3, 16 + 2)
    _, after, extras = policy.act(np.ones((3, 5), np.float32), carry, np.random.default_rng(0))
    np.testing.assert_array_equal(extras["carry"], carry[:, :16])
    assert (after != carry).all()


def test_a_large_trunk_acts_in_torch() -> None:
    assert widths(described("lstm", 300), (8,)) == (1200, 300, 8)
    assert widths({"kind": "deterministic"}, [8, 9]) == (8, 9)


def exported(path: Path, kind: Any = "gru", **changes: Any) -> Path:
    torch.manual_seed(0)
    weights = weights_of([torch.nn.GRUCell(5, 16)], np.random.default_rng(0))
    description = described(kind)
    if kind == "own":
        weights = {name: array for name, array in weights.items() if "trunk" not in name}
        own = OwnGRU(SPEC, 16).state_dict().items()
        weights |= {f"actor/trunk/{name}": tensor.numpy() for name, tensor in own}
        description["recurrent"] = {"kind": "own", "make": None}
    export_policy(path, Publication(1, weights | changes), description, SPEC, {"step": 1})
    return path


def own_trunk(spec: Any) -> OwnGRU:
    return OwnGRU(spec, 16)


@pytest.mark.parametrize("kind", ["gru", "own"])
def test_a_loaded_policy_keeps_its_state_between_calls_until_it_is_reset(tmp_path: Path, kind: str) -> None:
    load = {"actor": own_trunk} if kind == "own" else {}
    policy = load_policy(exported(tmp_path / "policy", kind), **load)  # type: ignore[arg-type]
    obs = np.random.default_rng(0).standard_normal((6, 5), np.float32)
    first = [policy.act(each) for each in obs]
    assert not np.allclose(policy.act(obs[0]), first[0], atol=1e-3)
    policy.reset()
    again = [policy.act(each) for each in obs]
    np.testing.assert_array_equal(first, again)
    carry, plain = policy.policy.initial_carry(1), []
    for each in obs:
        action, carry, _ = policy.policy.act(each[None], carry, None)
        plain.append(action[0])
    np.testing.assert_allclose(first, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("which", [[1], np.array([False, True, False])], ids=["numbers", "mask"])
def test_a_batch_has_a_state_for_each_observation_and_some_of_them_are_reset(tmp_path: Path, which: Any) -> None:
    policy, alone = (load_policy(exported(tmp_path / name)) for name in ("one", "two"))
    obs = np.random.default_rng(0).standard_normal((4, 3, 5), np.float32)
    expected = []
    for row in range(3):
        alone.reset()
        for step in range(4):
            if step == 2 and row == 1:
                alone.reset()
            expected.append(alone.act(obs[step, row]))
    found = []
    for step in range(4):
        if step == 2:
            policy.reset(which)
        found.append(policy.act(obs[step]))
    wanted = np.array(expected).reshape(3, 4, 2).swapaxes(0, 1)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    with pytest.raises(UsageError, match=r"act got 2 observations, but .* keeps the states of 3; .* call reset\(\)"):
        policy.act(obs[0, :2])
    for wrong in ([3], [-1], [True], 0.5):
        with pytest.raises(UsageError, match="pass the numbers of observations, 0 to 2, a mask of shape"):
            policy.reset(wrong)
    policy.reset([])
    policy.reset()
    assert policy.act(obs[0, :2]).shape == (2, 2)


def test_a_policy_without_a_state_ignores_reset_and_takes_any_number_of_observations(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {"actor/0/weight": rng.standard_normal((5, 2), np.float32), "actor/0/bias": np.zeros(2, np.float32)}
    description = {"kind": "deterministic", "head": "deterministic", "activation": "relu"}
    export_policy(tmp_path / "policy", Publication(1, weights), description, SPEC, {"step": 1})
    policy = load_policy(tmp_path)
    policy.act(np.zeros((3, 5), np.float32))
    policy.reset([0])
    assert policy.act(np.zeros(5, np.float32)).shape == (2,)


def test_an_exported_trunk_that_does_not_fit_its_description_is_refused(tmp_path: Path) -> None:
    wrong = {"actor/trunk/0/state_bias": np.zeros(47, np.float32)}
    with pytest.raises(CheckpointError, match=r"'actor/trunk/0/state_bias' is \(47,\), but .* it must be \(48,\)"):
        load_policy(exported(tmp_path / "one", **wrong))
    with pytest.raises(CheckpointError, match=r"input_bias. is \(48,\), but .* it must be \(64,\)"):
        load_policy(exported(tmp_path / "two", "lstm"))
    with pytest.raises(CheckpointError, match="recurrent has kind='cnn'"):
        load_policy(exported(tmp_path / "three", "cnn"))


def test_a_users_trunk_needs_its_code(tmp_path: Path) -> None:
    path = exported(tmp_path / "policy", "own")
    with pytest.raises(UsageError, match="recurrent module of your own, so it needs its code: pass actor="):
        load_policy(path)
    with pytest.raises(UsageError, match="without initial_state, but this policy has a recurrent state"):
        load_policy(path, actor=lambda spec: torch.nn.Linear(5, 6))
    with pytest.raises(CheckpointError, match="the weights do not match the module"):
        load_policy(path, actor=lambda spec: OwnGRU(spec, 17))


def test_an_mlp_policy_refuses_a_recurrent_state() -> None:
    with pytest.raises(UsageError, match="recurrent state, which an MLP policy cannot carry"):
        MLPPolicy(described("gru"))
