"""Gives settings of JAX values that slow steps down, and some that do not."""

import jax

jax.config.update("jax_platforms", "tpu,cpu")
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_debug_nans", False)
jax.config.update("jax_debug_nans", True)
jax.config.update("jax_debug_infs", True)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_disable_jit", True)
