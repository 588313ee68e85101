"""Kinds of exploration: how actions are changed during collection."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from offbeat.algorithms.configs.groups import Reference
from offbeat.errors import UsageError
from offbeat.ranges import check_ranges, setting
from offbeat.references import name_of

SCALE_HELP = (
    "Standard deviation of the noise, for actions in [-1, 1]. For ornstein_uhlenbeck: of the noise that is added per "
    "unit of time."
)
SPREAD_HELP = "The scale of the last environment divided by that of the first; the others lie between in equal ratios."


@dataclass(frozen=True)
class Gaussian:
    """Independent normal noise on every action."""

    kind: ClassVar[str] = "gaussian"

    scale: float = setting(0.1, SCALE_HELP, at_least=0)
    spread: float = setting(1.0, SPREAD_HELP, above=0)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class OrnsteinUhlenbeck:
    """Noise that is correlated over steps and starts at 0 in each episode."""

    kind: ClassVar[str] = "ornstein_uhlenbeck"

    scale: float = setting(0.2, SCALE_HELP, at_least=0)
    spread: float = setting(1.0, SPREAD_HELP, above=0)
    pull: float = setting(0.15, "Share of the noise that decays per unit of time.", at_least=0)
    time_step: float = setting(0.01, "Time per environment step.", above=0)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.pull * self.time_step > 1:
            raise UsageError(
                f"exploration_pull={self.pull} times exploration_time_step={self.time_step} is more than 1, so the "
                "noise would oscillate instead of decaying; use a smaller value for one of them"
            )


@dataclass(frozen=True)
class EpsilonGreedy:
    """A random action with a probability that falls over the first steps."""

    kind: ClassVar[str] = "epsilon_greedy"

    initial: float = setting(1.0, "Probability of a random action at the first step.", at_least=0, at_most=1)
    final: float = setting(0.05, "Probability of a random action after the decay.", at_least=0, at_most=1)
    steps: int = setting(10_000, "Environment steps from initial to final.", at_least=1)
    decay: Literal["linear", "exponential"] = setting(
        "linear", "Decay from initial to final: linear, or exponential (both must then be more than 0)."
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.decay == "exponential" and min(self.initial, self.final) == 0:
            raise UsageError(
                f"exploration_decay='exponential' cannot go from {self.initial} to {self.final}: both must be more "
                "than 0; use linear, or a small number instead of 0"
            )


@dataclass(frozen=True)
class OwnExploration:
    """A user's own exploration, around the policy that acts. shorthand: the field that a callable alone stands for."""

    kind: ClassVar[str] = "own"
    shorthand: ClassVar[str] = "make"

    make: Reference | None = setting(
        None,
        "Your own exploration: module:callable (policy, spec) -> Policy, which wraps the policy that acts. "
        "exploration=module:callable means the same.",
    )

    def __post_init__(self) -> None:
        if self.make is None:
            raise UsageError(
                "exploration=own needs exploration_make, a module:callable (policy, spec) -> Policy: set it, or use "
                "another kind of exploration"
            )


Kind = Gaussian | OrnsteinUhlenbeck | EpsilonGreedy | OwnExploration


def describe(exploration: Kind | None) -> dict[str, Any] | None:
    """The exploration as JSON, for a policy's description; a user's own is only named."""
    if exploration is None:
        return None
    if isinstance(exploration, OwnExploration):
        return {"kind": exploration.kind, "make": name_of(exploration.make)}
    return {"kind": exploration.kind, **dataclasses.asdict(exploration)}


def own_maker(exploration: Any) -> Reference | None:
    """The callable, or its name, of a user's own exploration; None for every other kind."""
    return exploration.make if isinstance(exploration, OwnExploration) else None
