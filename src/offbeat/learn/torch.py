"""The torch learner: device, precision, normalisers and learning-rate schedules around an algorithm's update."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.algorithms.configs import Algorithm
from offbeat.algorithms.torch.batch import NO_MASK, Batch
from offbeat.algorithms.torch.differentiate import Network
from offbeat.algorithms.torch.optimise import SGD, Adam, RMSProp
from offbeat.algorithms.torch.randomness import seeded
from offbeat.errors import CheckpointError, UsageError
from offbeat.learn.statistics import ReturnScale, RunningMoments
from offbeat.references import resolve
from offbeat.trace import Trace
from offbeat.types import Array, Chunk, EnvSpec, Metrics, Transitions

_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}

_SETTINGS_OF = {"ddpg": "td3", "redq": "sac", "ppo": "appo"}
"""Algorithms that are settings of another one."""


def module_of(algorithm: str, spec: EnvSpec) -> str:
    """The file that holds the algorithm, for the environment's kind of actions."""
    name = _SETTINGS_OF.get(algorithm, algorithm)
    return "sac_discrete" if name == "sac" and spec.choices is not None else name


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device={name!r} is not a torch device; use cpu, cuda, cuda:1 or auto") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device={name!r} is not supported; use cpu, cuda, cuda:1 or auto")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device={name!r}, but torch sees no CUDA device here; use cpu or auto")
    return device


@contextlib.contextmanager
def denormals_flushed() -> Iterator[None]:
    """Numbers too small to be normal count as zero meanwhile, and the processor's setting is given back.

    Moments of weights that get no gradient (dead units) decay to such numbers, and arithmetic on them is many
    times slower: Adam on a network with many of them took ten times as long.
    """
    smallest = torch.tensor(1e-45)
    before = bool(smallest * 1.0 == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


class Learner:
    """One algorithm's state and everything that its update needs from outside.

    planned_updates: how many updates the run will make, which may be set later; learning-rate schedules run over them.
    """

    def __init__(
        self,
        algorithm: str,
        config: Algorithm,
        spec: EnvSpec,
        *,
        rng: np.random.Generator,
        planned_updates: int | None = None,
        device: str = "cpu",
        precision: str = "float32",
    ) -> None:
        self.algorithm = importlib.import_module(f"offbeat.algorithms.torch.{module_of(algorithm, spec)}")
        self._algorithm_update = self.algorithm.update
        self.config, self.spec, self.planned_updates = config, spec, planned_updates
        self.device, self.dtype = choose_device(device), getattr(torch, precision)
        self.state = self.algorithm.init(config, spec, rng, self.device, self.dtype)
        self._module_seed = int(rng.integers(2**62))
        networks = [value for value in vars(self.state).values() if isinstance(value, Network)]
        self._explicit = all(network.explicit for network in networks)
        self.noise_shape = self.algorithm.noise_shape(config, spec) if hasattr(self.algorithm, "noise_shape") else ()
        self.observations = RunningMoments(spec.observation_size) if config.normalise_observations else None
        self.states = RunningMoments(spec.state_size) if self.observations and spec.state_size else None
        self.returns = ReturnScale(config.gamma) if config.normalise_rewards else None
        groups: dict[str, str] = self.algorithm.GROUPS
        self._schedules = {group: self._schedule(f"{prefix}schedule") for group, prefix in groups.items()}
        self._configured = {group: float(getattr(config, f"{prefix}learning_rate")) for group, prefix in groups.items()}
        self._rates = dict(self._configured)
        self.own_acting = getattr(config, config.acts_with)  # a user's own module that acts, or None
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._scales: dict[str, tuple[Tensor, Tensor]] = {}
        self.refresh_scales()

    def _schedule(self, name: str) -> Callable[[float], float]:
        schedule = getattr(self.config, name)
        if schedule in _SCHEDULES:
            return _SCHEDULES[schedule]
        own = resolve(schedule, name)

        def factor(progress: float) -> float:
            try:
                found = float(own(progress))
            except Exception as error:
                raise UsageError(f"{name}: your callable raised {type(error).__name__}: {error}") from error
            if not 0.0 <= found < math.inf:
                raise UsageError(f"{name}: your callable gave {found!r} at progress {progress:g}; return a factor >= 0")
            return found

        factor(0.0)  # so that one of no use is refused before the run begins
        return factor

    def check_schedules(self) -> None:
        """Refuses a schedule over a run that has no end."""
        names = [each.name for each in dataclasses.fields(self.config)]
        for name in (name for name in names if name == "schedule" or name.endswith("_schedule")):
            schedule = getattr(self.config, name)
            if schedule != "constant" and self.planned_updates is None:
                raise UsageError(f"{name}={schedule!r} runs over a run: say how long with total_steps or total_updates")

    @property
    def updates(self) -> int:
        return int(self.state.updates)

    def progress(self) -> float:
        """The share of the run that is over, in [0, 1]."""
        return min(1.0, self.updates / self.planned_updates) if self.planned_updates else 0.0

    def factors(self) -> dict[str, float]:
        """What the schedule makes of each group's rate now."""
        progress = self.progress()
        return {group: float(schedule(progress)) for group, schedule in self._schedules.items()}

    def rates(self) -> dict[str, float]:
        """The learning rate of each group for the next update."""
        return {group: self._rates[group] * factor for group, factor in self.factors().items()}

    def set_rate(self, rate: float, group: str | None = None) -> None:
        """The rate of a group, or of all, is this from now on, and its schedule goes on from there.

        Where the schedule stands at 0, as before a warm-up, it is what the schedule multiplies.
        """
        if group is not None and group not in self._rates:
            raise UsageError(f"set_learning_rate: group={group!r} is none of {', '.join(self._rates)}")
        if not 0.0 <= rate < math.inf:
            raise UsageError(f"set_learning_rate: rate={rate!r} is out of range: it must be at least 0 and finite")
        for each, factor in self.factors().items():
            if group in (None, each):
                self._rates[each] = rate / factor if factor else rate

    def changed_rates(self) -> dict[str, tuple[float, float]]:
        """Of each group whose rate was set: the rate of its setting, and what the schedule multiplies instead."""
        return {
            group: (own, self._rates[group]) for group, own in self._configured.items() if self._rates[group] != own
        }

    def restore_rates(self, changed: Mapping[str, Sequence[float]]) -> None:
        """Rates that were set come back, but where a run goes on with another setting, that one counts."""
        for group, (configured, rate) in changed.items():
            if self._configured.get(group) == configured:
                self._rates[group] = float(rate)

    def observe(self, chunk: Chunk) -> None:
        """Takes statistics once per fresh observation: each row's, and the last of each episode."""
        self.observe_rewards(chunk)
        self.observe_observations(chunk)

    def observe_rewards(self, chunk: Chunk) -> None:
        if self.returns is not None:
            self.returns.update(chunk)

    def observe_observations(self, chunk: Chunk) -> None:
        if self.observations is None:
            return
        columns = chunk.columns
        ended = (columns["terminated"] + columns["truncated"]) > 0
        self.observations.update(np.concatenate((columns["obs"], columns["next_obs"][ended])))
        if self.states is not None:
            self.states.update(np.concatenate((columns["state"], columns["next_state"][ended])))
        self.refresh_scales()

    def refresh_scales(self) -> None:
        for name, moments in (("obs", self.observations), ("state", self.states)):
            if moments is not None:
                self._scales[name] = self._tensor(moments.mean), self._tensor(moments.scale)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.asarray(array)).to(self.device, self.dtype)

    def _normalise(self, name: str, array: Array) -> Tensor:
        tensor = self._tensor(array)
        if name not in self._scales:
            return tensor
        mean, scale = self._scales[name]
        return ((tensor - mean) * scale).clamp(-self.config.observation_clip, self.config.observation_clip)

    def _mask(self, mask: Array | None) -> Tensor:
        """(..., K) bool; K = 0 where there is none."""
        return NO_MASK if mask is None else torch.from_numpy(np.asarray(mask)).to(self.device)

    @property
    def reward_scale(self) -> float:
        return self.config.reward_scale * (1.0 if self.returns is None else self.returns.scale)

    def update(self, batch: Transitions, noise: Array) -> None:
        """One update; `noise` holds standard normal draws of `noise_shape`. Metrics add up until `drain`."""
        with torch.inference_mode() if self._explicit else torch.no_grad():
            self._update(batch, noise)

    def _update(self, batch: Transitions, noise: Array) -> None:
        tensors = Batch(
            obs=self._normalise("obs", batch.obs),
            action=self._tensor(batch.action),
            reward=self._tensor(batch.reward) * self.reward_scale,
            discount=self._tensor(batch.discount),
            next_obs=self._normalise("obs", batch.next_obs),
            state=self._normalise("state", batch.state),
            next_state=self._normalise("state", batch.next_state),
            mask=self._mask(batch.mask),
            next_mask=self._mask(batch.next_mask),
        )
        with self._own_randomness():
            self._note(
                self._algorithm_update(self.state, self.config, self.spec, tensors, self._tensor(noise), self.rates())
            )

    def _note(self, metrics: Mapping[str, Tensor]) -> None:
        for name, value in metrics.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1

    def trace_halves(self, trace: Trace) -> None:
        """Notes each half of an update from now on. The algorithm's file knows nothing of it: its `update` is given
        other names for its halves, which note and call them.
        """
        span = trace.cuda if self.device.type == "cuda" else trace
        names = vars(self.algorithm)
        halves = {name: _noted(names[name], name.removeprefix("update_"), span) for name in names if _is_half(name)}
        self._algorithm_update = _with_names(self.algorithm.update, names | halves)

    @contextlib.contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Dropout, ours or a user's, draws from torch: seeded per update, so that runs repeat and resume exactly."""
        if not any(getattr(self.config, name, None) for name in ("actor", "critic", "critic_dropout")):
            yield
            return
        with seeded(self._module_seed + self.updates, self.device):
            yield

    def drain(self) -> Metrics:
        """The mean of each metric since the last call."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means

    def pending(self) -> dict[str, Any]:
        """The metrics that wait for `drain`, as JSON, so that a resumed run logs what an uninterrupted one logs."""
        return {name: [float(total), self._counts[name]] for name, total in self._sums.items()}

    def restore_pending(self, pending: Mapping[str, Any]) -> None:
        self._sums = {
            name: torch.tensor(total, device=self.device, dtype=self.dtype) for name, (total, _) in pending.items()
        }
        self._counts = {name: count for name, (_, count) in pending.items()}

    def weights(self) -> dict[str, Array]:
        """A copy of what a policy needs to act, float32 (own dtype for a user's integer buffers)."""
        network: Network = getattr(self.state, self.config.acts_with)
        weights = {f"actor/{name}": _acting_copy(tensor) for name, tensor in network.named()}
        if self.observations is not None:
            weights["normaliser/mean"] = self.observations.mean.astype(np.float32)
            weights["normaliser/scale"] = self.observations.scale.astype(np.float32)
            weights["normaliser/clip"] = np.asarray(self.config.observation_clip, np.float32)
        return weights

    def policy_description(self) -> dict[str, Any]:
        description: dict[str, Any] = self.algorithm.policy_description(self.config, self.spec)
        return description

    def arrays(self) -> dict[str, Array]:
        """The whole state by name, derived from the state value itself so that nothing can be forgotten."""
        arrays = {name: tensor.detach().cpu().numpy().copy() for name, tensor in _named(self.state)}
        arrays["updates"] = np.asarray(self.updates)
        for name, part in self.statistics():
            arrays |= {f"{name}/{each}": np.array(array) for each, array in part.arrays().items()}
        return arrays

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Puts a saved state back; says which arrays are missing, left over or of another shape."""
        mine = self.arrays()
        differences = [
            f"{name} is {saved.shape if saved is not None else 'missing'} there and "
            f"{own.shape if own is not None else 'missing'} here"
            for name in sorted(mine.keys() | arrays.keys())
            for saved, own in [(arrays.get(name), mine.get(name))]
            if saved is None or own is None or (saved.shape != own.shape and not name.startswith("returns/"))
        ]
        if differences:
            shown = "; ".join(differences[:5]) + (f"; and {len(differences) - 5} more" if len(differences) > 5 else "")
            raise CheckpointError(
                f"the checkpoint does not fit this {self.config.__class__.__name__}: {shown}. "
                "Resume with the settings (hidden, critics, environment, ...) that the run was made with"
            )
        copy_into(dict(_named(self.state)), arrays)
        self.state.updates = int(arrays["updates"])
        for name, part in self.statistics():
            prefix = f"{name}/"
            part.restore({key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)})
        self.refresh_scales()

    def statistics(self) -> list[tuple[str, RunningMoments | ReturnScale]]:
        parts = (("observations", self.observations), ("states", self.states), ("returns", self.returns))
        return [(name, part) for name, part in parts if part is not None]


def copy_into(tensors: Mapping[str, Tensor], arrays: Mapping[str, Array]) -> None:
    """Gives each tensor the values of the array of its name."""
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(np.asarray(arrays[name])))


def _named(state: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a state value, by `field/name`."""
    for each in dataclasses.fields(state):
        value = getattr(state, each.name)
        if isinstance(value, Network | Adam | RMSProp | SGD):
            yield from ((f"{each.name}/{name}", tensor) for name, tensor in value.named())
        elif isinstance(value, Tensor):
            yield each.name, value


def _is_half(name: str) -> bool:
    return name.startswith("update_")


def _noted(half: Callable[..., Any], name: str, span: Callable[[str], AbstractContextManager[None]]) -> Any:
    def noted(*arguments: Any, **named: Any) -> Any:
        with span(name):
            return half(*arguments, **named)

    return noted


def _with_names(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """The same function in all but what the names of its module mean."""
    found = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    found.__kwdefaults__ = function.__kwdefaults__
    return found


def _acting_copy(tensor: Tensor) -> Array:
    array = tensor.detach().cpu().numpy()
    return array.astype(np.float32) if array.dtype.kind == "f" else array.copy()
