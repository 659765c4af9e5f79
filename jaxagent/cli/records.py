"""Config groups as the frozen records of each layer: the same names, checked types."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from ml_collections import ConfigDict

from jaxagent.cli.errors import UserError, told
from jaxagent.suggestions import did_you_mean

T = TypeVar("T")


def record(kind: type[T], config: ConfigDict, path: str, **given: Any) -> T:
    """The record of `config`'s group at `path`; `given` are fields that no config holds.

    Nested records are read from nested groups. What the record itself refuses becomes the user's
    error, with the group named.
    """
    group = at(config, path)
    hints = typing.get_type_hints(kind)
    values = dict(given)
    for field in dataclasses.fields(kind):
        if field.name in given or field.name not in group:
            continue
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            values[field.name] = record(hint, config, f"{path}.{field.name}")
        else:
            check(group[field.name], hint, f"{path}.{field.name}")
            values[field.name] = group[field.name]
    with told(ValueError):
        return kind(**values)


def at(config: ConfigDict, path: str) -> ConfigDict:
    """The group at a dotted path; "" is the config itself."""
    for name in filter(None, path.split(".")):
        config = config[name]
    return config


def check(value: Any, hint: Any, name: str) -> None:
    """Refuses a value that its annotation does not allow: a wrong word, type or tuple length.

    Raises:
        UserError: with the field's name, the value and what is allowed.
    """
    if not allowed(value, hint):
        raise UserError(f"config.{name} is {value!r}. {remedy(value, hint)}")


def remedy(value: Any, hint: Any) -> str:
    """What a value that is not allowed should be; of a tuple's items the first wrong one."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return did_you_mean(str(value), arguments)
    if origin is tuple and arguments[-1] is Ellipsis and isinstance(value, tuple):
        return next(remedy(one, arguments[0]) for one in value if not allowed(one, arguments[0]))
    return f"Its type is {hint.__name__ if origin is None and isinstance(hint, type) else hint}."


def allowed(value: Any, hint: Any) -> bool:
    """Whether `value` is one of a Literal's words, or of the annotated type, tuples by item."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(allowed(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(map(allowed, value, arguments))
    if origin is Mapping or origin is None and not isinstance(hint, type):
        return True
    if origin is not None:
        return not arguments or any(allowed(value, one) for one in arguments)
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint
