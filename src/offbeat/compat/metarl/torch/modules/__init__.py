"""Modules that policies and q-functions are made from."""

from offbeat.compat.metarl.torch.modules.mlp_module import MLPModule

__all__ = ["MLPModule"]
