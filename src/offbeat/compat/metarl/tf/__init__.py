"""metarl's TensorFlow half, which is not here."""

raise ImportError(
    "offbeat.compat.metarl has no TensorFlow: import DQN and DDPG from offbeat.compat.metarl.torch.algos, "
    "DiscreteQfDerivedPolicy from .torch.policies, DiscreteMLPQFunction from .torch.q_functions, and LocalRunner, for "
    "LocalTFRunner, from .experiment"
)
