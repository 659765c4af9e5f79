"""Reads an experiment: a config file, the command line's changes, and checks of both.

`ConfigDict` turns an int silently into a float and ignores a tuple's length, so every changed value
is parsed as a Python literal and must have the type of the default it replaces.
"""

import ast
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ml_collections import ConfigDict

import configs
from jaxagent.cli.errors import UserError
from jaxagent.json_lines import write_json
from jaxagent.suggestions import did_you_mean

Value = bool | int | float | str | tuple
Json = Value | list | dict | None
"""What may stand in a value's place in a JSON file."""


def read_config(name: str, changes: Mapping[str, str | Value]) -> ConfigDict:
    """The locked config of an experiment with `changes` (`"rl.samples": "16"`) applied.

    Args:
        name: a name (`flags_promsa_grpo`), or the path of a file in the package's `configs/`.
    """
    config = experiment(name).get_config()
    config.lock()
    apply(config, changes)
    return config


def experiment(name: str):
    """The module of an experiment."""
    return importlib.import_module(f"configs.{experiment_name(name)}")


def experiment_name(name: str) -> str:
    """The experiment's name, of a name or of the path of its file in the package."""
    stem = name
    if name.endswith(".py"):
        path, folder = Path(name).resolve(), Path(configs.__file__).resolve().parent
        if path.parent != folder:
            raise UserError(
                f"The experiment {name!r} does not lie in {folder}, where experiments are read "
                "from. Put it there, or give the name of one that is there and set fields with "
                "--config.name=value."
            )
        stem = path.stem
    if stem not in experiments():
        raise UserError(
            f"No experiment is called {name!r}. {did_you_mean(stem, experiments())} "
            "`jaxagent train --help` lists them."
        )
    return stem


def base_config() -> ConfigDict:
    """The locked defaults of every field."""
    config = importlib.import_module("configs.base").get_config()
    return config.lock()


def experiments() -> list[str]:
    """Names of the experiments that the package ships."""
    folder = Path(configs.__file__).parent
    return sorted(
        path.stem for path in folder.glob("*.py") if path.stem not in ("__init__", "base")
    )


def apply(config: ConfigDict, changes: Mapping[str, Json]) -> None:
    """Sets the fields in place; every mistake is named before anything is set."""
    fields = dict(flat(config))
    problems = []
    values = {}
    for name, value in changes.items():
        if name not in fields:
            problems.append(
                f"config.{name} is a group; set one of its fields."
                if any(field.startswith(f"{name}.") for field in fields)
                else f"The config has no field {name!r}. {did_you_mean(name, fields)}"
            )
            continue
        try:
            values[name] = like(fields[name], value)
        except ValueError as error:
            problems.append(f"config.{name} = {value!r}: {error}")
    if problems:
        raise UserError("\n".join([*problems, "configs/base.py explains every field."]))
    config.update_from_flattened_dict(values)


def like(default: Value, value: Json) -> Value:
    """`value` as the type of `default`; a string is read as a Python literal.

    Raises:
        ValueError: the types differ (an int may stand for a float, nothing else).
    """
    if isinstance(default, str):
        if not isinstance(value, str):
            raise ValueError("a word is expected.")
        return value
    read = literal(value) if isinstance(value, str) else value
    if isinstance(default, float) and type(read) is int:
        return float(read)
    if isinstance(default, tuple):
        read = tuple(read) if isinstance(read, list | tuple) else (read,)
        if default and any(type(item) is not type(default[0]) for item in read):
            raise ValueError(f"a tuple like {default!r} is expected.")
        return read
    if type(read) is not type(default):
        raise ValueError(f"{type(default).__name__} is expected, as in the default {default!r}.")
    return read


def literal(text: str) -> Value | list | None:
    """A Python literal, `true` / `false`, or words as a tuple of strings (`single,bridge`)."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return tuple(part.strip() for part in text.strip("()").split(","))


def flat(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Value]]:
    """Pairs of dotted name and value, sorted."""
    for name in sorted(config):
        value = config[name]
        if isinstance(value, ConfigDict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def differences(config: ConfigDict, other: ConfigDict) -> dict[str, Value]:
    """The fields of `config` whose values are not those of `other`."""
    values = dict(flat(other))
    return {name: value for name, value in flat(config) if values[name] != value}


def were(values: Mapping[str, Value]) -> str:
    """`a.b was 1, c was 'x'`: the first three values, for a message."""
    return ", ".join(f"{name} was {value!r}" for name, value in list(values.items())[:3])


def flattened_text(config: ConfigDict) -> str:
    """One `a.b.c: value` line a field."""
    return "".join(f"{name}: {value!r}\n" for name, value in flat(config))


def save_config(config: ConfigDict, path: Path) -> None:
    """Writes the fields into `path`, there as a whole or not at all."""
    write_json(path, dict(flat(config)))


def saved_config(path: Path) -> ConfigDict:
    """The locked config that a training or an evaluation left in its work folder."""
    config = base_config()
    try:
        changes = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise UserError(
            f"{path.parent} holds no {path.name}, as `jaxagent train` and `jaxagent evaluate` "
            "leave it. Give another --workdir."
        ) from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Give --workdir of a `jaxagent train`."
        ) from error
    except ValueError as error:
        raise UserError(f"{path} is broken: {error}. Give another --workdir.") from error
    if not isinstance(changes, dict):
        raise UserError(
            f"{path} is {changes!r}, not an object of fields as `jaxagent train` writes it. "
            "Give another --workdir."
        )
    apply(config, {name: as_tuple(value) for name, value in changes.items()})
    return config


def as_tuple(value: Json) -> Json:
    """JSON's lists as the tuples they were, at any depth."""
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value


def config_flags(rest: Sequence[str]) -> dict[str, str]:
    """`--config.a.b=c` and `--config.a.b c` as `{"a.b": "c"}`; any other flag is refused."""
    changes = {}
    words = iter(rest)
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("--config."):
            raise UserError(f"Unknown argument {word!r}. Fields are set by --config.name=value.")
        value = value if equals else next(words, None)
        if value is None:
            raise UserError(f"{name} needs a value: {name}=value.")
        changes[name.removeprefix("--config.")] = value
    return changes
