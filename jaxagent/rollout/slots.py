"""The policy as a generator: dialogues in the slots of one KV cache.

A slot is a row of the cache. Its first `context.fed` places hold the dialogue's keys and values; what
lies behind them is left over and never seen. A dialogue that starts on a prompt which some slot still
holds takes a copy of it, so a group's prompt is computed once: groups start in order, and a slot is
refilled by the group that it holds before it is refilled by another.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Key

from jaxagent.models.attention import KVCache
from jaxagent.models.decoder import ImageFeatures
from jaxagent.processing.policy import Policy
from jaxagent.rollout.config import RolloutConfig, rung
from jaxagent.rollout.context import Context
from jaxagent.rollout.decode import Chunks, Speakers, appended, copied, decoded
from jaxagent.rollout.features import FeatureCache, Features
from jaxagent.rollout.loop import Row, Spoken
from jaxagent.rollout.sampling import Drawn, question_number
from jaxagent.trees import Params


class Weights(NamedTuple):
    """Parameters, their version, and the version of the vision tower in them."""

    params: Params
    version: int
    vision_version: int


class Chunk(NamedTuple):
    """Tokens of a row's context, from the first unfed one up to `end`."""

    row: Row
    end: int

    @property
    def start(self) -> int:
        return self.row.context.fed


Prompt = tuple[bytes, tuple[str, ...]]
"""The tokens that a prompt feeds, and its images' keys."""


class PolicyGenerator:
    """One rollout's generator: fixed weights, fixed noise, and a cache of which nothing is held yet."""

    def __init__(
        self,
        policy: Policy,
        weights: Weights,
        cache: KVCache,
        *,
        features: FeatureCache,
        config: RolloutConfig,
        key: Key[Array, ""],
    ):
        self.policy = policy
        self.weights = weights
        self.cache = cache
        self.features = features
        self.config = config
        self.slots = config.slots
        self.num_prefilled = 0
        self.num_decode_calls = 0
        self.num_encoded = -features.num_encoded
        self._key = key
        self._held: dict[int, Prompt] = {}
        banned = np.zeros(policy.model.config.text.vocab, bool)
        banned[list(policy.chat.banned_ids)] = True
        self._banned = jnp.asarray(banned)

    def append(self, rows: Sequence[Row]) -> None:
        """Feeds what the environment added; shared prompts are fed once and copied."""
        fresh = {row: _prompt(row.context) for row in rows if not row.context.fed}
        held = set(self._held.values())
        self._copy({row: prompt for row, prompt in fresh.items() if prompt in held})
        rest = {row: prompt for row, prompt in fresh.items() if prompt not in held}
        leaders = {prompt: row for row, prompt in reversed(rest.items())}  # the first of each
        self._feed([*leaders.values(), *(row for row in rows if row.context.fed)])
        self._held |= {row.slot: prompt for prompt, row in leaders.items()}
        self._copy({row: p for row, p in rest.items() if row is not leaders[p]})

    def speak(self, rows: Sequence[Row]) -> list[Spoken]:
        """Some further tokens of each row; the device is waited for once."""
        left = max(min(row.request.max_tokens, row.context.room) for row in rows)
        steps = rung(self.config.decode_steps, left)
        width = self.config.decode_rows[-1]
        calls = [self._decode(rows[at : at + width], steps) for at in range(0, len(rows), width)]
        ids, log_probs = (
            np.concatenate(parts) for parts in zip(*jax.device_get(calls), strict=True)
        )
        return [Spoken(*row) for row in zip(ids, log_probs, strict=True)]

    def metrics(self) -> dict[str, float]:
        return {
            "tokens_prefilled": self.num_prefilled,
            "decode_calls": self.num_decode_calls,
            "images_encoded": self.num_encoded + self.features.num_encoded,
        }

    def _copy(self, prompts: dict[Row, Prompt]) -> None:
        """Puts each row's prompt into its slot, from a slot that holds it. All are read at once."""
        if not prompts:
            return
        slots = {prompt: slot for slot, prompt in self._held.items()}
        pad = rung(self.config.decode_rows, len(prompts)) - len(prompts)
        sources = [slots[prompt] for prompt in prompts.values()] + [0] * pad
        targets = [row.slot for row in prompts] + [self.slots] * pad
        longest = max(row.context.size for row in prompts)
        self.cache = copied(
            self.cache,
            np.array(sources, np.int32),
            np.array(targets, np.int32),
            span=self._span(longest),
        )
        for row, prompt in prompts.items():
            self._held[row.slot] = prompt
            row.context.fed = row.context.size - 1

    def _feed(self, rows: Sequence[Row]) -> None:
        """Appends to each row's slot what its context holds beyond it, but the last token."""
        features = self._features(rows)
        lengths, width = self.config.chunk_lengths, self.config.chunk_rows[-1]
        while rows := [row for row in rows if row.context.fed < row.context.size - 1]:
            by_length = defaultdict(list)
            for row in rows:
                length = rung(lengths, row.context.size - 1 - row.context.fed)
                end = min(row.context.size - 1, row.context.fed + length)
                by_length[length].append(Chunk(row, end))
            for length, chunks in sorted(by_length.items()):
                for at in range(0, len(chunks), width):
                    self._append(chunks[at : at + width], length, features)

    def _append(self, chunks: list[Chunk], length: int, features: dict[str, Features]) -> None:
        self.num_prefilled += sum(chunk.end - chunk.start for chunk in chunks)
        self.cache = appended(
            self.policy.model,
            self.weights.params,
            self.cache,
            self._batch(chunks, length, features),
            span=self._span(max(chunk.end for chunk in chunks)),
        )
        for chunk in chunks:
            chunk.row.context.fed = chunk.end

    def _batch(self, chunks: list[Chunk], length: int, features: dict[str, Features]) -> Chunks:
        """The chunks padded to a rung; image features lie at the tokens where they stand."""
        text, num = self.policy.model.config.text, rung(self.config.chunk_rows, len(chunks))
        dtype = self.cache.pages.dtype
        tokens = np.zeros((num, length, text.width), dtype)
        deepstack = np.zeros((text.deepstack, num, length, text.width), dtype)
        ids = np.zeros((num, length), np.int32)
        positions = np.zeros((3, num, length), np.int32)
        index = np.full((num, length), -1, np.int32)
        for at, (row, end) in enumerate(chunks):
            context, start = row.context, row.context.fed
            ids[at, : end - start] = context.ids[start:end]
            positions[:, at, : end - start] = context.positions[:, start:end]
            for image in context.images:
                first = max(image.start, start)
                last = min(image.start + context.num_tokens(image), end)
                if first >= last:
                    continue
                there, taken = (
                    slice(first - start, last - start),
                    slice(first - image.start, last - image.start),
                )
                tokens[at, there] = features[image.key].tokens[taken]
                deepstack[:, at, there] = features[image.key].deepstack[:, taken]
                index[at, there] = at * length + np.arange(first - start, last - start)
        return Chunks(
            rows=_padded([chunk.row.slot for chunk in chunks], num, self.slots),
            start=_padded([chunk.start for chunk in chunks], num, 0),
            ids=ids,
            positions=positions,
            features=ImageFeatures(tokens, deepstack),
            feature_index=index,
        )

    def _features(self, rows: Sequence[Row]) -> dict[str, Features]:
        """The features of all images that are yet to be fed."""
        keys = [
            image.key
            for row in rows
            for image in row.context.images
            if image.start + row.context.num_tokens(image) > row.context.fed
        ]
        weights = self.weights
        return self.features.features(weights.params, keys, version=weights.vision_version)

    def _decode(self, rows: Sequence[Row], steps: int) -> Drawn:
        self.num_decode_calls += 1
        num = rung(self.config.decode_rows, len(rows))
        last = [row.context.size - 1 for row in rows]
        contexts = [row.context for row in rows]
        questions = [question_number(row.dialogue.question.data_id) for row in rows]
        speakers = Speakers(
            rows=_padded([row.slot for row in rows], num, self.slots),
            start=_padded(last, num, 0),
            ids=_padded([context.ids[-1] for context in contexts], num, 0),
            positions=_padded([context.positions[0, -1] for context in contexts], num, 0),
            questions=_padded(questions, num, 0, dtype=np.uint32),
            samples=_padded([row.sample for row in rows], num, 0, dtype=np.uint32),
        )
        out = decoded(
            self.policy.model,
            self.weights.params,
            self.cache,
            speakers,
            self._key,
            self._banned,
            sampling=self.config.sampling,
            steps=steps,
            span=self._span(max(last) + steps),
        )
        self.cache = out.cache
        return jax.tree.map(lambda column: column[: len(rows)], out.drawn)

    def _span(self, size: int) -> int:
        step = self.config.span_step
        return min(-(-size // step) * step, self.config.context)


def _prompt(context: Context) -> Prompt:
    return context.ids[:-1].tobytes(), tuple(image.key for image in context.images)


def _padded(values: list, num: int, filler: int, *, dtype: DTypeLike = np.int32) -> np.ndarray:
    return np.array([*values, *[filler] * (num - len(values))], dtype)
