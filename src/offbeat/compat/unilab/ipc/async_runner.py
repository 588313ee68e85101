"""`AsyncRunner`: what every runner of UniLab has."""

from __future__ import annotations

from typing import Any

from offbeat.learn.torch_devices import choose_device


class AsyncRunner:
    """Environments by name, a device, and a `close` that may be called twice. device: None chooses one.

    Processes and shared memory are those of our own collectors, which `learn` starts and ends.
    """

    def __init__(
        self,
        env_name: str,
        env_cfg_overrides: dict[str, Any],
        rl_cfg: dict[str, Any],
        *,
        device: str | None = None,
        collector_device: str | None = None,
        sim_backend: str = "mujoco",
        num_envs: int = 4096,
    ) -> None:
        self.env_name, self.env_cfg_overrides, self.rl_cfg = env_name, env_cfg_overrides, rl_cfg
        self.device = str(choose_device("auto" if device is None else device))
        self.collector_device = collector_device or self.device
        self.sim_backend, self.num_envs = sim_backend, num_envs
        self.closed = False

    def learn(
        self, max_iterations: int, save_interval: int = 50, log_dir: str = "logs", logger_type: str = "tensorboard"
    ) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no learn; use a runner such as OffPolicyRunner")

    def close(self) -> None:
        """Ends the runner: a later `learn` is refused. It may be called again."""
        self.closed = True
