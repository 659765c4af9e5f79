"""How a folder's sentence vectors are made: pooling, length, normalisation, prefixes.

Read from the folder as sentence-transformers writes it:

    modules.json                       Transformer, Pooling and perhaps Normalize, in this order
    1_Pooling/config.json              which tokens a vector is made of
    sentence_bert_config.json          the longest text, in tokens; whether it is lower-cased
    config_sentence_transformers.json  prompts: what stands before a query, and before a passage

What a folder leaves open is taken from `FAMILIES` by the name of the folder (or of its repository,
in the hub's cache), never by what the weights were trained from. A folder that says nothing and is
of no known family is refused: write the file, whose choice is then explicit. Left out: modules
after the pooling (Dense), poolings of several kinds, prompts that are left out of the mean.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from jaxagent.models.bert import Pooling

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
LENGTH = "sentence_bert_config.json"
TOKENIZER = "tokenizer_config.json"
MIN_TOKENS = 3
"""A text of one token, between the special ones."""
NO_LIMIT = 2**31
"""Tokens of a folder that states no length: the model's places are the limit."""

Role = Literal["query", "passage"]
"""What a text is to a search: it finds, or is found."""

_PASSAGE_PROMPTS = ("document", "passage", "corpus")
"""The words for a passage's prompt; sentence-transformers takes the first that is there."""


class RecipeError(ValueError):
    """A folder that does not say how its vectors are made, or says what cannot be done here."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a text becomes a vector."""

    pooling: Pooling
    normalised: bool
    max_tokens: int
    query_prefix: str
    passage_prefix: str
    lower_case: bool = False

    def text(self, text: str, role: Role) -> str:
        """The text as it is tokenised."""
        prefix = self.query_prefix if role == "query" else self.passage_prefix
        whole = (prefix + text).strip()
        return whole.lower() if self.lower_case else whole


class Family(NamedTuple):
    """A published series of encoders: the pattern of its names, and its recipe."""

    names: str
    recipe: Recipe


def _recipe(pooling: Pooling, max_tokens: int, query: str = "", passage: str = "") -> Recipe:
    return Recipe(
        pooling=pooling,
        normalised=True,
        max_tokens=max_tokens,
        query_prefix=query,
        passage_prefix=passage,
    )


MINILM = _recipe("mean", 256)
FAMILIES = (
    # Wang et al., 2022 and 2024, and the model cards of intfloat/e5-*-v2 and multilingual-e5-*
    Family(
        r"e5-(small|base|large)(-v2)?|multilingual-e5-(small|base|large)",
        _recipe("mean", 512, "query: ", "passage: "),
    ),
    # Xiao et al., C-Pack, 2023, and the model list of FlagEmbedding; passages have no prefix
    Family(
        r"bge-(small|base|large)-en(-v1\.5)?",
        _recipe("cls", 512, "Represent this sentence for searching relevant passages: "),
    ),
    # Chen et al., M3-Embedding, 2024, and the model card of BAAI/bge-m3: no instruction
    Family(r"bge-m3", _recipe("cls", 8192)),
    # the model card of sentence-transformers/all-MiniLM-L6-v2
    Family(r"all-minilm-l(6|12)-v[12]", MINILM),
)
"""What each series' authors do."""


def read_recipe(folder: Path, *, known: Recipe | None = None) -> Recipe:
    """The recipe of a folder; `known` stands for the family's where the name does not tell.

    `max_tokens` may still be above what the model has places for. Raises RecipeError.
    """
    known = known or _family(folder)
    pooling, normalised = _modules(folder, known)
    query, passage = _prefixes(folder, known)
    stated = _length(folder / LENGTH, "max_seq_length") or (known.max_tokens if known else None)
    return Recipe(
        pooling=pooling,
        normalised=normalised,
        max_tokens=stated or _length(folder / TOKENIZER, "model_max_length") or NO_LIMIT,
        query_prefix=query,
        passage_prefix=passage,
        lower_case=_flag(folder / LENGTH, "do_lower_case") is True,
    )


def _length(path: Path, name: str) -> int | None:
    """The longest text that a file states, in tokens; None when it states none."""
    length = _fields(path).get(name)
    if length is not None and (type(length) is not int or length < MIN_TOKENS):
        raise RecipeError(
            f"{path} has {name}={length!r}; it must be an integer of at least {MIN_TOKENS}, since "
            "the special tokens at both ends count. Download it again, or delete the field."
        )
    return length


def _flag(path: Path, name: str) -> bool | None:
    """What a file says is so or not; None when it leaves that open."""
    value = _fields(path).get(name)
    if value is not None and type(value) is not bool:
        raise RecipeError(
            f"{path} has {name}={value!r}; it must be true or false. Download it again."
        )
    return value


def _family(folder: Path) -> Recipe | None:
    """The recipe of the family that the folder, or its repository in the hub's cache, names.

    The cache keeps it as models--intfloat--e5-base-v2/snapshots/<commit>.
    """
    folder = folder.absolute()
    names = [folder.name]
    names += [it.name.split("--")[-1] for it in folder.parents[:2] if it.name[:8] == "models--"]
    return next(
        (
            family.recipe
            for family in FAMILIES
            for name in names
            if re.fullmatch(family.names, name.lower())
        ),
        None,
    )


def _modules(folder: Path, known: Recipe | None) -> tuple[Pooling, bool]:
    """The pooling of a folder and whether it normalises."""
    path = folder / MODULES
    if not path.exists():
        if known is None:
            raise RecipeError(
                f"{folder} has no {MODULES} and its name is none of a known family, so how its "
                "vectors are pooled is open. Download the whole folder, or save it with "
                "sentence-transformers."
            )
        return known.pooling, known.normalised
    modules = _json(path)
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise RecipeError(f"{path} is no list of modules. Download it again.")
    kinds = [str(one.get("type", "")).rpartition(".")[2] for one in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise RecipeError(
            f"{path} lists {', '.join(kinds) or 'nothing'}; Transformer, Pooling and perhaps "
            "Normalize can be read. Take another encoder."
        )
    if modules[0].get("path"):
        raise RecipeError(
            f"{path} keeps the Transformer in {modules[0]['path']!r}; it must lie in the folder "
            "itself. Move its files up and name them so in the list."
        )
    return _pooling(folder / str(modules[1].get("path", "")) / "config.json"), len(kinds) == 3


def _pooling(path: Path) -> Pooling:
    if not path.exists():
        raise RecipeError(f"{path} is missing. Download the whole folder.")
    fields = _fields(path)
    stated = fields.get("pooling_mode")
    modes = (
        [stated]
        if stated is not None
        else [
            key.removeprefix("pooling_mode_").removesuffix("_token").removesuffix("_tokens")
            for key, value in fields.items()
            if key.startswith("pooling_mode_") and value is True
        ]
    )
    if _flag(path, "include_prompt") is False:
        raise RecipeError(
            f"{path} leaves the prefix out of the vector (include_prompt: false), which is not "
            "done here. Take another encoder."
        )
    match modes:
        case ["mean"]:
            return "mean"
        case ["cls"]:
            return "cls"
    raise RecipeError(
        f"{path} pools by {' and '.join(map(str, modes)) or 'nothing'}; one of mean, cls can be "
        "done here. Take another encoder."
    )


def _prefixes(folder: Path, known: Recipe | None) -> tuple[str, str]:
    """What stands before a query and before a passage.

    Empty prompts are what sentence-transformers writes where nobody gave any, so a known family's
    prefixes come before them.
    """
    path = folder / PROMPTS
    fields = _fields(path)
    prompts = fields.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(one, str) for one in prompts.values()):
        raise RecipeError(f"{path} has prompts that are no texts by name. Download it again.")
    default = prompts.get(str(fields.get("default_prompt_name")), "")
    query = prompts.get("query", default)
    passage = next((prompts[name] for name in _PASSAGE_PROMPTS if name in prompts), default)
    if query or passage:
        return query, passage
    if known is not None:
        return known.query_prefix, known.passage_prefix
    if "query" in prompts and any(name in prompts for name in _PASSAGE_PROMPTS):
        return "", ""
    raise RecipeError(
        f"{folder} does not say what stands before a query and a passage, and its name is none of "
        f"a known family. Write it into {path.name}: "
        '{"prompts": {"query": "", "document": ""}} for nothing.'
    )


def _fields(path: Path) -> Mapping[str, object]:
    """The object in a JSON file; empty where there is none."""
    if not path.exists():
        return {}
    fields = _json(path)
    if not isinstance(fields, dict):
        raise RecipeError(f"{path} is no JSON object. Download it again.")
    return fields


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path} cannot be read ({error}). Download it again.") from None


def fitted(recipe: Recipe, max_tokens: int) -> Recipe:
    """The recipe for a model with places for `max_tokens` tokens; RecipeError for too few."""
    if max_tokens < MIN_TOKENS:
        raise RecipeError(
            f"The model has places for {max_tokens} tokens; a text needs {MIN_TOKENS} with the "
            "special ones. Take another encoder."
        )
    return replace(recipe, max_tokens=min(recipe.max_tokens, max_tokens))
