"""Settings of the algorithms that learn from replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from offbeat.algorithms.configs.learning import Learning, Reference
from offbeat.errors import UsageError
from offbeat.ranges import check_ranges, setting


@dataclass(frozen=True)
class Learned:
    """A temperature that is learned so that the policy's entropy stays near a target."""

    initial: float = setting(1.0, "Temperature to start from.", above=0)
    target_entropy: float | None = setting(
        None, "Entropy to aim at; none is minus the action size, or 0.98 of the largest for Discrete actions."
    )

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class Fixed:
    """A temperature that stays as it is."""

    value: float = setting(0.2, "The temperature.", at_least=0)

    def __post_init__(self) -> None:
        check_ranges(self)


SCALE_HELP = (
    "Standard deviation of the noise, for actions in [-1, 1]; with ornstein_uhlenbeck, of what is added to it per unit "
    "of time."
)
SPREAD_HELP = "The last environment's scale is this many times the first's; those between in equal ratios."


@dataclass(frozen=True)
class Gaussian:
    """Independent normal noise on every action."""

    scale: float = setting(0.1, SCALE_HELP, at_least=0)
    spread: float = setting(1.0, SPREAD_HELP, above=0)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class OrnsteinUhlenbeck:
    """Noise that drifts from step to step and begins at 0 in each episode."""

    scale: float = setting(0.2, SCALE_HELP, at_least=0)
    spread: float = setting(1.0, SPREAD_HELP, above=0)
    pull: float = setting(0.15, "Share of the noise that is lost per unit of time.", at_least=0)
    time_step: float = setting(0.01, "Time per environment step.", above=0)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.pull * self.time_step > 1:
            raise UsageError(
                f"exploration_pull={self.pull} times exploration_time_step={self.time_step} is more than 1: the noise "
                "would swing to and fro instead of being pulled back; use a smaller one"
            )


@dataclass(frozen=True)
class EpsilonGreedy:
    """A random action now and then, less often as steps go by."""

    initial: float = setting(1.0, "Share of random actions at the first step.", at_least=0, at_most=1)
    final: float = setting(0.05, "Share of random actions in the end.", at_least=0, at_most=1)
    steps: int = setting(10_000, "Environment steps that the way from initial to final takes.", at_least=1)
    decay: Literal["linear", "exponential"] = setting(
        "linear", "The way from initial to final: equal differences, or equal ratios (both must then be above 0)."
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.decay == "exponential" and min(self.initial, self.final) == 0:
            raise UsageError(
                f"exploration_decay='exponential' cannot go from {self.initial} to {self.final}: equal ratios need "
                "both above 0; use linear, or a small number instead of 0"
            )


@dataclass(frozen=True)
class OffPolicy(Learning):
    """What every algorithm that learns from replay has."""

    tau: float = setting(0.005, "Share of the network that its target takes over per move.", above=0, at_most=1)
    target_every: int = setting(1, "The target moves every this many updates.", at_least=1)
    batch_size: int = setting(256, "Transitions per update.", at_least=1)
    n_step: int = setting(1, "Steps of reward before the critic takes over.", at_least=1, at_most=1024)


@dataclass(frozen=True)
class ActorCritic(OffPolicy):
    """What every algorithm with an actor and critics of its actions has."""

    critics: int = setting(2, "Critics; targets take their minimum.", at_least=1)
    critic_hidden: tuple[int, ...] | None = setting(
        None, "Hidden layer sizes of the critics; none is as the actor's.", at_least=1
    )
    actor_learning_rate: float = setting(1e-3, "Adam's rate for the actor.", at_least=0)
    critic_learning_rate: float = setting(1e-3, "Adam's rate for the critics.", at_least=0)
    actor_schedule: Reference = setting(
        "constant", "constant, linear, cosine, or module:callable (progress in [0, 1]) -> factor."
    )
    critic_schedule: Reference = setting("constant", "As actor_schedule, for the critics.")
    actor_every: int = setting(1, "The actor learns after every this many critic updates.", at_least=1)
    actor: Reference | None = setting(None, "Your own actor: module:callable (spec) -> nn.Module.")
    critic: Reference | None = setting(
        None, "Your own critic: module:callable (spec) -> nn.Module, called once per critic."
    )


@dataclass(frozen=True)
class SAC(ActorCritic):
    """Soft actor-critic for Box and Discrete actions (Haarnoja et al. 2018; Christodoulou 2019)."""

    temperature: Learned | Fixed = setting(Learned(), "Weight of the entropy: learned or fixed.")
    temperature_learning_rate: float = setting(1e-3, "Adam's rate for the temperature.", at_least=0)
    temperature_schedule: Reference = setting("constant", "As actor_schedule, for the temperature.")
    log_std_min: float = setting(-20.0, "Lower clamp of the policy's log standard deviation, for Box actions.")
    log_std_max: float = setting(2.0, "Upper clamp of the policy's log standard deviation, for Box actions.")
    target_subset: int | None = setting(
        None, "Critics, drawn anew for each update, of which the target takes the minimum; none is all.", at_least=1
    )
    actor_value: Literal["min", "mean"] = setting("min", "What the actor climbs: the critics' minimum or their mean.")
    critic_layer_norm: bool | None = setting(None, "Layer norm in the critics; none is as layer_norm.")
    critic_dropout: float = setting(0.0, "Share of the critics' hidden units that are left out.", at_least=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_subset is not None and self.target_subset > self.critics:
            raise UsageError(f"target_subset={self.target_subset} is more than critics={self.critics}; use fewer")
        if self.log_std_min >= self.log_std_max:
            raise UsageError(f"log_std_min={self.log_std_min} must be less than log_std_max={self.log_std_max}")


@dataclass(frozen=True)
class REDQ(SAC):
    """Randomised ensembled double Q-learning (Chen et al. 2021): SAC with many critics, for many updates per step."""

    run_defaults: ClassVar[Mapping[str, Any]] = {"updates_per_step": 20.0}

    critics: int = setting(10, "Critics; targets take the minimum of some.", at_least=1)
    target_subset: int | None = setting(
        2, "Critics, drawn anew for each update, of which the target takes the minimum; none is all.", at_least=1
    )
    actor_value: Literal["min", "mean"] = setting("mean", "What the actor climbs: the critics' minimum or their mean.")
    actor_every: int = setting(20, "The actor learns after every this many critic updates.", at_least=1)


@dataclass(frozen=True)
class TD3(ActorCritic):
    """Twin delayed deep deterministic policy gradient for Box actions (Fujimoto et al. 2018)."""

    actor_every: int = setting(2, "The actor learns after every this many critic updates.", at_least=1)
    target_every: int = setting(2, "The targets move every this many critic updates.", at_least=1)
    target_noise: float = setting(0.2, "Standard deviation of the noise on the target's actions.", at_least=0)
    target_noise_clip: float = setting(0.5, "That noise is clipped here.", at_least=0)
    exploration: Gaussian | OrnsteinUhlenbeck | None = setting(Gaussian(), "Noise on the actions that are taken.")


@dataclass(frozen=True)
class DDPG(TD3):
    """Deep deterministic policy gradient (Lillicrap et al. 2016): TD3 with one critic, no delay and no target noise."""

    critics: int = setting(1, "Critics; targets take their minimum.", at_least=1)
    actor_every: int = setting(1, "The actor learns after every this many critic updates.", at_least=1)
    target_every: int = setting(1, "The targets move every this many critic updates.", at_least=1)
    target_noise: float = setting(0.0, "Standard deviation of the noise on the target's actions.", at_least=0)


@dataclass(frozen=True)
class DQN(OffPolicy):
    """Deep Q-network for Discrete actions (Mnih et al. 2015), with double Q, dueling heads and n-step returns."""

    acts_with: ClassVar[str] = "critic"

    tau: float = setting(1.0, "Share of the network that its target takes over per move.", above=0, at_most=1)
    target_every: int = setting(500, "The target moves every this many updates.", at_least=1)
    batch_size: int = setting(64, "Transitions per update.", at_least=1)
    hidden: tuple[int, ...] = setting((128, 128), "Hidden layer sizes.", at_least=1)
    max_grad_norm: float | None = setting(10.0, "Limit of the network's gradient norm.", above=0)
    learning_rate: float = setting(1e-3, "Adam's rate.", at_least=0)
    schedule: Reference = setting(
        "constant", "constant, linear, cosine, or module:callable (progress in [0, 1]) -> factor."
    )
    loss: Literal["huber", "mse"] = setting("huber", "Of the error: squared below 1 and linear above, or squared.")
    double_q: bool = setting(True, "The network chooses the next action, its target says what it is worth.")
    dueling: bool = setting(False, "Value and advantages as separate outputs.")
    critic: Reference | None = setting(
        None, "Your own network: module:callable (spec) -> nn.Module, observations (B, O) -> values (B, actions)."
    )
    exploration: EpsilonGreedy | None = setting(EpsilonGreedy(), "Random actions now and then.")
