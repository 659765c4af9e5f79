"""A folder's `config.json`: its fields, or why there are none; the file written, others copied.

Each file comes into its place in one move, so a killed run leaves no half of one.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from jaxagent.models.config import ConfigError, check_object

CONFIG = "config.json"


def config_fields(path: Path, *, remedy: str) -> Mapping[str, Any]:
    """The object in a JSON file; ConfigError, with the remedy, when there is none."""
    try:
        fields = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}). {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}. {remedy}") from None
    check_object(fields, str(path))
    return fields


def write_fields(folder: Path, fields: Mapping[str, Any], *, dtype: DTypeLike) -> None:
    """Writes a `config.json` of weights of `dtype`: transformers loads them as it says."""
    partial = folder / f"{CONFIG}.partial"
    partial.write_text(json.dumps(with_dtype(fields, dtype), indent=2) + "\n")
    partial.replace(folder / CONFIG)


def copy_file(path: Path, target: Path) -> None:
    """Copies a file in place of an older one."""
    partial = target.with_name(f"{target.name}.partial")
    shutil.copyfile(path, partial)
    partial.replace(target)


def with_dtype(fields: Mapping[str, Any], dtype: DTypeLike) -> dict[str, Any]:
    """The fields with another word wherever they, or those of a tower, name a dtype."""
    name = np.dtype(dtype).name
    made = dict(fields)
    for field, value in fields.items():
        if field in ("dtype", "torch_dtype"):
            made[field] = name
        elif isinstance(value, Mapping) and field.endswith("_config"):
            made[field] = with_dtype(value, dtype)
    return made
