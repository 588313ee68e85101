"""Stable-Baselines3's PPO with torch's fused Adam, an option of Stable-Baselines3."""

from __future__ import annotations

from typing import Any, ClassVar

from learners import stable_baselines3_ppo


class Contestant(stable_baselines3_ppo.Contestant):
    policy_settings: ClassVar[dict[str, Any]] = {"optimizer_kwargs": {"fused": True}}
