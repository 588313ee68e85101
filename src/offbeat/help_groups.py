"""Under which title of `--help` a setting stands. One that is named nowhere stands with the run or the algorithm."""

from __future__ import annotations

from collections.abc import Iterable

from offbeat.settings import Setting

RUN = "run"
GROUPS: dict[str, tuple[str, ...]] = {
    "environment": (
        "env",
        "env_kwargs",
        "env_wrapper",
        "max_episode_steps",
        "state_key",
        "mask_key",
        "num_envs",
        "reward_shaping",
    ),
    "networks": (
        *("hidden", "critic_hidden", "activation", "layer_norm", "critic_layer_norm", "critic_dropout", "critics"),
        *("dueling", "actor", "critic", "log_std_min", "log_std_max", "initial_log_std", "state_dependent_std"),
        *("squash", "gradients", "compile"),
    ),
    "exploration": ("random_steps", "exploration", "entropy_coefficient", "temperature"),
    "collectors": (
        *("collectors", "slack", "collect_ahead", "max_policy_lag", "hang_seconds", "max_crashes", "acting"),
        *("queue", "when_full", "sample_reuse"),
    ),
    "evaluation": ("eval_every", "eval_episodes", "stop_return"),
    "logging": (
        *("log_every", "logger", "checkpoint_every", "keep_checkpoints", "out", "name", "quiet", "trace", "trace_cpu"),
    ),
}
"""The fields of a setting's kinds (`temperature_initial`) stand with it."""


def grouped(run: Iterable[Setting], algorithm: str, own: Iterable[Setting]) -> dict[str, list[Setting]]:
    """The run's and the algorithm's settings under their titles, in the order in which people look for them."""
    groups: dict[str, list[Setting]] = {title: [] for title in (RUN, "environment", algorithm, *GROUPS)}
    for title, settings in ((RUN, run), (algorithm, own)):
        for each in settings:
            groups[_title(each) or title].append(each)
    return {title: settings for title, settings in groups.items() if settings}


def _title(setting: Setting) -> str | None:
    for title, names in GROUPS.items():
        if setting.name in names or setting.union in names:
            return title
    return None
