from dataclasses import dataclass

from offbeat.algorithms.configs import Gaussian, OwnExploration, group, groups, setting
from offbeat.algorithms.registry import Algorithm
from offbeat.algorithms.torch import Values, make_actor_and_critics, make_network, make_optimiser, minimise, weighted


@dataclass(frozen=True)
class Expectile:
    """Expectile Q-learning for Box actions: V follows an expectile of the critics' values of the actions in replay.

    critic  sum_e mean weight (Q_e(s, a) - y)^2,  y = r + discount V(s')
    value   mean |expectile - [u < 0]| u^2,       u = min_e Q'_e(s, a) - V(s)
    actor   -mean min_e Q_e(s, mu(s))
    """

    returns: groups.Returns = group(groups.Returns)
    replay: groups.ReplayUse = group(groups.ReplayUse)
    networks: groups.Networks = group(groups.Networks)
    critic_networks: groups.Critics = group(groups.Critics)
    rates: groups.ActorCriticRates = group(groups.ActorCriticRates)
    optimisation: groups.Optimisation = group(groups.Optimisation)
    normalisation: groups.Normalisation = group(groups.Normalisation)
    exploration: Gaussian | OwnExploration | None = setting(Gaussian(0.2), "Noise on actions during collection.")
    expectile: float = setting(0.8, "Expectile of the critics' values that V follows.", above=0, below=1)
    tau: float = setting(0.005, "Share of the critics that Q' takes over in each update.", above=0, at_most=1)


def init(config, spec, rng, device, dtype):
    actor, critic = make_actor_and_critics(config, spec, rng, device, dtype, spec.action_size)
    layers = {"activation": config.networks.activation, "layer_norm": config.networks.layer_norm, "rng": rng}
    value = make_network(config, "value", Values(spec, config.networks.hidden, **layers), device, dtype)
    learned = {"actor": actor, "critic": critic, "value": value}
    steps = {name: make_optimiser(config.optimisation, network.flat) for name, network in learned.items()}
    return {**learned, "target": critic.copy(), "steps": steps}


def update(state, config, spec, batch, noise, rates, updates):
    actor, critic, value, target, steps = state.values()
    now, following = (batch.obs, batch.state), (batch.next_obs, batch.next_state)
    norm = config.optimisation.max_grad_norm
    error = critic.module(*now, batch.action) - (batch.reward + batch.discount * value(*following)[:, 0])
    loss = weighted(error.square(), batch.weight).mean(1).sum()
    metrics = {"critic_loss": minimise(loss, critic, steps["critic"], rates["critic"], norm)}
    above = target(*now, batch.action).amin(0) - value.module(*now)[:, 0]
    loss = ((config.expectile - (above < 0).to(above.dtype)).abs() * above.square()).mean()
    metrics["value_loss"] = minimise(loss, value, steps["value"], rates["critic"], norm)
    loss = -critic.module(*now, actor.module(batch.obs).tanh()).amin(0).mean()
    metrics["actor_loss"] = minimise(loss, actor, steps["actor"], rates["actor"], norm)
    target.follow(critic, config.tau)
    return metrics, error


def policy_description(config, spec):
    return {"kind": "deterministic", "activation": config.networks.activation}


MODULES, RATES = {"torch": __name__, "jax": "own_parts.expectile_jax"}, {"actor": "actor_", "critic": "critic_"}
ALGORITHM = Algorithm("expectile", Expectile, MODULES, "replay", ("box",), RATES)
