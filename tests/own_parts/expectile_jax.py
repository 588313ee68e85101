import jax.numpy as jnp

from offbeat.algorithms.jax import Values, make_actor_and_critics, make_network, make_optimiser, minimise, weighted


def init(config, spec, rng, device, dtype):
    actor, critic = make_actor_and_critics(config, spec, rng, dtype, spec.action_size)
    layers = {"activation": config.networks.activation, "layer_norm": config.networks.layer_norm}
    value = make_network(Values.of(spec, config.networks.hidden, **layers), rng, dtype)
    learned = {"actor": actor, "critic": critic, "value": value}
    steps = {name: make_optimiser(config.optimisation, network.flat) for name, network in learned.items()}
    return {**learned, "target": critic, "steps": steps}


def update(state, config, spec, batch, noise, rates, updates):
    now, following = (batch.obs, batch.state), (batch.next_obs, batch.next_state)
    learned, steps, metrics = dict(state), dict(state["steps"]), {}
    value_before, target = state["value"], state["target"]

    def step(name, loss, rate):
        norm = config.optimisation.max_grad_norm
        learned[name], steps[name], found, besides = minimise(loss, learned[name], steps[name], rate, norm)
        metrics[f"{name}_loss"] = found
        return besides

    def critic_loss(critic):
        y = batch.reward + batch.discount * value_before(*following)[:, 0]
        error = critic(*now, batch.action) - y
        return weighted(error**2, batch.weight).mean(1).sum(), error

    def value_loss(value):
        above = target(*now, batch.action).min(0) - value(*now)[:, 0]
        return (jnp.abs(config.expectile - (above < 0)) * above**2).mean()

    def actor_loss(actor):
        critic = learned["critic"]
        return -critic(*now, jnp.tanh(actor(batch.obs))).min(0).mean()

    error = step("critic", critic_loss, rates["critic"])
    step("value", value_loss, rates["critic"])
    step("actor", actor_loss, rates["actor"])
    moved = target.follow(learned["critic"], config.tau)
    return {**learned, "target": moved, "steps": steps}, metrics, error


def policy_description(config, spec):
    return {"kind": "deterministic", "activation": config.networks.activation}
