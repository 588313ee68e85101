"""torch.compile on the autograd path gives the same learner; compiling takes half a minute (make slow)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driven_learner import Learner
from offbeat.settings import make_learner_config
from specs import random_transitions, vector_spec


@pytest.mark.slow
def test_compiled_networks_learn_as_the_others_do() -> None:
    spec, rng = vector_spec(5, 2), np.random.default_rng(0)
    off, compiled = (
        Learner(
            "sac",
            make_learner_config("sac", hidden=(16,), batch_size=32, compile=mode),
            spec,
            rng=np.random.default_rng(1),
        )
        for mode in ("off", "default")
    )
    assert off.state.critic.explicit
    assert not compiled.state.critic.explicit
    for _ in range(3):
        batch, noise = random_transitions(rng, spec, 32), rng.standard_normal((2, 32, 2), np.float32)
        off.update_once(batch, noise)
        compiled.update_once(batch, noise)
    torch.testing.assert_close(off.state.critic.flat, compiled.state.critic.flat, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(off.state.actor.flat, compiled.state.actor.flat, rtol=1e-4, atol=1e-5)
