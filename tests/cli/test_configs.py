"""A command line's changes of a config: typed at the door, close names suggested."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import configs
from jaxagent.cli.configs import (
    config_flags,
    experiment_name,
    flat,
    like,
    literal,
    read_config,
    save_config,
    saved_config,
)
from jaxagent.cli.errors import UserError
from jaxagent.cli.sweep import start_key

EXPERIMENT = "flags_mmagent_r2_grpo"


def test_a_change_is_applied():
    config = read_config(EXPERIMENT, {"rl.samples": "3", "data.families": "single,bridge"})
    assert config.rl.samples == 3
    assert config.data.families == ("single", "bridge")


def test_a_typo_in_a_field_gets_the_nearest_name():
    with pytest.raises(UserError, match=r"no field 'rollout.sampels'.*Did you mean 'rl.samples'\?"):
        read_config(EXPERIMENT, {"rollout.sampels": "3"})


def test_a_group_is_no_field():
    with pytest.raises(UserError, match="config.rl is a group; set one of its fields"):
        read_config(EXPERIMENT, {"rl": "3"})


def test_a_typo_in_an_experiment_gets_the_nearest_name():
    with pytest.raises(UserError, match=rf"Did you mean '{EXPERIMENT}'\?"):
        read_config("configs/flags_mmagent_r2_gpro.py", {})


def test_a_path_is_one_of_the_packages_files(tmp_path, monkeypatch):
    folder = Path(configs.__file__).parent
    assert experiment_name(str(folder / f"{EXPERIMENT}.py")) == EXPERIMENT
    copy = tmp_path / f"{EXPERIMENT}.py"
    copy.write_text((folder / copy.name).read_text().replace("60", "61"))
    monkeypatch.chdir(tmp_path)
    for name in (str(copy), copy.name):
        with pytest.raises(UserError, match=f"{name}' does not lie in {folder}.*Put it there, or"):
            read_config(name, {})


def test_all_mistakes_are_named_at_once():
    with pytest.raises(UserError) as caught:
        read_config(EXPERIMENT, {"rollout.sampels": "3", "rl.steps": "many"})
    assert "rollout.sampels" in str(caught.value)
    assert "config.rl.steps = 'many'" in str(caught.value)


@pytest.mark.parametrize(
    ("default", "text", "value"),
    [
        (1, "2", 2),
        (1.0, "2", 2.0),
        (1.0, "1e-3", 0.001),
        (True, "false", False),
        ("a", "2", "2"),
        ((1, 2), "(3,)", (3,)),
        ((1, 2), "3", (3,)),
        (("a",), "b,c", ("b", "c")),
    ],
)
def test_a_value_takes_the_type_of_its_default(default, text, value):
    assert like(default, text) == value
    assert type(like(default, text)) is type(default)


@pytest.mark.parametrize(
    ("default", "text"),
    [
        (1, "2.5"),
        (1, "True"),
        (True, "1"),
        (1.0, "fast"),
        ((1, 2), "a,b"),
        (1, "(1, 2)"),
        (1, "None"),
    ],
)
def test_a_value_of_another_type_is_refused(default, text):
    with pytest.raises(ValueError, match="expected"):
        like(default, text)


@given(st.text(max_size=60))
def test_any_text_is_read_as_data(text):
    literal(text)


def test_deep_brackets_are_read_as_data():
    literal("[" * 100_000)
    literal("__import__('os').system('x')")


def test_both_ways_to_write_a_flag_are_read():
    assert config_flags(["--config.a.b=c", "--config.d", "-1"]) == {"a.b": "c", "d": "-1"}


@pytest.mark.parametrize("words", [["--confg.a=1"], ["stray"], ["--config.a"]])
def test_an_unknown_flag_is_refused(words):
    with pytest.raises(UserError):
        config_flags(words)


def test_reading_undoes_saving_and_nothing_else_is_left(tmp_path):
    config = read_config(EXPERIMENT, {"seed": 3, "data.families": "bridge"})
    save_config(config, tmp_path / "config.json")
    assert list(flat(saved_config(tmp_path / "config.json"))) == list(flat(config))
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_flat_names_are_sorted_and_dotted():
    names = [name for name, _ in flat(read_config(EXPERIMENT, {}))]
    assert names == sorted(names, key=lambda name: name.split("."))
    assert "data.flags.seed" in names


def test_rows_that_begin_alike_share_the_evaluation_before_training():
    first = start_key(read_config(EXPERIMENT, {"seed": 0}))
    assert start_key(read_config(EXPERIMENT, {"seed": 1, "rl.shuffle": "advantages"})) == first
    assert start_key(read_config(EXPERIMENT, {"evaluation.questions": 3})) != first
    assert start_key(read_config(EXPERIMENT, {"evaluation.temperature": 1.0})) != first
