"""What the settings of every algorithm have in common."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from offbeat.algorithms.configs.idle import refuse_idle
from offbeat.errors import UsageError
from offbeat.ranges import check_ranges, setting

Reference = str | Callable[..., Any]
"""A user's own code: a callable, or `module:callable`, which a config file and the command line can hold."""

Activation = Literal["relu", "tanh", "elu", "silu", "gelu", "leaky_relu"]
SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True)
class Learning:
    """What every algorithm has.

    acts_with: the network that acts, which may be a user's own. without: the run's settings that mean nothing to it.
    run_defaults: its own defaults of the run's settings.
    """

    acts_with: ClassVar[str] = "actor"
    without: ClassVar[tuple[str, ...]] = ()
    run_defaults: ClassVar[Mapping[str, Any]] = {}

    gamma: float = setting(0.99, "Discount per step.", at_least=0, at_most=1)
    hidden: tuple[int, ...] = setting((256, 256), "Hidden layer sizes.", at_least=1)
    activation: Activation = setting("relu", "Activation of hidden layers.")
    layer_norm: bool = setting(False, "Layer norm before each hidden activation.")
    max_grad_norm: float | None = setting(None, "Limit of each network's gradient norm.", above=0)
    adam_epsilon: float = setting(1e-8, "What Adam adds to the root of a gradient's mean square.", above=0)
    gradients: Literal["auto", "autograd"] = setting(
        "auto", "auto is explicit gradients where there are some (plain MLPs on a CPU), autograd elsewhere."
    )
    compile: Literal["off", "default", "reduce-overhead"] = setting(
        "off", "torch.compile for networks that go through autograd, by its mode; reduce-overhead is CUDA graphs."
    )
    normalise_observations: bool = setting(False, "Scale observations by running mean and deviation.")
    observation_clip: float = setting(10.0, "Normalised observations are clipped here.", above=0)
    reward_scale: float = setting(1.0, "Factor on every reward that the critic sees.", above=0)
    normalise_rewards: bool = setting(False, "Divide rewards by the running deviation of the discounted return.")

    def __post_init__(self) -> None:
        check_ranges(self)
        for each in dataclasses.fields(self):
            if each.name == "schedule" or each.name.endswith("_schedule"):
                _check_schedule(each.name, getattr(self, each.name))
        refuse_idle(self)


def _check_schedule(name: str, schedule: Reference) -> None:
    if isinstance(schedule, str) and schedule not in SCHEDULES and ":" not in schedule:
        close = difflib.get_close_matches(schedule, SCHEDULES, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"{name}={schedule!r} is none of {', '.join(SCHEDULES)}, nor a module:callable{hint}")
