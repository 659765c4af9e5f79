"""EVA-CLIP in PyTorch, written from its publications, with the keys of its published files.

`HfTwin` has the keys of BAAI/EVA-CLIP-8B (arXiv 2402.04252), `OpenClipTwin` those of open_clip
around timm, as the EVA02 and EVA01 checkpoints have them (arXiv 2303.15389). Everything is spelled
out in the plain way, and nothing is shared with the package. `randomize` gives parameters that hide
nothing: fan-in kernels, random biases and scales.
"""

import json
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F


class Sizes(NamedTuple):
    """Sizes and kinds of the two towers."""

    width: int = 32
    heads: int = 2
    mlp_width: int = 48
    layers: int = 3
    image: int = 28
    patch: int = 7
    image_epsilon: float = 1e-6
    rms: bool = False
    norm_after: bool = False
    inner_norm: bool = False
    gated: bool = False
    biases: str = "qkv"  # of which of queries, keys and values
    rope_side: int | None = None
    fused: bool = False  # the image tower's kernels of queries, keys and values lie in one

    text_width: int = 24
    text_heads: int = 3
    text_mlp_width: int = 96
    text_layers: int = 2
    vocab: int = 60
    positions: int = 12
    embedding: int = 16


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        x32 = x.float()
        return self.weight * (x32 / (x32.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()).to(x)


def norm(sizes, width):
    kind = RMSNorm if sizes.rms else nn.LayerNorm
    return kind(width, eps=sizes.image_epsilon)


def rotary_tables(sizes):
    """Cosines and sines [patches, head]: rows turn the first half of a head, columns the second."""
    side, head = sizes.image // sizes.patch, sizes.width // sizes.heads
    exponents = torch.arange(0, head // 2, 2).double() / (head // 2)
    frequencies = 10_000.0**-exponents
    angles = torch.zeros(side, side, head, dtype=torch.double)
    for y in range(side):
        for x in range(side):
            for j, frequency in enumerate(frequencies):
                angles[y, x, 2 * j : 2 * j + 2] = y / side * sizes.rope_side * frequency
                first = head // 2 + 2 * j
                angles[y, x, first : first + 2] = x / side * sizes.rope_side * frequency
    angles = angles.reshape(side * side, head)
    return angles.cos().float(), angles.sin().float()


def rotated(x, tables):
    """[b, heads, 1 + patches, head] with all but the class token turned pair by pair."""
    cos, sin = (table.to(x) for table in tables)
    token, patches = x[:, :, :1], x[:, :, 1:]
    swapped = torch.empty_like(patches)
    swapped[..., 0::2], swapped[..., 1::2] = -patches[..., 1::2], patches[..., 0::2]
    return torch.cat([token, patches * cos + swapped * sin], dim=2)


def attend(q, k, v, heads, *, causal=False, tables=None):
    """Attention of [b, t, width] projections; the heads' outputs side by side."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    if tables is not None:
        q, k = rotated(q, tables), rotated(k, tables)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        t = scores.shape[-1]
        later = torch.ones(t, t, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class HfAttention(nn.Module):
    def __init__(self, width, heads, biases, sizes=None):
        super().__init__()
        self.q_proj = nn.Linear(width, width, bias="q" in biases)
        self.k_proj = nn.Linear(width, width, bias="k" in biases)
        self.v_proj = nn.Linear(width, width, bias="v" in biases)
        self.out_proj = nn.Linear(width, width)
        self.heads = heads
        inner = sizes is not None and sizes.inner_norm
        self.inner_attn_ln = norm(sizes, width) if inner else nn.Identity()
        self.tables = rotary_tables(sizes) if sizes is not None and sizes.rope_side else None

    def forward(self, x, causal):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        taken = attend(q, k, v, self.heads, causal=causal, tables=self.tables)
        return self.out_proj(self.inner_attn_ln(taken))


class HfMlp(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class HfGatedMlp(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        width, inner = sizes.width, sizes.mlp_width
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(width, inner)
        self.fc3 = nn.Linear(inner, width)
        self.ffn_ln = norm(sizes, inner) if sizes.inner_norm else nn.Identity()

    def forward(self, x):
        return self.fc3(self.ffn_ln(F.silu(self.fc1(x)) * self.fc2(x)))


class HfLayer(nn.Module):
    def __init__(self, attention, mlp, norms, *, norm_after=False, causal=False):
        super().__init__()
        self.self_attn, self.mlp = attention, mlp
        self.layer_norm1, self.layer_norm2 = norms
        self.norm_after, self.causal = norm_after, causal

    def forward(self, x):
        if self.norm_after:
            x = x + self.layer_norm1(self.self_attn(x, self.causal))
            return x + self.layer_norm2(self.mlp(x))
        x = x + self.self_attn(self.layer_norm1(x), self.causal)
        return x + self.mlp(self.layer_norm2(x))


def hf_image_layer(sizes):
    width = sizes.width
    return HfLayer(
        HfAttention(width, sizes.heads, sizes.biases, sizes),
        HfGatedMlp(sizes) if sizes.gated else HfMlp(width, sizes.mlp_width),
        (norm(sizes, width), norm(sizes, width)),
        norm_after=sizes.norm_after,
    )


def hf_text_layer(sizes):
    width = sizes.text_width
    return HfLayer(
        HfAttention(width, sizes.text_heads, "qkv"),
        HfMlp(width, sizes.text_mlp_width),
        (nn.LayerNorm(width, eps=1e-5), nn.LayerNorm(width, eps=1e-5)),
        causal=True,
    )


class HfTwin(nn.Module):
    """Both towers under the keys of `EvaCLIPModel`."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        width, text_width = sizes.width, sizes.text_width
        patches = (sizes.image // sizes.patch) ** 2
        image, text = nn.Module(), nn.Module()
        image.embeddings = nn.Module()
        image.embeddings.class_embedding = nn.Parameter(torch.randn(width))
        image.embeddings.patch_embedding = nn.Conv2d(3, width, sizes.patch, sizes.patch)
        image.embeddings.position_embedding = nn.Embedding(patches + 1, width)
        image.embeddings.register_buffer("position_ids", torch.arange(patches + 1)[None])
        image.encoder = nn.Module()
        image.encoder.layers = nn.ModuleList(hf_image_layer(sizes) for _ in range(sizes.layers))
        image.post_layernorm = norm(sizes, width)
        text.embeddings = nn.Module()
        text.embeddings.token_embedding = nn.Embedding(sizes.vocab, text_width)
        text.embeddings.position_embedding = nn.Embedding(sizes.positions, text_width)
        text.embeddings.register_buffer("position_ids", torch.arange(sizes.positions)[None])
        text.encoder = nn.Module()
        text.encoder.layers = nn.ModuleList(hf_text_layer(sizes) for _ in range(sizes.text_layers))
        text.final_layer_norm = nn.LayerNorm(text_width, eps=1e-5)
        self.vision_model, self.text_model = image, text
        self.visual_projection = nn.Linear(width, sizes.embedding)
        self.text_projection = nn.Linear(text_width, sizes.embedding, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(2.6592))

    def encode_image(self, pixels):
        parts = self.vision_model.embeddings
        x = parts.patch_embedding(pixels).flatten(2).transpose(1, 2)
        token = parts.class_embedding.expand(len(x), 1, -1)
        x = torch.cat([token, x], dim=1) + parts.position_embedding.weight
        for layer in self.vision_model.encoder.layers:
            x = layer(x)
        return self.visual_projection(self.vision_model.post_layernorm(x[:, 0]))

    def encode_text(self, ids):
        parts = self.text_model.embeddings
        x = parts.token_embedding(ids) + parts.position_embedding.weight[: ids.shape[1]]
        for layer in self.text_model.encoder.layers:
            x = layer(x)
        x = self.text_model.final_layer_norm(x)
        return self.text_projection(x[torch.arange(len(x)), ids.argmax(-1)])


class TimmBlock(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        width, inner = sizes.width, sizes.mlp_width
        self.sizes = sizes
        self.norm1, self.norm2 = norm(sizes, width), norm(sizes, width)
        self.attn, self.mlp = nn.Module(), nn.Module()
        if sizes.fused:
            self.attn.qkv = nn.Linear(width, 3 * width, bias=False)
            self.attn.q_bias = nn.Parameter(torch.zeros(width))
            self.attn.v_bias = nn.Parameter(torch.zeros(width))
        else:
            self.attn.q_proj = nn.Linear(width, width)
            self.attn.k_proj = nn.Linear(width, width, bias=False)
            self.attn.v_proj = nn.Linear(width, width)
        self.attn.norm = norm(sizes, width) if sizes.inner_norm else nn.Identity()
        self.attn.proj = nn.Linear(width, width)
        if sizes.gated:
            self.mlp.fc1_g, self.mlp.fc1_x = nn.Linear(width, inner), nn.Linear(width, inner)
        else:
            self.mlp.fc1 = nn.Linear(width, inner)
        self.mlp.norm = norm(sizes, inner) if sizes.inner_norm else nn.Identity()
        self.mlp.fc2 = nn.Linear(inner, width)
        self.tables = rotary_tables(sizes) if sizes.rope_side else None

    def attention(self, x):
        attn = self.attn
        if self.sizes.fused:
            q, k, v = attn.qkv(x).chunk(3, dim=-1)
            q, v = q + attn.q_bias, v + attn.v_bias
        else:
            q, k, v = attn.q_proj(x), attn.k_proj(x), attn.v_proj(x)
        return attn.proj(attn.norm(attend(q, k, v, self.sizes.heads, tables=self.tables)))

    def feed_forward(self, x):
        mlp = self.mlp
        inner = F.silu(mlp.fc1_g(x)) * mlp.fc1_x(x) if self.sizes.gated else F.gelu(mlp.fc1(x))
        return mlp.fc2(mlp.norm(inner))

    def forward(self, x):
        if self.sizes.norm_after:
            x = x + self.norm1(self.attention(x))
            return x + self.norm2(self.feed_forward(x))
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class ResidualBlock(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp, self.heads = nn.Module(), nn.Module(), heads
        self.attn.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.attn.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        self.attn.out_proj = nn.Linear(width, width)
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        qkv = F.linear(self.ln_1(x), self.attn.in_proj_weight, self.attn.in_proj_bias)
        x = x + self.attn.out_proj(attend(*qkv.chunk(3, dim=-1), self.heads, causal=True))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x))))


class OpenClipTwin(nn.Module):
    """Both towers under the keys of open_clip's `CustomTextCLIP`."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        width, text_width = sizes.width, sizes.text_width
        patches = (sizes.image // sizes.patch) ** 2
        trunk, text = nn.Module(), nn.Module()
        trunk.cls_token = nn.Parameter(torch.randn(1, 1, width))
        trunk.pos_embed = nn.Parameter(torch.randn(1, patches + 1, width))
        trunk.patch_embed = nn.Module()
        trunk.patch_embed.proj = nn.Conv2d(3, width, sizes.patch, sizes.patch)
        trunk.blocks = nn.ModuleList(TimmBlock(sizes) for _ in range(sizes.layers))
        trunk.norm, trunk.head = norm(sizes, width), nn.Linear(width, sizes.embedding)
        text.token_embedding = nn.Embedding(sizes.vocab, text_width)
        text.positional_embedding = nn.Parameter(torch.randn(sizes.positions, text_width))
        text.transformer = nn.Module()
        text.transformer.resblocks = nn.ModuleList(
            ResidualBlock(text_width, sizes.text_heads, sizes.text_mlp_width)
            for _ in range(sizes.text_layers)
        )
        text.ln_final = nn.LayerNorm(text_width)
        text.text_projection = nn.Parameter(torch.randn(text_width, sizes.embedding))
        self.visual, self.text = nn.Module(), text
        self.visual.trunk = trunk
        self.logit_scale = nn.Parameter(torch.tensor(2.6592))

    def encode_image(self, pixels):
        trunk = self.visual.trunk
        x = trunk.patch_embed.proj(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([trunk.cls_token.expand(len(x), 1, -1), x], dim=1) + trunk.pos_embed
        for block in trunk.blocks:
            x = block(x)
        return trunk.head(trunk.norm(x)[:, 0])

    def encode_text(self, ids):
        text = self.text
        x = text.token_embedding(ids) + text.positional_embedding[: ids.shape[1]]
        for block in text.transformer.resblocks:
            x = block(x)
        x = text.ln_final(x)[torch.arange(len(x)), ids.argmax(-1)]
        return x @ text.text_projection


def _hf_layers(width, heads, mlp_width, layers):
    return {
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": mlp_width,
        "num_hidden_layers": layers,
        "hidden_act": "gelu",
    }


def hf_fields(sizes):
    """A `config.json` as BAAI writes it, without the fields that say nothing of the model."""
    image = {
        **_hf_layers(sizes.width, sizes.heads, sizes.mlp_width, sizes.layers),
        **{f"{name}_bias": name in sizes.biases for name in "qkv"},
        **{"image_size": sizes.image, "patch_size": sizes.patch, "num_channels": 3},
        **{"layer_norm_eps": sizes.image_epsilon, "use_rms_norm": sizes.rms},
        **{"use_sub_ln": sizes.inner_norm, "use_swiglu_mlp": sizes.gated},
        "post_layernorm": sizes.norm_after,
    }
    if sizes.rope_side:
        image |= {"use_rope": True, "pretrained_seq_len": sizes.rope_side, "rope_theta": 10_000}
    text = {
        **_hf_layers(sizes.text_width, sizes.text_heads, sizes.text_mlp_width, sizes.text_layers),
        **{"q_bias": True, "k_bias": True, "v_bias": True},
        **{"vocab_size": sizes.vocab, "max_position_embeddings": sizes.positions},
        **{"layer_norm_eps": 1e-5, "use_rms_norm": False, "post_layernorm": None},
    }
    return {
        "architectures": ["EvaCLIPModel"],
        "model_type": "clip",
        "projection_dim": sizes.embedding,
        "vision_config": image,
        "text_config": text,
    }


def open_clip_fields(sizes, name):
    """An `open_clip_config.json` whose image tower is timm's `name`."""
    return {
        "model_cfg": {
            "embed_dim": sizes.embedding,
            "vision_cfg": {
                "image_size": sizes.image,
                "timm_model_name": name,
                "timm_model_pretrained": False,
                "timm_pool": "token",
                "timm_proj": None,
            },
            "text_cfg": {
                "context_length": sizes.positions,
                "vocab_size": sizes.vocab,
                "width": sizes.text_width,
                "heads": sizes.text_heads,
                "layers": sizes.text_layers,
            },
            "custom_text": True,
        },
        "preprocess_cfg": {"mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28]},
    }


def save(twin, folder, fields):
    """Writes the twin's folder, its config's name by its form."""
    name = "open_clip_config.json" if "model_cfg" in fields else "config.json"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(fields))
    tensors = {key: tensor.contiguous() for key, tensor in twin.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def randomize(module, *, seed=0, gain=1.5):
    """The module with random parameters, none of which is 0 or 1."""
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=numbers)
            if name == "logit_scale":
                parameter.copy_(2 + noise)
            elif parameter.ndim >= 2 and "embed" not in name and "token" not in name:
                fan_in = parameter[0].numel()
                parameter.copy_(gain * noise * fan_in**-0.5)
            elif name.endswith("weight") and parameter.ndim == 1:
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(0.5 * noise)
    return module.eval()
