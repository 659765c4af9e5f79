"""A policy's folder, compared from its pixels to its gradients.

transformers runs first and leaves its recordings on the host; then JAX runs each stage on what
transformers gave to that stage, and last the whole model from pixels to logits. So the first stage
that fails is where the fault is, and never are both models in memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from jaxagent.parity.cases import Case, cases, drawings
from jaxagent.parity.compare import HALF_FACTOR, TOLERANCES, Row, Sides, compared, exact
from jaxagent.parity.gradients import compared_groups
from jaxagent.parity.jax_side import Stages, Whole, read_whole
from jaxagent.processing.policy import Policy, open_policy
from jaxagent.types import Progress
from jaxagent.weights import policies
from jaxagent.weights.params import check_params

if TYPE_CHECKING:
    from jaxagent.parity.torch_side import Recording, Theirs

TOKENS = 16
"""How many tokens both sides continue each prompt by."""
LAYER, TOWER = TOLERANCES["layer"], TOLERANCES["tower"]


def compare_policy(folder: Path, *, dtype: str, device: str, progress: Progress) -> Iterator[Row]:
    """A row for each stage of a folder's policy; `device` is PyTorch's word.

    JAX computes on its default device; in float32, ask it for the highest precision of products.
    Raises ConfigError, ChatError, ImageError or WeightsError for a folder that cannot be read.
    """
    from jaxagent.parity import torch_side  # needs PyTorch, which is an extra

    policy = open_policy(folder)
    contexts = cases(policy)
    # A folder whose tensors do not fit is refused here; transformers would fill in random ones.
    check_params(
        folder,
        policies.table(policy.model.config),
        policy.model.shapes(),
        unused=policies.unused(policy.model.config),
        renames=policies.RENAMES,
    )
    yield _pixels(policy, torch_side.pixel_values(folder, drawings()))
    theirs = torch_side.run(
        folder,
        contexts,
        dtype=dtype,
        device=device,
        tokens=TOKENS,
        banned=policy.chat.banned_ids,
        progress=progress,
    )
    yield from stage_rows(policy, contexts, theirs, dtype=dtype, progress=progress)
    yield from whole_rows(policy, contexts, theirs, dtype=dtype, progress=progress)


def stage_rows(
    policy: Policy, contexts: list[Case], theirs: "Theirs", *, dtype: str, progress: Progress
) -> Iterator[Row]:
    """The rows of the stages, each on what transformers gave to it."""
    stages = Stages(policy.folder, policy.model.config, dtype)
    yield from _vision(stages, contexts[0], theirs.recordings[0], progress)
    yield from _text(stages, contexts, theirs.recordings, progress)


def _pixels(policy: Policy, theirs: list[Float[np.ndarray, "_ c"]]) -> Row:
    """The patches of all images, each image one vector: a wrong order of patches shows too."""
    ours = [policy.image_processor.patches(image).values for image in drawings()]
    if [one.shape for one in ours] != [one.shape for one in theirs]:
        ours, theirs = ours[:1], theirs[:1]  # whose shapes are told, or those of all in a row
    sides = (np.concatenate([one.reshape(-1) for one in side])[None] for side in (ours, theirs))
    return compared("pixel values", Sides(*sides), TOLERANCES["pixels"])


def _vision(stages: Stages, case: Case, theirs: "Recording", progress: Progress) -> Iterator[Row]:
    config = stages.config.vision
    whole, wide = theirs.whole, theirs.wide
    total = config.layers + len(config.deepstack) + 3
    names = [
        "patch embedding",
        *(f"vision block {i}" for i in range(config.layers)),
        "merger",
        *(f"deepstack {i}" for i in range(len(config.deepstack))),
    ]
    for done, name in enumerate(names):
        progress("vision tower in JAX", done, total)
        kind, _, number = name.rpartition(" ")
        if name == "patch embedding":
            sides = Sides(
                stages.patch_embedding(case), whole.patches, None if wide is None else wide.patches
            )
            yield compared(name, sides, LAYER)
            continue
        one = theirs.stages[name]
        if kind == "vision block":
            ours = stages.vision_block(int(number), case, one.given)
        elif kind == "deepstack":
            ours = stages.deepstack(int(number), one.given)
        else:
            ours = stages.merger(one.given)
        yield compared(name, Sides(ours, one.made, one.wide), LAYER)
    sides = Sides(
        stages.image_features(case), whole.features, None if wide is None else wide.features
    )
    yield compared("image features", sides, TOWER)
    progress("vision tower in JAX", total, total)


def _text(
    stages: Stages, contexts: list[Case], theirs: "list[Recording]", progress: Progress
) -> Iterator[Row]:
    pairs = list(zip(contexts, theirs, strict=True))
    used = [recording.positions for recording in theirs]
    ours = [case.positions for case in contexts]
    yield exact("position ids", np.concatenate(ours, 1), np.concatenate(used, 1))
    embedded = [
        Sides(
            stages.token_embedding(case, _image_tokens(case, one)),
            one.stages["text block 0"].given,
        )
        for case, one in pairs
    ]
    yield compared("token embedding", _joined(embedded), LAYER)
    layers = stages.config.text.layers
    for layer in range(layers):
        progress("text tower in JAX", layer, layers + 1)
        name = f"text block {layer}"
        blocks = [
            Sides(stages.text_block(layer, case, one.given), one.made, one.wide)
            for case, one in ((case, recording.stages[name]) for case, recording in pairs)
        ]
        yield compared(name, _joined(blocks), LAYER)
    norms = [recording.stages["final norm"] for recording in theirs]
    normed = [Sides(stages.final_norm(one.given), one.made, one.wide) for one in norms]
    yield compared("final norm", _joined(normed), LAYER)
    progress("text tower in JAX", layers + 1, layers + 1)


def whole_rows(
    policy: Policy, contexts: list[Case], theirs: "Theirs", *, dtype: str, progress: Progress
) -> Iterator[Row]:
    """The rows of the whole model, from pixels and ids to logits, tokens and gradients."""
    config = policy.model.config
    progress("whole model in JAX", 0, 3)
    params = read_whole(policy.folder, config, dtype)
    ours = Whole(config, params, contexts)
    made = ours.run()
    progress("whole model in JAX", 1, 3)
    logits = [
        Sides(mine, one.whole.logits, None if one.wide is None else one.wide.logits)
        for mine, one in zip(made.logits, theirs.recordings, strict=True)
    ]
    yield compared("logits", _joined(logits), TOWER)
    likely = [_log_probs(sides, case) for sides, case in zip(logits, contexts, strict=True)]
    yield compared("log-probs of a continuation", _joined(likely, axis=1), TOWER)
    tokens = np.stack([one.tokens for one in theirs.greedy])
    decoded = ours.decoding_logits(made.features, tokens)
    pairs = zip(decoded, theirs.greedy, strict=True)
    sides = _joined([Sides(mine, one.logits, one.wide) for mine, one in pairs])
    yield compared("decoding logits", sides, TOWER)
    yield greedy_row(sides, tokens.reshape(-1), np.asarray(policy.chat.banned_ids))
    progress("whole model in JAX", 2, 3)
    yield from compared_groups(
        policies.table(config), made.gradients, theirs.gradients, theirs.wide_gradients
    )
    progress("whole model in JAX", 3, 3)


def greedy_row(sides: Sides, tokens: Int[np.ndarray, " k"], banned: Int[np.ndarray, " b"]) -> Row:
    """The row of tokens chosen greedily, each after the tokens that transformers chose.

    Where we would choose another one, the two must be near to a tie: not further apart in the
    reference than twice what a logit may be off.
    """
    ours, theirs, wide = sides
    reference = theirs if wide is None else wide
    allowed = ours.copy()
    allowed[:, banned] = -np.inf
    chosen = allowed.argmax(1)
    steps = np.arange(len(tokens))
    gaps = np.where(
        chosen == tokens, 0.0, np.abs(reference[steps, tokens] - reference[steps, chosen])
    )
    off = TOWER * np.abs(reference).max()
    if wide is not None:
        off = HALF_FACTOR * np.abs(theirs - wide).max()
    equal = int((chosen == tokens).sum())
    ties = "" if equal == len(tokens) else ", the others near-ties"
    if gaps.max() > 2 * off:
        ties = f", token {int(gaps.argmax())} is {chosen[gaps.argmax()]}"
    scale = np.abs(reference).max()
    return Row(
        stage="greedy tokens",
        absolute=float(gaps.max()),
        relative=float(gaps.max() / scale),
        tolerance=float(2 * off / scale),
        note=f"{equal} of {len(tokens)} equal{ties}",
    )


def _image_tokens(case: Case, theirs: "Recording") -> Float[np.ndarray, "n d"] | None:
    """The tokens of the images, without deepstack's, as the text tower was given them."""
    if not case.spans:
        return None
    return theirs.whole.features[: len(theirs.stages["merger"].made)]


def _joined(sides: list[Sides], axis: int = 0) -> Sides:
    """Several contexts as one; they differ in length."""
    ours, theirs, wide = (
        None if parts[0] is None else np.concatenate(parts, axis)
        for parts in zip(*sides, strict=True)
    )
    return Sides(ours, theirs, wide)


def _log_probs(sides: Sides, case: Case) -> Sides:
    """The log-probability of each token of the continuation, from all logits."""
    following = case.ids[case.prompt :]

    def chosen(logits):
        if logits is None:
            return None
        rows = logits[case.prompt - 1 : -1].astype(np.float64)
        rows -= rows.max(1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(1, keepdims=True))
        return rows[np.arange(len(following)), following][None].astype(np.float32)

    return Sides(*map(chosen, sides))
