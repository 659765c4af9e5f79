"""Image files of every kind to RGB bytes, and files that are none."""

import io
import os
import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from jaxagent.processing import image_files
from jaxagent.processing.image_files import FORMATS, ImageError, read_rgb

ROOT = Path(__file__).parents[2]


def stored(image, format, *, exif=None, frames=(), lossless=False):
    """The bytes of an image in a format, with an orientation, more frames, without loss."""
    file = io.BytesIO()
    options = {"save_all": True, "append_images": list(frames)} if frames else {}
    if lossless:
        options |= {"lossless": True}
    if exif is not None:
        block = Image.Exif()
        block[ExifTags.Base.Orientation] = exif
        options |= {"exif": block}
    image.save(file, format, **options)
    return file.getvalue()


def chunk(kind, body):
    """A chunk of a PNG file."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, *, bits, colour, rows, key=b""):
    """A PNG file; `rows` are the packed bytes of its rows, `key` its transparent colour."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    transparent = chunk(b"tRNS", key) if key else b""
    pixels = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + header + transparent + pixels + chunk(b"IEND", b"")


def tiff(width, *, bits, white, row):
    """A TIFF file of one row of grey, uncompressed; `white` is the value's end that is white."""
    fields = {
        256: width,
        257: 1,
        258: bits,
        259: 1,
        262: int(white == "high"),
        273: 8,
        278: 1,
        279: len(row),
    }
    row += b"\0" * (len(row) % 2)
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in fields.items())
    at = 8 + len(row)
    return struct.pack("<2sHI", b"II", 42, at) + row + struct.pack("<H", 8) + entries + b"\0" * 4


def premultiplied(file):
    """A TIFF file with alpha whose colours are said to be multiplied by it."""
    kinds = [struct.pack("<HHIHH", 338, 3, 1, kind, 0) for kind in (2, 1)]
    assert file.count(kinds[0]) == 1
    return file.replace(*kinds)


def palette(*, transparency):
    """A palette image of red, green and blue; `transparency` as PNG stores it."""
    image = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    if transparency is not None:
        image.info["transparency"] = transparency
    return stored(image, "PNG")


def array(values, mode=None):
    """An image of these pixels, 8 bits."""
    return Image.fromarray(np.array(values, np.uint8), mode)


def grey(*values):
    """One row of grey pixels."""
    return [[[value] * 3 for value in values]]


WIDE = np.array([0, 300, 40000, 65535])  # their upper bytes: 0, 1, 156, 255
PICTURES = {
    "grey": (stored(array([[0, 100]]), "PNG"), grey(0, 100)),
    "one bit": (stored(Image.fromarray(np.array([[True, False]])), "PNG"), grey(255, 0)),
    # alpha 51 of 255 lets four fifths of the white through
    "grey with alpha": (stored(array([[[100, 51], [7, 0]]], "LA"), "PNG"), grey(224, 255)),
    "grey with premultiplied alpha": (
        premultiplied(stored(array([[[20, 51], [0, 0]]], "LA"), "TIFF")),
        grey(224, 255),
    ),
    "RGBA": (
        stored(array([[[0, 100, 200, 51], [9, 9, 9, 255], [9, 9, 9, 0]]], "RGBA"), "PNG"),
        [[[204, 224, 244], [9, 9, 9], [255, 255, 255]]],
    ),
    "palette": (palette(transparency=None), [[[255, 0, 0], [0, 255, 0], [0, 0, 255]]]),
    "palette with a transparent colour": (
        palette(transparency=1),
        [[[255, 0, 0], [255, 255, 255], [0, 0, 255]]],
    ),
    "palette with alphas": (
        palette(transparency=bytes([255, 0, 51])),
        [[[255, 0, 0], [255, 255, 255], [204, 204, 255]]],
    ),
    "a transparent colour": (
        png(
            2, 1, bits=8, colour=2, rows=[bytes([1, 2, 3, 1, 2, 4])], key=bytes([0, 1, 0, 2, 0, 3])
        ),
        [[[255, 255, 255], [1, 2, 4]]],
    ),
    "a transparent grey of 2 bits": (
        png(4, 1, bits=2, colour=0, rows=[bytes([0b00011011])], key=bytes([0, 1])),
        grey(0, 255, 170, 255),
    ),
    "a transparent grey of 4 bits": (
        png(2, 1, bits=4, colour=0, rows=[bytes([0x12])], key=bytes([0, 1])),
        grey(255, 34),
    ),
    "a transparent grey of 1 bit": (
        png(2, 1, bits=1, colour=0, rows=[bytes([0b01000000])], key=bytes([0, 0])),
        grey(255, 255),
    ),
    "grey of 16 bits": (
        png(4, 1, bits=16, colour=0, rows=[WIDE.astype(">u2").tobytes()]),
        grey(0, 1, 156, 255),
    ),
    "a transparent grey of 16 bits": (
        png(4, 1, bits=16, colour=0, rows=[WIDE.astype(">u2").tobytes()], key=bytes([1, 44])),
        grey(0, 255, 156, 255),
    ),
    "grey of 16 bits with alpha": (
        png(2, 1, bits=16, colour=4, rows=[np.array([25600, 13107, 1, 0], ">u2").tobytes()]),
        grey(224, 255),
    ),
    "colour of 16 bits": (
        png(1, 1, bits=16, colour=2, rows=[WIDE[1:].astype(">u2").tobytes()]),
        [[[1, 156, 255]]],
    ),
    "a transparent colour of 16 bits": (
        png(
            1,
            1,
            bits=16,
            colour=2,
            rows=[WIDE[1:].astype(">u2").tobytes()],
            key=WIDE[1:].astype(">u2").tobytes(),
        ),
        grey(255),
    ),
    "TIFF of 16 bits": (
        tiff(4, bits=16, white="high", row=WIDE.astype("<u2").tobytes()),
        grey(0, 1, 156, 255),
    ),
    "TIFF of 16 bits, 0 is white": (
        tiff(4, bits=16, white="low", row=WIDE.astype("<u2").tobytes()),
        grey(255, 254, 99, 0),
    ),
    "TIFF of 12 bits": (
        tiff(2, bits=12, white="high", row=bytes([0xFF, 0xF0, 0x10])),
        grey(255, 1),
    ),
    "PGM of 16 bits": (b"P5 4 1 65535\n" + WIDE.astype(">u2").tobytes(), grey(0, 1, 156, 255)),
    "CMYK": (
        stored(array([[[0, 255, 255, 0], [0, 0, 0, 255]]], "CMYK"), "TIFF"),
        [[[255, 0, 0], [0, 0, 0]]],
    ),
    "YCbCr": (
        stored(array([[[76, 85, 255], [200, 128, 128]]], "YCbCr"), "TIFF"),
        [[[254, 0, 0], [200, 200, 200]]],
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_file_of_every_mode_becomes_these_pixels(name):
    file, pixels = PICTURES[name]
    rgb = read_rgb(file)
    assert rgb.dtype == np.uint8
    assert not rgb.flags.writeable
    np.testing.assert_array_equal(rgb, pixels)


@pytest.mark.parametrize(
    ("mode", "dtype"), [("I", np.int32), ("F", np.float32), ("LAB", None)], ids=str
)
def test_pixels_without_a_stated_black_and_white_are_refused(mode, dtype):
    image = Image.new(mode, (2, 2)) if dtype is None else Image.fromarray(np.ones((2, 2), dtype))
    assert image.mode == mode
    with pytest.raises(ImageError, match=f"mode '{mode}', whose black and white are not stated"):
        read_rgb(stored(image, "TIFF"))


# how 123 / 456 lies in a file of each orientation: 6 says that the first row is the right side
ORIENTED = {
    1: [[1, 2, 3], [4, 5, 6]],
    2: [[3, 2, 1], [6, 5, 4]],
    3: [[6, 5, 4], [3, 2, 1]],
    4: [[4, 5, 6], [1, 2, 3]],
    5: [[1, 4], [2, 5], [3, 6]],
    6: [[3, 6], [2, 5], [1, 4]],
    7: [[6, 3], [5, 2], [4, 1]],
    8: [[4, 1], [5, 2], [6, 3]],
}


@pytest.mark.parametrize("orientation", ORIENTED)
@pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP", "JPEG"])
def test_an_image_stands_as_its_orientation_says(orientation, format):
    numbers = np.kron(np.array(ORIENTED[orientation], np.uint8) * 40, np.ones((16, 16), np.uint8))
    image = Image.fromarray(numbers).convert("RGB")
    file = stored(image, format, exif=orientation, lossless=format == "WEBP")
    middles = read_rgb(file)[8::16, 8::16].astype(int)
    assert middles.shape == (2, 3, 3)
    wrong = np.abs(middles - np.array(ORIENTED[1])[..., None] * 40)
    assert wrong.max() <= (2 if format == "JPEG" else 0)


@pytest.mark.parametrize("block", [b"Exif\0\0II*\0", b"Exif\0\0nothing", b"", b"\xff" * 40])
def test_a_broken_exif_block_turns_nothing(block):
    file = io.BytesIO()
    array(np.arange(18).reshape(3, 2, 3)).save(file, "PNG", exif=block)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert read_rgb(file.getvalue()).shape == (3, 2, 3)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_an_animation_is_its_first_frame(format):
    red, blue = (Image.new("RGB", (4, 3), colour) for colour in ("red", "blue"))
    file = stored(red, format, frames=(blue,), lossless=format == "WEBP")
    assert Image.open(io.BytesIO(file)).n_frames == 2
    np.testing.assert_array_equal(read_rgb(file), np.full((3, 4, 3), [255, 0, 0]))


@pytest.mark.parametrize("shape", [(1, 1), (1, 900), (900, 1)])
@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP"])
def test_the_smallest_and_thinnest_images_are_read(shape, format):
    assert read_rgb(stored(Image.new("L", shape[::-1]), format)).shape == (*shape, 3)


def noisy(format):
    """The bytes of random blocks in a format."""
    blocks = np.random.default_rng(0).integers(0, 256, (12, 15, 3), dtype=np.uint8)
    return stored(Image.fromarray(blocks.repeat(4, 0).repeat(4, 1)), format)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.filterwarnings("ignore")
def test_a_truncated_file_is_refused_or_whole(format):
    file = noisy(format)
    whole = read_rgb(file)
    for length in {0, 1, 20, len(file) // 2, *range(len(file) - 40, len(file))}:
        try:
            part = read_rgb(file[:length])
        except ImageError:
            continue
        assert length > len(file) // 2, "half of a file cannot hold all pixels"
        np.testing.assert_array_equal(part, whole)


@pytest.mark.parametrize("format", FORMATS)
def test_a_truncated_file_is_named(format, tmp_path):
    file = noisy(format)
    path = tmp_path / "half"
    path.write_bytes(file[: len(file) // 2])
    with pytest.raises(ImageError, match=f"The image {path} is .*truncated"):
        read_rgb(path)
    with pytest.raises(ImageError, match=r"The image kb:td is .*truncated"):
        read_rgb(path.read_bytes(), name="kb:td")


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_broken_bytes_raise_nothing_but_an_image_error(data):
    file = bytearray(noisy(data.draw(st.sampled_from(FORMATS))))
    for at in data.draw(st.lists(st.integers(0, len(file) - 1), min_size=1, max_size=8)):
        file[at] = data.draw(st.integers(0, 255))
    try:
        rgb = read_rgb(bytes(file))
    except ImageError:
        return
    assert rgb.ndim == 3
    assert rgb.shape[2] == 3


def bomb(format):
    """A file whose header names 60,000 x 60,000 pixels, and that holds none."""
    side = 60_000
    if format == "PNG":
        return png(side, side, bits=8, colour=2, rows=[])
    if format == "BMP":
        return b"BM" + struct.pack("<IIIIiiHHIIIIII", 54, 0, 54, 40, side, side, 1, 24, *[0] * 6)
    if format == "PPM":
        return f"P6 {side} {side} 255\n".encode()
    header = struct.pack(
        "<6sHHBBB", b"GIF89a", 9, 9, 0, 0, 0
    )  # the frame is larger than the screen
    return header + struct.pack("<BHHHHB", 0x2C, 0, 0, side, side, 0) + b"\x02\x00;"


@pytest.mark.parametrize("pillow", [None, 1, Image.MAX_IMAGE_PIXELS, 10**12, 60_000**2 - 1])
@pytest.mark.parametrize("format", ["PNG", "BMP", "PPM", "GIF"])
@pytest.mark.parametrize("action", ["error", "ignore"])
def test_a_bomb_is_refused_by_its_header_whatever_pillow_allows(
    pillow, format, action, monkeypatch
):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pillow)
    with warnings.catch_warnings():
        warnings.simplefilter(action, Image.DecompressionBombWarning)
        with pytest.raises(ImageError, match="was not decoded; at most 89,478,485 are allowed"):
            read_rgb(bomb(format))


def test_the_limit_counts_pixels(monkeypatch):
    monkeypatch.setattr(image_files, "MAX_PIXELS", 12)
    assert read_rgb(stored(Image.new("RGB", (4, 3)), "PNG")).shape == (3, 4, 3)
    with pytest.raises(ImageError, match=r"has 13 x 1 pixels and was not decoded; at most 12 are"):
        read_rgb(stored(Image.new("RGB", (13, 1)), "PNG"))


MEMORY = """
import sys
from jaxagent.processing.image_files import read_rgb

def figure(name):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])

before = figure("VmRSS")
pixels = read_rgb(sys.argv[1]).size / 3
print((figure("VmHWM") - before) / pixels)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads Linux's figures")
def test_reading_takes_at_most_sixteen_bytes_a_pixel(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(stored(Image.new("RGBA", (6000, 4000)), "PNG", exif=6))
    command = [sys.executable, "-c", MEMORY, str(path)]
    made = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert 3 < float(made.stdout) < 16.5, "and half a byte for the libraries"


SOME_VIDEO = b"\0\0\0\x18ftypisom" + b"\0" * 40
OTHERS = [
    (b"", "is empty; fetch or write it again"),
    (b"hello", "is no image, or its header is broken; the formats AVIF, BMP, GIF"),
    (b"\x89PNG\r\n\x1a\n", "is no image, or its header is broken"),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is no image"),
    (b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0" * 40, "is no image"),
    (b"\n<!DOCTYPE html><html><body><svg/></body></html>", "is a web page or other markup"),
    (b"\xef\xbb\xbf<HTML>no such image</HTML>", "is a web page or other markup"),
    (b'<?xml version="1.0"?>\n<svg width="9"></svg>', "is an SVG drawing, which has no pixels"),
    (SOME_VIDEO, "is a video; videos are not supported. Give frames of it as images"),
    (b"\0\0\0\x14ftypqt  " + b"\0" * 40, "is a video; videos are not supported"),
    (b"\x1aE\xdf\xa3\x01" + b"\0" * 40, "is a video; videos are not supported"),
    (b"RIFF\0\0\1\0AVI LIST" + b"\0" * 40, "is a video; videos are not supported"),
    (b"\0\0\0\x18ftypheic" + b"\0" * 40, "is a HEIC photo, which is not read"),
    (b"\0\0\0\x18ftypavif" + b"\0" * 40, "is an AVIF image, truncated or corrupt"),
]


@pytest.mark.parametrize(("file", "message"), OTHERS)
def test_what_is_no_image_is_said(file, message):
    with pytest.raises(ImageError, match=f"^The image of {len(file)} bytes {message}"):
        read_rgb(file)


def test_a_file_that_is_not_there_is_no_image_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.png"):
        read_rgb(tmp_path / "none.png")
    with pytest.raises(IsADirectoryError):
        read_rgb(str(tmp_path))
