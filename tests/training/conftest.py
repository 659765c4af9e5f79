"""These tests compile many small programs and run each a few times: optimising them is wasted."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def unoptimised_programs():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
