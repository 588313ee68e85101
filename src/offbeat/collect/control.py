"""What a collector and its parent tell each other while they run: one word per fact, each with one writer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from offbeat.memory import fence
from offbeat.types import Array, Episode

STARTING, WAITING, BUSY = 0, 1, 2
STATES = ("starting", "waiting", "collecting")
_WORDS = 32
_EPISODE = np.dtype([("env", "i8"), ("episode", "i8"), ("total_reward", "f8"), ("length", "i8"), ("success", "i8")])
_UNKNOWN = -1
"""In the place of a success that no info tells of."""
_EPISODES = 1_024
"""Ended episodes that may wait to be heard of; with that many waiting, the collector waits as well."""


class Word:
    """One int64 at a fixed place of the block."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, owner: Any, kind: type) -> int:
        word: int = owner._words[self._place]
        return word

    def __set__(self, owner: Any, value: int) -> None:
        owner._words[self._place] = value


class Control:
    """A block of shared memory for one collector of N environments.

    By the parent: `permit`, vector steps that may be made in all; `others`, rows of the other collectors; `stop`;
    `asked`, the number of the snapshot that is wanted.
    By the collector: `state`; `heartbeat` (time.monotonic_ns); `calls`, vector steps made; `version`, of the weights
    that it acts with; `waited`, in ns; `restarted`, environments; `quarantined`, rows; `answered`, the last snapshot;
    `episodes` (N,), numbers of episodes that each environment has not gone beyond.
    """

    permit, others, stop, asked = (Word(place) for place in range(4))
    state, heartbeat, calls, version, waited, restarted, quarantined, answered = (Word(place) for place in range(8, 16))
    _ended, _heard = Word(16), Word(24)

    def __init__(self, num_envs: int, buffer: Any) -> None:
        memory = np.frombuffer(buffer, np.uint8, count=self.nbytes(num_envs))
        words, episodes = 8 * _WORDS, 8 * num_envs
        self._words = memory[:words].view(np.int64).data
        self.episodes: Array = memory[words : words + episodes].view(np.int64)
        self._ring = memory[words + episodes :].view(_EPISODE)

    @staticmethod
    def nbytes(num_envs: int) -> int:
        return 8 * _WORDS + 8 * num_envs + _EPISODES * _EPISODE.itemsize

    @property
    def room(self) -> int:
        """Episodes that can be told before the parent has to listen."""
        return _EPISODES - (self._ended - self._heard)

    @property
    def told(self) -> int:
        """Episodes told of so far."""
        return self._ended

    def tell(self, episode: Episode) -> None:
        success = _UNKNOWN if episode.success is None else int(episode.success)
        of = episode.env, episode.episode, episode.total_reward, episode.length, success
        self._ring[self._ended % _EPISODES] = of
        fence()
        self._ended += 1

    def hear(self, until: int) -> Iterator[Episode]:
        """The episodes that were told of since the last call, up to the one of this number."""
        fence()
        while self._heard < until:
            env, episode, total_reward, length, success = self._ring[self._heard % _EPISODES].tolist()
            self._heard += 1
            yield Episode(env, episode, total_reward, length, None if success == _UNKNOWN else bool(success))
