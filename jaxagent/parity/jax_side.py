"""A policy's stages in JAX, each on the input that transformers had, with its own weights alone.

The modules are those of the model, merged with the parameters of one layer that are read from the
folder for it; what comes before has no part in a stage's difference. The whole model runs through
`Model` as everywhere else.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import SingleDeviceSharding
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxagent.models import attention, qwen2_5_vl, qwen3_vl
from jaxagent.models.decoder import ImageFeatures, at_tokens, joined
from jaxagent.models.layers import Blueprint, blueprint
from jaxagent.models.policy import Model, PolicyConfig, Towers
from jaxagent.models.qwen2_5_vl import Arrangement, Qwen25VisionConfig
from jaxagent.models.qwen3_vl import Qwen3VisionConfig
from jaxagent.models.rope import num_image_tokens, text_rotation, vision_rotation
from jaxagent.parity.cases import Case
from jaxagent.parity.gradients import Kept, places
from jaxagent.trees import Params, flat
from jaxagent.types import Grid
from jaxagent.weights import policies
from jaxagent.weights.folder import read_policy
from jaxagent.weights.params import read_params

States = Float[np.ndarray, "t d"]
T = TypeVar("T")


class Part(NamedTuple):
    """A module of the model and its parameters."""

    graph: nnx.GraphDef
    params: Params


class Run(NamedTuple):
    """What one pass of the whole gives."""

    logits: list[Float[np.ndarray, "t v"]]
    features: ImageFeatures
    gradients: dict[str, Kept]


class Stages:
    """The stages of a folder's policy; what is compiled for one layer serves the others."""

    def __init__(self, folder: Path, config: PolicyConfig, dtype: DTypeLike):
        self.folder, self.config, self.dtype = folder, config, dtype
        self._plans: dict[str, Blueprint] = {}
        self._compiled: dict[object, Callable] = {}

    def patch_embedding(self, case: Case) -> States:
        """What the first vision block gets."""
        start = self._part("vision/patch/")
        table = None
        if isinstance(self.config.vision, Qwen3VisionConfig):
            table = self._part("vision/position/")
        made = []
        for span, patches in zip(case.spans, case.patches, strict=True):
            x = self._call("patch", start, _through, patches)
            if table is not None:
                _, height, width = span.grid
                frames = x.reshape(-1, height * width, x.shape[-1])
                places = partial(_positions, config=self.config.vision, size=(height, width))
                x = (frames + self._call(("position", span.grid), table, places)).reshape(x.shape)
            made.append(x)
        return _host(jnp.concatenate(made))

    def vision_block(self, layer: int, case: Case, states: States) -> States:
        """What a vision block makes of its rows of all images."""
        block = self._part("vision/blocks/", layer)
        made, start = [], 0
        for span in case.spans:
            frames, height, width = span.grid
            end = start + frames * height * width
            whole = _whole_frame(self.config, layer)
            run = partial(_vision_block, arranged=self._arranged(span.grid, whole=whole))
            x = states[start:end].reshape(frames, height * width, -1)
            made.append(self._call(("block", span.grid, whole), block, run, x))
            start = end
        return np.concatenate([_host(x).reshape(-1, states.shape[-1]) for x in made])

    def merger(self, states: States) -> Float[np.ndarray, "n e"]:
        """The image tokens of merged patches."""
        return _host(self._call("merger", self._part("vision/merger/"), _through, states[None])[0])

    def deepstack(self, number: int, states: States) -> Float[np.ndarray, "n e"]:
        """The features of a deepstack merger."""
        part = self._part("vision/deepstack_mergers/", number)
        return _host(self._call("deepstack", part, _through, states[None])[0])

    def image_features(self, case: Case) -> States:
        """The whole tower's tokens of all images, then deepstack's, one layer after the other."""
        tower = self._part("vision/")
        made = []
        for span, patches in zip(case.spans, case.patches, strict=True):
            run = partial(_tower, grid=span.grid)
            made.append(self._call(("tower", span.grid), tower, run, patches[None]))
        features = joined(made)
        deep = features.deepstack.reshape(-1, features.tokens.shape[-1])  # below one another
        return _host(jnp.concatenate([features.tokens[0], deep]))

    def token_embedding(self, case: Case, features: Float[np.ndarray, "n d"] | None) -> States:
        """What the first text layer gets, images in their places."""
        table = self._part("text/embed/")
        x = self._call(("embed", len(case.ids)), table, _through, case.ids[None])
        if features is not None:
            index = jnp.asarray(feature_index(case, self.config, range(len(case.spans)))[None])
            x = at_tokens(self._on_device(features)[None], index, x)
        return _host(x[0])

    def text_block(self, layer: int, case: Case, states: States) -> States:
        """What a text layer makes of its tokens, before anything of deepstack is added."""
        num_deep = self.config.text.deepstack
        stack = ("text/deepstack_layers/", layer)
        if layer >= num_deep:
            stack = ("text/layers/", layer - num_deep)
        run = partial(_text_block, config=self.config)
        key = ("text block", len(case.ids))
        x = self._call(key, self._part(*stack), run, states[None], case.positions[:, None])
        return _host(x[0])

    def final_norm(self, states: States) -> States:
        """The hidden states that the head sees."""
        return _host(self._call("norm", self._part("text/norm/"), _through, states))

    def _arranged(self, grid: Grid, *, whole: bool) -> Arrangement:
        _, height, width = grid
        config = self.config.vision
        if isinstance(config, Qwen25VisionConfig):
            arranged = qwen2_5_vl.arrangement(height, width, config)
        else:
            order = np.arange(height * width)
            arranged = Arrangement(order, vision_rotation(height, width, config), ())
        return arranged._replace(windows=((1, height * width),)) if whole else arranged

    def _part(self, prefix: str, layer: int | None = None) -> Part:
        """The module behind a prefix of the parameters' names, or one layer of a stack."""
        if prefix not in self._plans:
            module = attrgetter(prefix.strip("/").replace("/", "."))
            self._plans[prefix] = blueprint(lambda: module(Towers(self.config)))
        plan = self._plans[prefix]
        rows = [
            replace(row, name=row.name.removeprefix(prefix))
            for row in policies.table(self.config)
            if row.name.startswith(prefix)
        ]
        shapes = plan.shapes
        if layer is not None:
            rows = [replace(row, layers=row.layers[layer : layer + 1]) for row in rows]
            shapes = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), shapes
            )
        params = read_params(
            self.folder,
            rows,
            shapes,
            dtype=self.dtype,
            unused=(".*",),  # everything else of the folder
            renames=policies.RENAMES,
        )
        if layer is not None:
            params = jax.tree.map(lambda leaf: leaf[0], params)
        return Part(plan.graph, jax.device_put(params))

    def _call(self, key: object, part: Part, function: Callable[..., T], *inputs: np.ndarray) -> T:
        if key not in self._compiled:
            graph = part.graph
            self._compiled[key] = jax.jit(
                lambda params, *inputs: function(nnx.merge(graph, params), *inputs)
            )
        return self._compiled[key](part.params, *map(self._on_device, inputs))

    def _on_device(self, values: np.ndarray) -> Array:
        integers = np.issubdtype(values.dtype, np.integer)
        return jnp.asarray(values, None if integers else self.dtype)


def _through(module: nnx.Module, x: Array) -> Array:
    return module(x)


def _positions(table: nnx.Module, *, config: Qwen3VisionConfig, size: tuple[int, int]) -> Array:
    return qwen3_vl.interpolated(table, *size, config)[None]


def _vision_block(block: nnx.Module, x: Float[Array, "f p d"], *, arranged: Arrangement) -> Array:
    made = block(x[:, arranged.order], arranged.rotation, arranged.windows)
    return made[:, np.argsort(arranged.order)]


def _whole_frame(config: PolicyConfig, layer: int) -> bool:
    vision = config.vision
    return not isinstance(vision, Qwen25VisionConfig) or layer in vision.full_layers


def _tower(tower: nnx.Module, patches: Float[Array, "i p c"], *, grid: Grid) -> ImageFeatures:
    return tower(patches, grid)


def _text_block(
    layer: nnx.Module, x: Array, positions: Int[Array, "3 b t"], *, config: PolicyConfig
) -> Array:
    segments = jnp.ones(x.shape[:2], jnp.int32)

    def attend(q, k, v):
        return attention.packed_attention(q, k, v, segments), None

    return layer(x, text_rotation(positions, config.text), attend)[0]


def by_grid(case: Case) -> dict[Grid, list[int]]:
    """The numbers of a context's images, those of one grid together."""
    groups: dict[Grid, list[int]] = {}
    for number, span in enumerate(case.spans):
        groups.setdefault(span.grid, []).append(number)
    return groups


def feature_index(case: Case, config: PolicyConfig, order: Iterable[int]) -> Int[np.ndarray, " t"]:
    """The row of features that stands at each token, -1 for text, images in the given order."""
    index, first = np.full(len(case.ids), -1, np.int32), 0
    for span in (case.spans[number] for number in order):
        num = num_image_tokens(span.grid, config.vision.merge)
        index[span.start : span.start + num] = np.arange(first, first + num)
        first += num
    return index


def _host(values: Array) -> np.ndarray:
    return np.asarray(values.astype(jnp.float32))


def read_whole(folder: Path, config: PolicyConfig, dtype: DTypeLike) -> Params:
    """The parameters of a folder on the first device."""
    place = SingleDeviceSharding(jnp.zeros(()).devices().pop())
    shardings = jax.tree.map(lambda _: place, Model(config).shapes())
    return read_policy(folder, dtype=dtype, shardings=shardings).params


class Whole:
    """The whole policy on all contexts at once, each a row padded at its end."""

    def __init__(self, config: PolicyConfig, params: Params, cases: list[Case]):
        self.model, self.params, self.cases = Model(config), params, cases
        length = max(len(case.ids) for case in cases)

        def row(values, filling):
            blank = np.full((*values.shape[:-1], length), filling, np.int32)
            blank[..., : values.shape[-1]] = values
            return blank

        self.ids = np.stack([row(case.ids, 0) for case in cases])
        self.positions = np.stack([row(case.positions, 0) for case in cases], axis=1)
        self.segments = np.stack([row(np.ones_like(case.ids), 0) for case in cases])
        # Only the first has images; they are encoded grid by grid.
        self.groups = by_grid(cases[0])
        order = [number for numbers in self.groups.values() for number in numbers]
        index = feature_index(cases[0], config, order)
        self.index = np.stack([row(index, -1), *[row(index[:0], -1)] * (len(cases) - 1)])

    def run(self) -> Run:
        """One pass forwards, and one backwards from the loss of the first context."""
        compiled = jax.jit(jax.grad(self._loss, has_aux=True))
        gradients, (logits, features) = compiled(self.params)
        rows = zip(np.asarray(logits), self.cases, strict=True)
        logits = [row[: len(case.ids)] for row, case in rows]
        return Run(logits, features, self._kept(flat(gradients)))

    def decoding_logits(
        self, features: ImageFeatures, tokens: Int[np.ndarray, "b k"]
    ) -> Float[np.ndarray, "b k v"]:
        """The logits by which each of the given tokens would be chosen, the cache in use."""
        model, (b, num) = self.model, tokens.shape
        prompts = np.asarray([case.prompt for case in self.cases], np.int32)
        longest = int(prompts.max())
        following = [case.positions[:, : case.prompt].max() + 1 for case in self.cases]
        cache = model.new_cache(b, longest + num, features.tokens.dtype)

        @partial(jax.jit, donate_argnums=1)
        def extend(params, cache, ids, positions, start, last, features, index):
            hidden, cache = model.extend(
                params, cache, ids, positions, None, start, features, index
            )
            return model.logits(params, hidden[jnp.arange(b), last]), cache

        given = self.ids[:, :longest], self.positions[..., :longest]
        start, last = np.zeros(b, np.int32), prompts - 1
        images = features, self.index[:, :longest]
        made = []
        for number in range(num):
            logits, cache = extend(self.params, cache, *given, start, last, *images)
            made.append(np.asarray(logits))
            places = np.asarray(following, np.int32)[None, :, None] + number
            given = tokens[:, number : number + 1], np.broadcast_to(places, (3, b, 1))
            start, last, images = prompts + number, np.zeros(b, np.int32), (None, None)
        return np.stack(made, axis=1)

    def _loss(self, params: Params) -> tuple[Array, tuple[Array, ImageFeatures]]:
        patches = self.cases[0].patches
        features = joined(
            [
                self.model.encode_images(
                    params, jnp.asarray(np.stack([patches[number] for number in numbers])), grid
                )
                for grid, numbers in self.groups.items()
            ]
        )
        given = map(jnp.asarray, (self.ids, self.positions, self.segments))
        hidden = self.model.forward(params, *given, features, jnp.asarray(self.index))
        logits = self.model.logits(params, hidden)
        following = self.cases[0].ids[1:]
        log_probs = jax.nn.log_softmax(logits[0, : len(following)])
        chosen = jnp.take_along_axis(log_probs, jnp.asarray(following)[:, None], axis=1)
        return -jnp.mean(chosen), (logits, features)

    def _kept(self, gradients: dict[str, Array]) -> dict[str, Kept]:
        kept: dict[str, Kept] = {}
        for row in policies.table(self.model.config):
            gradient = gradients.pop(row.name)
            for number, key in enumerate(row.hf_keys()):
                layer = gradient if row.layers is None else gradient[number]
                whole = row.exported(np.asarray(layer)).reshape(-1)
                numbers = whole[places(key, whole.size)].astype(np.float32)
                kept[key] = Kept(_norm(whole), numbers, whole.size)
        return kept


def _norm(values: np.ndarray) -> float:
    return float(np.linalg.norm(values.astype(np.float32)))
