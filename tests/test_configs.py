"""A config is data: it builds, its sweep fits it, and its flattened text is the one checked in."""

import ast
import dataclasses
import importlib
import os
import tokenize
from io import StringIO
from pathlib import Path

import jax
import pytest

from jaxagent.agents.mmagent_r2 import MMAgentR2
from jaxagent.agents.promsa import ProMSA
from jaxagent.cli.checks import AlgorithmConfig, EvaluationConfig, ModelConfig
from jaxagent.cli.configs import base_config, experiments, flattened_text, like, read_config
from jaxagent.cli.records import at, record
from jaxagent.data.config import FlagsConfig
from jaxagent.data.tiny_policy import PolicySizes
from jaxagent.retrieval.hits import IndexConfig
from jaxagent.rollout.config import RolloutConfig
from jaxagent.rollout.sampling import Sampling
from jaxagent.scoring.rewards import MMAgentR2Reward, ProMSAReward
from jaxagent.sharding import MeshSizes, make_mesh
from jaxagent.training.batch import PackingConfig
from jaxagent.training.demonstrations import Demonstrations
from jaxagent.training.image_encoder import ImageEncoderConfig
from jaxagent.training.optimizer import OptimizerConfig
from jaxagent.training.rl import RLConfig
from jaxagent.training.sft import SFTConfig
from jaxagent.training.warm_start import WarmStart

GOLDEN = Path(__file__).parent / "golden" / "configs"
NAMES = experiments()
RECORDS = {
    "data.flags": FlagsConfig,
    "retrieval.image_index": IndexConfig,
    "retrieval.text_index": IndexConfig,
    "method.mmagent_r2": MMAgentR2,
    "method.promsa": ProMSA,
    "sharding": MeshSizes,
    "rollout": RolloutConfig,
    "rollout.sampling": Sampling,
    "scoring.mmagent_r2": MMAgentR2Reward,
    "scoring.promsa": ProMSAReward,
    "image_encoder": ImageEncoderConfig,
    "model.sizes": PolicySizes,
    "evaluation": EvaluationConfig,
    "algorithm": AlgorithmConfig,
    "optimizer": OptimizerConfig,
    "warm_start": WarmStart,
}
"""Groups that are exactly the fields of a layer's record."""


@pytest.mark.parametrize("name", NAMES)
def test_the_flattened_text_is_the_golden_one(name: str):
    text = flattened_text(read_config(name, {}))
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert golden.exists(), f"no {golden}; UPDATE_GOLDEN=1 pytest tests/test_configs.py writes it"
    assert text == golden.read_text(), f"{name} changed; if meant, run with UPDATE_GOLDEN=1"


@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_the_sweep_fits_the_locked_config(name: str):
    module = importlib.import_module(f"configs.{name}")
    for row in getattr(module, "sweep", list)():
        assert row.get("name"), f"a row of {name} has no name"
        read_config(name, {field: value for field, value in row.items() if field != "name"})


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_names_the_command(name: str):
    module = importlib.import_module(f"configs.{name}")
    assert f"--config {name}" in (module.__doc__ or "")


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_changes_at_most_twenty_lines(name: str):
    module = importlib.import_module(f"configs.{name}")
    changed = [
        line
        for line in Path(module.__file__).read_text().splitlines()
        if line.strip().startswith("c.")
    ]
    assert 1 <= len(changed) <= 20


def test_no_golden_text_is_left_without_its_experiment():
    assert sorted(path.stem for path in GOLDEN.glob("*.txt")) == NAMES


def test_an_int_does_not_become_a_float_nor_a_tuple_change_its_items():
    with pytest.raises(ValueError, match="int is expected"):
        like(1, 1.5)
    with pytest.raises(ValueError, match="tuple like"):
        like((1, 2), ("a",))


@pytest.mark.parametrize("path", RECORDS)
def test_a_group_has_exactly_the_fields_of_its_record(path: str):
    fields = {field.name for field in dataclasses.fields(RECORDS[path])}
    assert set(at(base_config(), path)) == fields


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("model", ModelConfig),
        ("rl", RLConfig),
        ("sft", SFTConfig),
        ("sft", Demonstrations),
        ("packing", PackingConfig),
    ],
)
def test_a_group_holds_its_records_fields_but_those_given_elsewhere(path: str, kind: type):
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields - set(at(base_config(), path)) <= {"seed", "min_rows"}


def held(kind: type) -> dict[str, object]:
    """The values that a record has by itself."""
    values = {field.name: field.default for field in dataclasses.fields(kind)}
    return {name: value for name, value in values.items() if value is not dataclasses.MISSING}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (path, kind)
        for path, kind in {"rl": RLConfig, **RECORDS}.items()
        if held(kind) and not path.startswith("method.")  # a method's own are its paper's
    ],
)
def test_what_a_record_holds_by_itself_is_what_the_config_says(path: str, kind: type):
    group, own = at(base_config(), path), held(kind)
    assert {name: group.get(name, value) for name, value in own.items()} == own


@pytest.mark.parametrize("path", RECORDS)
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_builds_its_records(name: str, path: str):
    assert record(RECORDS[path], read_config(name, {}), path)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("_8b")])
@pytest.mark.parametrize("num_devices", [4, 8])
def test_an_8b_experiment_fits_one_host(name: str, num_devices: int):
    config = read_config(name, {})
    mesh = make_mesh(record(MeshSizes, config, "sharding"), jax.devices()[:num_devices])
    assert mesh.shape["fsdp"] == num_devices
    rollout = record(RolloutConfig, config, "rollout")
    assert rollout.replicas <= num_devices
    params, trained = 8.77e9, 8.19e9  # Qwen3-VL-8B, its vision tower is frozen
    slot = 36 * 2 * 8 * 128 * rollout.context * rollout.slots // rollout.replicas
    learner = (12 * trained + 4 * (params - trained) * num_devices) / num_devices
    computed = 2 * trained / num_devices + 2 * (params - trained)  # what sampling is given
    assert learner + computed + 2 * (params + slot) < 56 * 2**30
    assert 4 * (params + slot) < 56 * 2**30  # an evaluation's


def test_every_field_of_the_manual_is_explained():
    text = (Path(__file__).parents[1] / "configs" / "base.py").read_text()
    tokens = tokenize.generate_tokens(StringIO(text).readline)
    commented = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    fields = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Attribute)
        and not isinstance(node.value, ast.Call)  # a group: its function or its fields explain it
    ]
    bare = [
        ast.unparse(field)
        for field in fields
        if commented.isdisjoint(range(field.lineno, field.end_lineno + 1))
    ]
    assert len(fields) > 100
    assert bare == []
