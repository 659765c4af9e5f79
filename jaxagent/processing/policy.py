"""A policy's folder to its model, chat format and preprocessing; the parameters come apart."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jax.typing import DTypeLike

from jaxagent.models.policy import Model
from jaxagent.processing.chat import Chat
from jaxagent.processing.images import ImageProcessor
from jaxagent.trees import Params
from jaxagent.weights.folder import read_config, read_policy


@dataclass(frozen=True, kw_only=True, eq=False)
class Policy:
    """Everything of a policy but its parameters."""

    model: Model
    chat: Chat
    image_processor: ImageProcessor
    folder: Path


class LoadedPolicy(NamedTuple):
    """A policy, and the parameters of its folder."""

    policy: Policy
    params: Params


def open_policy(folder: str | Path) -> Policy:
    """The policy of a folder without its weights.

    Raises ConfigError, ChatError or ImageError, each naming the file and what to do.
    """
    folder = Path(folder)
    model = Model(read_config(folder))
    chat = Chat.read(folder)
    return Policy(model=model, chat=chat, image_processor=chat.image_processor, folder=folder)


def load_policy(
    folder: str | Path, *, dtype: DTypeLike = "float32", shardings: Params | None = None
) -> LoadedPolicy:
    """The policy of a folder and its parameters; WeightsError when the tensors do not fit."""
    policy = open_policy(folder)
    return LoadedPolicy(policy, read_policy(folder, dtype=dtype, shardings=shardings).params)
