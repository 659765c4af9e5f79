"""The update: the only programs that change parameters.

    accumulate(learner, total, batch) -> total      gradients and sums of one micro-batch, added up
    apply(learner, total) -> learner, report        clip, AdamW, one step

Both are compiled once a shape. The host calls `accumulate` as often as there are micro-batches
and `apply` once. All weights in the loss are of the global batch, so how it is cut changes
nothing.

Parameters are float32 and lie where the rule table says; frozen ones are a tree of their own, which
gradients and the optimiser never see. A gradient that is not finite changes nothing: the learner
comes back as it was, and `run` raises with the names of the parameters.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxagent.algorithms.losses import policy_loss
from jaxagent.algorithms.table import Algorithm
from jaxagent.models.decoder import ImageFeatures, joined
from jaxagent.models.policy import Model
from jaxagent.sharding import ROWS, Rules, param_shardings
from jaxagent.training.batch import MicroBatch, PatchesByGrid, Rows, fill
from jaxagent.training.optimizer import Optimizer
from jaxagent.training.target_scores import target_scores
from jaxagent.trees import Params, flat, nested


class Learner(NamedTuple):
    """Everything an update changes, and the frozen parameters beside it."""

    step: Int[Array, ""]
    params: Params
    frozen: Params
    optimizer: Any


class Sums(NamedTuple):
    """What adds up over the micro-batches of an update; the last three are extremes."""

    loss: Float[Array, ""]
    verdict_loss: Float[Array, ""]
    verdicts: Float[Array, ""]
    verdicts_right: Float[Array, ""]
    targets: Float[Array, ""]
    clipped_low: Float[Array, ""]
    clipped_high: Float[Array, ""]
    entropy: Float[Array, ""]
    sampler_gap: Float[Array, ""]
    """|log pi - what the sampler recorded|"""
    max_ratio: Float[Array, ""]
    max_sampler_gap: Float[Array, ""]
    min_ratio: Float[Array, ""]


class Total(NamedTuple):
    """Gradients and sums of the micro-batches so far."""

    gradients: Params
    sums: Sums


class Report(NamedTuple):
    """The gradient's global norm before clipping, and which parameters' gradients are finite."""

    norm: Float[Array, ""]
    finite: Params


class NonFiniteGradient(FloatingPointError):
    """A gradient with NaN or infinity. `learner` is unchanged, `names` are the parameters."""

    def __init__(self, learner: Learner, names: Sequence[str]):
        self.learner, self.names = learner, tuple(names)
        step = int(learner.step)
        shown = ", ".join(self.names[:5]) or "none by itself; their norm overflows"
        super().__init__(
            f"Update {step} has a gradient that is not finite, in {len(self.names)} parameters: "
            f"{shown}. Lower optimizer.learning_rate, or start from another policy."
        )


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """How an update computes; `chunk` alone changes nothing but memory."""

    chunk: int = 128
    """Targets of a row whose logits exist at a time."""
    temperature: float = 1.0
    """What the sampler divided logits by."""
    banned: tuple[int, ...] = ()
    """Ids that are never sampled."""
    frozen: tuple[str, ...] = (r"^vision/",)
    """Patterns of parameters that stay as they are."""
    verdict_ids: tuple[int, int] | None = None
    """The ids of no and yes, where samples carry verdicts."""
    dtype: DTypeLike = "float32"
    """Of compute; parameters, their sums and their optimiser stay float32."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """An algorithm's update of a model on a mesh."""

    model: Model
    algorithm: Algorithm
    optimizer: Optimizer
    mesh: Mesh
    rules: Rules
    config: StepConfig = StepConfig()

    def learner(self, params: Params) -> Learner:
        """The learner at step 0, placed by the rule table; `params` stay the caller's."""
        placed = jax.device_put(params, param_shardings(self.rules, params, self.mesh))
        trained, frozen = split(placed, self.config.frozen)
        trained = jax.tree.map(jnp.copy, trained)  # updates use up what they are given
        optimizer = jax.jit(self.optimizer.init, out_shardings=self._optimizer_shardings)
        step = jax.device_put(jnp.zeros((), jnp.int32), self._replicated)
        return Learner(step, trained, frozen, optimizer(trained))

    def run(
        self, learner: Learner, batches: Sequence[MicroBatch]
    ) -> tuple[Learner, dict[str, float]]:
        """The learner after one update on the micro-batches, and the update's metrics.

        Raises:
            NonFiniteGradient: it carries the learner as it was; the one given is used up.
        """
        total = self.no_total(learner.params)
        for batch in batches:
            total = self.accumulate(learner, total, self.placed(batch))
        learner, report = self.apply(learner, total)
        report, sums = jax.device_get((report, total.sums))
        if not np.isfinite(report.norm):
            bad = [name for name, finite in flat(report.finite).items() if not finite]
            raise NonFiniteGradient(learner, bad)
        rate = float(self.optimizer.rate(int(learner.step) - 1))
        return learner, self._metrics(sums, report) | {"learning_rate": rate} | fill(batches)

    def placed(self, batch: MicroBatch) -> MicroBatch:
        """The micro-batch on the devices, its rows cut along the mesh."""
        by_token = NamedSharding(self.mesh, P(ROWS, "context"))
        by_row = NamedSharding(self.mesh, P(ROWS))
        shardings = jax.tree.map(lambda _: by_row, batch.rows)._replace(
            ids=by_token,
            positions=NamedSharding(self.mesh, P(None, ROWS, "context")),
            segments=by_token,
            feature_index=by_token,
        )
        images = jax.device_put(batch.images, self._replicated)
        return MicroBatch(jax.device_put(batch.rows, shardings), images)

    @cached_property
    def log_probs(self):
        """(learner, placed batch) -> the log-probability of every target, `[b u]`."""

        @jax.jit
        def log_probs(learner: Learner, batch: MicroBatch) -> Float[Array, "b u"]:
            return self._scores(learner.params, learner.frozen, batch)[0].log_probs

        return log_probs

    @cached_property
    def accumulate(self):
        """(learner, total, placed batch) -> total."""

        def accumulate(learner: Learner, total: Total, batch: MicroBatch) -> Total:
            differentiated = jax.value_and_grad(self._loss, has_aux=True)
            (_, sums), gradients = differentiated(learner.params, learner.frozen, batch)
            return Total(
                jax.tree.map(jnp.add, total.gradients, gradients), _added(total.sums, sums)
            )

        return jax.jit(accumulate, donate_argnums=1, out_shardings=self._total_shardings)

    def apply(self, learner: Learner, total: Total) -> tuple[Learner, Report]:
        """The learner after one optimiser step; a gradient that is not finite leaves it as it was.

        The learner that is given is used up, but for its frozen parameters.
        """
        after, report = self.apply_trained(learner._replace(frozen={}), total)
        return after._replace(frozen=learner.frozen), report

    @cached_property
    def apply_trained(self):
        """`apply` as the compiled program, to which frozen parameters are unknown."""

        def apply(learner: Learner, total: Total) -> tuple[Learner, Report]:
            norm = optax.tree.norm(total.gradients)
            finite = jax.tree.map(lambda g: jnp.all(jnp.isfinite(g)), total.gradients)
            updates, optimizer = self.optimizer.update(
                total.gradients, learner.optimizer, learner.params
            )
            params = optax.apply_updates(learner.params, updates)
            after = Learner(learner.step + 1, params, learner.frozen, optimizer)
            good = jnp.isfinite(norm)
            learner = jax.tree.map(lambda new, old: jnp.where(good, new, old), after, learner)
            return learner, Report(norm, finite)

        learner = Learner(
            step=self._replicated,
            params=self._trained_shardings,
            frozen={},
            optimizer=self._optimizer_shardings,
        )
        return jax.jit(apply, donate_argnums=0, out_shardings=(learner, self._replicated))

    @cached_property
    def _replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, P())

    @cached_property
    def no_total(self):
        """(trained parameters) -> the total of no micro-batches."""

        def no_total(params: Params) -> Total:
            return Total(jax.tree.map(jnp.zeros_like, params), _no_sums())

        return jax.jit(no_total, out_shardings=self._total_shardings)

    @cached_property
    def _banned(self) -> Bool[np.ndarray, " v"]:
        banned = np.zeros(self.model.config.text.vocab, bool)
        banned[list(self.config.banned)] = True
        return banned

    @cached_property
    def _trained_shardings(self) -> Params:
        shardings = param_shardings(self.rules, self.model.shapes(), self.mesh)
        return split(shardings, self.config.frozen)[0]

    @cached_property
    def _total_shardings(self) -> Total:
        """Gradients lie where their parameters lie."""
        return Total(self._trained_shardings, Sums(*[self._replicated] * len(Sums._fields)))

    @cached_property
    def _optimizer_shardings(self) -> Any:
        """Moments lie where their parameters lie, counters everywhere."""
        trained, _ = split(self.model.shapes(), self.config.frozen)
        return optax.tree_utils.tree_map_params(
            self.optimizer,
            lambda _, sharding: sharding,
            jax.eval_shape(self.optimizer.init, trained),
            self._trained_shardings,
            transform_non_params=lambda _: self._replicated,
        )

    def _scores(self, params: Params, frozen: Params, batch: MicroBatch):
        """Scores of the targets, and the hidden states that predict them."""
        rows = batch.rows
        weights = merged(params, frozen)
        weights = jax.tree.map(lambda leaf: leaf.astype(self.config.dtype), weights)
        features = encoded(self.model, weights, batch.images)
        hidden = self.model.forward(
            weights, rows.ids, rows.positions, rows.segments, features, rows.feature_index
        )
        hidden = jnp.take_along_axis(hidden, rows.at[:, :, None], axis=1)
        head = self.model.head(weights)
        scores = target_scores(
            hidden,
            head,
            rows.target_ids,
            chunk=min(self.config.chunk, rows.at.shape[1]),
            temperature=self.config.temperature,
            banned=self._banned,
        )
        return scores, hidden, head

    def _loss(
        self, params: Params, frozen: Params, batch: MicroBatch
    ) -> tuple[Float[Array, ""], Sums]:
        scores, hidden, head = self._scores(params, frozen, batch)
        rows, targets, algorithm = batch.rows, batch.rows.targets, self.algorithm
        plain = jax.lax.stop_gradient(scores.log_probs)
        if algorithm.old == "current":
            targets = targets._replace(old_log_probs=plain)
        terms = policy_loss(
            scores.log_probs,
            targets,
            log_ratio=algorithm.log_ratio,
            surrogate=algorithm.surrogate,
            clip=algorithm.clip,
        )
        verdict_loss, right = self._verdict_terms(rows, hidden, head)
        there = targets.samples.ids > 0
        gap = jnp.abs(jnp.where(there, plain - rows.sampled, 0))
        sums = Sums(
            loss=terms.loss,
            verdict_loss=verdict_loss,
            verdicts=jnp.sum(rows.verdicts >= 0, dtype=jnp.float32),
            verdicts_right=right,
            targets=jnp.sum(there, dtype=jnp.float32),
            clipped_low=terms.clipped_low,
            clipped_high=terms.clipped_high,
            entropy=jnp.sum(jnp.where(there, scores.entropy, 0)),
            sampler_gap=jnp.sum(gap),
            max_ratio=terms.max_ratio,
            max_sampler_gap=jnp.max(gap),
            min_ratio=terms.min_ratio,
        )
        return terms.loss + verdict_loss, sums

    def _verdict_terms(
        self, rows: Rows, hidden: Float[Array, "b u d"], head: Float[Array, "d v"]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Weighted cross-entropy of the verdicts over no and yes, and how many are right."""
        if self.config.verdict_ids is None:
            return jnp.zeros(()), jnp.zeros(())
        pair = head[:, jnp.asarray(self.config.verdict_ids)]
        logits = jnp.einsum("bud,dv->buv", hidden, pair, preferred_element_type=jnp.float32)
        margin = logits[:, :, 1] - logits[:, :, 0]
        asked = rows.verdicts >= 0
        signed = jnp.where(asked, jnp.where(rows.verdicts == 1, margin, -margin), 0)
        weights = jnp.where(asked, rows.verdict_weights, 0)
        loss = jnp.sum(weights * jax.nn.softplus(-signed))
        return loss, jnp.sum(signed > 0, dtype=jnp.float32)

    def _metrics(self, sums: Sums, report: Report) -> dict[str, float]:
        num = max(float(sums.targets), 1.0)
        metrics = {
            "loss": float(sums.loss),
            "entropy": float(sums.entropy) / num,
            "grad_norm": float(report.norm),
            "targets": float(sums.targets),
        }
        if self.config.verdict_ids is not None:
            metrics |= {
                "verdict_loss": float(sums.verdict_loss),
                "verdict_accuracy": float(sums.verdicts_right) / max(float(sums.verdicts), 1.0),
            }
        if self.algorithm.old != "current":
            metrics |= {
                "max_ratio": float(sums.max_ratio),
                "min_ratio": float(sums.min_ratio),
                "clipped": float(sums.clipped_low + sums.clipped_high) / num,
                "clipped_low": float(sums.clipped_low) / num,
                "clipped_high": float(sums.clipped_high) / num,
                "sampler_gap": float(sums.sampler_gap) / num,
                "max_sampler_gap": float(sums.max_sampler_gap),
            }
        return metrics


def split(params: Params, frozen: Sequence[str]) -> tuple[Params, Params]:
    """Trained and frozen parameters; a name is frozen when a pattern is found in it."""
    named = flat(params)
    still = {name for name in named if any(re.search(pattern, name) for pattern in frozen)}
    trained = nested({name: leaf for name, leaf in named.items() if name not in still})
    return trained, nested({name: named[name] for name in named if name in still})


def merged(params: Params, frozen: Params) -> Params:
    """The whole tree that `split` took apart."""
    return nested(flat(params) | flat(frozen))


def encoded(
    model: Model, params: Params, images: ImageFeatures | PatchesByGrid | None
) -> ImageFeatures | None:
    """Image features in one flat row of tokens: encoded here from patches, or as they came."""
    if not isinstance(images, dict):
        return images
    parts = [model.encode_images(params, patches, grid) for grid, patches in sorted(images.items())]
    return joined(parts)


def _no_sums() -> Sums:
    zeros = Sums(*(jnp.zeros(()) for _ in Sums._fields))
    infinity = jnp.asarray(jnp.inf, jnp.float32)  # weakly typed, it would compile a second program
    return zeros._replace(max_ratio=-infinity, min_ratio=infinity)


def _added(total: Sums, sums: Sums) -> Sums:
    added = jax.tree.map(jnp.add, total, sums)
    return added._replace(
        max_ratio=jnp.maximum(total.max_ratio, sums.max_ratio),
        max_sampler_gap=jnp.maximum(total.max_sampler_gap, sums.max_sampler_gap),
        min_ratio=jnp.minimum(total.min_ratio, sums.min_ratio),
    )
