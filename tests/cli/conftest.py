"""What the tests of commands share."""

from pathlib import Path

import jax
import pytest

from jaxagent.cli.main import main
from jaxagent.data.benchmark import benchmark_texts
from jaxagent.data.tiny_policy import PolicySizes, make_policy_folder
from jaxagent.models.conv_encoder import ConvEncoderConfig, Model
from jaxagent.retrieval.image_encoder import save_image_encoder
from tests.cli.commands import base_flags


@pytest.fixture(scope="session")
def work(tmp_path_factory) -> Path:
    """A work folder with a built base, and beside it an encoder and a policy of random weights."""
    folder = tmp_path_factory.mktemp("work")
    encoder = Model(ConvEncoderConfig())
    card = {"name": "random"}
    save_image_encoder(folder / "encoder", encoder, encoder.init(jax.random.key(0)), card)
    assert main(["kb", "build", "--workdir", str(folder), *base_flags(folder)]) == 0
    sizes = PolicySizes(vocab=640, width=32, layers=3, heads=2, kv_heads=1, head_size=16)
    make_policy_folder(folder / "policy", benchmark_texts(folder / "kb"), sizes=sizes, seed=0)
    return folder
