"""Settings of the algorithms that learn from rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from offbeat.algorithms.configs.learning import Activation, Learning, Reference
from offbeat.errors import UsageError
from offbeat.ranges import check_ranges, setting

Optimiser = Literal["adam", "adamw", "rmsprop", "sgd"]


@dataclass(frozen=True)
class AdaptiveRate:
    """A learning rate that keeps each update's change of the policy near a size."""

    kind: ClassVar[str] = "adaptive"

    desired_kl: float = setting(0.01, "Divergence of the policy from its reference to aim at.", above=0)
    kl_factor: float = setting(2.0, "The rate changes where the divergence is off by more than this factor.", above=1)
    factor: float = setting(1.5, "The rate is multiplied or divided by this.", above=1)
    lowest: float = setting(1e-5, "The rate does not go below this.", above=0)
    highest: float = setting(1e-2, "The rate does not go above this.", above=0)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.lowest > self.highest:
            raise UsageError(f"rate_control_lowest={self.lowest} is more than rate_control_highest={self.highest}")


@dataclass(frozen=True)
class FixedRate:
    """A learning rate that follows its schedule alone."""

    kind: ClassVar[str] = "fixed"


@dataclass(frozen=True)
class PPO(Learning):
    """Proximal policy optimisation (Schulman et al. 2017) for Box, Discrete and MultiDiscrete actions."""

    without: ClassVar[tuple[str, ...]] = (
        *("updates_per_step", "random_steps", "warmup_steps", "capacity"),
        *("slack", "collect_ahead", "max_policy_lag"),
    )

    rollout_steps: int = setting(2_048, "Steps of each environment that make a rollout.", at_least=1)
    epochs: int = setting(10, "Passes over each rollout.", at_least=1)
    minibatches: int = setting(32, "Updates per pass, each with its share of the rollout's rows.", at_least=1)
    hidden: tuple[int, ...] = setting((64, 64), "Hidden layer sizes of the actor.", at_least=1)
    critic_hidden: tuple[int, ...] | None = setting(
        None, "Hidden layer sizes of the critic; none is as the actor's.", at_least=1
    )
    activation: Activation = setting("tanh", "Activation of hidden layers.")
    learning_rate: float = setting(3e-4, "The optimiser's rate.", at_least=0)
    schedule: Reference = setting(
        "constant", "constant, linear, cosine, or module:callable (progress in [0, 1]) -> factor; over the run's steps."
    )
    rate_control: FixedRate | AdaptiveRate = setting(
        FixedRate(), "The rate follows its schedule, or also the policy's divergence."
    )
    optimiser: Optimiser = setting("adam", "What makes a step of a gradient.")
    adam_epsilon: float = setting(1e-5, "What Adam adds to the root of a gradient's mean square.", above=0)
    max_grad_norm: float | None = setting(0.5, "Limit of the gradient norm, of all parameters together.", above=0)
    gae_lambda: float = setting(
        0.95, "Share of later steps' errors in advantages and value targets.", at_least=0, at_most=1
    )
    clip: float = setting(0.2, "The policy gains nothing by ratios beyond 1 - clip and 1 + clip.", above=0)
    clip_schedule: Reference = setting("constant", "As schedule, for clip.")
    target_kl: float | None = setting(
        None, "A turn ends where the policy's divergence from its reference is more than 1.5 times this.", above=0
    )
    value_coefficient: float = setting(0.5, "Weight of the value's loss.", at_least=0)
    value_clip: float | None = setting(None, "Values gain nothing by moving further than this per rollout.", above=0)
    entropy_coefficient: float = setting(0.0, "Weight of the policy's entropy.", at_least=0)
    entropy_schedule: Reference = setting("constant", "As schedule, for entropy_coefficient.")
    normalise_advantages: bool = setting(True, "Mean 0 and deviation 1 in every minibatch, by importance weight.")
    reward_clip: float | None = setting(
        None,
        "Rewards that the critic sees are clipped to +- this; none is 10 with normalise_rewards and no clip without.",
        above=0,
    )
    squash: bool = setting(False, "Box actions are the tanh of normal draws; else these are clipped to the bounds.")
    state_dependent_std: bool = setting(False, "The actor's output has the deviation of Box actions, too.")
    initial_log_std: float = setting(0.0, "Log standard deviation of Box actions to start from.")
    actor: Reference | None = setting(None, "Your own actor: module:callable (spec) -> nn.Module.")
    critic: Reference | None = setting(
        None, "Your own critic: module:callable (spec) -> nn.Module, observation (and state) -> values (B,)."
    )

    @property
    def largest_reward(self) -> float | None:
        """Where rewards are clipped; None is nowhere.

        Normalised rewards are clipped in any case: the first ones are divided by a deviation of a few returns.
        """
        return 10.0 if self.reward_clip is None and self.normalise_rewards else self.reward_clip


@dataclass(frozen=True)
class APPO(PPO):
    """Asynchronous PPO: rollouts of older weights are corrected by V-trace (Espeholt et al. 2018; Luo et al. 2020)."""

    without: ClassVar[tuple[str, ...]] = tuple(name for name in PPO.without if name != "max_policy_lag")

    rollout_steps: int = setting(512, "Steps of each environment that make a rollout.", at_least=1)
    epochs: int = setting(5, "Passes over each rollout.", at_least=1)
    minibatches: int = setting(8, "Updates per pass, each with its share of the rollout's rows.", at_least=1)
    target_every: int | None = setting(
        None,
        "The target network, to which ratios refer, moves every this many updates; none is no such network: ratios "
        "refer to the policy as its turn with a rollout begins.",
        at_least=1,
    )
    tau: float = setting(1.0, "Share of the network that its target takes over per move.", above=0, at_most=1)
    rho_bar: float = setting(1.0, "Bound of the importance ratios in value targets.", above=0)
    c_bar: float = setting(1.0, "Bound of the importance ratios by which traces go on.", above=0)
    advantage_rho_bar: float = setting(1.0, "Bound of the importance ratios in advantages.", above=0)
    ratio_cap: float = setting(2.0, "Bound of how much likelier an action was than its reference makes it.", above=0)
    queue: int = setting(
        1, "Rollouts of each collector that may wait to be learned from.", at_least=1, needs="collectors"
    )
    when_full: Literal["block", "drop-oldest"] = setting(
        "block", "What a collector does with a full queue: wait, or write over the oldest rollout.", needs="collectors"
    )
    sample_reuse: int = setting(1, "Turns that a rollout may have; further ones while no newer waits.", at_least=1)
