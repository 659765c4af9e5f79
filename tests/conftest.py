"""Strict arrays and eight CPU devices, set before the first array exists.

Shapes and dtypes in annotations are checked while the tests run: the hook is the
`--jaxtyping-packages` line of pyproject.toml.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture
def quickly_compiled():
    """For programs that run once: what compiling spends on their speed is lost."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
