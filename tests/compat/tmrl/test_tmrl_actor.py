"""ActorModule and TorchActorModule: what each parameter does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from offbeat.compat.tmrl.actor import ActorModule, TorchActorModule
from offbeat.compat.tmrl.own_agent import SACActor
from tmrl_parts import SPACES, Actor, Constant


class Echo(TorchActorModule):
    """Its action is the observation as it was given."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return obs, test, torch.is_grad_enabled()


def test_actors_hold_the_spaces_that_they_were_made_with() -> None:
    actors: list[ActorModule] = [Constant(*SPACES), Actor(*SPACES), SACActor(*SPACES)]
    assert [(each.observation_space, each.action_space) for each in actors] == [SPACES] * 3


def test_act_of_a_worker_passes_the_observation_on_as_it_is() -> None:
    class Sum(Constant):
        def act(self, obs: Any, test: bool = False) -> Any:
            return obs.sum() + 10 * test

    actor = Sum(*SPACES)
    assert (actor.act_(np.array([1.0, 2.0])), actor.act_(np.array([1.0, 2.0]), test=True)) == (3.0, 13.0)


def test_a_loaded_actor_is_moved_to_the_device(tmp_path: Path) -> None:
    Constant(*SPACES, value=2.0).save(tmp_path / "actor")
    loaded: Any = Constant(*SPACES).load(tmp_path / "actor", device="meta")
    assert (loaded.value, loaded.devices) == (2.0, ["meta"])
    actor = Actor(*SPACES)
    actor.save(tmp_path / "actor")
    assert actor.load(tmp_path / "actor", device="meta").layer.weight.device.type == "meta"


def test_a_torch_actor_gets_observations_as_tensors_on_its_device() -> None:
    for actor in (Echo(*SPACES, device="meta"), Echo(*SPACES).to("meta"), Echo(*SPACES).to_device("meta")):
        obs, test, has_gradients = actor.act_(np.zeros(2, np.float32), test=True)
        assert (obs.device.type, obs.shape, test, has_gradients) == ("meta", (1, 2), True, False)
    obs, test, _ = Echo(*SPACES).act_(np.ones(2, np.float32))
    assert (obs.tolist(), obs.device.type, test) == ([[1.0, 1.0]], "cpu", False)


def test_moving_a_torch_actor_moves_its_weights() -> None:
    assert Actor(*SPACES).layer.weight.device.type == "cpu"
    assert Actor(*SPACES).to_device("meta").layer.weight.device.type == "meta"
