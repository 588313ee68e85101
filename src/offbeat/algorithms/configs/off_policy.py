"""Settings of the algorithms that learn from replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from offbeat.algorithms.configs.exploration import EpsilonGreedy, Gaussian, OrnsteinUhlenbeck, OwnExploration
from offbeat.algorithms.configs.groups import (
    ActorCriticRates,
    CriticRegularisation,
    Critics,
    Networks,
    Normalisation,
    Optimisation,
    OwnActorCritic,
    OwnQNetwork,
    Rate,
    Recurrence,
    Reference,
    ReplayUse,
    Returns,
    Target,
)
from offbeat.errors import UsageError
from offbeat.ranges import check_ranges, group, setting

ACTOR_EVERY_HELP = "The actor is updated once per this many updates of the critics."


@dataclass(frozen=True)
class Learned:
    """A temperature that is learned so that the policy's entropy stays near a target."""

    initial: float = setting(1.0, "Initial temperature.", above=0)
    target_entropy: float | None = setting(
        None,
        "Target entropy of the policy. none uses minus the action size for Box actions, and 0.98 of the largest "
        "possible entropy for Discrete actions.",
    )

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class Fixed:
    """A constant temperature."""

    value: float = setting(0.2, "The temperature.", at_least=0)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class Deviation:
    """Limits of a squashed Gaussian policy's standard deviation."""

    log_std_min: float = setting(
        -20.0, "Lower limit of the policy's log standard deviation, for Box actions.", title="networks"
    )
    log_std_max: float = setting(
        2.0, "Upper limit of the policy's log standard deviation, for Box actions.", title="networks"
    )


@dataclass(frozen=True)
class SAC:
    """Soft actor-critic for Box and Discrete actions (Haarnoja et al. 2018; Christodoulou 2019)."""

    returns: Returns = group(Returns)
    replay: ReplayUse = group(ReplayUse)
    networks: Networks = group(Networks)
    recurrence: Recurrence = group(Recurrence)
    critic_networks: Critics = group(Critics)
    critic_regularisation: CriticRegularisation = group(CriticRegularisation)
    own_networks: OwnActorCritic = group(OwnActorCritic)
    policy: Deviation = group(Deviation)
    rates: ActorCriticRates = group(ActorCriticRates)
    temperature: Learned | Fixed = setting(
        Learned(), "Weight of the entropy in the objective: learned or fixed.", title="exploration"
    )
    temperature_learning_rate: float = setting(1e-3, "Learning rate of the temperature.", at_least=0)
    temperature_schedule: Reference = setting(
        "constant", "Schedule of temperature_learning_rate; the same choices as actor_schedule."
    )
    target_subset: int | None = setting(
        None,
        "Number of critics, drawn at random for each update, whose minimum is the target; none uses all.",
        at_least=1,
    )
    actor_value: Literal["min", "mean"] = setting(
        "min", "Value that the actor maximises: the minimum of the critics, or their mean."
    )
    actor_every: int = setting(1, ACTOR_EVERY_HELP, at_least=1)
    target: Target = group(Target)
    optimisation: Optimisation = group(Optimisation)
    normalisation: Normalisation = group(Normalisation)

    def __post_init__(self) -> None:
        critics, policy = self.critic_networks.critics, self.policy
        if self.target_subset is not None and self.target_subset > critics:
            raise UsageError(f"target_subset={self.target_subset} is more than critics={critics}; use fewer")
        if policy.log_std_min >= policy.log_std_max:
            raise UsageError(f"log_std_min={policy.log_std_min} must be less than log_std_max={policy.log_std_max}")


@dataclass(frozen=True)
class TD3:
    """Twin delayed deep deterministic policy gradient for Box actions (Fujimoto et al. 2018)."""

    returns: Returns = group(Returns)
    replay: ReplayUse = group(ReplayUse)
    networks: Networks = group(Networks)
    recurrence: Recurrence = group(Recurrence)
    critic_networks: Critics = group(Critics)
    own_networks: OwnActorCritic = group(OwnActorCritic)
    rates: ActorCriticRates = group(ActorCriticRates)
    actor_every: int = setting(2, ACTOR_EVERY_HELP, at_least=1)
    target: Target = group(Target, target_every=2)
    target_noise: float = setting(
        0.2, "Standard deviation of the noise that is added to the target policy's actions.", at_least=0
    )
    target_noise_clip: float = setting(0.5, "That noise is clipped to [-this, this].", at_least=0, needs="target_noise")
    exploration: Gaussian | OrnsteinUhlenbeck | OwnExploration | None = setting(
        Gaussian(), "Noise that is added to actions during collection, or your own exploration.", title="exploration"
    )
    optimisation: Optimisation = group(Optimisation)
    normalisation: Normalisation = group(Normalisation)


@dataclass(frozen=True)
class DQN:
    """Deep Q-network for Discrete actions (Mnih et al. 2015), with double Q, dueling heads and n-step returns."""

    returns: Returns = group(Returns)
    replay: ReplayUse = group(ReplayUse, batch_size=64)
    networks: Networks = group(Networks, hidden=(128, 128))
    recurrence: Recurrence = group(Recurrence)
    dueling: bool = setting(False, "Separate outputs for the value and the advantages.", title="networks")
    own_networks: OwnQNetwork = group(OwnQNetwork)
    rates: Rate = group(Rate)
    loss: Literal["huber", "mse"] = setting(
        "huber", "Loss of the TD error: huber is squared below 1 and linear above, mse is squared."
    )
    double_q: bool = setting(
        True, "The learned network selects the next action, and the target network gives its value."
    )
    exploration: EpsilonGreedy | OwnExploration | None = setting(
        EpsilonGreedy(), "Random actions during collection, or your own exploration.", title="exploration"
    )
    target: Target = group(Target, tau=1.0, target_every=500)
    optimisation: Optimisation = group(Optimisation, max_grad_norm=10.0)
    normalisation: Normalisation = group(Normalisation)
