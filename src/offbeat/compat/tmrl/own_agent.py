"""The default training agent and its actor: our SAC."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import durable
from offbeat import settings as settings_module
from offbeat.compat.tmrl.actor import ActorModule
from offbeat.compat.tmrl.spaces import spec_of_spaces
from offbeat.compat.tmrl.structures import decode, encode
from offbeat.compat.tmrl.training import TrainingAgent
from offbeat.deploy import LoadedPolicy
from offbeat.errors import CheckpointError, UsageError
from offbeat.run.snapshot import Snapshot
from offbeat.run.training import Training
from offbeat.types import Array, Batches, EnvSpec
from offbeat.weights.publication import Publication

_OF_THE_DATA = ("normalise_observations", "normalise_rewards", "preprocessor", "n_step")
"""Settings that need more than the transitions of a batch."""


class SACAgent(TrainingAgent):
    """Our SAC behind the interface of a training agent. settings: those of `offbeat.train("sac", ...)` that concern the
    learner, such as hidden, learning_rate, gamma, temperature and seed. batch_size: rows of a batch.
    """

    def __init__(self, observation_space: Any, action_space: Any, device: Any, **settings: Any) -> None:
        super().__init__(observation_space, action_space, device)
        for name in _OF_THE_DATA:
            if name in settings:
                raise UsageError(
                    f"{name} needs more than the transitions of a batch, which is all that a training agent gets; "
                    "leave it out, or train with offbeat.train"
                )
        self.spec = spec_of_spaces(observation_space, action_space)
        given = {"env": self.spec.name, "device": "cpu" if device is None else str(device), **settings}
        self.training = Training(settings_module.make_config("sac", given), self.spec, has_end=False, one_thread=False)
        self._batch_size: int = self.training.config.learner.replay.batch_size

    def train(self, batch: Any) -> dict[str, float]:
        """One update with the 6 parts of a batch; actions in the environment's units."""
        obs, action, reward, next_obs, terminated, _ = batch
        reward, terminated = _column(reward), _column(terminated)
        if len(reward) != self._batch_size:
            raise UsageError(
                f"the batch has {len(reward)} rows, but this agent was made with batch_size={self._batch_size}; pass "
                f"training_agent_cls=partial(SACAgent, batch_size={len(reward)})"
            )
        rows = len(reward)
        gamma = self.training.config.learner.returns.gamma
        columns = {
            "obs": self._vectors(obs, rows),
            "action": self.spec.from_environment(_array(action).reshape(rows, *self.spec.action_shape)),
            "reward": reward,
            "discount": (np.float32(gamma) * (1.0 - terminated)).astype(np.float32),
            "next_obs": self._vectors(next_obs, rows),
        }
        batches = Batches({name: column[None] for name, column in columns.items()}, np.zeros((1, rows), np.int64))
        self.training.learn_from(batches)
        return self.training.learner.drain()

    def _vectors(self, obs: Any, rows: int) -> Array:
        if not isinstance(obs, Mapping | tuple | list):
            obs = _array(obs)
            if obs.shape == (rows, self.spec.observation_size):
                return obs.astype(np.float32)
        return self.spec.layout.encode(_arrays(obs), rows)

    def get_actor(self) -> SACActor:
        actor = SACActor(self.observation_space, self.action_space)
        actor.publish(self.training.policy_description(), self.training.publication())
        return actor

    def state_dict(self) -> dict[str, Any]:
        snapshot = self.training.snapshot()
        return {"arrays": dict(snapshot.arrays), "values": dict(snapshot.values), "notes": dict(snapshot.notes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.training.restore(Snapshot(state["arrays"], state["values"], state["notes"]))


class SACActor(ActorModule):
    """The policy of a `SACAgent`: the `actor_module_cls` of its workers. Random actions until weights have arrived.

    It acts in NumPy.
    """

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space, action_space)
        self.spec: EnvSpec = spec_of_spaces(observation_space, action_space)
        self._rng = np.random.default_rng()
        self._policy: LoadedPolicy | None = None
        self._content: dict[str, Any] = {}

    def publish(self, description: Mapping[str, Any], publication: Publication) -> None:
        """Sets the weights to act with."""
        weights = dict(publication.weights)
        self._content = {"policy": dict(description), "version": publication.version, "weights": weights}
        document = {"spec": self.spec.to_json(), "policy": description, "notes": {}}
        self._policy = LoadedPolicy(document, publication, None, "numpy")

    def act(self, obs: Any, test: bool = False) -> Any:
        if self._policy is None:
            return self.spec.to_environment(self.spec.random_actions(self._rng, 1))[0]
        return self._policy.act(obs, deterministic=test, rng=self._rng)

    def save(self, path: Any) -> None:
        durable.write_file(Path(path), encode(self._content, "the actor"), sync=False)

    def load(self, path: Any, device: Any) -> SACActor:
        """Reads what `save` wrote. device: anything but "cpu" or None gives a warning."""
        if device is not None and str(device) != "cpu":
            warnings.warn(f"device={device!r} has no effect on SACActor, which acts in NumPy; use 'cpu'", stacklevel=2)
        content = decode(durable.read_file(Path(path)), str(path))
        try:
            publication = Publication(int(content["version"]), content["weights"])
            self.publish(content["policy"], publication)
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is not a file of SACActor; remove it, or pass another model_path") from error
        return self


def _array(value: Any) -> Array:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _arrays(part) for key, part in value.items()}
    return tuple(map(_arrays, value)) if isinstance(value, tuple | list) else _array(value)


def _column(value: Any) -> Array:
    return _array(value).reshape(-1).astype(np.float32)
