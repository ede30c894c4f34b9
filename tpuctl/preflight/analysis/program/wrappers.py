"""Functions of libraries that return the function that they receive, compiled or transformed."""

from __future__ import annotations

PARTIAL = "functools.partial"
# JAX's compilers of functions, and the keywords that name arguments which they do not trace.
COMPILERS = {
    "jax.jit": ("static_argnums", "static_argnames"),
    "jax.pmap": ("static_broadcasted_argnums", ""),
    "jax.experimental.pjit.pjit": ("static_argnums", "static_argnames"),
    "flax.nnx.jit": ("static_argnums", "static_argnames"),
    "flax.nnx.pmap": ("static_broadcasted_argnums", ""),
    "equinox.filter_jit": ("", ""),
    "equinox.filter_pmap": ("", ""),
}
# Those that trace only the arrays among the arguments, not numbers.
FILTERED = {"equinox.filter_jit", "equinox.filter_pmap"}
# Transformations of JAX functions, whose results differ from those of the function itself.
TRANSFORMS = {
    *COMPILERS,
    *(f"jax.{name}" for name in ("grad", "value_and_grad", "vmap", "jacfwd", "jacrev", "hessian")),
    *("jax.checkpoint", "jax.remat", "jax.named_call", "jax.shard_map", "jax.custom_jvp"),
    *("jax.custom_vjp", "jax.ad_checkpoint.checkpoint", "jax.experimental.shard_map.shard_map"),
    *(f"flax.nnx.{name}" for name in ("grad", "value_and_grad", "vmap", "remat", "shard_map")),
    *("equinox.filter_grad", "equinox.filter_value_and_grad", "equinox.filter_vmap"),
    "equinox.filter_checkpoint",
}
WRAPPERS = {
    PARTIAL,
    "tensorflow.function",
    "tensorflow.autograph.experimental.do_not_convert",
    "tensorflow.recompute_grad",
    "tensorflow.custom_gradient",
    *TRANSFORMS,
}
