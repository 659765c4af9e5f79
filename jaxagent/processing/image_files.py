"""Image files to RGB bytes, refused by their header when they are too large.

A file becomes its first frame, turned as its EXIF orientation says, in eight bits a channel:

    1, L, P, RGB, CMYK, YCbCr        as Pillow converts them, without colour profiles
    LA, PA, RGBA, a transparent key  laid on white
    grey of 12 or 16 bits            the upper eight bits (Pillow's own conversion clips at 255)
    colour of 16 bits                the upper eight bits (as Pillow reads it)
    32 bits, floats, Lab             refused: such a file does not say what is black and white

Orientation and white agree with transformers' `load_image` and `convert_to_rgb`; qwen-vl-utils
lays RGBA on white too, but turns nothing. A block of EXIF data that cannot be read turns nothing
either. A corrupt file gives no other exception than ImageError, and a truncated one never the part
of its pixels that is left (unless the program sets Pillow's LOAD_TRUNCATED_IMAGES).
Left out: later frames, videos, vector drawings; JPEG 2000, whose decoder fills up truncated files
without a word; formats that run programs or hold other files (EPS, ICO): only `FORMATS` are opened.
"""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.TiffImagePlugin import BITSPERSAMPLE, PHOTOMETRIC_INTERPRETATION, TiffImageFile

FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 89_478_485
"""A quarter GiB of RGB, where Pillow starts to warn. It holds whatever Pillow's own limit is.
Reading takes at most 16 bytes a pixel."""


class ImageError(ValueError):
    """An image that cannot be read or cannot become patches; the message says why."""


def read_rgb(source: bytes | str | Path, *, name: str | None = None) -> UInt8[np.ndarray, "y x 3"]:
    """The pixels of an image file, or of its bytes, which `name` names in errors; read-only.

    Raises ImageError; a file that cannot be opened raises the OSError of `open`.
    """
    if isinstance(source, bytes):
        return _read(io.BytesIO(source), name or f"of {len(source)} bytes")
    with open(source, "rb") as file:
        return _read(file, name or str(source))


def _read(file: io.BufferedIOBase, name: str) -> UInt8[np.ndarray, "y x 3"]:
    head = file.read(_HEAD)
    file.seek(0)
    if not head:
        raise ImageError(f"The image {name} is empty; fetch or write it again.")
    try:
        with Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _too_large(name, f"{image.width} x {image.height}")
            transparent = _transparent_key(image)
            image.load()
            return np.asarray(_turned(_rgb(image, transparent, name), _orientation(image)))
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        # Pillow's own limit was lowered, or its warnings are errors, or a frame is larger still
        raise _too_large(name, "more than Pillow allows (PIL.Image.MAX_IMAGE_PIXELS)") from None
    except UnidentifiedImageError:
        raise ImageError(f"The image {name} {_what_else(head)}") from None
    except Exception as error:  # decoders raise whatever they meet: OSError, SyntaxError, TypeError
        raise ImageError(
            f"The image {name} is truncated or corrupt: {error}. Fetch or write it again."
        ) from error


def _too_large(name: str, size: str) -> ImageError:
    return ImageError(
        f"The image {name} has {size} pixels and was not decoded; at most {MAX_PIXELS:,} are "
        "allowed. Store it smaller."
    )


_AS_THEY_ARE = ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr")
_GREY_16 = ("I;16", "I;16L", "I;16B")


def _rgb(image: Image.Image, transparent: int | tuple[int, ...] | None, name: str) -> Image.Image:
    """The loaded image in mode RGB; ImageError for a mode without a stated range."""
    if image.mode in _GREY_16 or (image.mode == "I" and image.format == "PPM"):
        return _eight_bits(image, transparent).convert("RGB")
    if image.mode == "La":
        image = image.convert("LA")
    if transparent is not None:
        image.info["transparency"] = transparent
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image)
        return white
    if image.mode not in _AS_THEY_ARE:
        raise ImageError(
            f"The image {name} has pixels of mode {image.mode!r}, whose black and white are not "
            "stated; 8 bits a channel or 16 bits of grey can be read. Convert it first."
        )
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bits(image: Image.Image, transparent: int | tuple[int, ...] | None) -> Image.Image:
    values = np.asarray(image)
    bits = 16
    if isinstance(image, TiffImageFile):
        bits = image.tag_v2[BITSPERSAMPLE][0]
        if image.tag_v2.get(PHOTOMETRIC_INTERPRETATION) == 0:  # 0 is white
            values = 2**bits - 1 - values
    grey = (values >> (bits - 8)).astype(np.uint8)
    if transparent is not None:
        grey[values == transparent] = 255
    return Image.fromarray(grey)


_KEY_SCALES = {"L;2": 85, "L;4": 17, "RGB;16B": 1 / 256}


def _transparent_key(image: Image.Image) -> int | tuple[int, ...] | None:
    """The colour that a PNG calls transparent, in the values that Pillow unpacks to.

    Pillow leaves it in the file's own depth, where no pixel of 2, 4 or 3 x 16 bits equals it.
    """
    key = image.info.get("transparency")
    if image.format != "PNG" or image.mode == "P" or key is None:
        return None
    scale = _KEY_SCALES.get(image.tile[0].args, 1)
    return tuple(int(k * scale) for k in key) if isinstance(key, tuple) else int(key * scale)


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # of a block that no parser understands; the pixels are whole
        return 1


def _turned(image: Image.Image, orientation: int) -> Image.Image:
    turn = _TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)


class _Lookalike(NamedTuple):
    """Other files that stand where an image should: `at` an offset, one of `marks` begins."""

    at: int
    marks: tuple[bytes, ...]
    message: str


_VIDEO = "is a video; videos are not supported. Give frames of it as images."
_HEAD = 1024
_LOOKALIKES = (
    _Lookalike(
        4,
        (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypmif1", b"ftypmsf1"),
        "is a HEIC photo, which is not read. Convert it to JPEG or PNG.",
    ),
    _Lookalike(
        4,
        (b"ftypavif", b"ftypavis"),
        "is an AVIF image, truncated or corrupt. Fetch or write it again.",
    ),
    _Lookalike(4, (b"ftyp", b"moov", b"mdat", b"wide"), _VIDEO),
    _Lookalike(8, (b"AVI ",), _VIDEO),
    _Lookalike(
        0,
        (b"\x1aE\xdf\xa3", b"OggS", b"FLV\x01", b"\0\0\1\xba", b"\0\0\1\xb3"),
        _VIDEO,
    ),
)


def _what_else(head: bytes) -> str:
    """What a file is that is no image, and what to do."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith(b"<"):
        if b"<svg" in text and b"<html" not in text:
            return "is an SVG drawing, which has no pixels. Render it to PNG."
        return "is a web page or other markup, not an image. Fetch the image itself."
    for other in _LOOKALIKES:
        if head.startswith(other.marks, other.at):
            return other.message
    return (
        f"is no image, or its header is broken; the formats {', '.join(FORMATS)} are read. "
        "Convert it or fetch it again."
    )
