"""Learning-rate schedulers. Any class of torch.optim.lr_scheduler can be used as well."""

from offbeat.compat.skrl.resources.schedulers.torch.kl_adaptive import KLAdaptiveLR, KLAdaptiveRL

__all__ = ["KLAdaptiveLR", "KLAdaptiveRL"]
