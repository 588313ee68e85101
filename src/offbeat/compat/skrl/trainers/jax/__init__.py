"""skrl's classes for JAX, which are not there yet: importing this package says so."""

from offbeat.compat.skrl.framework import not_there_yet

raise not_there_yet("trainers.jax", "the PyTorch classes in offbeat.compat.skrl.trainers.torch")
