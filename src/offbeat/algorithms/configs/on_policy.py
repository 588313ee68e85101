"""Settings of the algorithms that learn from rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from offbeat.algorithms.configs.groups import (
    Networks,
    Normalisation,
    Optimisation,
    OwnActorValue,
    Rate,
    Reference,
    RolloutRecurrence,
    ValueNetwork,
)
from offbeat.errors import UsageError
from offbeat.ranges import check_ranges, group, setting


@dataclass(frozen=True)
class AdaptiveRate:
    """A learning rate that keeps the policy's change per update near a given size."""

    kind: ClassVar[str] = "adaptive"

    desired_kl: float = setting(0.01, "KL divergence of the policy from its reference to aim at.", above=0)
    kl_factor: float = setting(
        2.0, "The rate changes if the divergence differs from desired_kl by more than this factor.", above=1
    )
    divergence: Literal["sampled", "exact"] = setting(
        "sampled",
        "How the divergence is computed: sampled estimates it from the actions taken, exact uses the distributions.",
    )
    factor: float = setting(1.5, "The rate is multiplied or divided by this.", above=1)
    lowest: float = setting(1e-5, "Smallest rate.", above=0)
    highest: float = setting(1e-2, "Largest rate.", above=0)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.lowest > self.highest:
            raise UsageError(
                f"rate_control_lowest={self.lowest} is more than rate_control_highest={self.highest}; use a smaller one"
            )


@dataclass(frozen=True)
class FixedRate:
    """A learning rate that follows its schedule only."""

    kind: ClassVar[str] = "fixed"


@dataclass(frozen=True)
class Advantages:
    """How rewards of later steps count."""

    gamma: float = setting(0.99, "Discount factor per step.", at_least=0, at_most=1)
    gae_lambda: float = setting(
        0.95, "Weight per step of later TD errors in advantages and value targets.", at_least=0, at_most=1
    )
    normalise_advantages: bool = setting(True, "Shift and scale advantages to mean 0 and standard deviation 1.")
    normalise_over: Literal["minibatch", "rollout"] = setting(
        "minibatch",
        "Rows whose advantages are normalised together: each minibatch, by importance weight; or the whole rollout, "
        "without weights.",
        needs="normalise_advantages",
    )


@dataclass(frozen=True)
class RolloutUse:
    """How long rollouts are, and the updates that each one gives."""

    rollout_steps: int = setting(2_048, "Steps of each environment in a rollout.", at_least=1)
    epochs: int = setting(10, "Passes over each rollout.", at_least=1)
    minibatches: int = setting(32, "Updates per pass. Each uses an equal share of the rollout's steps.", at_least=1)


@dataclass(frozen=True)
class Objective:
    """The clipped loss of policy and value."""

    clip: float = setting(
        0.2, "The policy's loss is constant where the probability ratio is beyond 1 - clip or 1 + clip.", above=0
    )
    clip_schedule: Reference = setting("constant", "Schedule of clip; the same choices as schedule.")
    target_kl: float | None = setting(
        None,
        "The updates with a rollout end early if the policy's KL divergence from its reference is more than 1.5 times "
        "this.",
        above=0,
    )
    value_coefficient: float = setting(0.5, "Weight of the value loss.", at_least=0)
    value_clip: float | None = setting(
        None, "The value loss is constant where a value has moved further than this since the rollout began.", above=0
    )
    entropy_coefficient: float = setting(0.0, "Weight of the policy's entropy.", at_least=0, title="exploration")
    entropy_schedule: Reference = setting(
        "constant", "Schedule of entropy_coefficient; the same choices as schedule.", needs="entropy_coefficient"
    )


@dataclass(frozen=True)
class PolicyShape:
    """The distribution of Box actions."""

    title: ClassVar[str] = "networks"

    squash: bool = setting(
        False, "Box actions are the tanh of normal samples; otherwise the samples are clipped to the bounds."
    )
    state_dependent_std: bool = setting(False, "The actor also outputs the standard deviation of Box actions.")
    initial_log_std: float = setting(0.0, "Initial log standard deviation of Box actions.")


@dataclass(frozen=True)
class PPO:
    """Proximal policy optimisation (Schulman et al. 2017) for Box, Discrete and MultiDiscrete actions."""

    returns: Advantages = group(Advantages)
    rollouts: RolloutUse = group(RolloutUse)
    networks: Networks = group(Networks, hidden=(64, 64), activation="tanh")
    recurrence: RolloutRecurrence = group(RolloutRecurrence)
    critic_networks: ValueNetwork = group(ValueNetwork)
    own_networks: OwnActorValue = group(OwnActorValue)
    policy: PolicyShape = group(PolicyShape)
    rates: Rate = group(Rate, learning_rate=3e-4)
    rate_control: FixedRate | AdaptiveRate = setting(
        FixedRate(), "fixed: the rate follows its schedule. adaptive: it also follows the policy's KL divergence."
    )
    objective: Objective = group(Objective)
    optimisation: Optimisation = group(Optimisation, adam_epsilon=1e-5, max_grad_norm=0.5)
    normalisation: Normalisation = group(Normalisation)
    reward_clip: float | None = setting(
        None,
        "Clip rewards to [-this, this] before learning; none uses 10 with normalise_rewards, and no limit without.",
        above=0,
    )

    @property
    def largest_reward(self) -> float | None:
        """The limit that rewards are clipped to; None is no limit.

        Normalised rewards always have one: the first are divided by a standard deviation of only a few returns.
        """
        return 10.0 if self.reward_clip is None and self.normalisation.normalise_rewards else self.reward_clip


@dataclass(frozen=True)
class ReferencePolicy:
    """The target network that probability ratios refer to."""

    target_every: int | None = setting(
        None,
        "The target network, which probability ratios refer to, moves once per this many updates. none uses no target "
        "network: ratios refer to the policy as it was when learning from the rollout began.",
        at_least=1,
    )
    tau: float = setting(
        1.0,
        "Share of the learned weights that the target network takes over when it moves.",
        above=0,
        at_most=1,
        needs="target_every",
    )


@dataclass(frozen=True)
class Correction:
    """Limits of the importance ratios by which rollouts of older weights are corrected."""

    rho_bar: float = setting(1.0, "Largest importance ratio in value targets.", above=0)
    c_bar: float = setting(1.0, "Largest importance ratio in the traces of later steps.", above=0)
    advantage_rho_bar: float = setting(1.0, "Largest importance ratio in advantages.", above=0)
    ratio_cap: float = setting(
        2.0, "Largest ratio of an action's probability when it was taken to that under the reference policy.", above=0
    )


@dataclass(frozen=True)
class QueueUse:
    """How rollouts wait for the learner, and how often each is used."""

    title: ClassVar[str] = "collectors"

    queue: int = setting(1, "Rollouts of each collector that may wait for the learner.", at_least=1, needs="collectors")
    when_full: Literal["block", "drop-oldest"] = setting(
        "block",
        "What a collector does if its queue is full: wait, or overwrite the oldest rollout.",
        needs="collectors",
    )
    sample_reuse: int = setting(
        1, "How often a rollout may be learned from; more than once only while no newer one waits.", at_least=1
    )


@dataclass(frozen=True)
class APPO(PPO):
    """Asynchronous PPO: rollouts of older weights are corrected by V-trace (Espeholt et al. 2018; Luo et al. 2020)."""

    rollouts: RolloutUse = group(RolloutUse, rollout_steps=512, epochs=5, minibatches=8)
    target: ReferencePolicy = group(ReferencePolicy)
    correction: Correction = group(Correction)
    rollout_queue: QueueUse = group(QueueUse)
