"""N environments in this process, stepped one after the other; resets happen within the step that ends an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offbeat.envs.contain import Containment
from offbeat.envs.reader import Reader, copied, is_finite
from offbeat.envs.rebuild import rebuild, save
from offbeat.envs.slot import Slot, run
from offbeat.envs.vector import frame, scale
from offbeat.errors import CheckpointError, EnvironmentFault
from offbeat.types import Array, Contained, EnvSpec, Observation, Step

Lost = dict[Slot, EnvironmentFault]
"""The environments whose step came to nothing, and why."""


class InlineVector:
    """Gymnasium environments as a Vector. limit: truncate episodes after this many steps, if not None.

    containment: what is done about faults; without it the first is raised.
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
        containment: Containment | None = None,
    ) -> None:
        self.spec, self.num_envs, self._first_env, self._containment = spec, len(envs), first_env, containment
        self._reader = Reader(spec)
        self._slots = [
            Slot(env, index, first_env + index, spec, self._reader, seed, purpose, limit)
            for index, env in enumerate(envs)
        ]
        self._valid = np.ones(len(envs), bool)
        self._valid.flags.writeable = False
        self._now: Observation | None = None
        self._faults: tuple[Contained, ...] = ()

    @property
    def stepping(self) -> bool:
        return any(slot.stepping for slot in self._slots)

    @property
    def unused_mask(self) -> bool:
        return self.spec.mask_key is None and bool(self.spec.counts) and self._slots[0].gives_mask

    @property
    def owned(self) -> tuple[object, ...]:
        return tuple(slot.env.unwrapped for slot in self._slots)

    @property
    def wrapped(self) -> object:
        return self._slots[0].env

    def reset(self, episode: int = 0) -> Observation:
        """Where it contains faults, an environment may begin a later episode instead; the next step tells of it."""
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
        lost: Lost = {}
        for slot in self._slots:
            index = slot.index
            try:
                reward, terminated, truncated = slot.step(action[index], scaled[index], following)
            except EnvironmentFault as error:
                self._lose(slot, error, lost, following)
                reward, terminated, truncated = 0.0, False, False
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
            if terminated or truncated:
                ended.append(slot)
        if not is_finite(following):
            self._lose_not_finite(lost, following)
        valid = self._valid
        if lost:
            valid = np.array([slot not in lost for slot in self._slots])
            ended = [slot for slot in ended if slot not in lost]
            for slot in lost:
                rewards[slot.index], terminations[slot.index], truncations[slot.index] = 0.0, False, False
        finished = tuple(slot.finished for slot in ended) if ended else ()
        self._now = self._begin_next(ended, lost, following) if ended or lost else following
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

    def _lose(self, slot: Slot, error: EnvironmentFault, lost: Lost, following: Observation) -> None:
        """Takes note that a step came to nothing. Its row is cleared: whoever looks at it finds finite numbers."""
        if self._containment is None:
            raise error
        self._reader.clear(following, slot.index)
        lost[slot] = error

    def _lose_not_finite(self, lost: Lost, following: Observation) -> None:
        for slot in self._slots:
            try:
                slot.check(following)
            except EnvironmentFault as error:
                self._lose(slot, error, lost, following)

    def _begin_next(self, ended: list[Slot], lost: Lost, following: Observation) -> Observation:
        """The next episode where one ended or was lost; the final observations in `following` stay as they are."""
        observation = copied(following)
        for slot in (*ended, *lost):
            if slot.steps:
                slot.faults = 0
        for slot in ended:
            self._begin(slot, slot.episode + 1, observation)
        for slot, error in lost.items():
            self._recover(slot, error, observation)
        return observation

    def _begin(self, slot: Slot, episode: int, into: Observation) -> None:
        try:
            slot.begin(episode, into)
        except EnvironmentFault as error:
            self._recover(slot, error, into)

    def _recover(self, slot: Slot, error: EnvironmentFault, into: Observation) -> None:
        if self._containment is None:
            raise error
        self._faults += self._containment.recover(slot, error, into)

    def _show(self, observation: Observation) -> Observation:
        """What was rebuilt passes here before anyone sees it."""
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
        sentences = []
        for slot, entry in zip(self._slots, entries, strict=True):
            prefix = f"{slot.index}/"
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            sentences.append(rebuild(slot, self.spec, own, entry, saved, into))
        return self._show(into), [sentence for sentence in sentences if sentence is not None]

    def _saved(self, arrays: dict[str, Array], num_envs: int, into: Observation) -> Observation:
        """The saved observation, once it is known to be one of these environments."""
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
            run(slot, slot.env.close)
