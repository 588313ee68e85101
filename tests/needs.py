"""Settings that are refused on their own, with what they need beside them."""

from __future__ import annotations

from typing import Any

from offbeat.settings import train_settings

NEEDS: dict[str, dict[str, Any]] = {
    **{each.name: {"collectors": 1} for each in train_settings("sac") if each.help.startswith("With collectors:")},
    "collectors": {"num_envs": 4},
    "queue": {"collectors": 1},
    "when_full": {"collectors": 1},
    "tau": {"target_every": 2},
    "observation_clip": {"normalise_observations": True},
    "entropy_schedule": {"entropy_coefficient": 0.1},
    "target_noise_clip": {"target_noise": 0.3},
    "weight_decay": {"optimiser": "adamw"},
    "schedule_kwargs": {"actor_schedule": "offbeat.references:resolve"},
    "replay_kwargs": {"replay": "offbeat.references:resolve"},
    "exploration_make": {"exploration_make": "offbeat.references:name_of"},
    **{name: {"network": "gru"} for name in ("recurrent_size", "recurrent_layers", "start_state")},
    **{name: {"network": "gru"} for name in ("sequence_length", "burn_in")},
    **{each.name: {"collector": "ray", "collectors": 1} for each in train_settings("sac") if each.name[:4] == "ray_"},
    "trace_cpu": {"trace": True},
    "devices": {"backend": "jax"},
}
