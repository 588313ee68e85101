"""What the networks of an algorithm are to those who act with them, and what they do not take; for every backend."""

from __future__ import annotations

from typing import Any

from offbeat import flat
from offbeat.algorithms.configs.groups import Reference, recurrence_of
from offbeat.errors import SpaceError, UsageError
from offbeat.references import name_of
from offbeat.types import EnvSpec


def describe_policy(config: Any, head: str, own: Reference | None, **details: Any) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights. own: the user's network that acts. details: of the head."""
    if own is None:
        described = {"kind": head, "head": head, **details, "activation": config.networks.activation}
        return described | _describe_trunk(config)
    return {"kind": "module", "head": head, **details, "actor": name_of(own)}


def _describe_trunk(config: Any) -> dict[str, Any]:
    """The recurrent trunk below the layers; empty where there is none."""
    recurrence = recurrence_of(config)
    if not recurrence.recurrent:
        return {}
    if recurrence.own:
        return {"recurrent": {"kind": "own", "make": name_of(recurrence.network)}}
    sizes = {"size": recurrence.recurrent_size, "layers": recurrence.recurrent_layers}
    return {"recurrent": {"kind": recurrence.network, **sizes}}


def describe_policy_of_rollouts(config: Any, spec: EnvSpec) -> dict[str, Any]:
    """As `describe_policy`, for the policies of PPO and APPO, which store log-probabilities."""
    own = config.own_networks.actor
    if spec.choices is not None:
        return describe_policy(config, "categorical", own, log_prob=True)
    if spec.branches:
        return describe_policy(config, "multi_categorical", own, branches=list(spec.branches), log_prob=True)
    shape = {"squashed": config.policy.squash, "state_dependent_std": config.policy.state_dependent_std}
    return describe_policy(config, "gaussian", own, action_size=spec.action_size, **shape)


def refuse_images(names: str, spec: EnvSpec) -> None:
    """Refuses images in observations. names: of the algorithms, for the error."""
    if spec.layout.images:
        image = spec.layout.images[0]
        raise SpaceError(
            f"{spec.name}: the observation {image.name!r} is an image {image.shape}, but the networks of {names} "
            "take vectors (there is no pixel encoder yet): flatten it with gymnasium.wrappers.FlattenObservation, or "
            "leave it out"
        )


def refuse_privileged_state(name: str, spec: EnvSpec) -> None:
    """Refuses a privileged state, for an algorithm without a separate critic. name: of it, for the error."""
    if spec.state_size:
        raise UsageError(
            f"{name} has no separate critic, so it cannot use a privileged state: leave state_key out, or use sac"
        )


def refuse_box_settings(group: Any, spec: EnvSpec) -> None:
    """Refuses settings of Box actions in a group that are not at their defaults, for an environment without them."""
    for name, default in flat.defaults(type(group)).items():
        if getattr(group, name) != default:
            raise UsageError(f"{name} needs Box actions, which {spec.name} does not have; leave {name} out")
