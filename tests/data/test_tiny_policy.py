"""The small policy's folder: the same bytes twice, and what it refuses."""

import filecmp

import pytest

from jaxagent.data.tiny_policy import make_policy_folder
from jaxagent.data.tokenizer import trained_tokenizer
from jaxagent.models.policy import Model
from jaxagent.processing.policy import load_policy
from tests import tiny


def test_the_same_arguments_write_the_same_folder(tmp_path):
    for name in ("one", "two"):
        make_policy_folder(tmp_path / name, tiny.TEXTS, sizes=tiny.SIZES, seed=3)
    names = [path.name for path in (tmp_path / "one").iterdir()]
    match, mismatch, errors = filecmp.cmpfiles(
        tmp_path / "one", tmp_path / "two", names, shallow=False
    )
    assert (sorted(match), mismatch, errors) == (sorted(names), [], [])


def test_the_folder_loads_as_a_policy():
    policy, params = load_policy(tiny.policy_folder())
    assert policy.model == Model(policy.model.config)
    assert policy.model.config.text.vocab == tiny.SIZES.vocab
    assert params["text"]["embed"]["table"].shape == (tiny.SIZES.vocab, tiny.SIZES.width)


def test_a_vocabulary_without_room_for_the_bytes_is_refused():
    with pytest.raises(ValueError, match="need 282"):
        trained_tokenizer(tiny.TEXTS, vocab=200)
