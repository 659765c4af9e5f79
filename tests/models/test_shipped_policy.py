"""The policy that ships with the package is a Qwen3-VL like any other: transformers agrees."""

from pathlib import Path

import numpy as np
import pytest

from jaxagent.cli.build import policy_folder, shipped_methods
from jaxagent.processing.policy import load_policy
from tests.models import twins

LIMIT = 20 * 2**20
METHODS = shipped_methods()
FOLDERS = [policy_folder("shipped", method) for method in METHODS]


@pytest.mark.parametrize("folder", FOLDERS, ids=METHODS)
def test_a_shipped_policy_equals_transformers_on_its_folder(folder: Path):
    policy, params = load_policy(folder)
    layout = (6, (1, 4, 4), 5, (1, 4, 4), 1, (1, 4, 4), 7)
    one = twins.context(policy.model, layout, seed=0)
    ours = twins.logits(policy.model, params, twins.batch(policy.model, [one]))[0, : len(one.ids)]
    theirs = twins.hf_logits(one, image_token=policy.model.config.image_token, folder=folder)
    assert theirs.std() > 1
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_the_shipped_policies_are_small():
    assert "mmagent_r2" in METHODS
    assert sum(file.stat().st_size for folder in FOLDERS for file in folder.iterdir()) < LIMIT
