"""Every setting, as frozen dataclasses; imports no backend.

Each field is made by `setting(default, help, ...)`; its range is checked when the dataclass is made, wherever the value
came from (Python, YAML, command line). A union of dataclasses (temperature) surfaces as flat keys.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from offbeat.errors import UsageError
from offbeat.ranges import check_ranges, setting

Reference = str | Callable[..., Any]
"""A user's own code: a callable, or `module:callable`, which a config file and the command line can hold."""

Activation = Literal["relu", "tanh", "elu", "silu", "gelu", "leaky_relu"]
Optimiser = Literal["adam", "adamw", "rmsprop", "sgd"]
SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True)
class Learned:
    """A temperature that is learned so that the policy's entropy stays near a target."""

    initial: float = setting(1.0, "Temperature to start from.", above=0)
    target_entropy: float | None = setting(
        None, "Entropy to aim at; none is minus the action size, or half of the largest for Discrete actions."
    )

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class Fixed:
    """A temperature that stays as it is."""

    value: float = setting(0.2, "The temperature.", at_least=0)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class Run:
    """Where, how long and how a run trains; the same for every algorithm."""

    env: str = setting("", "Gymnasium id, or module:factory.")
    env_kwargs: Mapping[str, Any] = setting({}, "Arguments for the environment, as key=value.")
    env_wrapper: Reference | None = setting(None, "module:callable that wraps each environment.")
    max_episode_steps: int | None = setting(
        None, "Truncate episodes here; none keeps the environment's own limit.", at_least=1
    )
    state_key: str | None = setting(
        None, "Privileged state for the critic only: a key of a Dict observation, or of info."
    )
    preset: str | None = setting(
        "auto",
        "Settings from the literature, below flags and files and above the defaults: auto is the environment's own "
        "preset, if it has one; or the id of another environment; or none.",
    )
    num_envs: int = setting(1, "Environments stepped side by side.", at_least=1)
    total_steps: int = setting(100_000, "Environment steps, over all environments.", at_least=1)
    total_updates: int | None = setting(None, "Stop after this many updates instead, if that comes first.", at_least=1)
    seed: int = setting(0, "Seed of every random stream.", at_least=0, below=2**63)
    out: str = setting("runs", "Directory for runs.")
    name: str | None = setting(
        None, "The run is exactly OUT/NAME; none makes a name from algorithm, environment, seed and time."
    )
    updates_per_step: float = setting(1.0, "Updates per environment step after warm-up; may be a fraction.", above=0)
    random_steps: int = setting(1_000, "Uniform random actions for this many first steps.", at_least=0)
    warmup_steps: int = setting(1_000, "No updates before this many steps.", at_least=1)
    capacity: int = setting(1_000_000, "Transitions that replay keeps.", at_least=1)
    reward_shaping: Reference | None = setting(
        None, "module:callable (reward, step, total_steps) -> reward, applied before replay."
    )
    collectors: int = setting(
        0, "Collector processes, each with its share of the environments; 0 collects in the learner's own.", at_least=0
    )
    slack: int = setting(
        32,
        "With collectors: environment steps that may be taken before the updates that belong to the earlier ones are "
        "made; 0 is synchronous, with the numbers of one process.",
        at_least=0,
        needs="collectors",
    )
    collect_ahead: int = setting(
        4,
        "With collectors: vector steps that each may take before the learner looks again.",
        at_least=1,
        needs="collectors",
    )
    max_policy_lag: int | None = setting(
        None,
        "With collectors: updates by which the weights that act may be behind; none sets no limit.",
        at_least=1,
        needs="collectors",
    )
    hang_seconds: float = setting(
        60.0,
        "With collectors: an environment whose step takes longer is interrupted and restarted; after twice as long its "
        "collector is replaced.",
        above=0,
        needs="collectors",
    )
    max_crashes: int = setting(
        5,
        "With collectors: the run stops when one ends so often in a row without a row collected.",
        at_least=1,
        needs="collectors",
    )
    acting: Literal["auto", "numpy", "torch"] = setting(
        "auto", "What the policy acts with; auto is NumPy below 32 environments."
    )
    eval_every: int = setting(5_000, "Evaluate every this many steps; 0 only at the end.", at_least=0)
    eval_episodes: int = setting(10, "Episodes per evaluation.", at_least=1)
    stop_return: float | None = setting(None, "Stop when an evaluation's mean return reaches this.")
    checkpoint_every: int = setting(10_000, "Checkpoint every this many steps; 0 only at the end.", at_least=0)
    log_every: int = setting(1_000, "Log metrics every this many steps.", at_least=1)
    logger: tuple[Literal["tensorboard", "wandb"], ...] = setting(
        ("tensorboard",), "Loggers beside metrics.jsonl, separated by commas; 'none' for no other."
    )
    device: str = setting("cpu", "Torch device of the learner: cpu, cuda, cuda:1, or auto.")
    threads: int = setting(
        0,
        "Torch threads of the learner; 0 leaves torch's own choice, or the cores that collectors and evaluation leave.",
        at_least=0,
    )
    precision: Literal["float32", "float64"] = setting("float32", "The learner's floating-point type.")
    trace: bool = setting(False, "Write trace.json: what each process did when (`offbeat trace` adds it up).")
    trace_cpu: bool = setting(False, "With trace: processor time of each span, too.", needs="trace")
    quiet: bool = setting(False, "Print nothing but errors, notes and the run's path.")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.num_envs > self.capacity:
            raise UsageError(
                f"capacity={self.capacity} is less than num_envs={self.num_envs}: one step of all would not fit"
            )
        self._check_collectors()
        if self.stop_return is not None and not self.eval_every:
            raise UsageError(
                f"stop_return={self.stop_return:g} looks at evaluations, and eval_every=0 makes none before the end: "
                "use eval_every >= 1, or leave stop_return out"
            )
        if self.warmup_steps > self.capacity:
            raise UsageError(
                f"warmup_steps={self.warmup_steps} is more than capacity={self.capacity}: replay could never hold the "
                f"warm-up, so learning would never start; use warmup_steps <= {self.capacity} or a larger capacity"
            )

    def _check_collectors(self) -> None:
        if self.collectors > self.num_envs:
            raise UsageError(
                f"collectors={self.collectors} is more than num_envs={self.num_envs}: each collector needs an "
                f"environment; use num_envs >= {self.collectors}"
            )
        least = self.collectors * self.slack + 2 * self.collect_ahead * self.num_envs
        if self.collectors and least > self.capacity:
            raise UsageError(
                f"capacity={self.capacity} leaves a collector less than it may be ahead by, slack={self.slack} and "
                f"collect_ahead={self.collect_ahead} vector steps; use capacity >= {least}"
            )
        check_needs(self, self)


def check_needs(settings: Any, run: Run) -> None:
    """Raises UsageError for a setting that has nothing to act on, because the run lacks what it needs."""
    for each in dataclasses.fields(settings):
        value, needed = getattr(settings, each.name), each.metadata["needs"]
        if needed is not None and not getattr(run, needed) and value != each.default:
            raise UsageError(
                f"{each.name}={value} is about {needed}, and {needed}={getattr(run, needed)} has none: set {needed}, "
                "or leave it out"
            )


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
class Learning:
    """What every algorithm has.

    acts_with: the network that acts, which may be a user's own. without: the run's settings that mean nothing to it.
    """

    acts_with: ClassVar[str] = "actor"
    without: ClassVar[tuple[str, ...]] = ()

    gamma: float = setting(0.99, "Discount per step.", at_least=0, at_most=1)
    hidden: tuple[int, ...] = setting((256, 256), "Hidden layer sizes.", at_least=1)
    activation: Activation = setting("relu", "Activation of hidden layers.")
    layer_norm: bool = setting(False, "Layer norm before each hidden activation.")
    max_grad_norm: float | None = setting(None, "Limit of each network's gradient norm.", above=0)
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


@dataclass(frozen=True)
class OffPolicy(Learning):
    """What every algorithm that learns from replay has."""

    tau: float = setting(0.005, "Share of the network that its target takes over per move.", above=0, at_most=1)
    target_every: int = setting(1, "The target moves every this many updates.", at_least=1)
    batch_size: int = setting(256, "Transitions per update.", at_least=1)
    n_step: int = setting(1, "Steps of reward before the critic takes over.", at_least=1)


def _check_schedule(name: str, schedule: Reference) -> None:
    if isinstance(schedule, str) and schedule not in SCHEDULES and ":" not in schedule:
        close = difflib.get_close_matches(schedule, SCHEDULES, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"{name}={schedule!r} is none of {', '.join(SCHEDULES)}, nor a module:callable{hint}")


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
    actor_every: int = setting(1, "The actor learns every this many critic updates.", at_least=1)
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

    critics: int = setting(10, "Critics; targets take the minimum of some.", at_least=1)
    target_subset: int | None = setting(
        2, "Critics, drawn anew for each update, of which the target takes the minimum; none is all.", at_least=1
    )
    actor_value: Literal["min", "mean"] = setting("mean", "What the actor climbs: the critics' minimum or their mean.")


@dataclass(frozen=True)
class TD3(ActorCritic):
    """Twin delayed deep deterministic policy gradient for Box actions (Fujimoto et al. 2018)."""

    actor_every: int = setting(2, "The actor learns every this many critic updates.", at_least=1)
    target_every: int = setting(2, "The targets move every this many critic updates.", at_least=1)
    target_noise: float = setting(0.2, "Standard deviation of the noise on the target's actions.", at_least=0)
    target_noise_clip: float = setting(0.5, "That noise is clipped here.", at_least=0)
    exploration: Gaussian | OrnsteinUhlenbeck | None = setting(Gaussian(), "Noise on the actions that are taken.")


@dataclass(frozen=True)
class DDPG(TD3):
    """Deep deterministic policy gradient (Lillicrap et al. 2016): TD3 with one critic, no delay and no target noise."""

    critics: int = setting(1, "Critics; targets take their minimum.", at_least=1)
    actor_every: int = setting(1, "The actor learns every this many critic updates.", at_least=1)
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dueling and self.critic is not None:
            raise UsageError("dueling=True goes with the built-in network; a critic of your own has its own heads")


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
    max_grad_norm: float | None = setting(0.5, "Limit of the gradient norm, of all parameters together.", above=0)
    gae_lambda: float = setting(
        0.95, "Share of later steps' errors in advantages and value targets.", at_least=0, at_most=1
    )
    clip: float = setting(0.2, "The policy gains nothing by ratios beyond 1 - clip and 1 + clip.", above=0)
    value_coefficient: float = setting(0.5, "Weight of the value's loss.", at_least=0)
    value_clip: float | None = setting(None, "Values gain nothing by moving further than this per rollout.", above=0)
    entropy_coefficient: float = setting(0.0, "Weight of the policy's entropy.", at_least=0)
    normalise_advantages: bool = setting(True, "Mean 0 and deviation 1 in every minibatch.")
    reward_clip: float | None = setting(None, "Rewards that the critic sees are clipped to +- this.", above=0)
    squash: bool = setting(False, "Box actions are the tanh of normal draws; else these are clipped to the bounds.")
    state_dependent_std: bool = setting(False, "The actor's output has the deviation of Box actions, too.")
    initial_log_std: float = setting(0.0, "Log standard deviation of Box actions to start from.")
    actor: Reference | None = setting(None, "Your own actor: module:callable (spec) -> nn.Module.")
    critic: Reference | None = setting(
        None, "Your own critic: module:callable (spec) -> nn.Module, observation (and state) -> values (B,)."
    )


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_every is None and self.tau != 1.0:
            raise UsageError(f"tau={self.tau} is about a target network, and there is none: set target_every, too")


Algorithm = Learning
ALGORITHMS: dict[str, type[Algorithm]] = {
    "sac": SAC,
    "redq": REDQ,
    "td3": TD3,
    "ddpg": DDPG,
    "dqn": DQN,
    "ppo": PPO,
    "appo": APPO,
}


@dataclass(frozen=True)
class Config:
    """What a run is made from: an algorithm by name, its settings, and the run's."""

    algorithm: str
    run: Run
    learner: Algorithm

    def __post_init__(self) -> None:
        check_needs(self.learner, self.run)
