"""A rollout worker: steps an environment with an actor, sends the samples, and takes over new models."""

from __future__ import annotations

import datetime
import itertools
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from offbeat import durable
from offbeat.compat.tmrl.arguments import check_class, check_methods
from offbeat.compat.tmrl.buffer import Buffer
from offbeat.compat.tmrl.models import ModelReader
from offbeat.compat.tmrl.network import (
    BUFFER_SIZE,
    HEADER_SIZE,
    HOSTNAME,
    LOCAL_PORT_WORKER,
    PASSWORD,
    PORT,
    read_protocol,
    warn_unused,
)
from offbeat.compat.tmrl.rendezvous import Place, check_local
from offbeat.compat.tmrl.spool import Outbox
from offbeat.errors import UsageError

SHORTEST_PAUSE, LONGEST_PAUSE = 0.0005, 0.05
SECONDS_TO_WARNING = 30.0
ACTOR_METHODS = ("act", "act_", "save", "load", "to_device")


class RolloutWorker:
    """Collects samples in an environment of its own.

    env_cls: makes the environment. actor_module_cls: called with observation_space and action_space; makes the actor.
    None is the actor of our SAC.
    sample_compressor(act, obs, rew, terminated, truncated, info): returns the sample to send. device: of the actor.
    max_samples_per_episode: after so many steps an episode is truncated. model_path: where the newest model is stored,
    and from where the first is loaded if the file exists; None for a temporary file. obs_preprocessor(obs): returns the
    observation to act on and to send. crc_debug: adds each transition to its info, for `Memory(crc_debug=True)`.
    model_path_history, model_history: each `model_history`-th model is also stored under a name that begins so; 0 or
    less: none. standalone: without a server. server_ip, server_port, password, header_size, security: of the `Server`.
    max_buf_len: buffers that may wait for the trainer; then sending waits. The other parameters are for a network.
    """

    def __init__(
        self,
        env_cls: Any,
        actor_module_cls: Any,
        sample_compressor: Callable[..., Any] | None = None,
        device: Any = "cpu",
        max_samples_per_episode: float = math.inf,
        model_path: str | None = None,
        obs_preprocessor: Callable[[Any], Any] | None = None,
        crc_debug: bool = False,
        model_path_history: str | None = None,
        model_history: int = 0,
        standalone: bool = False,
        server_ip: str | None = None,
        server_port: int = PORT,
        password: str = PASSWORD,
        local_port: int = LOCAL_PORT_WORKER,
        header_size: int = HEADER_SIZE,
        max_buf_len: int = BUFFER_SIZE,
        security: str | None = None,
        keys_dir: str | None = None,
        hostname: str = HOSTNAME,
    ) -> None:
        check_local(server_ip)
        check_class("actor_module_cls", actor_module_cls, ACTOR_METHODS)
        protocol = read_protocol(header_size, security)
        warn_unused(local_port=local_port, keys_dir=keys_dir, hostname=hostname)
        _check_counts(max_samples_per_episode, max_buf_len)
        if model_history > 0 and model_path_history is None:
            raise UsageError(f"model_history={model_history} needs model_path_history, where to store the models")
        self.env = env_cls()
        spaces = {"observation_space": self.env.observation_space, "action_space": self.env.action_space}
        self.actor = (actor_module_cls or _own_actor())(**spaces).to_device(device)
        check_methods("actor_module_cls", self.actor, ACTOR_METHODS)
        self.device, self.sample_compressor, self.obs_preprocessor = device, sample_compressor, obs_preprocessor
        self.max_samples_per_episode, self.crc_debug, self.standalone = max_samples_per_episode, crc_debug, standalone
        self.model_path_history, self.model_history = model_path_history, model_history
        self._temporary = tempfile.TemporaryDirectory() if model_path is None else None  # removed with this object
        self.model_path = Path(self._temporary.name) / "model.tmod" if self._temporary else Path(str(model_path))
        if self.model_path.is_file():
            self.actor = self.actor.load(self.model_path, device=device)
        self.buffer = Buffer()
        self._received = self._steps = self._step_in_episode = 0
        self._max_buf_len = max_buf_len
        self._place = None if standalone else Place(server_port, password, protocol)
        self._outbox: Outbox | None = None
        self._models: ModelReader | None = None

    # One step.

    def act(self, obs: Any, test: bool = False) -> Any:
        return self.actor.act_(obs, test=test)

    def reset(self, collect_samples: bool) -> tuple[Any, Any]:
        """Starts an episode; returns its first observation and info."""
        action = getattr(self.env.unwrapped, "default_action", None)  # what a real-time environment acts with meanwhile
        obs, info = self.env.reset()
        obs = obs if self.obs_preprocessor is None else self.obs_preprocessor(obs)
        self._step_in_episode = -1
        if collect_samples:
            self._store(None, action, obs, 0.0, False, False, info)
            self.buffer.resets += action is not None  # the buffer counts only those without an action
        return obs, info

    def step(self, obs: Any, test: bool, collect_samples: bool, last_step: bool = False) -> tuple[Any, ...]:
        """Acts on `obs`; returns the next observation, reward, terminated, truncated and info.

        last_step: truncate the episode here, unless it has terminated.
        """
        action = self.act(obs, test=test)
        following, reward, terminated, truncated, info = self.env.step(action)
        following = following if self.obs_preprocessor is None else self.obs_preprocessor(following)
        truncated = truncated or (last_step and not terminated)
        if collect_samples:
            self._store(obs, action, following, reward, terminated, truncated, info)
        return following, reward, terminated, truncated, info

    def _store(
        self, before: Any, action: Any, obs: Any, reward: Any, terminated: bool, truncated: bool, info: Any
    ) -> None:
        if self.crc_debug:
            self._steps, self._step_in_episode = self._steps + 1, self._step_in_episode + 1
            info["crc_sample"] = (before, action, obs, reward, terminated, truncated)
            info["crc_sample_ts"] = (self._steps, self._step_in_episode)
        sample = action, obs, reward, terminated, truncated, info
        self.buffer.append_sample(sample if self.sample_compressor is None else self.sample_compressor(*sample))

    # Episodes.

    def collect_train_episode(self, max_samples: float | None = None) -> None:
        """One training episode, whose samples and return are in the buffer afterwards."""
        self._episode(max_samples, test=False, collect=True, statistic="train")

    def run_episode(self, max_samples: float | None = None, train: bool = False) -> None:
        """One episode without samples; its return is in the buffer. train: act as in training."""
        self._episode(max_samples, test=not train, collect=False, statistic="train" if train else "test")

    def run_episodes(
        self, max_samples_per_episode: float | None = None, nb_episodes: float = math.inf, train: bool = False
    ) -> None:
        """Such episodes, one after the other, without a server."""
        for _ in _count(nb_episodes):
            self.run_episode(max_samples_per_episode, train=train)

    def _episode(self, max_samples: float | None, *, test: bool, collect: bool, statistic: str) -> None:
        most = self.max_samples_per_episode if max_samples is None else max_samples
        obs, _ = self.reset(collect_samples=collect)
        total, steps, done = 0.0, 0, False
        while not done:
            steps += 1
            obs, reward, terminated, truncated, _ = self.step(obs, test, collect, last_step=steps >= most)
            total, done = total + float(reward), bool(terminated or truncated)
        self._record(statistic, total, steps)

    def _record(self, statistic: str, total: float, steps: int) -> None:
        setattr(self.buffer, f"stat_{statistic}_return", total)
        setattr(self.buffer, f"stat_{statistic}_steps", steps)

    # Collecting for a trainer.

    def run(
        self, test_episode_interval: int = 0, nb_episodes: float = math.inf, verbose: bool = True, expert: bool = False
    ) -> None:
        """Collects training episodes, sends each, and takes over new models between them.

        test_episode_interval: a test episode before each so many training episodes; 0: none. verbose: log what it does.
        expert: neither take over models nor run test episodes.
        """
        for episode in _count(nb_episodes):
            if test_episode_interval and episode % test_episode_interval == 0 and not (expert or self.crc_debug):
                self._log(verbose, "test episode")
                self.run_episode(train=False)
            self._log(verbose, "training episode %s", episode)
            self.collect_train_episode()
            self.send_and_clear_buffer()
            if expert:
                self.ignore_actor_weights()
            else:
                self.update_actor_weights(verbose=verbose)

    def run_synchronous(
        self,
        test_episode_interval: int = 0,
        nb_steps: float = math.inf,
        initial_steps: int = 1,
        max_steps_per_update: float = math.inf,
        end_episodes: bool = True,
        verbose: bool = False,
    ) -> None:
        """Collects `initial_steps` steps, then `nb_steps` more in step with the trainer.

        Before a step that would make more than max_steps_per_update steps for each model (the first one included), it
        sends its samples and waits for models; with end_episodes, only between episodes. Both counts end within an
        episode unless end_episodes. test_episode_interval: as in `run`; needs end_episodes.
        """
        if test_episode_interval and not end_episodes:
            raise UsageError("test_episode_interval needs end_episodes=True: a test episode cannot run within another")
        if not max_steps_per_update > 0:
            raise UsageError(f"max_steps_per_update={max_steps_per_update} is out of range: it must be above 0")
        pace = _SynchronousPace(self, max_steps_per_update, verbose)
        episode: _RunningEpisode | None = None
        for synchronous, limit in ((False, initial_steps), (True, nb_steps)):
            if synchronous:
                pace.wait()
            pace.steps = 0
            while pace.steps < limit or (end_episodes and episode is not None):
                if synchronous and (episode is None or not end_episodes):
                    pace.wait()
                if episode is None:
                    if synchronous:
                        self._test_when_due(test_episode_interval, pace, verbose)
                    episode = _RunningEpisode(self)
                pace.steps += 1
                if episode.step():
                    episode = None
                    self.send_and_clear_buffer()
            self.send_and_clear_buffer()

    def _test_when_due(self, interval: int, pace: _SynchronousPace, verbose: bool) -> None:
        if interval and pace.episodes % interval == 0:
            self._log(verbose, "test episode")
            self.run_episode(train=False)
        pace.episodes += 1

    def run_env_benchmark(self, nb_steps: int, test: bool = False, verbose: bool = True) -> Any:
        """Steps the environment and returns its own `benchmarks()`, which real-time environments have."""
        if not 0 <= nb_steps < math.inf:
            raise UsageError(f"nb_steps={nb_steps} is out of range: it must be at least 0 and finite")
        obs, _ = self.reset(collect_samples=False)
        for _ in range(nb_steps):
            obs, _, terminated, truncated, _ = self.step(obs, test, collect_samples=False)
            if terminated or truncated:
                break
        result = self.env.unwrapped.benchmarks()
        self._log(verbose, "benchmark: %s", result)
        return result

    # The server.

    def _connected(self) -> tuple[Outbox, ModelReader]:
        if self._place is None:
            raise UsageError(
                "standalone=True: this worker has no server; make it with standalone=False to send samples"
            )
        if self._outbox is None or self._models is None:
            self._place.connect_worker()
            self._outbox = Outbox(self._place, self._max_buf_len)
            self._models = ModelReader(self._place.directory / "models")
        return self._outbox, self._models

    def send_and_clear_buffer(self) -> None:
        """Sends the samples in the buffer, and the episodes; with no sample, they wait for the next ones."""
        outbox, _ = self._connected()
        if len(self.buffer):
            outbox.send(self.buffer)
            self.buffer.clear()

    def update_actor_weights(self, verbose: bool = True, blocking: bool = False) -> int:
        """Loads the newest model, if there is a new one; returns how many were published since. blocking: wait."""
        received, model = self._receive(blocking)
        if received:
            self.model_path.parent.mkdir(parents=True, exist_ok=True)
            durable.write_file(self.model_path, model, sync=False)
            self._keep_history(model)
            self.actor = self.actor.load(self.model_path, device=self.device)
            self._log(verbose, "the model was updated")
        return received

    def ignore_actor_weights(self) -> int:
        """Drops new models; returns how many there were."""
        return self._receive(blocking=False)[0]

    def _receive(self, blocking: bool) -> tuple[int, bytes]:
        _, models = self._connected()
        pause, warn_at = SHORTEST_PAUSE, time.monotonic() + SECONDS_TO_WARNING
        while not (found := models.receive())[0] and blocking:
            assert self._place is not None
            self._place.check_server()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            if time.monotonic() > warn_at:
                warn_at = math.inf
                logging.warning(
                    "no model has come for %.0f s; does the trainer run, and can it start with the samples that it has "
                    "(start_training, max_training_steps_per_env_step, update_model_interval)?",
                    SECONDS_TO_WARNING,
                )
        return found

    def _keep_history(self, model: bytes) -> None:
        if self.model_history > 0:
            self._received += 1
            if self._received % self.model_history == 0:
                now = datetime.datetime.now().strftime("%Y_%m_%d_%H_%M_%S")
                path = Path(f"{self.model_path_history}{now}_{self._received}.tmod")
                path.parent.mkdir(parents=True, exist_ok=True)
                durable.write_file(path, model)

    def close(self) -> None:
        """Gives the worker's place at the server back, and closes the environment."""
        if self._place is not None:
            self._place.close()
        self.env.close()

    @staticmethod
    def _log(verbose: bool, message: str, *arguments: Any) -> None:
        if verbose:
            logging.info(message, *arguments)


def _check_counts(max_samples_per_episode: float, max_buf_len: int) -> None:
    for name, value in (("max_samples_per_episode", max_samples_per_episode), ("max_buf_len", max_buf_len)):
        if not value >= 1:
            raise UsageError(f"{name}={value} is out of range: it must be at least 1")


def _own_actor() -> Any:
    from offbeat.compat.tmrl.own_agent import SACActor

    return SACActor


class _RunningEpisode:
    """A training episode that is stepped from outside."""

    def __init__(self, worker: RolloutWorker) -> None:
        self._worker = worker
        self._obs, _ = worker.reset(collect_samples=True)
        self._total, self._steps = 0.0, 0

    def step(self) -> bool:
        """One step; returns whether it was the last."""
        self._steps += 1
        last = self._steps >= self._worker.max_samples_per_episode
        self._obs, reward, terminated, truncated, _ = self._worker.step(self._obs, False, True, last_step=last)
        self._total += float(reward)
        if terminated or truncated:
            self._worker._record("train", self._total, self._steps)
        return bool(terminated or truncated)


class _SynchronousPace:
    """How many steps were made, and how many models there were, the first one included."""

    def __init__(self, worker: RolloutWorker, most: float, verbose: bool) -> None:
        self._worker, self._most, self._verbose = worker, most, verbose
        self.steps, self.episodes, self.models = 0, 0, 1

    def wait(self) -> None:
        """Takes over a new model; where the next step would be one too many, waits for models first."""
        self.models += self._worker.update_actor_weights(verbose=self._verbose)
        while (self.steps + 1) / self.models > self._most:
            self._worker.send_and_clear_buffer()
            self.models += self._worker.update_actor_weights(verbose=self._verbose, blocking=True)


def _count(limit: float) -> Iterable[int]:
    return itertools.count() if limit == math.inf else range(int(limit))
