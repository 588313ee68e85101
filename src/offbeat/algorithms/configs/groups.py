"""Groups of settings that algorithms are composed of. Each is read by one part of learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from offbeat.ranges import setting

Reference = str | Callable[..., Any]
"""A user's own code: a callable, or its name as `module:callable`, for config files and the command line."""

Activation = Literal["relu", "tanh", "elu", "silu", "gelu", "leaky_relu"]
Optimiser = Literal["adam", "adamw", "rmsprop", "sgd"]
SCHEDULES = ("constant", "linear", "cosine")
SCHEDULE_HELP = "constant, linear, cosine, or module:callable (progress in [0, 1]) -> factor"
A_NETWORK = "nn.Module (torch), or flax.linen module or init/apply pair (jax)"


@dataclass(frozen=True)
class Networks:
    """The layers of our own networks."""

    title: ClassVar[str] = "networks"

    hidden: tuple[int, ...] = setting((256, 256), "Sizes of the hidden layers.", at_least=1)
    activation: Activation = setting("relu", "Activation of the hidden layers.")
    layer_norm: bool = setting(False, "Apply layer norm before the activation of each hidden layer.")


NETWORKS = ("mlp", "rnn", "gru", "lstm")
SEQUENCES_IN_BATCH = 32
"""The default of batch_size for recurrent networks."""


@dataclass(frozen=True)
class RolloutRecurrence:
    """Recurrent networks, and the sequences of rollouts that they learn from, with the state that acted."""

    title: ClassVar[str] = "networks"

    network: Reference = setting(
        "mlp",
        "Kind of the networks: mlp, or with a recurrent trunk below their hidden layers: rnn, gru, lstm, or your own "
        "recurrent module as module:callable (spec) -> nn.Module (torch) or flax.linen module (jax).",
    )
    recurrent_size: int = setting(256, "Units of each recurrent layer.", at_least=1)
    recurrent_layers: int = setting(1, "Number of recurrent layers.", at_least=1)
    sequence_length: int = setting(32, "Steps of a sequence that an update learns from.", at_least=1)

    @property
    def recurrent(self) -> bool:
        return self.network != "mlp"

    @property
    def own(self) -> bool:
        """Whether the trunk is a user's module."""
        return self.network not in NETWORKS


@dataclass(frozen=True)
class Recurrence(RolloutRecurrence):
    """Recurrent networks, and the sequences in replay that they learn from."""

    burn_in: int = setting(
        0, "Steps before those, which only bring the recurrent state up to date and are not learned from.", at_least=0
    )
    start_state: Literal["stored", "zero"] = setting(
        "stored", "State that a sequence begins with: the one that acted, as it was stored, or the initial one."
    )


NO_RECURRENCE = Recurrence()


def recurrence_of(config: Any) -> Recurrence:
    """The group of an algorithm's settings; the default, mlp, where they have none."""
    found: RolloutRecurrence = getattr(config, "recurrence", NO_RECURRENCE)
    return found if isinstance(found, Recurrence) else Recurrence(**vars(found))


def own_acting_module(settings: Mapping[str, Any], acts_with: str) -> Reference | None:
    """The user's own module that a policy needs to act, by an algorithm's flat settings: its network, or its trunk."""
    own, trunk = settings.get(acts_with), settings.get("network", "mlp")
    return trunk if own is None and trunk not in NETWORKS else own


def learned_rows(config: Any) -> int:
    """Rows that an update from replay learns from: `batch_size` counts sequences if the networks are recurrent."""
    recurrence, count = recurrence_of(config), int(config.replay.batch_size)
    return count * recurrence.sequence_length if recurrence.recurrent else count


@dataclass(frozen=True)
class Critics:
    """The critics of actions."""

    title: ClassVar[str] = "networks"

    critics: int = setting(2, "Number of critics. The target uses the minimum of their values.", at_least=1)
    critic_hidden: tuple[int, ...] | None = setting(
        None, "Sizes of the critics' hidden layers; none uses those of `hidden`.", at_least=1
    )


@dataclass(frozen=True)
class CriticRegularisation:
    """What keeps critics from overfitting at many updates per step."""

    title: ClassVar[str] = "networks"

    critic_layer_norm: bool | None = setting(None, "Layer norm in the critics; none uses the value of `layer_norm`.")
    critic_dropout: float = setting(
        0.0, "Dropout probability of the critics' hidden units during updates.", at_least=0, below=1
    )


@dataclass(frozen=True)
class ValueNetwork:
    """The critic of states."""

    title: ClassVar[str] = "networks"

    critic_hidden: tuple[int, ...] | None = setting(
        None, "Sizes of the critic's hidden layers; none uses those of `hidden`.", at_least=1
    )


@dataclass(frozen=True)
class OwnActorCritic:
    """A user's own networks: an actor, and critics of actions."""

    title: ClassVar[str] = "networks"

    actor: Reference | None = setting(None, f"Your own actor: module:callable (spec) -> {A_NETWORK}.")
    critic: Reference | None = setting(
        None, f"Your own critic: module:callable (spec) -> {A_NETWORK}. It is called once per critic."
    )


@dataclass(frozen=True)
class OwnActorValue:
    """A user's own networks: an actor, and a critic of states."""

    title: ClassVar[str] = "networks"

    actor: Reference | None = setting(None, f"Your own actor: module:callable (spec) -> {A_NETWORK}.")
    critic: Reference | None = setting(
        None, f"Your own critic: module:callable (spec) -> {A_NETWORK}, observation (and state) -> values (B,)."
    )


@dataclass(frozen=True)
class OwnQNetwork:
    """A user's own network of action values."""

    title: ClassVar[str] = "networks"

    critic: Reference | None = setting(
        None, f"Your own network: module:callable (spec) -> {A_NETWORK}, observations (B, O) -> values (B, actions)."
    )


@dataclass(frozen=True)
class Rate:
    """One learning rate for all parameters."""

    learning_rate: float = setting(1e-3, "Learning rate.", at_least=0)
    schedule: Reference = setting("constant", f"Schedule of learning_rate over the run: {SCHEDULE_HELP}.")


@dataclass(frozen=True)
class ActorCriticRates:
    """A learning rate for the actor and one for the critics."""

    actor_learning_rate: float = setting(1e-3, "Learning rate of the actor.", at_least=0)
    critic_learning_rate: float = setting(1e-3, "Learning rate of the critics.", at_least=0)
    actor_schedule: Reference = setting("constant", f"Schedule of actor_learning_rate over the run: {SCHEDULE_HELP}.")
    critic_schedule: Reference = setting(
        "constant", "Schedule of critic_learning_rate; the same choices as actor_schedule."
    )


@dataclass(frozen=True)
class Optimisation:
    """How gradients are computed and turned into steps."""

    optimiser: Optimiser = setting("adam", "Optimiser of every network: adam, adamw, rmsprop or sgd.")
    adam_betas: tuple[float, float] = setting(
        (0.9, 0.999),
        "Decay per update of the running means of the gradient and of its square. For adam and adamw.",
        at_least=0,
        below=1,
    )
    adam_epsilon: float = setting(
        1e-8, "Number that Adam adds to the root of the mean squared gradient. For adam and adamw.", above=0
    )
    weight_decay: float = setting(
        0.01, "Share of each parameter, times the learning rate, that an update subtracts. For adamw.", at_least=0
    )
    max_grad_norm: float | None = setting(
        None, "Gradients are scaled down to this norm where theirs is larger; none never scales them.", above=0
    )
    schedule_kwargs: Mapping[str, Any] = setting(
        {}, "Keyword arguments for schedules of your own, as key=value: schedule(progress, **schedule_kwargs)."
    )
    gradients: Literal["auto", "autograd"] = setting(
        "auto",
        "auto uses explicit gradients where the networks have them (plain MLPs on a CPU) and autograd elsewhere.",
        title="networks",
    )
    compile: Literal["off", "default", "reduce-overhead"] = setting(
        "off",
        "Mode of torch.compile for networks that use autograd; reduce-overhead uses CUDA graphs.",
        title="networks",
    )


@dataclass(frozen=True)
class Normalisation:
    """How observations and rewards are scaled before learning."""

    normalise_observations: bool = setting(
        False, "Subtract the running mean from observations and divide by the running standard deviation."
    )
    preprocessor: Reference | None = setting(
        None, "Your own observation preprocessor, instead of normalise_observations: module:callable (spec) -> object."
    )
    observation_clip: float = setting(
        10.0, "Clip normalised observations to [-this, this].", above=0, needs="normalise_observations"
    )
    reward_scale: float = setting(1.0, "Multiply every reward that is learned from by this.", above=0)
    normalise_rewards: bool = setting(
        False, "Divide rewards by the running standard deviation of the discounted return."
    )


@dataclass(frozen=True)
class Returns:
    """How rewards of later steps count."""

    gamma: float = setting(0.99, "Discount factor per step.", at_least=0, at_most=1)
    n_step: int = setting(1, "Steps of reward in a target before the critic's value is used.", at_least=1, at_most=1024)


@dataclass(frozen=True)
class ReplayUse:
    """What an update takes from replay."""

    batch_size: int = setting(
        256,
        f"Transitions per update; for recurrent networks, sequences, {SEQUENCES_IN_BATCH} by default.",
        at_least=1,
    )


@dataclass(frozen=True)
class Target:
    """The target networks, which follow the learned ones slowly."""

    tau: float = setting(
        0.005, "Share of the learned weights that a target network takes over when it moves.", above=0, at_most=1
    )
    target_every: int = setting(1, "The target networks move once per this many updates.", at_least=1)


def own_schedule(schedule: Any) -> bool:
    """Whether a schedule is a user's own callable."""
    return callable(schedule) or (isinstance(schedule, str) and ":" in schedule)


def schedules_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of flat values that are schedules."""
    return {name: value for name, value in values.items() if name == "schedule" or name.endswith("_schedule")}
