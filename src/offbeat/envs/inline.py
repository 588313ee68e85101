"""N environments in this process, stepped one after the other; resets happen within the step that ends an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offbeat.envs.reader import Reader, first_not_finite, is_finite
from offbeat.envs.rebuild import rebuild, save
from offbeat.envs.slot import Slot
from offbeat.envs.vector import frame, scale
from offbeat.errors import CheckpointError
from offbeat.types import Array, EnvSpec, Observation, Step


class InlineVector:
    """Gymnasium environments as a Vector. limit: truncate episodes after this many steps, if not None."""

    rebuilds = True

    def __init__(self, envs: Sequence[Any], spec: EnvSpec, *, seed: int, purpose: str, limit: int | None) -> None:
        self.spec, self.num_envs = spec, len(envs)
        self._reader = Reader(spec)
        self._slots = [Slot(env, index, spec, self._reader, seed, purpose, limit) for index, env in enumerate(envs)]
        self._valid = np.ones(len(envs), bool)
        self._valid.flags.writeable = False
        self._now: Observation | None = None

    @property
    def owned(self) -> tuple[object, ...]:
        return tuple(slot.env.unwrapped for slot in self._slots)

    def reset(self, episode: int = 0) -> Observation:
        observation = self._reader.blank(self.num_envs)
        for slot in self._slots:
            slot.begin(episode, observation)
        return self._show(observation)

    def step(self, action: Array) -> Step:
        scaled = scale(self.spec, action, self.num_envs)
        following = self._reader.blank(self.num_envs)
        episodes, steps = [slot.episode for slot in self._slots], [slot.steps for slot in self._slots]
        rewards, terminations, truncations, ended = [], [], [], []
        for slot in self._slots:
            index = slot.index
            reward, terminated, truncated = slot.step(action[index], scaled[index], following)
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
            if terminated or truncated:
                ended.append(slot)
        self._show(following)
        finished = tuple(slot.finished for slot in ended)
        return Step(
            observation=self._begin_next(ended, following) if ended else following,
            next=following,
            reward=np.array(rewards),
            terminated=np.array(terminations),
            truncated=np.array(truncations),
            valid=self._valid,
            episode=np.array(episodes),
            step=np.array(steps),
            finished=finished,
        )

    def _begin_next(self, ended: list[Slot], following: Observation) -> Observation:
        """The next episode where one ended; the final observations in `following` stay as they are."""
        images = {name: image.copy() for name, image in following.images.items()}
        observation = Observation(following.vector.copy(), following.state.copy(), images)
        for slot in ended:
            slot.begin(slot.episode + 1, observation)
        return self._show(observation)

    def _show(self, observation: Observation) -> Observation:
        """Every observation passes here before anyone sees it."""
        if not is_finite(observation):
            row, problem = first_not_finite(observation, self.spec)
            slot = self._slots[row]
            raise slot.fault(problem, slot.steps - 1 if slot.steps else None)
        self._now = observation
        return observation

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        if self._now is None:
            return {}, {"envs": []}
        arrays = {"vector": self._now.vector, "state": self._now.state}
        arrays.update({f"image/{name}": image for name, image in self._now.images.items()})
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
        saved = Observation(arrays["vector"], arrays["state"], images)
        shapes = [(each.vector.shape, each.state.shape, sorted(each.images)) for each in (saved, into)]
        if shapes[0] != shapes[1]:
            raise CheckpointError(
                f"the checkpoint's observations (vector, state, images) are {shapes[0]}, but those of {self.spec.name} "
                f"are {shapes[1]}; resume with the environment that the run was made with"
            )
        return saved

    def render(self) -> Array | None:
        env = self._slots[0].env
        return frame(env.render()) if getattr(env, "render_mode", None) is not None else None

    def close(self) -> None:
        for slot in self._slots:
            slot.env.close()
