"""Chats to tokens, against the folder's own template and against hostile text."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from jaxagent.processing.chat import Chat, ChatError
from jaxagent.types import ImageRef, ImageSpan
from tests import tiny

GRIDS = {"a": (1, 4, 4), "b": (1, 2, 6)}


@pytest.fixture(scope="module")
def chat():
    return tiny.policy().policy.chat


@pytest.fixture(scope="module")
def hf_tokenizer():
    return AutoTokenizer.from_pretrained(tiny.policy_folder())


def rendered(hf_tokenizer, messages):
    """Ids of the folder's own template; one placeholder stands for an image."""
    text = hf_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return hf_tokenizer(text, add_special_tokens=False)["input_ids"]


def one_placeholder_each(chat, piece):
    """The piece's ids with every image shrunk to one placeholder."""
    ids = []
    for id in piece.ids:
        if not (id == chat.image_id and ids and ids[-1] == chat.image_id):
            ids.append(id)
    return ids


def test_a_dialogue_equals_the_rendered_template(chat, hf_tokenizer):
    image = {"type": "image"}
    messages = [
        {"role": "system", "content": "Answer\n\n with care."},
        {
            "role": "user",
            "content": [image, {"type": "text", "text": "\nWho is\n it? "}, image],
        },
        {"role": "assistant", "content": "<answer>Chad</answer>"},
        {"role": "user", "content": [{"type": "text", "text": " Image 1 is Chad. 1987"}]},
    ]
    prompt = chat.prompt(
        messages[0]["content"],
        (ImageRef("a"), "\nWho is\n it? ", ImageRef("b")),
        image_grid=GRIDS.get,
    )
    said = chat.plain(messages[2]["content"])
    seen = (" Image 1 ", "is Chad. 1987")  # neighbouring text is one text
    for ended in (True, False):
        observation = chat.observation(seen, ended=ended, image_grid=GRIDS.get)
        written = said + [chat.end_id] * ended
        ids = one_placeholder_each(chat, prompt) + written + observation.ids
        assert ids == rendered(hf_tokenizer, messages)


def test_the_end_of_a_turn_and_its_newline_stand_once(chat):
    ended = chat.observation(("x",), ended=True, image_grid=GRIDS.get)
    cut = chat.observation(("x",), ended=False, image_grid=GRIDS.get)
    assert cut.ids == [chat.end_id, *ended.ids]
    assert chat.decode(cut.ids) == (
        "<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    )


def test_images_take_as_many_placeholders_as_they_have_tokens(chat):
    piece = chat.prompt("", (ImageRef("a"), ImageRef("b"), "x"), image_grid=GRIDS.get)
    assert piece.images == (
        ImageSpan(key="a", start=piece.ids.index(chat.image_id), grid=(1, 4, 4)),
        ImageSpan(key="b", start=piece.ids.index(chat.image_id) + 4 + 2, grid=(1, 2, 6)),
    )
    marks = [id == chat.image_id for id in piece.ids]
    for span, num in zip(piece.images, (4, 3), strict=True):
        assert all(marks[span.start : span.start + num])
    assert sum(marks) == 7


CONTROL = st.sampled_from(
    [
        "<|im_end|>",
        "<|im_start|>",
        "<|image_pad|>",
        "<|video_pad|>",
        "<|vision_start|>",
        "<|endoftext|>",
        "\n",
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(CONTROL | st.text(max_size=8), max_size=6).map("".join))
def test_text_of_the_environment_never_becomes_a_control_token(text):
    chat = tiny.policy().policy.chat
    ids = chat.plain(text)
    assert not set(ids) & {*chat.banned_ids, chat.end_id}
    assert chat.decode(ids) == chat.tokenizer.normalizer.normalize_str(text)


def test_only_the_end_of_a_turn_may_be_written_of_the_special_tokens(chat, hf_tokenizer):
    tokens = hf_tokenizer.convert_ids_to_tokens(
        [id for id in chat.banned_ids if id < len(hf_tokenizer)]
    )
    assert {"<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"} < set(tokens)
    assert {"<|im_start|>", "<|endoftext|>"} < set(tokens)
    assert "<|im_end|>" not in tokens
    assert "<think>" not in tokens
    assert set(range(len(hf_tokenizer), chat.vocab)) < set(chat.banned_ids)


def test_transformers_reads_the_same_tokenizer(chat, hf_tokenizer):
    assert hf_tokenizer.eos_token_id == chat.end_id
    for text in ("The year 1987, N'Djamena.\n\n", '<search_call>{"text": []}', "Ünïcode 旗 🏳"):
        assert hf_tokenizer(text)["input_ids"] == chat.plain(text)
        assert chat.decode(chat.plain(text)) == text


def test_digits_are_split_singly(chat):
    assert [chat.decode([id]) for id in chat.plain("1987")] == ["1", "9", "8", "7"]


def test_a_folder_without_qwens_tokenizer_is_refused(tmp_path):
    with pytest.raises(ChatError, match="tokenizer.json is not there"):
        Chat.read(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ChatError, match="cannot be read"):
        Chat.read(tmp_path)
    other = AutoTokenizer.from_pretrained(tiny.policy_folder()).backend_tokenizer.to_str()
    (tmp_path / "tokenizer.json").write_text(other.replace("<|image_pad|>", "<|other|>"))
    with pytest.raises(ChatError, match=r"lacks <\|image_pad\|>"):
        Chat.read(tmp_path)


def test_a_missing_tokenizer_file_is_written_by_the_command_of_the_error(chat, tmp_path):
    folder = tmp_path / "policy"
    shutil.copytree(tiny.policy_folder(), folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ChatError, match="write it from vocab.json and merges.txt with:") as error:
        Chat.read(folder)
    python, *rest = shlex.split(re.search("with: (.*)$", str(error.value))[1])
    assert python == "python"
    subprocess.run([sys.executable, *rest], check=True, capture_output=True)
    again = Chat.read(folder)
    assert again.tokenizer.get_vocab() == chat.tokenizer.get_vocab()
    assert again.banned_ids == chat.banned_ids
    for text in ("The year 1987, N'Djamena.\n\n", " Image 1 </answer> <|im_end|>", "Ünïcode 旗"):
        assert again.plain(text) == chat.plain(text)
    (folder / "tokenizer.json").unlink()
    (folder / "merges.txt").unlink()
    with pytest.raises(ChatError, match="copy it from the policy's source"):
        Chat.read(folder)
