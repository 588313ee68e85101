"""The control block that a worker process and its parent share: one word per fact, each written by one side only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from offbeat.memory import fence
from offbeat.types import Array, Episode

STARTING, WAITING, BUSY = 0, 1, 2
STATES = ("starting", "waiting", "collecting")
_WORDS = 32
_EPISODE = np.dtype([("env", "i8"), ("episode", "i8"), ("total_reward", "f8"), ("length", "i8"), ("success", "i8")])
SECONDS_TO_START = 60.0
_UNKNOWN = -1
"""Stored as `success` where the final info says nothing of it."""
_EPISODES = 1_024
"""Finished episodes that fit into the ring, or one of each environment if that is more. If it is full, the worker waits
until the parent has read some."""
Progress = tuple[tuple[int, ...], Array]
"""Words that a worker counts up, and its next episodes (N,)."""
_REPORTED = ("calls", "stored_calls", "waited_ns", "restarted_environments", "quarantined_rows")


class Word:
    """One int64 at a fixed index of the block."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, owner: Any, kind: type) -> int:
        word: int = owner._words[self._index]
        return word

    def __set__(self, owner: Any, value: int) -> None:
        owner._words[self._index] = value


class Control:
    """A block of shared memory for one worker with N environments.

    Written by the parent: `permit`, the vector steps (or rollouts) that may be made in total; `other_rows`, rows of the
    other workers; `stop`; `snapshot_requested`, the number of the snapshot that is wanted.
    Written by the worker: `state`; `heartbeat` (time.monotonic_ns); `calls`, vector steps begun to be stored;
    `stored_calls`, vector steps whose rows are stored, raised after the rows are; `version`, of the weights that act;
    `waited_ns`; `restarted_environments`; `quarantined_rows`; `snapshot_sent`, the number of the last snapshot;
    `next_episodes` (N,): a new process begins with numbers above all of these, so no episode number is used twice.
    """

    permit, other_rows, stop, snapshot_requested = (Word(index) for index in range(4))
    state, heartbeat, calls, stored_calls, version, waited_ns = (Word(index) for index in range(8, 14))
    restarted_environments, quarantined_rows, snapshot_sent = (Word(index) for index in range(14, 17))
    _sent, _received = Word(17), Word(24)

    def __init__(self, num_envs: int, buffer: Any) -> None:
        memory = np.frombuffer(buffer, np.uint8, count=self.nbytes(num_envs))
        words, episodes = 8 * _WORDS, 8 * num_envs
        self._words = memory[:words].view(np.int64).data
        self.next_episodes: Array = memory[words : words + episodes].view(np.int64)
        self._ring = memory[words + episodes :].view(_EPISODE)

    @staticmethod
    def nbytes(num_envs: int) -> int:
        # At least one vector step: a worker stores its rows only when all episodes that ended in it are sent.
        return 8 * _WORDS + 8 * num_envs + max(_EPISODES, num_envs) * _EPISODE.itemsize

    def copied_words(self) -> bytes:
        """All words and episode numbers, for the block of a worker that does not share this one."""
        return self._words.tobytes() + self.next_episodes.tobytes()

    @classmethod
    def from_words(cls, num_envs: int, words: bytes) -> Control:
        """A block of its own with these words, and no episode that waits."""
        buffer = bytearray(cls.nbytes(num_envs))
        buffer[: len(words)] = words
        control = cls(num_envs, buffer)
        control._received = control._sent
        return control

    def progress(self) -> Progress:
        """What a worker with a block of its own reports."""
        return tuple(getattr(self, name) for name in _REPORTED), self.next_episodes.copy()

    def report(self, progress: Progress) -> None:
        """Takes over what such a worker has reported, when its rows are stored."""
        for name, value in zip(_REPORTED, progress[0], strict=True):
            setattr(self, name, value)
        self.next_episodes[:] = progress[1]

    @property
    def silent_seconds(self) -> float:
        """Since the last heartbeat."""
        return (time.monotonic_ns() - self.heartbeat) / 1e9

    def timeout(self, hang_seconds: float) -> float:
        """Seconds without a heartbeat after which the process hangs; more while it starts."""
        return max(hang_seconds, SECONDS_TO_START) if self.state == STARTING else hang_seconds

    def status(self, name: str, pid: int | None, state: str) -> dict[str, Any]:
        """The process in status.json."""
        return {"name": name, "pid": pid, "state": state, "heartbeat": time.time() - self.silent_seconds}

    @property
    def episode_capacity(self) -> int:
        return len(self._ring)

    @property
    def episode_room(self) -> int:
        """Finished episodes that can be sent before the parent has to receive some."""
        return len(self._ring) - (self._sent - self._received)

    @property
    def episodes_sent(self) -> int:
        return self._sent

    def send_episode(self, episode: Episode) -> None:
        success = _UNKNOWN if episode.success is None else int(episode.success)
        record = episode.env, episode.episode, episode.total_reward, episode.length, success
        self._ring[self._sent % len(self._ring)] = record
        fence()
        self._sent += 1

    def receive_episodes(self, until: int) -> Iterator[Episode]:
        """The episodes that were sent since the last call, up to number `until`."""
        fence()
        while self._received < until:
            env, episode, total_reward, length, success = self._ring[self._received % len(self._ring)].tolist()
            self._received += 1
            yield Episode(env, episode, total_reward, length, None if success == _UNKNOWN else bool(success))
