"""Runs of one and of two learner ranks, each rank a forked process; tests/run/test_ranked_runs.py reads the results.

python tests/ranked_runs.py DIRECTORY [PART]: prints JSON. Torch is imported once, before the forks.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

import offbeat
from offbeat.errors import OffbeatError, RunInterrupted
from offbeat.learn import torch_ranks
from offbeat.observe.jsonl import read
from offbeat.run.checkpoint import Checkpoints
from specs import vector_spec

SAC = {
    **{"total_steps": 160, "warmup_steps": 40, "random_steps": 40, "batch_size": 16, "hidden": (16, 16)},
    **{"checkpoint_every": 50, "eval_every": 75, "eval_episodes": 1, "log_every": 100, "logger": ()},
    **{
        "normalise_observations": True,
        "normalise_rewards": True,
        "n_step": 2,
        "seed": 3,
        "quiet": True,
        "updates_per_step": 0.25,
    },
}
PPO = {
    **{"total_steps": 512, "rollout_steps": 32, "minibatches": 2, "epochs": 2, "hidden": (16,), "num_envs": 2},
    **{"eval_episodes": 0, "logger": (), "quiet": True, "normalise_observations": True, "target_kl": 0.02},
}

FILES = {"logged": "metrics", "evaluated": "evaluations"}


class Pendulum(gymnasium.Wrapper):
    """With short episodes; on one rank it sends its own process a signal, in one of its steps."""

    def __init__(self, rank: int = -1, step: int = 0, number: int = 0) -> None:
        super().__init__(gymnasium.make("Pendulum-v1", max_episode_steps=20))
        self._fatal, self._left, self._number = int(os.environ.get("RANK", "0")) == rank, step, number

    def step(self, action: Any) -> Any:
        self._left -= 1
        if self._fatal and self._left == 0:
            os.kill(os.getpid(), self._number)
        return super().step(action)


def in_ranks(size: int, work: Callable[[], Any]) -> list[Any]:
    """What `work` returns in each of so many processes, or how it failed; the exit code of a killed one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(size):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            ranked = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            os.environ |= ranked if size > 1 else {}
            os.write(writer, json.dumps(_outcome(work)).encode())
            os._exit(0)
        os.close(writer)
        children.append((child, reader))
    found = []
    for child, reader in children:
        with os.fdopen(reader, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(child, 0)
        found.append(json.loads(data) if data else os.waitstatus_to_exitcode(status))
    return found


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except RunInterrupted as stopped:
        return {"status": stopped.result.status}
    except OffbeatError as error:
        return {"error": type(error).__name__, "said": str(error)}
    except BaseException:
        return {"unexpected": traceback.format_exc()}


def result(run: Any) -> dict[str, Any]:
    return {"status": run.status, "history": [each.step for each in run.history], "reason": run.stop_reason}


def train(out: Path, name: str, **settings: Any) -> Callable[[], Any]:
    fault = settings.pop("fault", {})
    return lambda: result(
        offbeat.train("sac", Pendulum, **{**SAC, "out": str(out), "name": name, "env_kwargs": fault, **settings})
    )


def resume(out: Path, name: str, **changes: Any) -> Callable[[], Any]:
    """Also what differs in the learner from the checkpoint, when the first rows have come."""

    def work() -> Any:
        saved, found = Checkpoints(out / name).load("latest"), FirstChunk()
        done = result(offbeat.resume(out / name, env=Pendulum, quiet=True, callbacks=[found], env_kwargs={}, **changes))
        if found.arrays:
            learned = {key: array for key, array in found.arrays.items() if "returns/" not in key}
            done["differing"] = sorted(
                key for key, array in learned.items() if not np.array_equal(array, saved.arrays[f"learner/{key}"])
            )
        return done

    return work


class FirstChunk:
    """Keeps the learner's arrays when the first rows have come, before the next update."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}

    def on_chunk(self, event: Any) -> None:
        if not self.arrays:
            self.arrays = event.run._agent.learner.backend.arrays()


class EndsAt:
    """Asks for a checkpoint after the first update, on the first rank alone, and ends a run after so many steps."""

    def __init__(self, step: int) -> None:
        self._step, self._asked = step, False

    def on_update(self, event: Any) -> str | None:
        if not self._asked:
            event.run.save_checkpoint()
        self._asked = True
        return "far enough" if event.step >= self._step else None


def state(out: Path, name: str) -> dict[str, Any]:
    checkpoints = Checkpoints(out / name)
    snapshot = checkpoints.load("latest")
    rows = [chunk for _, chunks in checkpoints.rows_of("latest") for chunk in chunks]
    rewards = np.concatenate([chunk.columns["reward"] for chunk in rows]) if rows else np.zeros(0)
    return {
        "digest": checkpoints.digest("latest"),
        "step": snapshot.values["progress"]["step"],
        "updates": snapshot.values["progress"]["updates"],
        "ranks": 1 + len(snapshot.values.get("ranks", ())),
        "rows": len(rewards),
        "rewards": sorted(np.round(rewards.astype(float), 6).tolist()),
        "folders": [each for each in checkpoints.names() if each.startswith("step")],
        "summary": (summary := json.loads((out / name / "summary.json").read_text()))["status"],
        "episodes": summary["episodes"],
        "evaluation": (summary["evaluation"] or {}).get("env_steps"),
        **{key: [line["step"] for line in read(out / name / f"{file}.jsonl")] for key, file in FILES.items()},
    }


def ppo(out: Path) -> Callable[[], Any]:
    settings = {**PPO, "out": str(out), "name": "ppo"}
    return lambda: result(offbeat.train("ppo", "CartPole-v1", callbacks=[EndsAt(300)], **settings))


def loop(out: Path) -> dict[str, Any]:
    """A loop of the user's own that saves before its first update, loads, and asks for what ranks cannot do."""

    def agent() -> offbeat.Agent:
        return offbeat.Agent("sac", vector_spec(3, 2), hidden=(4,), batch_size=4, normalise_observations=True)

    def observe(made: offbeat.Agent, rows: int, value: float) -> None:
        for _ in range(rows):
            made.observe(np.full(3, value), np.zeros(2), 1.0, np.full(3, value), False, False)

    rank, first, second = int(os.environ["RANK"]), agent(), agent()
    observe(first, 5, float(rank))
    first.save(out / "loop")
    observe(second, 3, 100.0)  # forgotten by what is loaded
    second.load(out / "loop")
    second.update(1)
    normaliser = second.learner.arrays()
    found: dict[str, Any] = {"steps": second.steps, "count": float(normaliser["observations/count"])}
    found["mean"] = normaliser["observations/mean"].tolist()
    alone = agent()
    if rank == 0:
        observe(alone, 5, 0.0)
    observe(second, 2, 0.0)
    for name, made, count in (("empty", alone, 1), ("different", second, 1 + rank)):
        try:
            made.update(count)
        except OffbeatError as error:
            found[name] = str(error)
    second.update(1)
    return found | {"steps later": second.steps, "updates of rollouts": list(rollouts())}


def rollouts() -> Iterator[int]:
    """Asks for an update after each step, of which a rollout takes four."""
    made = offbeat.Agent("ppo", vector_spec(3, 2), hidden=(4,), rollout_steps=4, epochs=1, minibatches=1)
    for _ in range(8):
        obs = np.zeros(3, np.float32)
        made.observe(obs, made.act(obs), 1.0, obs, False, False)
        made.update(1)
        yield made.learner.updates


def broken(out: Path, name: str, number: int) -> dict[str, Any]:
    """A run in which rank 1 gets a signal in the middle, and which is resumed by as many ranks."""
    found = {name: in_ranks(2, train(out, name, fault={"rank": 1, "step": 65, "number": number}))}
    found[f"{name} state"] = state(out, name)
    found[f"{name} again"] = in_ranks(2, resume(out, name))
    return found | {f"{name} again state": state(out, name)}


def changed(out: Path, name: str, before: str, ranks: int, **changes: Any) -> dict[str, Any]:
    """A copy of a run, resumed by another number of ranks."""
    shutil.copytree(out / before, out / name)
    return {name: in_ranks(ranks, resume(out, name, **changes)), f"{name} state": state(out, name)}


def main(out: Path, more: bool) -> None:
    torch.set_num_threads(1)
    torch_ranks.UPDATES_BETWEEN_COMPARISONS = 10
    found: dict[str, Any] = {"whole": in_ranks(2, train(out, "whole")), "whole state": state(out, "whole")}
    if more:
        found |= broken(out, "stopped", signal.SIGTERM)
        found |= {"ppo": in_ranks(2, ppo(out)), "ppo state": state(out, "ppo")}
        found |= {"beside": in_ranks(2, train(out, "beside", collectors=1)), "beside state": state(out, "beside")}
    else:
        found |= broken(out, "killed", signal.SIGKILL)
        found |= changed(out, "fewer", "whole", 1, learners=1, total_steps=180)
        found |= changed(out, "more", "fewer", 2, total_steps=200)
        found["uneven"] = in_ranks(2, train(out, "uneven", batch_size=15))
        found["loop"] = in_ranks(2, lambda: loop(out))
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["more"])
