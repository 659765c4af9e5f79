"""BERT against transformers: a tiny random twin, and the real MiniLM where its package is
installed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel
from transformers import BertConfig as HfBertConfig

from jaxagent.models.bert import BertConfig, Model
from jaxagent.models.config import ConfigError
from jaxagent.retrieval.text_encoder import SentenceEncoder, minilm_folder
from jaxagent.weights.bert import read_bert
from jaxagent.weights.safetensors import WeightsError

TINY = HfBertConfig(
    vocab_size=50,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=16,
)
needs_minilm = pytest.mark.skipif(minilm_folder() is None, reason="MiniLM is not installed")


@pytest.fixture
def twin(tmp_path):
    """A random transformers model; its folder is `tmp_path`."""
    torch.manual_seed(0)
    model = BertModel(TINY).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    return model


def test_hidden_states_equal_those_of_transformers(twin, tmp_path):
    weights = read_bert(tmp_path)
    ids = np.random.default_rng(0).integers(0, 50, (3, 7))
    real = np.arange(7)[None, :] < np.array([7, 4, 1])[:, None]
    with torch.no_grad():
        expected = twin(torch.tensor(ids), attention_mask=torch.tensor(real)).last_hidden_state
    forward = jax.jit(Model(weights.config).forward)
    hidden = forward(weights.params, jnp.asarray(ids), jnp.asarray(real))
    np.testing.assert_allclose(
        np.asarray(hidden)[real], expected.numpy()[real], rtol=1e-5, atol=1e-5
    )


def test_padding_and_other_rows_do_not_change_a_sentence_vector(twin, tmp_path):
    weights = read_bert(tmp_path)
    vectors = jax.jit(Model(weights.config).sentence_vectors)
    alone = vectors(weights.params, jnp.array([[5, 6, 7]]), jnp.ones((1, 3), jnp.bool_))
    # 5 6 7 . .     a longer row beside it, and any ids in the padding
    # 9 8 7 6 5
    ids = jnp.array([[5, 6, 7, 1, 2], [9, 8, 7, 6, 5]])
    real = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], jnp.bool_)
    together = vectors(weights.params, ids, real)
    np.testing.assert_allclose(together[0], alone[0], atol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(together, axis=1), 1, atol=1e-6)


@needs_minilm
def test_minilm_equals_transformers_with_its_own_tokenizer():
    texts = [
        "Chad. Capital: N'Djamena",
        "a",
        "Côte d'Ivoire lies on the Gulf of Guinea, between Ghana and Liberia, since 1960. " * 3,
        "<|im_end|> 日本",
    ]
    folder = minilm_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        hidden = BertModel.from_pretrained(folder).eval()(**rows).last_hidden_state
        mask = rows["attention_mask"][:, :, None]
        mean = (hidden * mask).sum(1) / mask.sum(1)
        expected = torch.nn.functional.normalize(mean, dim=-1).numpy()
    np.testing.assert_allclose(SentenceEncoder("minilm", folder)(texts), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "roberta"}, "model_type='roberta'"),
        ({"model_type": "bert", "hidden_act": "relu"}, "hidden_act='relu'"),
        ({"model_type": "bert"}, "lacks the field 'vocab_size'"),
    ],
)
def test_other_families_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        BertConfig.from_hf(fields)


def test_a_folder_without_its_weights_is_refused(twin, tmp_path):
    with pytest.raises(ConfigError, match="no readable config"):
        read_bert(tmp_path / "nowhere")
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(WeightsError, match="cannot be read"):
        read_bert(tmp_path)
    path.unlink()
    with pytest.raises(WeightsError, match="cannot be read"):
        read_bert(tmp_path)
