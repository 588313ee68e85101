"""skrl's classes for JAX, which are not there yet: importing this package says so."""

from offbeat.compat.skrl.framework import not_there_yet

raise not_there_yet("resources.schedulers.jax", "the PyTorch classes in offbeat.compat.skrl.resources.schedulers.torch")
