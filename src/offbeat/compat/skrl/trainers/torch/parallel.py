"""Agents beside each other, each in a process of its own."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from offbeat.collect.children import SECONDS_TO_CLOSE, Child
from offbeat.compat.skrl.framework import config
from offbeat.compat.skrl.trainers.torch.trainer import Trainer
from offbeat.compat.skrl.trainers.trainer import TrainerCfg, initialised, trainer_settings
from offbeat.errors import ProcessFault

WAIT_SECONDS = 20e-6


@dataclasses.dataclass(kw_only=True)
class ParallelTrainerCfg(TrainerCfg):
    """Settings of `ParallelTrainer`."""


class ParallelTrainer(Trainer):
    """Lets several agents act and learn at the same time, each in a process of its own.

    Environments are stepped in this process. A single agent stays in it, too. After training, the agents that were
    passed have what was learned.
    """

    def __init__(
        self,
        *,
        env: Any,
        agents: Any,
        scopes: list[int] | None = None,
        cfg: ParallelTrainerCfg | dict[str, Any] = {},  # noqa: B006 - the documented default
    ) -> None:
        Trainer.__init__(self, env=env, agents=agents, scopes=scopes, cfg=trainer_settings(ParallelTrainerCfg, cfg))
        if self.num_simultaneous_agents == 1:
            initialised(self)
        self._processes: list[AgentProcess] = []

    def train(self) -> None:
        self._in_processes(Trainer.train)

    def eval(self) -> None:
        self._in_processes(Trainer.eval)

    def _in_processes(self, run: Any) -> None:
        if self.num_simultaneous_agents == 1:
            run(self)
            return
        with ExitStack() as stack:
            for number, agent in enumerate(self._all):
                process = AgentProcess(number, agent, self.cfg)
                stack.callback(process.close)
                self._processes.append(process)
            stack.callback(self._processes.clear)
            run(self)
            for agent, process in zip(self._all, self._processes, strict=True):
                agent.take_over(process.call("learned_state"))

    def _call(self, method: str, arguments: Sequence[tuple[Any, dict[str, Any]]]) -> list[Any]:
        if not self._processes:
            return Trainer._call(self, method, arguments)
        for process, (own, named) in zip(self._processes, arguments, strict=True):
            process.begin(method, own, named)
        return [process.result() for process in self._processes]


class AgentProcess:
    """An agent in a process of its own, whose methods are called by messages."""

    def __init__(self, number: int, agent: Any, cfg: TrainerCfg) -> None:
        job = number, config.torch.key, cfg, agent
        self._child = Child(f"agent {number}", "offbeat.compat.skrl.trainers.torch.agent_process", lambda: job, (), 1)
        self._child.start()

    def begin(self, method: str, arguments: Any, named: dict[str, Any]) -> None:
        self._child.send((method, arguments, named))

    def result(self) -> Any:
        """The result of the call that was begun first; raises ProcessFault if the process has ended."""
        while (answer := self._child.receive()) is None:
            report = None if self._child.alive else self._child.supervise()
            if report is not None:
                raise ProcessFault(report)
            time.sleep(WAIT_SECONDS)
        return answer[1]

    def call(self, method: str, *arguments: Any) -> Any:
        self.begin(method, arguments, {})
        return self.result()

    def close(self) -> None:
        self._child.send(None)
        self._child.close(time.monotonic() + SECONDS_TO_CLOSE)
