"""`jaxagent convert`: both ways give the same bits, and every mistake is one message."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from jaxagent.cli import convert
from jaxagent.cli.errors import UserError
from jaxagent.cli.main import main
from jaxagent.models.bem import Model
from jaxagent.processing import bem_conversion
from jaxagent.processing.bem import Bem, Packing, Pair, scores
from jaxagent.processing.policy import open_policy
from jaxagent.trees import flat, num_parameters
from jaxagent.weights.bem import variables_config, variables_params
from jaxagent.weights.folder import read_policy
from jaxagent.weights.orbax import HEADER, PARAMS
from tests import tiny
from tests.cli.commands import refused, run
from tests.models import families
from tests.weights.bem_network import SAVED_MODEL, network
from tests.weights.test_bem import ALPHABETICAL

CASES = ["qwen2_vl, tied, 2 heads a group", "qwen2_5_vl, untied, 7 heads a group"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    """A whole Qwen3-VL folder in bfloat16, with a card, another's weights and a folder within."""
    folder = shutil.copytree(tiny.policy_folder(), tmp_path_factory.mktemp("hf") / "policy")
    weights = {name: value.to(torch.bfloat16) for name, value in tensors(folder).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"float32"', '"bfloat16"'))
    (folder / "card.json").write_text('{"seed": 0}')
    (folder / "pytorch_model.bin").write_bytes(b"older weights")
    (folder / "figures").mkdir()
    return folder


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: value
        for path in sorted(folder.glob("*.safetensors"))
        for name, value in load_file(path).items()
    }


def equal_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and torch.equal(one[name].view(torch.uint8), other[name].view(torch.uint8))
        for name in one
    )


@pytest.fixture(scope="module")
def both(policy, tmp_path_factory) -> tuple[Path, Path]:
    """The policy as orbax arrays, and back in Hugging Face format."""
    root = tmp_path_factory.mktemp("both")
    assert main(["convert", str(policy), str(root / "orbax")]) == 0
    assert main(["convert", str(root / "orbax"), str(root / "back")]) == 0
    return root / "orbax", root / "back"


def test_both_ways_give_the_same_tensors_and_files(policy, both):
    _, back = both
    assert equal_bits(tensors(back), tensors(policy))
    left = {path.name for path in policy.iterdir()} - {path.name for path in back.iterdir()}
    assert left == {"pytorch_model.bin", "figures"}
    for path in back.iterdir():
        if path.suffix != ".safetensors":
            assert path.read_bytes() == (policy / path.name).read_bytes(), path.name


def test_the_orbax_folder_is_a_policy_wherever_one_is_read(policy, both):
    orbax, _ = both
    assert not list(orbax.glob("*.safetensors"))
    assert open_policy(orbax).model == open_policy(policy).model
    found, expected = flat(read_policy(orbax).params), flat(read_policy(policy).params)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    header = json.loads((orbax / HEADER).read_text())
    assert header["dtype"] == "bfloat16"
    assert header["parameters"] == num_parameters(read_policy(policy).params)


@pytest.mark.parametrize("case", CASES)
def test_transformers_loads_what_came_back(case, capsys, tmp_path):
    source = families.folder(case)
    assert run(capsys, "convert", str(source), str(tmp_path / "orbax"))[0] == 0
    assert run(capsys, "convert", str(tmp_path / "orbax"), str(tmp_path / "back"))[0] == 0
    theirs, ours = (
        AutoModelForImageTextToText.from_pretrained(folder).state_dict()
        for folder in (source, tmp_path / "back")
    )
    assert equal_bits(ours, theirs)


def test_a_dtype_rounds_and_leaves_the_card(policy, capsys, tmp_path):
    status, out, _ = run(
        capsys, "convert", str(policy), str(tmp_path / "wide"), "--to", "hf", "--dtype", "float32"
    )
    assert status == 0
    assert "qwen3_vl" in out
    assert "in float32, Hugging Face format" in out
    wide = tensors(tmp_path / "wide")
    assert {value.dtype for value in wide.values()} == {torch.float32}
    assert equal_bits({k: v.to(torch.bfloat16) for k, v in wide.items()}, tensors(policy))
    assert not (tmp_path / "wide" / "card.json").exists()


def test_the_bars_name_what_is_read_and_written(policy, capsys, tmp_path):
    _, _, err = run(capsys, "convert", str(policy), str(tmp_path / "orbax"))
    assert "Reading parameters: 100%" in err
    assert "Writing parameters: 100%" in err


def test_an_empty_target_is_taken(policy, capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    assert run(capsys, "convert", str(policy), str(tmp_path / "empty"))[0] == 0
    assert (tmp_path / "empty" / PARAMS).is_dir()


def test_bem_has_a_door_that_asks_for_its_vocabulary(capsys, tmp_path, monkeypatch):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrst"]))
    words = ("convert", str(SAVED_MODEL), str(tmp_path / "bem"))
    assert "It needs --vocab vocab.txt" in refused(capsys, *words)
    words = (*words, "--vocab", str(vocabulary))
    assert "takes no --to" in refused(capsys, *words, "--to", "hf")
    assert not (tmp_path / "bem").exists()

    params = variables_params(network(), variables_config(network()), ALPHABETICAL)
    packing = Packing(vocabulary)
    pairs = [Pair(one, other, "") for one in "abcdefg" for other in "hij"]
    found = scores(Model(variables_config(network())), params, packing, pairs)
    known = dict(zip(pairs, (found >= 0.5).tolist(), strict=True))
    by_pairs = partial(bem_conversion.convert_bem, pairs=known)
    monkeypatch.setattr(bem_conversion, "convert_bem", by_pairs)
    status, out, _ = run(capsys, *words)
    assert status == 0
    assert f"bem, {num_parameters(params):,} parameters" in out
    assert Bem(tmp_path / "bem").scores(pairs).tolist() == pytest.approx(found.tolist(), abs=1e-5)


def torn(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def quantised(folder: Path) -> None:
    values = tensors(folder)
    values["model.visual.scale"] = torch.zeros(3, dtype=torch.int8)
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})


def doubled(folder: Path) -> None:
    values = {name: value.double() for name, value in tensors(folder).items()}
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "words", "said"),
    [
        (torn, [], "is truncated"),
        (quantised, [], "unknown: model.visual.scale (3,)\nThese weights are quantised"),
        (doubled, [], "Choose one with --dtype: float32, bfloat16, float16"),
        (lambda folder: (folder / "config.json").unlink(), [], "holds neither a config.json nor"),
        (lambda folder: (folder / "config.json").write_text("{}"), [], "holds a None model"),
        (lambda folder: None, ["--dtype", "int8"], "invalid choice: 'int8'"),
        (lambda folder: None, ["--to", "onnx"], "invalid choice: 'onnx'"),
        (lambda folder: None, ["--vocab", "vocab.txt"], "--vocab goes with BEM's SavedModel"),
        (lambda folder: None, ["--quick"], "Unknown argument '--quick'"),
        (lambda folder: (folder / "saved_model.pb").touch(), [], "It needs --vocab vocab.txt"),
    ],
)
def test_what_cannot_be_converted_is_one_message_and_leaves_nothing(
    policy, capsys, tmp_path, spoil, words, said
):
    source = shutil.copytree(policy, tmp_path / "source")
    spoil(source)
    assert said in refused(capsys, "convert", str(source), str(tmp_path / "target"), *words)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_target_that_is_taken_is_refused(policy, capsys, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    words = ("convert", str(policy))
    assert "is not empty" in refused(capsys, *words, str(tmp_path / "taken"))
    assert (tmp_path / "taken" / "notes.txt").read_text() == "mine"
    assert "There is no folder" in refused(capsys, "convert", "nowhere", str(tmp_path / "x"))


def test_a_torn_orbax_folder_is_refused(both, capsys, tmp_path):
    source = shutil.copytree(both[0], tmp_path / "source")
    (source / HEADER).unlink()
    said = refused(capsys, "convert", str(source), str(tmp_path / "back"))
    assert "header.json cannot be read" in said
    shutil.copyfile(both[0] / HEADER, source / HEADER)
    (source / PARAMS / "_METADATA").unlink()
    said = refused(capsys, "convert", str(source), str(tmp_path / "back"))
    assert "convert the policy again" in said
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_folders_of_others_are_left_alone(policy, capsys, tmp_path):
    # names that a draft could have, one of them the source's own
    source = shutil.copytree(policy, tmp_path / "made.partial")
    (tmp_path / "made.partial.txt").write_text("mine")
    status, _, _ = run(capsys, "convert", str(source), str(tmp_path / "made"))
    assert status == 0
    assert (source / "config.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "made",
        "made.partial",
        "made.partial.txt",
    ]


def test_an_empty_folder_is_filled_and_not_replaced(policy, capsys, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("made")
    monkeypatch.chdir(tmp_path / "real")
    for target, filled in ((".", "real"), ("../link", "real"), ("../dangling", "made")):
        assert run(capsys, "convert", str(policy), target)[0] == 0
        # what "." holds is seen only while it is the folder that it was
        seen = Path() if filled == "real" else tmp_path / filled
        assert (seen / PARAMS).is_dir()
        assert read_policy(tmp_path / filled).config == read_policy(policy).config
        for path in seen.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "link", "made", "real"]


@pytest.mark.parametrize("there", [True, False])
def test_a_target_that_fills_meanwhile_is_left_alone(tmp_path, there):
    target = tmp_path / "target"
    if there:
        target.mkdir()

    def both():
        with convert.drafted(target) as one:
            (one / "config.json").write_text("one")
            with convert.drafted(target) as other:
                (other / "config.json").write_text("other")

    with pytest.raises(UserError, match="is not empty"):
        both()
    assert (target / "config.json").read_text() == "other"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("loop", "loop is no folder"),
        ("file", "file is no folder"),
        ("to_file", "file is no folder"),
        ("file/within/it", "file is no folder"),
        ("taken", "taken is not empty"),
        ("to_taken", "taken is not empty"),
        ("/", "The folder / is not empty"),
        ("../{name}", "are both"),
        ("to_source", "are both"),
    ],
)
def test_a_place_that_cannot_be_taken_is_refused_before_anything_is_read(
    capsys, tmp_path, monkeypatch, target, said
):
    monkeypatch.chdir(tmp_path)  # the source holds nothing that could be read
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    (tmp_path / "to_file").symlink_to("file")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").touch()
    (tmp_path / "to_taken").symlink_to("taken")
    (tmp_path / "to_source").symlink_to(".")
    before = sorted(tmp_path.rglob("*"))
    assert said in refused(capsys, "convert", ".", target.format(name=tmp_path.name))
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interrupted_conversion_promises_nothing(policy, capsys, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "write_orbax_policy", stop)
    status, _, err = run(capsys, "convert", str(policy), str(tmp_path / "made"))
    assert status == 130
    assert "resumes" not in err
    assert "goes on from what was saved, or begins again" in err
    assert not list(tmp_path.iterdir())
