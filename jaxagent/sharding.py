"""The update mesh, and which axis of it each dimension of each parameter is cut along.

The mesh has four axes: `data` (replicas of the parameters), `fsdp` (shards of
parameters and rows), `tensor` (heads and MLP), `context` (the tokens of a row). Where a parameter
lies is looked up in a table of rules, `(pattern, spec)`: the first pattern found in its name
decides. A parameter that no rule matches and a rule that no parameter needs are errors, and so is a
dimension that its axes do not divide: all are reported together, before anything is placed.

Left out for now: placing `data` over slices; one process holds all devices.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxagent.trees import Params, first_match, flat, map_named

AXES = ("data", "fsdp", "tensor", "context")
ROWS = ("data", "fsdp")
"""The axes that the rows of a batch are cut along."""
MAX_FSDP = 128

Rules = Sequence[tuple[str, P]]


class ShardingError(ValueError):
    """A mesh or a rule table that does not fit; the message lists every misfit."""


@dataclass(frozen=True, kw_only=True)
class MeshSizes:
    """Devices along each axis; -1 on one axis takes the devices that are left."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    context: int = 1


def policy_rules(*, tied: bool, qkv_bias: bool) -> Rules:
    """The table of a Qwen-VL policy: a sharded text tower, a replicated vision tower.

    The vision tower is small and its widths (an MLP of 4,304 or 3,420) divide by little.
    """
    head = () if tied else ((r"^text/untied_head/kernel$", P("fsdp", "tensor")),)
    biases = ((r"^text/.*attention/[qkv]/bias$", P(None, "tensor")),) if qkv_bias else ()
    return (
        (r"^text/embed/table$", P("tensor", "fsdp")),
        *head,
        *biases,
        (r"^text/.*attention/[qkv]/kernel$", P(None, "fsdp", "tensor")),
        (r"^text/.*attention/o/kernel$", P(None, "tensor", None, "fsdp")),
        (r"^text/.*mlp/(gate|up)/kernel$", P(None, "fsdp", "tensor")),
        (r"^text/.*mlp/down/kernel$", P(None, "tensor", "fsdp")),
        (r"^text/.*norm/scale$", P()),
        (r"^vision/", P()),
    )


def make_mesh(sizes: MeshSizes, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The update mesh over the given devices (None: all there are)."""
    devices = jax.devices() if devices is None else devices
    counts, num = list(astuple(sizes)), len(devices)
    named = ", ".join(f"{axis}={count}" for axis, count in zip(AXES, counts, strict=True))
    if counts.count(-1) > 1:
        raise ShardingError(f"The mesh is {named}; only one axis can be -1.")
    if -1 in counts:
        fixed = -math.prod(counts)
        counts[counts.index(-1)] = num // fixed if fixed > 0 else 0
    if min(counts) < 1 or math.prod(counts) != num:
        raise ShardingError(
            f"The mesh {named} does not fill {num} device(s). The sizes must multiply to {num}."
        )
    if counts[1] > MAX_FSDP:
        raise ShardingError(f"fsdp={counts[1]} is over {MAX_FSDP}; raise data instead.")
    return Mesh(np.asarray(devices).reshape(counts), AXES)


def partition_specs(rules: Rules, shapes: Params, mesh: Mesh) -> Params:
    """The spec of each parameter; ShardingError lists everything that does not fit."""
    found = {name: first_match(rules, name) for name in flat(shapes)}
    unmatched = [name for name, rule in found.items() if rule is None]
    used = {rule[0] for rule in found.values() if rule is not None}
    unused = [pattern for pattern, _ in rules if pattern not in used]
    problems = [f"no rule matches the parameter {name}" for name in unmatched]
    problems += [f"no parameter needs the rule {pattern!r}" for pattern in unused]
    for name, leaf in flat(shapes).items():
        if found[name] is not None:
            problems += _misfits(name, leaf.shape, found[name][1], mesh)
    if problems:
        raise ShardingError(
            "The rule table does not fit the parameters:\n  " + "\n  ".join(problems)
        )
    return map_named(lambda name, _: found[name][1], shapes)


def param_shardings(rules: Rules, shapes: Params, mesh: Mesh) -> Params:
    """The sharding of each parameter."""
    specs = partition_specs(rules, shapes, mesh)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def explain(rules: Rules, shapes: Params, mesh: Mesh) -> str:
    """The table one reads: each parameter with its shape, the shape on a device, and its spec."""
    specs = flat(partition_specs(rules, shapes, mesh))
    rows = [("parameter", "shape", "on a device", "spec")]
    for name, leaf in flat(shapes).items():
        local = NamedSharding(mesh, specs[name]).shard_shape(tuple(leaf.shape))
        axes = ", ".join("-" if axis is None else str(axis) for axis in specs[name])
        rows.append((name, str(tuple(leaf.shape)), str(local), axes or "replicated"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" for cell, width in zip(row, [*widths, 0], strict=True)
        ).rstrip()
        for row in rows
    )


def _misfits(name: str, shape: tuple[int, ...], spec: P, mesh: Mesh) -> list[str]:
    if len(spec) > len(shape):
        return [f"{name} has {len(shape)} dimensions, but its rule names {len(spec)}"]
    misfits = []
    for size, axes in zip(shape, spec, strict=False):
        names = (axes,) if isinstance(axes, str) else (axes or ())
        parts = math.prod(mesh.shape[axis] for axis in names)
        if size % parts:
            misfits.append(f"{name}: {size} does not divide by {'*'.join(names)}={parts}")
    return misfits
