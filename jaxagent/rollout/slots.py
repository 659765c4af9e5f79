"""The policy as a generator: dialogues in the slots of one KV cache.

A slot is a row of the cache; the rows are divided among the replicas of a mesh. A slot's first
`context.fed` places hold the dialogue's keys and values; what lies behind them is left over and
never seen. A dialogue that starts on a prompt which a slot of its replica still holds takes a copy
of it, so a group's prompt is computed once (`seats` says why one is always held).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Int, Integer, Key

from jaxagent.models.attention import KVCache
from jaxagent.models.decoder import ImageFeatures
from jaxagent.processing.policy import Policy
from jaxagent.retrieval.ladders import rung
from jaxagent.rollout.config import RolloutConfig, piece
from jaxagent.rollout.decode import Chunks, Reach, Speakers, appended, copied, decoded
from jaxagent.rollout.features import FeatureCache, Features
from jaxagent.rollout.loop import Row, Spoken
from jaxagent.rollout.sampling import Drawn, question_number
from jaxagent.trees import Params


class NonFiniteLogits(FloatingPointError):
    """A policy whose next tokens have no probabilities."""


class Weights(NamedTuple):
    """Parameters, their version, and the version of the vision tower in them."""

    params: Params
    version: int
    vision_version: int


Prompt = tuple[int, bytes, tuple[str, ...]]
"""A replica, and what its slots may hold: the tokens that a prompt feeds, its images' keys."""


class Batch(NamedTuple):
    """Rows of several replicas, each replica's part padded to `width`.

    two replicas, width 3      items  a b c      places  0 1 3      a b . | c . .
    """

    items: list[Row]
    places: list[int]
    width: int
    size: int

    @classmethod
    def of(cls, parts: Sequence[Sequence[Row]], width: int) -> "Batch":
        """The rows of each replica, at most `width`."""
        places = [at * width + i for at, part in enumerate(parts) for i in range(len(part))]
        return cls([row for part in parts for row in part], places, width, width * len(parts))

    def padded(
        self, values: Sequence[int], filler: int, *, dtype: DTypeLike = np.int32
    ) -> Integer[np.ndarray, " b"]:
        """A value for each row, and `filler` between them."""
        column = np.full(self.size, filler, dtype)
        column[self.places] = np.array(values, dtype)
        return column


class PolicyGenerator:
    """One rollout's generator: fixed weights, fixed noise, and a cache that holds nothing yet."""

    def __init__(
        self,
        policy: Policy,
        weights: Weights,
        cache: KVCache,
        *,
        mesh: Mesh,
        features: FeatureCache,
        config: RolloutConfig,
        key: Key[Array, ""],
    ):
        self.policy = policy
        self.weights = weights
        self.cache = cache
        self.features = features
        self.config = config
        self.mesh = mesh
        self.slots = config.slots
        self.replicas = mesh.size
        self.slots_per_replica = config.slots // mesh.size
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
        fresh = {row: self._prompt(row) for row in rows if not row.context.fed}
        held = set(self._held.values())
        self._copy({row: prompt for row, prompt in fresh.items() if prompt in held})
        rest = {row: prompt for row, prompt in fresh.items() if prompt not in held}
        leaders = {prompt: row for row, prompt in reversed(rest.items())}  # the first of each
        self._feed([*leaders.values(), *(row for row in rows if row.context.fed)])
        self._held |= {row.slot: prompt for prompt, row in leaders.items()}
        self._copy({row: prompt for row, prompt in rest.items() if row is not leaders[prompt]})

    def speak(self, rows: Sequence[Row]) -> list[Spoken]:
        """Some further tokens of each row; the device is waited for once.

        Raises NonFiniteLogits when the weights hold, or lead to, what is no number.
        """
        steps = rung(self.config.decode_steps, max(row.allowance for row in rows))
        batches = list(self._batches(rows, self.config.rows))
        calls = jax.device_get([self._decode(batch, steps) for batch in batches])
        spoken = {}
        for batch, (ids, log_probs) in zip(batches, calls, strict=True):
            if not np.isfinite(log_probs[batch.places]).all():
                raise NonFiniteLogits(
                    "The policy's logits are not finite, so its weights are damaged. Start from "
                    "another model.folder, or train with a lower optimizer.learning_rate."
                )
            for row, place in zip(batch.items, batch.places, strict=True):
                spoken[row] = Spoken(ids[place], log_probs[place])
        return [spoken[row] for row in rows]

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
        (batch,) = self._batches(list(prompts), (self.slots_per_replica,))
        sources = [slots[prompts[row]] % self.slots_per_replica for row in batch.items]
        self.cache = copied(
            self.cache,
            batch.padded(sources, 0),
            self._local_slots(batch),
            mesh=self.mesh,
            span=self._span(max(row.context.size for row in prompts)),
        )
        for row, prompt in prompts.items():
            self._held[row.slot] = prompt
            row.context.fed = row.context.size - 1

    def _feed(self, rows: Sequence[Row]) -> None:
        """Appends to each row's slot what its context holds beyond it, but the last token."""
        features = self._features(rows)
        while rows := [row for row in rows if row.context.fed < row.context.size - 1]:
            by_length = defaultdict(list)
            for row in rows:
                left = row.context.size - 1 - row.context.fed
                by_length[piece(self.config.chunk_lengths, left)].append(row)
            for length, alike in sorted(by_length.items()):
                for batch in self._batches(alike, self.config.rows):
                    self._append(batch, length, features)

    def _append(self, batch: Batch, length: int, features: dict[str, Features]) -> None:
        ends = [min(row.context.size - 1, row.context.fed + length) for row in batch.items]
        self.num_prefilled += sum(ends) - sum(row.context.fed for row in batch.items)
        self.cache = appended(
            self.policy.model,
            self.weights.params,
            self.cache,
            self._chunks(batch, ends, length, features),
            mesh=self.mesh,
            reach=self._reach(max(ends)),
        )
        for row, end in zip(batch.items, ends, strict=True):
            row.context.fed = end

    def _chunks(
        self, batch: Batch, ends: list[int], length: int, features: dict[str, Features]
    ) -> Chunks:
        """The rows' contexts from what is fed up to `ends`, padded."""
        text, num = self.policy.model.config.text, batch.size
        ids = np.zeros((num, length), np.int32)
        positions = np.zeros((3, num, length), np.int32)
        tokens = np.zeros((num, length, text.width), self.cache.pages.dtype)
        deepstack = np.zeros((text.deepstack, *tokens.shape), tokens.dtype)
        index = np.full((num, length), -1, np.int32)
        for row, end, place in zip(batch.items, ends, batch.places, strict=True):
            context, start = row.context, row.context.fed
            ids[place, : end - start] = context.ids[start:end]
            positions[:, place, : end - start] = context.positions[:, start:end]
            for image in context.unfed_images:
                first = max(image.start, start)
                last = min(image.start + context.num_tokens(image), end)
                here = slice(first - start, max(last, first) - start)
                taken = slice(first - image.start, max(last, first) - image.start)
                tokens[place, here] = features[image.key].tokens[taken]
                deepstack[:, place, here] = features[image.key].deepstack[:, taken]
                index[place, here] = place % batch.width * length + np.arange(length)[here]
        return Chunks(
            rows=self._local_slots(batch),
            start=batch.padded([row.context.fed for row in batch.items], 0),
            ids=ids,
            positions=positions,
            features=ImageFeatures(tokens, deepstack),
            feature_index=index,
        )

    def _features(self, rows: Sequence[Row]) -> dict[str, Features]:
        """The features of all images that are yet to be fed."""
        keys = [image.key for row in rows for image in row.context.unfed_images]
        weights = self.weights
        return self.features.features(weights.params, keys, version=weights.vision_version)

    def _decode(self, batch: Batch, steps: int) -> Drawn:
        self.num_decode_calls += 1
        rows = batch.items
        contexts = [row.context for row in rows]
        questions = [question_number(row.dialogue.question.data_id) for row in rows]
        longest = max(context.size for context in contexts)
        out = decoded(
            self.policy.model,
            self.weights.params,
            self.cache,
            Speakers(
                rows=self._local_slots(batch),
                start=batch.padded([context.size - 1 for context in contexts], 0),
                ids=batch.padded([int(context.ids[-1]) for context in contexts], 0),
                positions=batch.padded([int(one.positions[0, -1]) for one in contexts], 0),
                questions=batch.padded(questions, 0, dtype=np.uint32),
                samples=batch.padded([row.sample for row in rows], 0, dtype=np.uint32),
            ),
            self._key,
            self._banned,
            mesh=self.mesh,
            sampling=self.config.sampling,
            steps=steps,
            reach=self._reach(longest - 1 + steps),
        )
        self.cache = out.cache
        return out.drawn

    def _reach(self, size: int) -> Reach:
        if self.config.kernel == "row":
            return Reach("row")
        return Reach("batch", self._span(size))

    def _span(self, size: int) -> int:
        step = self.config.span_step
        return min(-(-size // step) * step, self.config.context)

    def _batches(self, rows: Sequence[Row], ladder: tuple[int, ...]) -> Iterator[Batch]:
        """The rows in batches; a rung is what a batch holds of each replica."""
        parts = [[] for _ in range(self.replicas)]
        for row in rows:
            parts[row.slot // self.slots_per_replica].append(row)
        while longest := max(map(len, parts)):
            width = piece(ladder, longest)
            yield Batch.of([part[:width] for part in parts], width)
            parts = [part[width:] for part in parts]

    def _local_slots(self, batch: Batch) -> Int[np.ndarray, " b"]:
        """Each row's place in the cache of its replica; what pads lies behind it."""
        local = [row.slot % self.slots_per_replica for row in batch.items]
        return batch.padded(local, self.slots_per_replica)

    def _prompt(self, row: Row) -> Prompt:
        context, replica = row.context, row.slot // self.slots_per_replica
        return replica, context.ids[:-1].tobytes(), tuple(image.key for image in context.images)
