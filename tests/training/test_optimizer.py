"""The learning rate over the updates, drawn; and what is decayed."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.training.optimizer import OptimizerConfig, learning_rate, make_optimizer


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447]),
    ],
)
def test_rates_of_six_updates_with_two_of_warm_up(schedule, rates):
    config = OptimizerConfig(learning_rate=1.0, schedule=schedule, warmup=1 / 3)
    for rate in (learning_rate(config, 6), make_optimizer(config, 6).rate):
        np.testing.assert_allclose([rate(update) for update in range(6)], rates, rtol=1e-5)


def test_norms_and_biases_are_not_decayed():
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.5, warmup=0.0)
    params = {"a": {"kernel": jnp.ones(2), "bias": jnp.ones(2)}, "norm": {"scale": jnp.ones(2)}}
    optimizer = make_optimizer(config, 10)
    zeros = {"a": {"kernel": jnp.zeros(2), "bias": jnp.zeros(2)}, "norm": {"scale": jnp.zeros(2)}}
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    np.testing.assert_allclose(updates["a"]["kernel"], -0.05, rtol=1e-6)
    assert not updates["a"]["bias"].any()
    assert not updates["norm"]["scale"].any()


def test_gradients_are_cut_to_the_norm():
    config = OptimizerConfig(learning_rate=1.0, clip_norm=1.0, warmup=0.0, epsilon=1e3, beta1=0.0)
    optimizer = make_optimizer(config, 10)
    params = {"a": jnp.zeros(2)}
    small, _ = optimizer.update({"a": jnp.array([0.6, 0.8])}, optimizer.init(params), params)
    large, _ = optimizer.update({"a": jnp.array([60.0, 80.0])}, optimizer.init(params), params)
    np.testing.assert_allclose(large["a"], small["a"], rtol=1e-5)


def test_a_wrong_number_is_refused_with_what_is_allowed():
    with pytest.raises(ValueError, match="warmup is 1.5"):
        OptimizerConfig(warmup=1.5)
