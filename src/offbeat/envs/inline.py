"""N environments in this process, stepped one after the other, and reset in the step that ends their episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offbeat.envs.env_slot import EnvSlot, call_env
from offbeat.envs.fault_recovery import FaultRecovery
from offbeat.envs.reader import Reader, copy_observation, is_finite
from offbeat.envs.rebuild import rebuild, save
from offbeat.envs.vector import frame, scale
from offbeat.errors import CheckpointError, EnvironmentFault
from offbeat.types import Array, EnvSpec, Observation, RecoveredFault, Step, select_prefix

Faulted = dict[EnvSlot, EnvironmentFault]
"""Environments whose step faulted, and the fault of each."""


class InlineVector:
    """Gymnasium environments as a Vector. limit: truncate episodes after this many steps, if not None.

    recovery: restarts environments that fault; None raises the first fault.
    """

    rebuilds = True

    def __init__(
        self,
        envs: Sequence[Any],
        spec: EnvSpec,
        *,
        seed: int,
        purpose: str,
        limit: int | None,
        first_env: int = 0,
        recovery: FaultRecovery | None = None,
    ) -> None:
        self.spec, self.num_envs, self._first_env, self._recovery = spec, len(envs), first_env, recovery
        self._reader = Reader(spec)
        self._slots = [
            EnvSlot(env, index, first_env + index, spec, self._reader, seed, purpose, limit)
            for index, env in enumerate(envs)
        ]
        self._valid = np.ones(len(envs), bool)
        self._valid.flags.writeable = False
        self._now: Observation | None = None
        self._faults: tuple[RecoveredFault, ...] = ()

    @property
    def stepping(self) -> bool:
        return any(slot.stepping for slot in self._slots)

    @property
    def unused_mask(self) -> bool:
        return self.spec.mask_key is None and bool(self.spec.counts) and self._slots[0].gives_mask

    @property
    def unwrapped_envs(self) -> tuple[object, ...]:
        return tuple(slot.env.unwrapped for slot in self._slots)

    @property
    def outermost_env(self) -> object:
        return self._slots[0].env

    @property
    def last_infos(self) -> list[Any]:
        """The info of each environment's last step, or of the reset after it where an episode ended."""
        return [slot.info for slot in self._slots]

    def reset(self, episode: int = 0) -> Observation:
        """With `recovery`, an environment whose reset faults starts a later episode; the next step has the fault."""
        observation = self._reader.blank(self.num_envs)
        for slot in self._slots:
            self._begin(slot, episode, observation)
        self._now = observation
        return observation

    def step(self, action: Array) -> Step:
        scaled = scale(self.spec, action, self.num_envs, self._first_env)
        following = self._reader.blank(self.num_envs)
        episodes, steps = [slot.episode for slot in self._slots], [slot.steps for slot in self._slots]
        rewards, terminations, truncations, ended = [], [], [], []
        faulted: Faulted = {}
        for slot in self._slots:
            index = slot.index
            try:
                reward, terminated, truncated = slot.step(action[index], scaled[index], following)
            except EnvironmentFault as error:
                self._drop_step(slot, error, faulted, following)
                reward, terminated, truncated = 0.0, False, False
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
            if terminated or truncated:
                ended.append(slot)
        if not is_finite(following):
            self._drop_not_finite_steps(faulted, following)
        valid = self._valid
        if faulted:
            valid = np.array([slot not in faulted for slot in self._slots])
            ended = [slot for slot in ended if slot not in faulted]
            for slot in faulted:
                rewards[slot.index], terminations[slot.index], truncations[slot.index] = 0.0, False, False
        finished = tuple(slot.finished for slot in ended) if ended else ()
        self._now = self._begin_next(ended, faulted, following) if ended or faulted else following
        faults, self._faults = self._faults, ()
        return Step(
            observation=self._now,
            next=following,
            reward=np.array(rewards),
            terminated=np.array(terminations),
            truncated=np.array(truncations),
            valid=valid,
            episode=np.array(episodes),
            step=np.array(steps),
            finished=finished,
            faults=faults,
        )

    def _drop_step(self, slot: EnvSlot, error: EnvironmentFault, faulted: Faulted, following: Observation) -> None:
        """Records a step that faulted, and clears its row, so that it holds finite numbers."""
        if self._recovery is None:
            raise error
        self._reader.clear(following, slot.index)
        faulted[slot] = error

    def _drop_not_finite_steps(self, faulted: Faulted, following: Observation) -> None:
        for slot in self._slots:
            try:
                slot.check(following)
            except EnvironmentFault as error:
                self._drop_step(slot, error, faulted, following)

    def _begin_next(self, ended: list[EnvSlot], faulted: Faulted, following: Observation) -> Observation:
        """Starts the next episode where one ended or faulted; the final observations in `following` are not changed."""
        observation = copy_observation(following)
        for slot in (*ended, *faulted):
            if slot.steps:
                slot.faults = 0
        for slot in ended:
            self._begin(slot, slot.episode + 1, observation)
        for slot, error in faulted.items():
            self._recover(slot, error, observation)
        return observation

    def _begin(self, slot: EnvSlot, episode: int, into: Observation) -> None:
        try:
            slot.begin(episode, into)
        except EnvironmentFault as error:
            self._recover(slot, error, into)

    def _recover(self, slot: EnvSlot, error: EnvironmentFault, into: Observation) -> None:
        if self._recovery is None:
            raise error
        self._faults += self._recovery.recover(slot, error, into)

    def _check_and_keep(self, observation: Observation) -> Observation:
        """Raises a fault if a restored observation is not finite; else keeps it as the current one."""
        if not is_finite(observation):
            for slot in self._slots:
                slot.check(observation)
        self._now = observation
        return observation

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        if self._now is None:
            return {}, {"envs": []}
        arrays = {"vector": self._now.vector, "state": self._now.state}
        arrays.update({f"image/{name}": image for name, image in self._now.images.items()})
        if self._now.mask is not None:
            arrays["mask"] = self._now.mask
        entries = []
        for slot in self._slots:
            own, entry = save(slot)
            arrays.update({f"{slot.index}/{name}": array for name, array in own.items()})
            entries.append(entry)
        return arrays, {"envs": entries}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> tuple[Observation, list[str]]:
        entries = values["envs"]
        if not entries:
            return self.reset(), []
        into = self._reader.blank(self.num_envs)
        saved = self._saved(arrays, len(entries), into)
        messages = []
        for slot, entry in zip(self._slots, entries, strict=True):
            own = select_prefix(arrays, f"{slot.index}/")
            messages.append(rebuild(slot, self.spec, own, entry, saved, into))
        return self._check_and_keep(into), [message for message in messages if message is not None]

    def _saved(self, arrays: dict[str, Array], num_envs: int, into: Observation) -> Observation:
        """The saved observation; raises CheckpointError if it does not match these environments."""
        if num_envs != self.num_envs:
            raise CheckpointError(
                f"the checkpoint holds {num_envs} environments, but there are {self.num_envs} now; "
                f"use num_envs={num_envs}"
            )
        images = {name: arrays[f"image/{name}"] for name in into.images if f"image/{name}" in arrays}
        saved = Observation(arrays["vector"], arrays["state"], images, arrays.get("mask"))
        shapes = [
            (each.vector.shape, each.state.shape, sorted(each.images), None if each.mask is None else each.mask.shape)
            for each in (saved, into)
        ]
        if shapes[0] != shapes[1]:
            raise CheckpointError(
                f"the checkpoint's observations (vector, state, images, mask) are {shapes[0]}, but those of "
                f"{self.spec.name} are {shapes[1]}; resume with the environment that the run was made with"
            )
        return saved

    def render(self) -> Array | None:
        env = self._slots[0].env
        return frame(env.render()) if getattr(env, "render_mode", None) is not None else None

    def close(self) -> None:
        for slot in self._slots:
            call_env(slot, slot.env.close)
