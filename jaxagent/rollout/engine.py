"""Rollouts of a policy: the event loop over slots, with what outlives a single run.

    questions ──► Loop ──► PolicyGenerator (slots over the KV cache) ──► trajectories + metrics

Between runs an engine keeps the cache's memory and the image features, never keys and values: a run
starts with no slot held, so nothing of older weights is read.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxagent.agents.protocol import Method, Tools
from jaxagent.models.attention import KVCache
from jaxagent.processing.policy import Policy
from jaxagent.rollout.compilations import num_compilations
from jaxagent.rollout.config import RolloutConfig
from jaxagent.rollout.decode import CACHE, REPLICA
from jaxagent.rollout.features import FeatureCache
from jaxagent.rollout.loop import Loop, Rollout
from jaxagent.rollout.sampling import noise_key
from jaxagent.rollout.slots import PolicyGenerator, Weights
from jaxagent.rollout.tools import check_tools
from jaxagent.trees import Params
from jaxagent.types import Images, Question


class Engine:
    """What rolls a policy out by a method.

    Raises ValueError when a tool that the method calls is missing, or a device for a replica.
    """

    def __init__(
        self, policy: Policy, method: Method, tools: Tools, images: Images, config: RolloutConfig
    ):
        check_tools(method, tools)
        self.policy = policy
        self.method = method
        self.tools = tools
        self.config = config
        self.features = FeatureCache(
            policy, images, image_rows=config.image_rows, max_bytes=config.feature_bytes
        )
        devices = jax.local_devices()
        if config.replicas > len(devices):
            raise ValueError(
                f"rollout.replicas is {config.replicas}, but this host has {len(devices)} "
                "device(s), and each replica needs its own. Lower rollout.replicas."
            )
        self.mesh = Mesh(np.array(devices[: config.replicas]), (REPLICA,))
        self._cache: KVCache | None = None

    def run(
        self,
        params: Params,
        questions: Sequence[Question],
        *,
        samples: int,
        seed: int,
        step: int,
        version: int,
        vision_version: int | None = None,
    ) -> Rollout:
        """`samples` dialogues for every question; `trajectories[g][m]` in the order of `questions`.

        Args:
            seed, step: what the noise derives from, with question, sample and position.
            version: of `params`; image features of another version are not read.
            vision_version: of the vision tower alone, when it is frozen (None: `version`).

        Raises:
            ToolFailure: too many tool calls failed.
            PromptError: a prompt does not fit the context.
            NonFiniteLogits: the parameters are damaged.
            KeyError: an image of a question or an observation is missing.
        """
        compiled = num_compilations()
        weights = Weights(
            params=self.placed(params),
            version=version,
            vision_version=version if vision_version is None else vision_version,
        )
        generator = PolicyGenerator(
            self.policy,
            weights,
            self._taken_cache(weights.params),
            mesh=self.mesh,
            features=self.features,
            config=self.config,
            key=noise_key(seed, step),
        )
        loop = Loop(
            generator,
            method=self.method,
            tools=self.tools,
            chat=self.policy.chat,
            image_grid=self.features.grid,
            config=self.config,
        )
        rollout = loop.run(questions, samples=samples)
        self._cache = generator.cache
        rollout.metrics["compilations"] = num_compilations() - compiled
        return rollout

    def placed(self, params: Params) -> Params:
        """The parameters on every replica's device; those that are there stay where they are."""
        return jax.device_put(params, NamedSharding(self.mesh, P()))

    def _taken_cache(self, params: Params) -> KVCache:
        """The cache of the last run, or a new one: it is donated, so a failed run leaves none."""
        cache, self._cache = self._cache, None
        dtype = jax.tree.leaves(params)[0].dtype
        if cache is None or cache.pages.dtype != dtype:
            cache = self.policy.model.new_cache(self.config.slots, self.config.context, dtype)
            cache = jax.device_put(cache, KVCache(NamedSharding(self.mesh, CACHE.pages)))
        return cache
