"""UniLab's documented off-policy runner and APPO learner, over our core. Paths below are UniLab's own."""

from offbeat.compat.unilab.algos.torch.appo.learner import APPOLearner, vtrace_advantages
from offbeat.compat.unilab.rsl_rl.models import MLPModel

__all__ = ["APPOLearner", "MLPModel", "vtrace_advantages"]
