"""`jaxagent kb encoder`: what it hands to the training of the encoder."""

import shlex

from jaxagent.cli import kb
from jaxagent.cli.configs import config_flags, read_config
from jaxagent.cli.main import main


def test_the_encoders_card_has_the_command_that_gives_the_same_config_again(
    capsys, tmp_path, monkeypatch
):
    given = {}

    def train(*_, **options) -> dict:
        given.update(options)
        return {"recall": []}

    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setattr(kb, "build_benchmark", lambda *_: None)
    monkeypatch.setattr(kb, "train_image_encoder", train)
    changes = ["--config.image_encoder.steps=3", "--config.image_encoder.levels=L1,L3"]
    words = ["kb", "encoder", "--config", "flag_encoder", "--workdir", str(tmp_path / "run")]
    assert main([*words, *changes]) == 0
    written = shlex.split(given["command"])
    assert written[:7] == ["jaxagent", *words[:-1], "work/run"]
    config = read_config("flag_encoder", config_flags(written[7:]))
    assert config == read_config("flag_encoder", config_flags(changes))
