"""A policy's Hugging Face folder to parameters, and back.

Reading maps files instead of loading them. Placed by shardings, each device's part of a parameter
is cut out of the mapped tensors and converted on its own, so no tensor is on the host as a whole
unless a device holds it as a whole.
"""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding
from jax.typing import DTypeLike

from jaxagent.models.config import ConfigError, Qwen3VLConfig
from jaxagent.models.qwen3_vl import Model
from jaxagent.trees import Params, flat, nested
from jaxagent.weights import qwen3_vl
from jaxagent.weights.safetensors import WeightsError, open_tensors, save_tensors
from jaxagent.weights.table import Row

CONFIG, CARD = "config.json", "card.json"


class PolicyWeights(NamedTuple):
    """What a folder holds besides its tokenizer."""

    config: Qwen3VLConfig
    params: Params


def read_config(folder: str | Path) -> Qwen3VLConfig:
    """The config of a folder; ConfigError when there is none or it is another family's."""
    path = Path(folder) / CONFIG
    try:
        return Qwen3VLConfig.from_hf(json.loads(path.read_text()))
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
    rows = qwen3_vl.table(config)
    tensors = open_tensors(Path(folder))
    shapes = flat(Model(config).shapes())
    unused = qwen3_vl.UNUSED_WHEN_TIED if config.text.tied else frozenset()
    _check(Path(folder), rows, tensors, shapes, unused)
    targets = {} if shardings is None else flat(shardings)
    named = {
        row.name: _parameter(row, tensors, shapes[row.name].shape, dtype, targets.get(row.name))
        for row in rows
    }
    return PolicyWeights(config, nested(named))


def write_policy(
    folder: str | Path,
    config: Qwen3VLConfig,
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
    named = flat(params)
    tensors: dict[str, np.ndarray] = {}
    for row in qwen3_vl.table(config):
        parameter = np.asarray(named[row.name], dtype)
        layers = [parameter] if row.layers is None else list(parameter)
        tensors |= {
            key: row.exported(layer) for key, layer in zip(row.hf_keys(), layers, strict=True)
        }
    save_tensors(folder, tensors, max_bytes=max_bytes)
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


def _check(
    folder: Path,
    rows: list[Row],
    tensors: dict[str, np.ndarray],
    shapes: dict[str, jax.ShapeDtypeStruct],
    unused: frozenset[str],
) -> None:
    expected = {
        key: row.tensor_shape(shapes[row.name].shape) for row in rows for key in row.hf_keys()
    }
    problems = [f"missing: {key} {shape}" for key, shape in expected.items() if key not in tensors]
    problems += [
        f"unknown: {key} {tensor.shape}"
        for key, tensor in tensors.items()
        if key not in expected and key not in unused
    ]
    problems += [
        f"shape: {key} is {tensors[key].shape}, the config expects {shape}"
        for key, shape in expected.items()
        if key in tensors and tensors[key].shape != shape
    ]
    if problems:
        raise WeightsError(
            f"The tensors of {folder} do not fit its config.json ({len(problems)} problems):\n  "
            + "\n  ".join(problems)
        )


def _parameter(
    row: Row,
    tensors: dict[str, np.ndarray],
    shape: tuple[int, ...],
    dtype: DTypeLike,
    sharding: Sharding | None,
) -> jax.Array | np.ndarray:
    layers = [row.imported(tensors[key]) for key in row.hf_keys()]

    def part(index: tuple[slice, ...]) -> np.ndarray:
        if row.layers is None:
            return np.asarray(layers[0][index], dtype)
        return np.stack([np.asarray(layer[index[1:]], dtype) for layer in layers[index[0]]])

    if sharding is None:
        return part((slice(None),) * len(shape))
    return jax.make_array_from_callback(shape, sharding, part)
