"""Stable-Baselines3's SAC with torch's fused Adam for actor and critics, an option of Stable-Baselines3."""

from __future__ import annotations

from typing import Any, ClassVar

from learners import stable_baselines3


class Contestant(stable_baselines3.Contestant):
    setting = 'policy_kwargs={"optimizer_kwargs": {"fused": True}}'
    policy_settings: ClassVar[dict[str, Any]] = {"optimizer_kwargs": {"fused": True}}
