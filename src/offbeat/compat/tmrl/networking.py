"""The server, the trainer and the rollout workers of a training, as processes (or threads) of one machine."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from offbeat import durable
from offbeat.compat.tmrl.arguments import check_class
from offbeat.compat.tmrl.buffer import Buffer
from offbeat.compat.tmrl.models import ModelPublisher
from offbeat.compat.tmrl.network import (
    BUFFER_SIZE,
    HEADER_SIZE,
    HOSTNAME,
    LOCAL_PORT_SERVER,
    LOCAL_PORT_TRAINER,
    PASSWORD,
    PORT,
    read_protocol,
    warn_unused,
)
from offbeat.compat.tmrl.rendezvous import Place, ServerPlace, check_local
from offbeat.compat.tmrl.rollout_worker import RolloutWorker
from offbeat.compat.tmrl.saving import has_checkpoint
from offbeat.compat.tmrl.spool import Inbox
from offbeat.errors import UsageError
from offbeat.run.lock import RunLock

__all__ = ["Buffer", "RolloutWorker", "Server", "Trainer", "TrainerInterface"]


class Server:
    """Where a trainer and its workers meet; it runs until `close`, or until its process ends.

    port: identifies it on this machine. password, header_size, security: the trainer and the workers need the same.
    max_workers: how many may be connected at a time, None for any number. local_port, keys_dir: for a network.
    """

    def __init__(
        self,
        port: int = PORT,
        password: str = PASSWORD,
        local_port: int = LOCAL_PORT_SERVER,
        header_size: int = HEADER_SIZE,
        security: str | None = None,
        keys_dir: str | None = None,
        max_workers: int | None = None,
    ) -> None:
        protocol = read_protocol(header_size, security)
        warn_unused(local_port=local_port, keys_dir=keys_dir)
        if max_workers is not None and max_workers < 1:
            raise UsageError(
                f"max_workers={max_workers} is out of range: it must be at least 1, or None for any number"
            )
        self._place = ServerPlace(port, password, max_workers, protocol)
        atexit.register(self.close)

    def close(self) -> None:
        """Ends the server; may be called twice. Samples that no checkpoint holds stay for a resumed trainer."""
        self._place.close()
        atexit.unregister(self.close)


class TrainerInterface:
    """The trainer's end: `retrieve_buffer` and `broadcast_model`, as `TrainingOffline.run_epoch` needs them.

    keep: whether buffers that were retrieved stay on disk until `commit`.
    """

    def __init__(self, place: Place, model_path: str | Path | None, max_buf_len: int, keep: bool) -> None:
        place.connect_trainer()
        self._place = place
        path = place.directory / "trainer" / "model.tmod" if model_path is None else Path(model_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.model_path = path
        self.inbox = Inbox(place, max_buf_len, keep)
        self._publisher = ModelPublisher(place.directory / "models")

    def broadcast_model(self, model: Any) -> None:
        """Saves the actor to `model_path` and publishes the content of that file to all workers."""
        temporary = self.model_path.with_name(f".{self.model_path.name}.aside")
        model.save(temporary)
        data = durable.read_file(temporary)
        os.replace(temporary, self.model_path)
        self._publisher.publish(data)

    def retrieve_buffer(self) -> Buffer:
        """The samples that have arrived since the last call."""
        self._place.check_server()
        return self.inbox.take()

    def close(self) -> None:
        self._place.close()


class Trainer:
    """Trains: makes a `training_cls` (a `TrainingOffline`, or a partial of one), and runs its epochs.

    server_ip, server_port, password, header_size, security: of the `Server`. model_path: where each broadcast actor is
    saved, None for a temporary file. checkpoint_path: the directory of the checkpoints, written before the first epoch
    and after each; a trainer that finds one there continues from it. None: none is written.
    dump_run_instance_fn(training, checkpoint_path), load_run_instance_fn(checkpoint_path): save and load instead of us.
    updater_fn(training, training_cls): returns the training to use after a resume.
    max_buf_len: buffers that are retrieved at a time. The other parameters are for a network.
    """

    def __init__(
        self,
        training_cls: Any,
        server_ip: str | None = None,
        server_port: int = PORT,
        password: str = PASSWORD,
        local_com_port: int = LOCAL_PORT_TRAINER,
        header_size: int = HEADER_SIZE,
        max_buf_len: int = BUFFER_SIZE,
        security: str | None = None,
        keys_dir: str | None = None,
        hostname: str = HOSTNAME,
        model_path: str | None = None,
        checkpoint_path: str | None = None,
        dump_run_instance_fn: Callable[[Any, str], None] | None = None,
        load_run_instance_fn: Callable[[str], Any] | None = None,
        updater_fn: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        check_local(server_ip)
        if training_cls is None:
            raise UsageError("training_cls=None: pass a partial of TrainingOffline or TorchTrainingOffline")
        saved = () if checkpoint_path is None or dump_run_instance_fn is not None else ("save", "load")
        check_class("training_cls", training_cls, ("run_epoch", *saved))
        protocol = read_protocol(header_size, security)
        warn_unused(local_com_port=local_com_port, keys_dir=keys_dir, hostname=hostname)
        if max_buf_len < 1:
            raise UsageError(f"max_buf_len={max_buf_len} is out of range: it must be at least 1")
        if (dump_run_instance_fn is None) != (load_run_instance_fn is None):
            raise UsageError("dump_run_instance_fn and load_run_instance_fn belong together; pass both, or neither")
        self.training_cls, self.checkpoint_path, self.updater_fn = training_cls, checkpoint_path, updater_fn
        self._dump, self._load = dump_run_instance_fn, load_run_instance_fn
        if checkpoint_path is not None and dump_run_instance_fn is None:
            has_checkpoint(checkpoint_path)  # refuses what cannot be one
        self._connect = Place(server_port, password, protocol), model_path, max_buf_len

    def run(self) -> None:
        """Runs all epochs that are left."""
        for _ in self.epochs():
            pass

    def run_with_wandb(
        self, entity: str | None = None, project: str | None = None, run_id: str | None = None, key: str | None = None
    ) -> None:
        """Runs all epochs that are left, and logs the statistics of each round to W&B."""
        import wandb

        if key is not None:
            os.environ["WANDB_API_KEY"] = key
        resume: Any = "allow" if run_id is not None else None
        with wandb.init(dir=tempfile.gettempdir(), entity=entity, project=project, id=run_id, resume=resume) as run:
            for rows in self.epochs():
                for row in rows:
                    run.log(row)

    def epochs(self) -> Iterator[list[dict[str, float]]]:
        """Runs the epochs one by one: yields the statistics of each, when it is saved."""
        place, model_path, max_buf_len = self._connect
        with contextlib.ExitStack() as stack:
            self._lock_checkpoints(stack)
            interface = TrainerInterface(place, model_path, max_buf_len, keep=self.checkpoint_path is not None)
            stack.callback(interface.close)
            training = self._resumed(interface.inbox)
            if training is None:
                training = self.training_cls()
                self._save(training, interface.inbox)  # refuses what cannot be saved, before samples are dropped
                interface.inbox.begin()
            else:
                interface.broadcast_model(training.agent.get_actor())  # workers may have been started again, too
            while training.epoch < training.epochs:
                rows = training.run_epoch(interface)
                self._save(training, interface.inbox)
                yield rows

    def _lock_checkpoints(self, stack: contextlib.ExitStack) -> None:
        """Takes the lock of the directory of our checkpoints, so that no two trainers write there."""
        if self.checkpoint_path is not None and self._dump is None:
            directory = Path(self.checkpoint_path).resolve()
            durable.make_directory(directory)
            lock = RunLock(directory)
            lock.take()
            stack.callback(lock.release)

    def _resumed(self, inbox: Inbox) -> Any:
        """The training of the checkpoint, if there is one."""
        path = self.checkpoint_path
        if path is None:
            return None
        if self._load is not None:
            if not Path(path).exists():
                return None
            training, received = self._load(path), _read_received(path)
        else:
            if not has_checkpoint(path):
                return None
            training = self.training_cls()
            received = training.load(path)
        logging.info("resumed from %s at epoch %s", path, training.epoch)
        inbox.resume(received)
        return training if self.updater_fn is None else self.updater_fn(training, self.training_cls)

    def _save(self, training: Any, inbox: Inbox) -> None:
        if self.checkpoint_path is None:
            return
        if self._dump is None:
            training.save(self.checkpoint_path, inbox.received)
        else:
            self._dump(training, self.checkpoint_path)
            durable.write_file(_received_path(self.checkpoint_path), json.dumps(inbox.received).encode())
        inbox.commit()


def _received_path(path: str) -> Path:
    """Beside a checkpoint that the user's own function writes: which buffers it holds."""
    return Path(f"{path}.received.json")


def _read_received(path: str) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads(durable.read_file(_received_path(path)))
    except FileNotFoundError:
        warnings.warn(f"{_received_path(path)} is missing: buffers that the checkpoint holds may be received again")
        return {}
    return found
