"""A policy in transformers: what every stage is given and makes, its logits, tokens, gradients.

Hooks keep the input and the output of each stage on the host. In bfloat16 each stage is asked a
second time, in float32 on the same input; its weights are widened for that call alone, which is
exact and leaves no trace. A second pass of the whole model does the same with every stage in turn,
its activations in float32 from the start, and is the reference of logits, log-probabilities and
gradients. It recomputes each stage when it goes backwards, so only one stage's weights are ever
wide. This module needs PyTorch; import it where it is used.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle
from transformers import AutoImageProcessor, AutoModelForImageTextToText
from transformers.vision_utils import get_vision_window_index

from jaxagent.parity.cases import Case
from jaxagent.parity.gradients import Kept, places
from jaxagent.types import Progress

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Recorded(NamedTuple):
    """A stage's input and output, and its output in float32 on that input (None: it is so)."""

    given: Float[np.ndarray, "t d"] | Int[np.ndarray, " t"]
    made: Float[np.ndarray, "t d"]
    wide: Float[np.ndarray, "t d"] | None


class Whole(NamedTuple):
    """What the whole model makes of a context."""

    patches: Float[np.ndarray, "p d"] | None
    features: Float[np.ndarray, "n d"] | None
    logits: Float[np.ndarray, "t v"]


class Recording(NamedTuple):
    """A context: its stages by name, the positions that were used, and the whole."""

    stages: dict[str, Recorded]
    positions: Int[np.ndarray, "3 t"]
    whole: Whole
    wide: Whole | None


class Greedy(NamedTuple):
    """The likeliest tokens, one after the other, and the logits that each was chosen by."""

    tokens: Int[np.ndarray, " k"]
    logits: Float[np.ndarray, "k v"]
    wide: Float[np.ndarray, "k v"] | None


class Theirs(NamedTuple):
    """Everything that is compared, by context; gradients are those of the first."""

    recordings: list[Recording]
    greedy: list[Greedy]
    gradients: dict[str, Kept]
    wide_gradients: dict[str, Kept] | None


def run(
    folder: Path,
    cases: list[Case],
    *,
    dtype: str,
    device: str,
    tokens: int,
    banned: Sequence[int],
    progress: Progress,
) -> Theirs:
    """The contexts through a folder's model, which is gone when this returns.

    `tokens` are how many to choose greedily after each prompt, none of `banned`.
    """
    torch.backends.cudnn.allow_tf32 = False
    transformers.utils.logging.disable_progress_bar()
    progress("load in PyTorch", 0, 1)
    model = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=DTYPES[dtype], attn_implementation="eager", local_files_only=True
    )
    model = model.to(device).eval()
    progress("load in PyTorch", 1, 1)
    half, done, steps = dtype != "float32", 0, 3 * len(cases) + 1
    recordings, greedy, wide_gradients = [], [], None
    for number, case in enumerate(cases):
        progress("run in PyTorch", done, steps)
        recordings.append(record(model, case, half=half))
        progress("run in PyTorch", done + 1, steps)
        greedy.append(likeliest(model, case, tokens, banned=banned, half=half))
        progress("run in PyTorch", done + 2, steps)
        if half:
            first = number == 0
            whole, gradients = widely(model, case, backwards=first)
            recordings[-1] = recordings[-1]._replace(wide=whole)
            wide_gradients = gradients if first else wide_gradients
        done += 3
    gradients = gradient(model, cases[0])
    del model
    gc.collect()  # a model is a circle of references
    if device != "cpu":
        torch.cuda.empty_cache()
    progress("run in PyTorch", steps, steps)
    return Theirs(recordings, greedy, gradients, wide_gradients)


def pixel_values(folder: Path, images: list[np.ndarray]) -> list[Float[np.ndarray, "_ c"]]:
    """transformers' patches of images, by the processor that it reads from the folder."""
    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
    return [
        processor(images=[image], input_data_format="channels_last", return_tensors="np")[
            "pixel_values"
        ]
        for image in images
    ]


def stages(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that are compared one by one, in the order in which they run."""
    vision, text = model.model.visual, model.model.language_model
    # only Qwen3-VL has mergers of deepstack
    deep = dict(vision.named_children()).get("deepstack_merger_list", ())
    return {
        **{f"vision block {i}": block for i, block in enumerate(vision.blocks)},
        "merger": vision.merger,
        **{f"deepstack {i}": merger for i, merger in enumerate(deep)},
        "token embedding": text.embed_tokens,
        **{f"text block {i}": layer for i, layer in enumerate(text.layers)},
        "final norm": text.norm,
    }


def record(model: nn.Module, case: Case, *, half: bool) -> Recording:
    """The stages of a context, each on what the one before made; `wide` of the whole is None."""
    found: dict[str, Recorded] = {}
    rotary: dict[str, object] = {}

    def keep_rotary(module, args, output):
        states, positions = args
        rotary["positions"] = positions
        # transformers rounds these to bfloat16 with the states; the reference must not
        rotary["wide"] = module.forward(states.float(), positions)

    def keeper(name: str):
        def keep(module, args, kwargs, output):
            wide = None
            if half:
                kwargs = {key: _float(value) for key, value in kwargs.items()}
                if name.startswith("text block"):
                    kwargs["position_embeddings"] = rotary["wide"]
                with widened(module):
                    wide = _host(module.forward(*map(_float, args), **kwargs))
            found[name] = Recorded(_host(args[0]), _host(output), wide)

        return keep

    with ExitStack() as hooks, torch.no_grad():
        for name, module in stages(model).items():
            hooks.enter_context(_held(module.register_forward_hook(keeper(name), with_kwargs=True)))
        embedding = model.model.language_model.rotary_emb
        hooks.enter_context(_held(embedding.register_forward_hook(keep_rotary)))
        whole = _whole(model, case)
    positions = rotary["positions"].cpu().numpy().astype(np.int32)[:, 0]
    return Recording(_in_file_order(found, model, case), positions, whole[0], None)


def _whole(model: nn.Module, case: Case) -> tuple[Whole, Tensor]:
    """What the whole makes, on the host, and the logits where they are."""
    made: dict[str, Tensor] = {}

    def keep_features(module, args, kwargs, output):
        deep = output.get("deepstack_features") or []
        made["features"] = torch.cat([output.pooler_output, *deep])

    def keep_patches(module, args, kwargs):
        made["patches"] = args[0]

    vision = model.model.visual
    with (
        _held(vision.register_forward_hook(keep_features, with_kwargs=True)),
        _held(vision.blocks[0].register_forward_pre_hook(keep_patches, with_kwargs=True)),
    ):
        logits = model(**_arguments(model, case)).logits[0].float()
    patches = _host(made["patches"]) if made else None
    if made:
        patches = patches[_file_order(model, case)]
    features = _host(made["features"]) if made else None
    return Whole(patches, features, _host(logits)), logits


def likeliest(
    model: nn.Module, case: Case, num: int, *, banned: Sequence[int], half: bool
) -> Greedy:
    """The continuation that the model itself would give a context's prompt."""
    ids, rows, wide = case.ids[: case.prompt], [], None
    with torch.no_grad():
        for _ in range(num):
            given = _arguments(model, case._replace(ids=ids))
            rows.append(_host(model(**given, logits_to_keep=1).logits[0, -1]))
            allowed = rows[-1].copy()
            allowed[list(banned)] = -np.inf
            ids = np.append(ids, allowed.argmax()).astype(np.int32)
    if half:
        whole, _ = widely(model, case._replace(ids=ids[:-1]), backwards=False)
        wide = whole.logits[case.prompt - 1 :]
    return Greedy(ids[case.prompt :], np.stack(rows), wide)


def gradient(model: nn.Module, case: Case) -> dict[str, Kept]:
    """The gradient of the context's mean cross-entropy, kept in part."""
    kept: dict[str, Kept] = {}

    def keeper(key: str):
        def keep(parameter):
            kept[key] = _kept(key, parameter.grad)
            parameter.grad = None

        return keep

    with ExitStack() as hooks:
        for key, parameter in model.named_parameters():
            hook = parameter.register_post_accumulate_grad_hook(keeper(key))
            hooks.enter_context(_held(hook))
        _loss(_whole(model, case)[1], case).backward()
    return kept


def widely(
    model: nn.Module, case: Case, *, backwards: bool
) -> tuple[Whole, dict[str, Kept] | None]:
    """The whole in float32, and its gradients, with one stage's weights wide at a time."""
    kept: dict[str, Kept] = {}
    tables: dict[nn.Parameter, Tensor] = {}
    names = {parameter: key for key, parameter in model.named_parameters()}
    tied = model.lm_head.weight

    def wide(parameter: nn.Parameter) -> Tensor:
        if parameter in tables:
            return tables[parameter]
        made = parameter.float()
        if made.requires_grad:
            key = names[parameter]
            made.register_hook(lambda gradient: kept.update({key: _kept(key, gradient)}))
        if parameter is tied:  # perhaps the table of tokens too, whose gradient is the sum
            tables[parameter] = made
        return made

    vision = dict(model.model.visual.named_children())
    modules = [*stages(model).values(), model.lm_head, vision["patch_embed"]]
    modules += [vision["pos_embed"]] if "pos_embed" in vision else []
    with ExitStack() as changes, torch.set_grad_enabled(backwards):
        for module in modules:
            changes.enter_context(_widening(module, wide, again=backwards))
        for parameter in model.parameters():
            hook = parameter.register_post_accumulate_grad_hook(_drop_gradient)
            changes.enter_context(_held(hook))
        whole, logits = _whole(model, case)
        if not backwards:
            return whole, None
        _loss(logits, case).backward()
    return whole, kept


@contextmanager
def _widening(
    module: nn.Module, wide: Callable[[nn.Parameter], Tensor], *, again: bool
) -> Iterator[None]:
    """Calls of the module use wide weights; `again`: it is computed again when going backwards."""
    original, inside = module.forward, []

    def call(*args, **kwargs):
        if inside:
            return original(*args, **kwargs)
        inside.append(True)
        try:
            weights = {key: wide(one) for key, one in module.named_parameters()}
            return torch.func.functional_call(module, weights, args, kwargs)
        finally:
            inside.clear()

    def forward(*args, **kwargs):
        if inside or not again:
            return call(*args, **kwargs)
        return checkpoint(call, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    module.forward = forward
    try:
        yield
    finally:
        del module.forward


@contextmanager
def widened(module: nn.Module) -> Iterator[None]:
    """The module with its weights in float32."""
    kept = [(parameter, parameter.data) for parameter in module.parameters()]
    for parameter, data in kept:
        parameter.data = data.float()
    try:
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data


@contextmanager
def _held(hook: RemovableHandle) -> Iterator[None]:
    try:
        yield
    finally:
        hook.remove()


def _drop_gradient(parameter: nn.Parameter) -> None:
    parameter.grad = None


def _arguments(model: nn.Module, case: Case) -> dict[str, Tensor | bool]:
    ids = torch.tensor(case.ids, dtype=torch.long, device=model.device)[None]
    # no cache: a stage that is called twice would append to it twice
    arguments = {"input_ids": ids, "use_cache": False}
    if not case.spans:
        return arguments
    return arguments | {
        "pixel_values": torch.tensor(np.concatenate(case.patches), device=model.device),
        "image_grid_thw": torch.tensor([span.grid for span in case.spans], device=model.device),
        "mm_token_type_ids": (ids == model.config.image_token_id).int(),
    }


def _loss(logits: Float[Tensor, "t v"], case: Case) -> Float[Tensor, ""]:
    following = torch.tensor(case.ids[1:], dtype=torch.long, device=logits.device)
    return nn.functional.cross_entropy(logits[:-1], following)


def _kept(key: str, gradient: Tensor) -> Kept:
    flat = gradient.detach().reshape(-1)
    where = torch.tensor(places(key, flat.numel()), device=flat.device)
    norm = torch.linalg.vector_norm(flat, dtype=torch.float32).item()
    return Kept(norm, _host(flat[where]), flat.numel())


def _file_order(model: nn.Module, case: Case) -> Int[np.ndarray, " p"]:
    """Where each patch stands among a vision block's rows: Qwen2.5-VL's lie window by window."""
    vision = model.config.vision_config
    num = sum(len(patches) for patches in case.patches)
    if model.config.model_type != "qwen2_5_vl" or not num:
        return np.arange(num)
    order, _ = get_vision_window_index(
        torch.tensor([span.grid for span in case.spans]),
        spatial_merge_size=vision.spatial_merge_size,
        window_size=vision.window_size,
        patch_size=vision.patch_size,
    )
    patches = np.arange(num).reshape(-1, vision.spatial_merge_size**2)
    return np.argsort(patches[order.numpy()].reshape(-1))


def _in_file_order(found: dict[str, Recorded], model: nn.Module, case: Case) -> dict[str, Recorded]:
    order = _file_order(model, case)

    def sorted_rows(name: str, one: Recorded) -> Recorded:
        if not name.startswith("vision block"):
            return one
        return Recorded(*(None if value is None else value[order] for value in one))

    return {name: sorted_rows(name, one) for name, one in found.items()}


def _float(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(map(_float, value))
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.float()
    return value


def _host(tensor: Tensor) -> np.ndarray:
    """On the host, in float32 or int32, without the axis of one row."""
    tensor = tensor.detach()
    tensor = tensor.float() if tensor.is_floating_point() else tensor.int()
    found = tensor.cpu().numpy()
    return found[0] if found.ndim > 1 and len(found) == 1 else found
