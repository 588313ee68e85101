"""Sizes and limits of Gymnasium spaces, and conversion of their values to tensors (batch, size) of JAX and back.

In a flat tensor, members of Dict spaces are in the order of their sorted keys; a Discrete value is one number.
"""

from offbeat.compat.skrl.framework import needs_jax

with needs_jax("utils.spaces.jax"):
    from offbeat.compat.skrl.jax_arrays import JAX
    from offbeat.compat.skrl.utils.spaces.functions import SpaceFunctions
    from offbeat.compat.skrl.utils.spaces.sizes import compute_space_size, leaves

__all__ = [
    "compute_space_limits",
    "compute_space_size",
    "flatten_tensorized_space",
    "leaves",
    "sample_space",
    "tensorize_space",
    "unflatten_tensorized_space",
    "untensorize_space",
]

_FUNCTIONS = SpaceFunctions(JAX)
compute_space_limits = _FUNCTIONS.compute_space_limits
flatten_tensorized_space = _FUNCTIONS.flatten_tensorized_space
sample_space = _FUNCTIONS.sample_space
tensorize_space = _FUNCTIONS.tensorize_space
unflatten_tensorized_space = _FUNCTIONS.unflatten_tensorized_space
untensorize_space = _FUNCTIONS.untensorize_space
