"""A policy's Hugging Face folder to its config and parameters, and back."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

from jax.typing import DTypeLike

from jaxagent.models.config import ConfigError
from jaxagent.models.policy import Model, PolicyConfig
from jaxagent.trees import Params
from jaxagent.weights import policies
from jaxagent.weights.params import read_params, write_params

CONFIG, CARD = "config.json", "card.json"


class PolicyWeights(NamedTuple):
    """What a folder holds besides its tokenizer."""

    config: PolicyConfig
    params: Params


def read_config(folder: str | Path) -> PolicyConfig:
    """The config of a folder; ConfigError when there is none or it is another family's."""
    path = Path(folder) / CONFIG
    try:
        return PolicyConfig.from_hf(json.loads(path.read_text()))
    except FileNotFoundError:
        raise ConfigError(
            f"{path} is not there. A policy is a folder in Hugging Face format."
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not JSON: {error}.") from None


def is_whole(folder: str | Path) -> bool:
    """Whether a policy lies in the folder, written to its end."""
    return (Path(folder) / CONFIG).exists()


def read_policy(
    folder: str | Path, *, dtype: DTypeLike = "float32", shardings: Params | None = None
) -> PolicyWeights:
    """The config and the parameters of a folder, placed by `shardings` (None: on the host).

    Raises ConfigError or WeightsError; missing, unknown and mis-shaped tensors come in one message.
    """
    config = read_config(folder)
    params = read_params(
        folder,
        policies.table(config),
        Model(config).shapes(),
        dtype=dtype,
        shardings=shardings,
        unused=policies.unused(config),
        renames=policies.RENAMES,
    )
    return PolicyWeights(config, params)


def write_policy(
    folder: str | Path,
    config: PolicyConfig,
    params: Params,
    *,
    template: str | Path,
    dtype: DTypeLike = "float32",
    max_bytes: int = 4 * 2**30,
) -> None:
    """Writes a folder that transformers loads: these weights, every other file from `template`.

    `dtype` is that of the files; reading them back gives the rounded weights. `config.json` is
    written last, so a folder without one is unfinished.
    """
    folder, template = Path(folder), Path(template)
    if read_config(template) != config:
        raise ConfigError(f"{template} is the folder of a policy of other sizes.")
    folder.mkdir(parents=True, exist_ok=True)
    in_place = folder.samefile(template)
    if not in_place:
        (folder / CONFIG).unlink(missing_ok=True)
    rows = policies.table(config)
    write_params(folder, rows, params, dtype=dtype, max_bytes=max_bytes)
    if not in_place:
        _copy_others(template, folder)


def _copy_others(template: Path, folder: Path) -> None:
    """Copies what is no tensor, each file in one move and the config last.

    A card tells what made the template's weights, so it stays there.
    """
    files = [
        path
        for path in template.iterdir()
        if path.is_file() and ".safetensors" not in path.name and path.name != CARD
    ]
    for path in sorted(files, key=lambda path: path.name == CONFIG):
        partial = folder / f"{path.name}.partial"
        shutil.copyfile(path, partial)
        partial.replace(folder / path.name)
