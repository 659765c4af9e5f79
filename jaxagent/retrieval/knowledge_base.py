"""The base an agent searches: entities with images, passages of text, and an index over each.

    folder/header.json     written last: counts, order hashes, encoders, versions, unreadable images
           entities.jsonl  passages.jsonl
           image_index/    one row per readable image
           text_index/     one row per passage (absent when text is searched by words)

A build that was stopped continues when the same command is run again: finished blocks of text
vectors are kept in `folder/draft` under the hash of what they encode. Nothing is trained here, and
no query image is ever read.
"""

import dataclasses
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Float32

from jaxagent.retrieval import headers
from jaxagent.retrieval.encoders import Encoders, ImageEncoder, TextEncoder, open_encoders
from jaxagent.retrieval.hits import Index, IndexConfig
from jaxagent.retrieval.index import build_index, open_index, save_index
from jaxagent.retrieval.lexical import LexicalIndex
from jaxagent.retrieval.names import unique_names
from jaxagent.retrieval.text_index import DenseTextIndex, TextIndex, VectorCache
from jaxagent.types import Images, Passage, Progress, silent

VERSION = 1
IMAGES_PER_BLOCK = 256
PASSAGES_PER_BLOCK = 1024


@dataclass(frozen=True, kw_only=True)
class Entity:
    """Something a query image may show; `images` are the keys of the base's images of it."""

    id: str
    name: str
    images: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class KnowledgeBaseConfig:
    """How the base's two indices are built."""

    image_index: IndexConfig = field(default_factory=IndexConfig)
    text_index: IndexConfig = field(default_factory=IndexConfig)


@dataclass(frozen=True, kw_only=True, eq=False)
class KnowledgeBase:
    """An open base; row i of its image index is image `image_keys[i]` of `image_entities[i]`."""

    entities: Mapping[str, Entity]
    passages: tuple[Passage, ...]
    passage_rows: Mapping[str, int]
    image_keys: tuple[str, ...]
    image_entities: tuple[str, ...]
    image_rows: Mapping[str, tuple[int, ...]]
    image_index: Index
    text_index: TextIndex
    image_encoder: ImageEncoder
    images: Images
    header: Mapping[str, Any]
    query_vectors: VectorCache = field(default_factory=VectorCache)


def build(
    folder: epath.PathLike,
    entities: Sequence[Entity],
    passages: Sequence[Passage],
    *,
    images: Images,
    encoders: Encoders,
    config: KnowledgeBaseConfig | None = None,
    progress: Progress = silent,
) -> KnowledgeBase:
    """A new base in `folder`, opened.

    A finished base of the same content and encoders is opened as it is. An image that cannot be
    read is listed in the header under `missing` and has no row. Raises ValueError for repeated ids,
    for a base without a readable image and for a folder that holds another base or foreign files.
    """
    folder, config = epath.Path(folder), config or KnowledgeBaseConfig()
    names = unique_names([entity.name for entity in entities])
    entities = [
        dataclasses.replace(entity, name=name) for entity, name in zip(entities, names, strict=True)
    ]
    _check_ids([entity.id for entity in entities], "entity")
    _check_ids([passage.id for passage in passages], "passage")
    made_from = _made_from(entities, passages, encoders, config)
    if _finished(folder, made_from):
        return read(folder, images=images, encoders=encoders)
    folder.mkdir(parents=True, exist_ok=True)
    _write_rows(folder / "entities.jsonl", entities)
    _write_rows(folder / "passages.jsonl", passages)

    keys, vectors, missing = _image_vectors(entities, images, encoders.image, progress)
    index = build_index(vectors, config.image_index)
    save_index(folder / "image_index", index, keys, made_by=_identity(encoders.image))
    if encoders.text:
        vectors = _text_vectors(folder / "draft", passages, encoders.text, progress)
        index = build_index(vectors, config.text_index)
        ids = [passage.id for passage in passages]
        save_index(folder / "text_index", index, ids, made_by=_identity(encoders.text))
    headers.write_header(folder, made_from | {"missing": missing, "software": _software()})
    if (folder / "draft").exists():
        shutil.rmtree(folder / "draft")
    return read(folder, images=images, encoders=encoders)


def read(
    folder: epath.PathLike, *, images: Images, encoders: Encoders | None = None
) -> KnowledgeBase:
    """The finished base in `folder`; without `encoders`, those named in its header are opened.

    Raises FileNotFoundError for a missing or unfinished base and ValueError when a file or an
    encoder does not fit the header. Where the header's text encoder is not installed, text is
    searched by words, with a message.
    """
    folder = epath.Path(folder)
    header = read_header(folder)
    where = f"The knowledge base at {folder}"
    headers.check_header(header, {"format": "jaxagent knowledge base", "version": VERSION}, where)
    entities = [
        Entity(**row | {"images": tuple(row["images"])}) for row in _rows(folder / "entities.jsonl")
    ]
    passages = [Passage(**row) for row in _rows(folder / "passages.jsonl")]
    headers.check_header(header, _contents(entities, passages), where)
    text_encoder = header["text_encoder"]
    if encoders is None:
        encoders = open_encoders(
            header["image_encoder"]["name"], text_encoder and text_encoder["name"]
        )
    headers.check_header(header, {"image_encoder": _identity(encoders.image)}, where)
    gone = {(row["entity"], row["image"]) for row in header["missing"]}
    keys, owners, rows = [], [], {}
    for entity in entities:
        readable = [key for key in entity.images if (entity.id, key) not in gone]
        rows[entity.id] = tuple(range(len(keys), len(keys) + len(readable)))
        keys.extend(readable)
        owners.extend([entity.id] * len(readable))
    return KnowledgeBase(
        entities={entity.id: entity for entity in entities},
        passages=tuple(passages),
        passage_rows={passage.id: row for row, passage in enumerate(passages)},
        image_keys=tuple(keys),
        image_entities=tuple(owners),
        image_rows=rows,
        image_index=open_index(folder / "image_index", keys, made_by=header["image_encoder"]),
        text_index=_open_text(folder, passages, text_encoder, encoders.text),
        image_encoder=encoders.image,
        images=images,
        header=header,
    )


def read_header(folder: epath.PathLike) -> dict[str, Any]:
    """The header of a finished base; raises what `headers.read_header` does."""
    fields = {"image_encoder": dict, "text_encoder": dict | None, "missing": list}
    return headers.read_header(folder, "knowledge base", fields)


def _open_text(
    folder: epath.Path,
    passages: Sequence[Passage],
    made_by: dict[str, str] | None,
    encoder: TextEncoder | None,
) -> TextIndex:
    if made_by is None or encoder is None:
        if made_by is not None:
            logging.warning("The base's text vectors are left aside: text is searched by words.")
        return LexicalIndex([f"{passage.title} {passage.text}" for passage in passages])
    headers.check_header(
        {"text_encoder": made_by}, {"text_encoder": _identity(encoder)}, f"The base at {folder}"
    )
    ids = [passage.id for passage in passages]
    return DenseTextIndex(encoder.queries, open_index(folder / "text_index", ids, made_by=made_by))


def _check_ids(ids: Sequence[str], what: str) -> None:
    seen = set()
    for row in ids:
        if row in seen:
            raise ValueError(f"The {what} id {row!r} stands twice. Give every {what} its own id.")
        seen.add(row)


def _identity(encoder: ImageEncoder | TextEncoder) -> dict[str, str]:
    return {"name": encoder.name, "digest": encoder.digest}


def _contents(entities: Sequence[Entity], passages: Sequence[Passage]) -> dict[str, Any]:
    """What the two files of rows must hold."""
    return {
        "num_entities": len(entities),
        "num_passages": len(passages),
        "entity_order": headers.order_hash(
            part for row in entities for part in (row.id, row.name, *row.images)
        ),
        "passage_order": headers.order_hash(
            part for row in passages for part in (row.id, row.title, row.text)
        ),
    }


def _made_from(
    entities: Sequence[Entity],
    passages: Sequence[Passage],
    encoders: Encoders,
    config: KnowledgeBaseConfig,
) -> dict[str, Any]:
    """The part of the header that is known before the build."""
    return {
        "format": "jaxagent knowledge base",
        "version": VERSION,
        "config": dataclasses.asdict(config),
        "image_encoder": _identity(encoders.image),
        "text_encoder": _identity(encoders.text) if encoders.text else None,
    } | _contents(entities, passages)


def _finished(folder: epath.Path, made_from: Mapping[str, Any]) -> bool:
    """Whether the very base to build is there; False when there is none, or a part of one."""
    if not folder.exists():
        return False
    if (folder / headers.FILE).exists():
        header = read_header(folder)
        headers.check_header(header, made_from, f"The knowledge base that {folder} holds already")
        indices = ("image_index", "text_index") if made_from["text_encoder"] else ("image_index",)
        return all((folder / name).exists() for name in indices)
    ours = {"entities.jsonl", "passages.jsonl", "image_index", "text_index", "draft"}
    ours.add(headers.DRAFT)
    foreign = sorted(path.name for path in folder.iterdir() if path.name not in ours)
    if foreign:
        raise ValueError(
            f"{folder} holds files that are no knowledge base, such as {foreign[0]!r}. "
            "Name an empty or a new folder."
        )
    return False


def _image_vectors(
    entities: Sequence[Entity], images: Images, encoder: ImageEncoder, progress: Progress
) -> tuple[list[str], Float32[np.ndarray, "n e"], list[dict[str, str]]]:
    """Keys and vectors of the readable images, and the unreadable ones with the reason."""
    wanted = [(entity.id, key) for entity in entities for key in entity.images]
    keys, vectors, missing = [], [], []
    for start in range(0, len(wanted), IMAGES_PER_BLOCK):
        pixels = []
        for entity, key in wanted[start : start + IMAGES_PER_BLOCK]:
            try:
                pixels.append(images(key))
                keys.append(key)
            except (KeyError, OSError, ValueError) as error:
                reason = f"{type(error).__name__}: {error}"
                missing.append({"entity": entity, "image": key, "reason": reason})
        if pixels:
            vectors.append(encoder(pixels))
        progress("images", min(start + IMAGES_PER_BLOCK, len(wanted)), len(wanted))
    if not vectors:
        reason = missing[0]["reason"] if missing else "no entity names an image"
        raise ValueError(
            f"None of the base's {len(wanted)} images could be read ({reason}). Check the image "
            "source."
        )
    if missing:
        logging.warning(
            "%d of %d images could not be read and are not in the base, such as %s (%s).",
            len(missing),
            len(wanted),
            missing[0]["image"],
            missing[0]["reason"],
        )
    return keys, np.concatenate(vectors), missing


def _text_vectors(
    draft: epath.Path, passages: Sequence[Passage], encoder: TextEncoder, progress: Progress
) -> Float32[np.ndarray, "n e"]:
    """Vectors of "title. text" of every passage, block by block; finished blocks are read from
    `draft`.
    """
    draft.mkdir(parents=True, exist_ok=True)
    # Sorted by length, so that a block holds texts of one length and is padded little.
    texts = [f"{passage.title}. {passage.text}" for passage in passages]
    order = sorted(range(len(texts)), key=lambda row: (len(texts[row]), row))
    vectors = []
    for start in range(0, len(order), PASSAGES_PER_BLOCK):
        block = [texts[row] for row in order[start : start + PASSAGES_PER_BLOCK]]
        path = draft / f"{headers.order_hash([encoder.digest, *block])}.npy"
        if path.exists():
            with path.open("rb") as file:
                vectors.append(np.load(file, allow_pickle=False))
        else:
            vectors.append(encoder(block))
            unfinished = draft / "unfinished"
            with unfinished.open("wb") as file:
                np.save(file, vectors[-1])
            unfinished.replace(path)
        progress("passages", start + len(block), len(order))
    result = np.concatenate(vectors)
    return result[np.argsort(np.array(order))]


def _write_rows(path: epath.Path, rows: Sequence[Entity | Passage]) -> None:
    with path.open("w") as file:
        for row in rows:
            kept = {
                name: value for name, value in dataclasses.asdict(row).items() if name != "score"
            }
            file.write(json.dumps(kept, ensure_ascii=False) + "\n")


def _rows(path: epath.Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing. Delete its folder and build the base again.")
    with path.open("r") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"Line {number} of {path} is not JSON ({error.msg}). Delete the folder and "
                    "build the base again."
                ) from None


def _software() -> dict[str, str]:
    versions = {}
    for package in ("jaxagent", "jax", "numpy", "scann"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
