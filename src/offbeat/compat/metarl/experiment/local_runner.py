"""The runner: steps through epochs, obtains samples, saves a checkpoint after each epoch, and resumes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from offbeat import durable
from offbeat.compat.metarl.envs.env_spec import own_spec
from offbeat.compat.metarl.epoch_row import tabular
from offbeat.compat.metarl.experiment.object_state import Decoder, Encoder
from offbeat.compat.metarl.experiment.snapshotter import check_snapshot_config, is_due
from offbeat.compat.metarl.process_randomness import process_randomness, set_process_randomness
from offbeat.compat.metarl.sampler.recorded_env import copy_environment
from offbeat.compat.metarl.sampler.whole_episodes import whole_episodes
from offbeat.compat.metarl.sampler.worker_factory import has_workers, make_worker_sampler
from offbeat.errors import CheckpointError, UsageError
from offbeat.observe.jsonl import Jsonl
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.compatibility import check_env_fits
from offbeat.run.lock import RunLock
from offbeat.run.snapshot import Snapshot
from offbeat.types import select_prefix

METRICS = "metrics.jsonl"


class NotSetupError(UsageError):
    """Raised where `setup`, or `restore`, has to be called first."""


@dataclass
class TrainArgs:
    """The arguments of `train` or `resume`. start_epoch: the first epoch to make."""

    n_epochs: int
    batch_size: int | None
    plot: bool = False
    store_paths: bool = False
    pause_for_plot: bool = False
    start_epoch: int = 0


@dataclass
class ExperimentStats:
    """total_epoch: the last epoch that was made. last_path: of the last batch, where store_paths is set."""

    total_epoch: int = 0
    total_itr: int = 0
    total_env_steps: int = 0
    last_path: list[dict[str, Any]] | None = None


class LocalRunner:
    """Trains an algorithm in this process and saves checkpoints in `snapshot_config.snapshot_dir`.

    max_cpus: the workers of a sampler that has some, where `setup` is given no n_workers.
    """

    def __init__(self, snapshot_config: Any, max_cpus: int = 1) -> None:
        check_snapshot_config(snapshot_config)
        if max_cpus < 1:
            raise UsageError(f"max_cpus={max_cpus} is out of range: it must be at least 1")
        self._config, self._max_cpus = snapshot_config, max_cpus
        keep = 2 if snapshot_config.snapshot_mode == "last" else None
        self._checkpoints = Checkpoints(Path(snapshot_config.snapshot_dir).resolve(), keep=keep)
        self._algo: Any = None
        self._env: Any = None
        self._sampler: Any = None
        self._has_workers = False
        self._train_args: TrainArgs | None = None
        self._stats = ExperimentStats()
        self._warned: set[str] = set()
        self.step_itr: int = 0
        self.step_path: Any = None
        self.enable_logging = True

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shutdown()

    def setup(
        self,
        algo: Any,
        env: Any,
        sampler_cls: Any = None,
        sampler_args: dict[str, Any] | None = None,
        n_workers: int | None = None,
        worker_class: Any = None,
        worker_args: dict[str, Any] | None = None,
    ) -> None:
        """Takes the algorithm and the environment, which is copied for each parallel environment.

        sampler_cls: makes the sampler as sampler_cls(algo, env, **sampler_args); the algorithm's own for None. One with
        `from_worker_factory` is made from a WorkerFactory, and collects with n_workers (max_cpus for None) objects of
        worker_class, made with worker_args. Other samplers have no workers: a warning names what has no effect.
        """
        for name in ("reset", "step", "observation_space", "action_space"):
            if not hasattr(env, name):
                raise UsageError(f"env is a {type(env).__name__} without {name}; pass a MetaRLEnv")
        if not callable(getattr(algo, "train", None)):
            raise UsageError(f"algo is a {type(algo).__name__} without train; pass an RLAlgorithm")
        if hasattr(algo, "env_spec"):
            check_env_fits(own_spec(algo.env_spec, "algo.env_spec"), own_spec(env, "env"))
        kind = getattr(algo, "sampler_cls", None) if sampler_cls is None else sampler_cls
        workers = {"worker_class": worker_class, "worker_args": worker_args}
        self._has_workers = has_workers(kind)
        if self._has_workers:
            count = self._max_cpus if n_workers is None else n_workers
            self._sampler = make_worker_sampler(kind, algo, env, sampler_args or {}, count, workers)
        else:
            for name, value in {"n_workers": n_workers, **workers}.items():
                if value is not None:
                    warnings.warn(
                        f"setup: {name} has no effect: the sampler has no workers, and steps the environments in this "
                        "process; a sampler_cls with from_worker_factory has some",
                        stacklevel=2,
                    )
            self._sampler = None if kind is None else kind(algo, env, **(sampler_args or {}))
        self._algo, self._env = algo, env

    def train(
        self,
        n_epochs: int,
        batch_size: int | None = None,
        plot: bool = False,
        store_paths: bool = False,
        pause_for_plot: bool = False,
    ) -> Any:
        """Trains for `n_epochs` epochs. batch_size: environment steps before each `train_once`.

        plot: show an episode of the policy after each epoch; pause_for_plot: and wait for Enter after it. store_paths:
        checkpoints hold the paths of the last batch. Returns what the algorithm's `train` returns.
        """
        self._check_setup("train")
        _check_plot(self._algo, self._env, plot, pause_for_plot)
        if n_epochs < 1 or (batch_size is not None and batch_size < 1):
            raise UsageError(f"train: n_epochs={n_epochs}, batch_size={batch_size}: each must be at least 1")
        if made := self._checkpoints.names():
            raise UsageError(
                f"snapshot_dir={self._config.snapshot_dir!r} holds checkpoints of another run, the last {made[-1]}; "
                "continue it with restore and resume, or use another directory"
            )
        self._train_args = TrainArgs(n_epochs, batch_size, plot, store_paths, pause_for_plot)
        self._stats = ExperimentStats()
        return self._run()

    def resume(
        self,
        n_epochs: int | None = None,
        batch_size: int | None = None,
        plot: bool | None = None,
        store_paths: bool | None = None,
        pause_for_plot: bool | None = None,
    ) -> Any:
        """Continues what `restore` has loaded; arguments that are None are those of the saved run."""
        if self._train_args is None:
            raise NotSetupError("resume: nothing is restored; call setup and restore first")
        arguments = self._train_args
        arguments.n_epochs = n_epochs or arguments.n_epochs
        arguments.batch_size = batch_size or arguments.batch_size
        if plot is False and pause_for_plot is None:
            pause_for_plot = False  # without a plot there is nothing to wait for
        for name, value in {"plot": plot, "store_paths": store_paths, "pause_for_plot": pause_for_plot}.items():
            if value is not None:
                setattr(arguments, name, value)
        _check_plot(self._algo, self._env, arguments.plot, arguments.pause_for_plot)
        return self._run()

    def _run(self) -> Any:
        durable.make_directory(self._checkpoints.root)
        lock = RunLock(self._checkpoints.root)
        lock.take()
        try:
            return self._algo.train(self)
        finally:
            self._shutdown()
            lock.release()

    def step_epochs(self) -> Iterator[int]:
        """Yields each epoch; after it, saves a checkpoint and writes the epoch's row to metrics.jsonl.

        The algorithm counts `step_itr` up and sets `step_path` to its paths.
        """
        if self._train_args is None:
            raise NotSetupError("step_epochs: call train, or restore and resume, first")
        self.step_itr, self.step_path = self._stats.total_itr, None
        tabular.take()
        with Jsonl(self._checkpoints.root / METRICS) as log:
            if not self._train_args.start_epoch:
                log.truncate(0)  # of a run that was killed before its first checkpoint
            for epoch in range(self._train_args.start_epoch, self._train_args.n_epochs):
                yield epoch
                self._stats.total_epoch, self._stats.total_itr = epoch, self.step_itr
                self._stats.last_path = self.step_path if self._train_args.store_paths else None
                if self.enable_logging:
                    self._write_row(log, epoch)
                log.sync()
                self._plot(epoch)
                self.save(epoch)

    def _plot(self, epoch: int) -> None:
        """Shows an episode, where it was asked for. Before the checkpoint: the policy may draw random numbers."""
        assert self._train_args is not None
        if self._train_args.plot:
            whole_episodes(self._algo, self._env, 1, (getattr(self._algo, "max_path_length", None),), shown=True)
            if self._train_args.pause_for_plot:
                input(f"epoch {epoch}: press Enter to continue ")

    def _write_row(self, log: Jsonl, epoch: int) -> None:
        row = {"epoch": epoch, "itr": self.step_itr, "TotalEnvSteps": self.total_env_steps, **tabular.take()}
        log.write(row)
        if getattr(self._config, "prints", False):
            shown = ("TotalEnvSteps", "AverageReturn", "Evaluation/AverageReturn")
            print(f"epoch {epoch}", *(f"{name} {row[name]:.6g}" for name in shown if name in row), sep="  ", flush=True)

    def obtain_samples(
        self, itr: int, batch_size: int | None = None, agent_update: Any = None, env_update: Any = None
    ) -> list[dict[str, Any]]:
        """Paths of at least `batch_size` environment steps (that of `train` for None).

        agent_update, env_update: for samplers with workers alone, as their `obtain_samples` takes them. agent_update is
        the parameters of the policy for None.
        """
        self._check_setup("obtain_samples")
        if self._sampler is None:
            raise UsageError("obtain_samples: there is no sampler; set algo.sampler_cls, or pass sampler_cls to setup")
        if not self._has_workers and (agent_update is not None or env_update is not None):
            raise UsageError(
                "obtain_samples: agent_update and env_update need a sampler with workers, and this one has none; leave "
                "them out"
            )
        size = batch_size or (None if self._train_args is None else self._train_args.batch_size)
        if size is None:
            raise UsageError("obtain_samples: there is no batch_size; pass it here or to train")
        paths: list[dict[str, Any]]
        if self._has_workers:
            update = self._algo.policy.get_param_values() if agent_update is None else agent_update
            found = self._sampler.obtain_samples(itr, size, agent_update=update, env_update=env_update)
            paths = found.to_trajectory_list() if hasattr(found, "to_trajectory_list") else found
        else:
            paths = self._sampler.obtain_samples(itr, size)
        self._stats.total_env_steps += sum(len(path["rewards"]) for path in paths)
        return paths

    def get_env_copy(self) -> Any:
        """A copy of the environment with a state of its own."""
        self._check_setup("get_env_copy")
        return copy_environment(self._env)

    @property
    def total_env_steps(self) -> int:
        """Environment steps of training so far."""
        return self._stats.total_env_steps

    # Checkpoints.

    def save(self, epoch: int) -> None:
        """Saves a checkpoint of this epoch, where the snapshot mode asks for it: networks, optimisers, the replay
        buffer, exploration, environments in the middle of their episodes, counters and random generators.
        """
        self._check_setup("save")
        if not is_due(self._config, epoch):
            return
        encoder = Encoder()
        values: dict[str, Any] = {"algo": encoder.encode(self._algo, "algo")}
        values["stats"] = encoder.encode(asdict(self._stats), "stats")
        values["random"] = encoder.encode(process_randomness(), "random")
        values["sampler"] = None
        arrays = dict(encoder.arrays)
        if callable(getattr(self._sampler, "snapshot", None)):
            of_sampler, values["sampler"] = self._sampler.snapshot()
            arrays |= {f"sampler/{name}": array for name, array in of_sampler.items()}
        self._warn_left_out(encoder.left_out)
        arguments = None if self._train_args is None else asdict(self._train_args)
        notes = {"log_length": durable.size(self._checkpoints.root / METRICS) or 0, "train_args": arguments}
        self._checkpoints.save(Snapshot(arrays, values, notes), encoder.shards, epoch)

    def _warn_left_out(self, names: list[str]) -> None:
        if new := [name for name in names if name not in self._warned]:
            self._warned.update(new)
            warnings.warn(
                f"the checkpoint does not hold {', '.join(new)}: only arrays, numbers, containers of them, and objects "
                "with state_dict and load_state_dict are saved; after a resume these are as your script makes them",
                stacklevel=4,
            )

    def restore(self, from_dir: Any, from_epoch: Any = "last") -> TrainArgs:
        """Loads a checkpoint into the algorithm and environment that `setup` was given; `resume` continues from it.

        from_epoch: "last", "first", or the number of an epoch. Returns the arguments of `train`.
        """
        self._check_setup("restore")
        checkpoints = self._checkpoints
        if Path(from_dir).resolve() != checkpoints.root:
            checkpoints = Checkpoints(Path(from_dir).resolve(), keep=None)
        which = _folder(checkpoints, from_epoch)
        snapshot = checkpoints.load(which)
        values, decoder = snapshot.values, Decoder(dict(snapshot.arrays))
        if snapshot.notes.get("train_args") is None or "algo" not in values:
            raise CheckpointError(f"{from_dir} holds no checkpoint of a LocalRunner that was training")
        decoder.decode(self._algo, values["algo"], "algo")
        checkpoints.load_replay(which, decoder.shards)
        decoder.finish()
        self._stats = ExperimentStats(**decoder.decode(None, values["stats"], "stats"))
        if values["sampler"] is not None:
            for sentence in self._sampler.restore(select_prefix(snapshot.arrays, "sampler/"), values["sampler"]):
                warnings.warn(sentence, stacklevel=2)
        set_process_randomness(decoder.decode(None, values["random"], "random"))
        self._train_args = TrainArgs(**snapshot.notes["train_args"])
        self._train_args.start_epoch = self._stats.total_epoch + 1
        if checkpoints is self._checkpoints and (checkpoints.root / METRICS).exists():
            with Jsonl(checkpoints.root / METRICS) as log:
                log.truncate(snapshot.notes["log_length"])
        return copy.copy(self._train_args)

    def _check_setup(self, method: str) -> None:
        if self._algo is None:
            raise NotSetupError(
                f"{method}: the runner has no algorithm and environment; call setup(algo, env) first (checkpoints hold "
                "no pickled objects)"
            )

    def _shutdown(self) -> None:
        if self._sampler is not None and hasattr(self._sampler, "shutdown_worker"):
            self._sampler.shutdown_worker()


def _check_plot(algo: Any, env: Any, plot: bool | None, pause_for_plot: bool | None) -> None:
    if pause_for_plot and not plot:
        raise UsageError("pause_for_plot=True waits after a plot, and there is none; pass plot=True, too")
    if not plot:
        return
    if (mode := getattr(env, "render_mode", None)) != "human":
        raise UsageError(
            f"plot=True shows an episode after each epoch, but env has render_mode={mode!r}; make it with "
            'render_mode="human", or leave plot out'
        )
    for name in ("policy", "env_spec"):
        if not hasattr(algo, name):
            raise UsageError(f"plot=True shows algo.policy, but {type(algo).__name__} has no {name}; leave plot out")


def _folder(checkpoints: Checkpoints, epoch: Any) -> str:
    """The checkpoint of an epoch."""
    if epoch == "last":
        return checkpoints.folder_name("latest")
    steps = {name: int(name.split("-")[1]) for name in checkpoints.names() if name.startswith("step-")}
    if epoch != "first" and not str(epoch).isdigit():
        raise UsageError(f"from_epoch={epoch!r} must be 'last', 'first' or the number of an epoch")
    wanted = min(steps.values(), default=None) if epoch == "first" else int(epoch)
    if found := [name for name, step in steps.items() if step == wanted]:
        return found[-1]
    raise CheckpointError(
        f"{checkpoints.root} has no checkpoint of epoch {epoch}; it has {', '.join(map(str, steps.values())) or 'none'}"
    )
