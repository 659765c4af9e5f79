"""One text layer and one vision block at the published widths, against transformers' in float32."""

import jax
import numpy as np
import pytest
import torch

from jaxagent.models.policy import Model, PolicyConfig
from jaxagent.trees import nested
from jaxagent.weights import policies
from tests.models import families, twins

LAYER = 1e-5  # of the largest number in a layer's output: sums over 18,944 products round more

_SEVEN_B_TEXT = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}
# One layer of each tower of Qwen2-VL-7B, Qwen2.5-VL-7B and Qwen3-VL-8B: text, vision, sections.
SIZES = {
    "qwen2_vl": (
        _SEVEN_B_TEXT,
        {"embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "num_heads": 16},
        [16, 24, 24],
    ),
    "qwen2_5_vl": (
        _SEVEN_B_TEXT,
        {
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "out_hidden_size": 3584,
            "num_heads": 16,
            "window_size": 112,
            "fullatt_block_indexes": [],
        },
        [16, 24, 24],
    ),
    "qwen3_vl": (
        {
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
        {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "out_hidden_size": 4096,
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [0],
        },
        [24, 20, 20],
    ),
}


def one_layer(family):
    """A policy of one layer a tower with random parameters, here and in transformers."""
    text, vision, sections = SIZES[family]
    case = families.CASES[families.ONE_OF_EACH[family]]
    fields = families.hf_fields(case)
    fields["tie_word_embeddings"] = True
    fields["text_config"] |= text | {"num_hidden_layers": 1}
    fields["text_config"]["rope_parameters"] |= {"mrope_section": sections, "rope_theta": 1e6}
    patch = 16 if family == "qwen3_vl" else 14
    fields["vision_config"] |= vision | {"depth": 1, "patch_size": patch}
    hf = families.with_random_parameters(case.family, fields)
    config = PolicyConfig.from_hf(fields | {"model_type": family})
    named = {name: parameter.detach().numpy() for name, parameter in hf.named_parameters()}
    params = {
        row.name: row.imported(named[row.hf_keys()[0]])[None if row.layers else ...]
        for row in policies.table(config)
    }
    return Model(config, remat=False), nested(params), hf


@pytest.mark.slow
@pytest.mark.parametrize("family", SIZES)
def test_a_layer_of_published_width_equals_that_of_transformers(family):
    model, params, hf = one_layer(family)
    grid, last = (1, 10, 18), 1
    patches = np.random.default_rng(0).standard_normal((1, 180, model.config.vision.patch_values))
    patches = patches.astype(np.float32)
    ours = twins.encoded(model, params, patches, grid)
    with torch.no_grad():
        theirs = hf.model.visual(torch.tensor(patches[0]), grid_thw=torch.tensor([grid]))
    scale = theirs.pooler_output.abs().max().item()
    np.testing.assert_allclose(ours.tokens[0], theirs.pooler_output, atol=LAYER * scale)

    one = twins.context(model, (20, (1, 4, 4), 8), seed=0)
    made = twins.batch(model, [one])
    features = twins.features(model, params, made)
    mine = jax.jit(model.hidden_states, static_argnames="layers")(
        params, *made[:3], features, made.feature_index, layers=(last,)
    )[0, 0, : len(one.ids)]
    theirs = twins.hf_states(hf, one, image_token=model.config.image_token)[last]
    np.testing.assert_allclose(mine, theirs, atol=LAYER * np.abs(theirs).max())
