"""A policy's folder to its config and parameters, and back.

A folder is in Hugging Face format, or the same with orbax arrays in place of the safetensors files
(`orbax`); everything that reads a policy reads both. `config.json` is written last, so a folder
without one is unfinished.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jax.typing import DTypeLike

from jaxagent.models.config import ConfigError
from jaxagent.models.policy import Model, PolicyConfig
from jaxagent.trees import Params
from jaxagent.types import Progress, silent
from jaxagent.weights import orbax, policies
from jaxagent.weights.config_file import CONFIG, config_fields, copy_file, with_dtype, write_fields
from jaxagent.weights.params import read_params, renamed_tensors, write_params
from jaxagent.weights.safetensors import READABLE, WeightsError, open_tensors

CARD = "card.json"
_REMEDY = "A policy is a folder in Hugging Face format, or what `jaxagent convert` made of one."
_TIE_ROWS = 4096  # compared at a time
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5")


class PolicyWeights(NamedTuple):
    """What a folder holds besides its tokenizer."""

    config: PolicyConfig
    params: Params


def read_config(folder: str | Path) -> PolicyConfig:
    """The config of a folder; ConfigError when there is none or it is another family's."""
    return PolicyConfig.from_hf(config_fields(Path(folder) / CONFIG, remedy=_REMEDY))


def is_whole(folder: str | Path) -> bool:
    """Whether a policy lies in the folder, written to its end."""
    return (Path(folder) / CONFIG).exists()


def saved_dtype(folder: str | Path) -> str | None:
    """The word for the dtype that holds every number of a folder's weights exactly.

    None for float64, which is not written. Tensors that cannot be read are left to `read_policy`.
    """
    if orbax.is_orbax(folder):
        return orbax.orbax_dtype(folder)
    kinds = {tensor.kind for tensor in open_tensors(folder).values()} & set(READABLE)
    if "F64" in kinds:
        return None
    return READABLE[kinds.pop()].name if len(kinds) == 1 else "float32"


def read_policy(
    folder: str | Path,
    *,
    dtype: DTypeLike = "float32",
    shardings: Params | None = None,
    progress: Progress = silent,
) -> PolicyWeights:
    """The config and the parameters of a folder, placed by `shardings` (None: on the host).

    Raises ConfigError or WeightsError; missing, unknown and mis-shaped tensors come in one message.
    """
    config = read_config(folder)
    shapes = Model(config).shapes()
    if orbax.is_orbax(folder):
        params = orbax.read_orbax(
            folder, config, shapes, dtype=dtype, shardings=shardings, progress=progress
        )
        return PolicyWeights(config, params)
    params = read_params(
        folder,
        policies.table(config),
        shapes,
        dtype=dtype,
        shardings=shardings,
        unused=policies.unused(config),
        renames=policies.RENAMES,
        progress=progress,
    )
    if config.text.tied:
        _check_tie(Path(folder))
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

    `dtype` is that of the files; reading them back gives the rounded weights. WeightsError for a
    folder with orbax arrays, which would be read in place of these.
    """
    _check_free(Path(folder), orbax.PARAMS)
    folder = _begun(folder, config, template)
    rows = policies.table(config)
    write_params(folder, rows, params, dtype=dtype, max_bytes=max_bytes)
    _copy_others(Path(template), folder, dtype=dtype)


def write_orbax_policy(
    folder: str | Path,
    config: PolicyConfig,
    params: Params,
    *,
    template: str | Path,
    dtype: DTypeLike = "float32",
    progress: Progress = silent,
) -> None:
    """Writes a folder of orbax arrays: parameters of the host, every other file from `template`.

    WeightsError for a folder that holds weights, which would stay beside these.
    """
    _check_free(Path(folder), orbax.PARAMS, "*.safetensors*")
    folder = _begun(folder, config, template)
    orbax.write_orbax(folder, config, params, dtype=dtype, progress=progress)
    _copy_others(Path(template), folder, dtype=dtype)


def _check_free(folder: Path, *patterns: str) -> None:
    """WeightsError when there is one of these names in the folder."""
    for there in (path for pattern in patterns for path in folder.glob(pattern)):
        raise WeightsError(
            f"{folder} holds other weights in {there.name}. Two kinds in one folder could be taken "
            "for each other: give a new folder, or remove them."
        )


def _begun(folder: str | Path, config: PolicyConfig, template: str | Path) -> Path:
    """The folder, made, and without a config unless it is its own template."""
    folder, template = Path(folder), Path(template)
    if read_config(template) != config:
        raise ConfigError(f"{template} is the folder of a policy of other sizes.")
    folder.mkdir(parents=True, exist_ok=True)
    if not folder.samefile(template):
        (folder / CONFIG).unlink(missing_ok=True)
    return folder


def _check_tie(folder: Path) -> None:
    """WeightsError when a tied folder holds a head that is not the embedding table.

    transformers would then use the head, whatever the config says.
    """
    tensors = renamed_tensors(folder, policies.RENAMES)
    head, table = tensors.get(policies.HEAD), tensors[policies.TABLE]
    if head is None:
        return
    rows, width = table.shape
    same = head.shape == table.shape
    for start in range(0, rows if same else 0, _TIE_ROWS):
        part = slice(start, min(start + _TIE_ROWS, rows)), slice(0, width)
        sides = [np.empty((part[0].stop - start, width), np.float32) for _ in range(2)]
        for tensor, side in zip((head, table), sides, strict=True):
            tensor.fill(side, table.shape, part)
        same = same and np.array_equal(*sides)
    if not same:
        raise WeightsError(
            f"{folder} says tie_word_embeddings=true, but its {policies.HEAD} is not its embedding "
            "table. Set the field to false in config.json to use the head, or delete the tensor."
        )


def _copy_others(template: Path, folder: Path, *, dtype: DTypeLike) -> None:
    """Copies what is no weights, each file in one move, the config last and with its dtype.

    A card tells what made the template's weights, so it stays there. Folders within the template,
    such as the figures of a published one, stay there too.
    """
    fields = config_fields(template / CONFIG, remedy=_REMEDY)
    stated = with_dtype(fields, dtype)
    if not folder.samefile(template):
        others = (CARD, orbax.HEADER) if stated == fields else (CARD, orbax.HEADER, CONFIG)
        files = [
            path
            for path in template.iterdir()
            if path.is_file() and not _is_weights(path) and path.name not in others
        ]
        for path in sorted(files, key=lambda path: path.name == CONFIG):
            copy_file(path, folder / path.name)
    if stated != fields:
        write_fields(folder, fields, dtype=dtype)


def _is_weights(path: Path) -> bool:
    """Whether a file holds weights or the index of such files."""
    return ".safetensors" in path.name or any(
        path.name.endswith((kind, f"{kind}.index.json")) for kind in _WEIGHTS
    )
