"""Statistics of evaluation episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.compat.metarl.epoch_row import tabular


def log_performance(itr: int, batch: list[dict[str, Any]], discount: float, prefix: str = "Evaluation") -> list[float]:
    """Records returns, their number and success rate of whole episodes; returns the undiscounted returns."""
    returns = [float(path["undiscounted_return"]) for path in batch]
    rewards = [np.asarray(path["rewards"], float) for path in batch]
    discounted = [float((each * discount ** np.arange(len(each))).sum()) for each in rewards]
    numbers = {
        "Iteration": itr,
        "NumTrajs": len(batch),
        "AverageDiscountedReturn": np.mean(discounted),
        "AverageReturn": np.mean(returns),
        "StdReturn": np.std(returns),
        "MaxReturn": np.max(returns),
        "MinReturn": np.min(returns),
        "CompletionRate": np.mean([bool(path["terminals"][-1]) for path in batch]),
    }
    if any(key in path["env_infos"] for path in batch for key in ("success", "is_success")):
        numbers["SuccessRate"] = np.mean([path["success_count"] > 0 for path in batch])
    for name, value in numbers.items():
        tabular.record(f"{prefix}/{name}", value)
    return returns
