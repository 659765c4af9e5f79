"""Query images: seeded views of a flag waved, cropped, tilted, relit and compressed.

A view is a function of its key alone, `view:<entity>:<artist>:<level>:<seed>`: the key's hash seeds
the one random stream that everything is drawn from. Levels L0 (clean) to L3 (hard) are rows of
`LEVELS`.

All images are pictures of 3 to 2 squashed into a square, base images and views alike: policies read
squares, and the flag fills the base image. Sampling runs backwards, from canvas to cloth, in one
pass:

    canvas (x, y) --homography--> visible piece (u, v) --crop--> flag --wave--> texels, blended

then the cloth is averaged down, laid on the background, relit, blurred and stored once as JPEG.
Scaling and blurring are left to Pillow: NumPy would wake every core for matrices this small.

A crop that keeps less than 60 % of the flag's width and height may take away what tells two flags
apart: `is_ambiguous` says so without rendering.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageFilter

from jaxagent.data.drawings import DrawingPixels, open_drawings

ASPECT = 1.5
GROUND = 208
MIN_KEPT = 0.6
Pixels = UInt8[np.ndarray, "y x 3"]
Square = UInt8[np.ndarray, "s s 3"]


@dataclass(frozen=True, kw_only=True)
class Level:
    """How far a view is from the clean drawing; ranges are drawn from uniformly.

    Attributes:
        keep: share of the flag's width and of its height that is in view.
        size: width of the visible piece as a share of the picture's width.
        wave: height of the cloth's wave as a share of the flag's height; `shade` its light and
            dark.
        tilt: rotation in degrees, both ways; `skew` how far a corner moves, as a share of the
            width.
        light: strength of the colour cast, brightness and contrast changes; `fade` the loss of
            colour.
        noise: standard deviation, of 1; `blur` the largest Gaussian radius in pixels.
        quality: JPEG quality.
    """

    keep: tuple[float, float] = (1.0, 1.0)
    size: tuple[float, float] = (1.0, 1.0)
    wave: float = 0.0
    shade: float = 0.0
    tilt: float = 0.0
    skew: float = 0.0
    light: float = 0.0
    fade: float = 0.0
    noise: float = 0.0
    blur: float = 0.0
    quality: tuple[int, int] = (95, 95)


LEVELS: Mapping[str, Level] = {
    "L0": Level(),
    "L1": Level(
        size=(0.8, 0.98), wave=0.03, shade=0.15, tilt=8, skew=0.06,
        light=0.08, fade=0.2, noise=0.01, blur=0.4, quality=(75, 90),
    ),
    "L2": Level(
        keep=(0.6, 0.95), size=(0.6, 0.95), wave=0.05, shade=0.25, tilt=16, skew=0.1,
        light=0.15, fade=0.4, noise=0.02, blur=0.7, quality=(60, 85),
    ),
    "L3": Level(
        keep=(0.45, 0.85), size=(0.45, 0.85), wave=0.07, shade=0.3, tilt=24, skew=0.14,
        light=0.22, fade=0.6, noise=0.03, blur=1.0, quality=(45, 75),
    ),
}  # fmt: skip


class Pose(NamedTuple):
    """Where the cloth hangs: the piece in view and where its corners lie in the picture."""

    kept: float
    piece: Float[np.ndarray, " 2"]
    size: float
    corners: Float[np.ndarray, "4 2"]
    wave: float
    period: float
    phase: float


class ViewKey(NamedTuple):
    """The parts of a view's key."""

    entity: str
    artist: str
    level: str
    seed: int


def view_key(entity: str, artist: str, level: str, seed: int) -> str:
    """The key of a query view."""
    return f"view:{entity}:{artist}:{level}:{seed}"


def parsed_view_key(key: str) -> ViewKey:
    """The parts of a view's key; raises KeyError when `key` is none."""
    parts = key.split(":")
    if len(parts) != 5 or parts[0] != "view" or parts[3] not in LEVELS or not parts[4].isdecimal():
        raise KeyError(key)
    return ViewKey(parts[1], parts[2], parts[3], int(parts[4]))


def view_stream(key: str) -> np.random.Generator:
    """The random stream of a view."""
    digest = hashlib.blake2b(key.encode("utf-8"), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def is_ambiguous(key: str) -> bool:
    """Whether the view shows less than 60 % of the flag's width and height."""
    return drawn_share(view_stream(key), LEVELS[parsed_view_key(key).level]) < MIN_KEPT


def drawn_share(rng: np.random.Generator, level: Level) -> float:
    """The share of the flag's width and height in view: a stream's first number, for any flag."""
    return float(rng.uniform(*level.keep))


def drawn_pose(rng: np.random.Generator, level: Level, aspect: float) -> Pose:
    """A random pose of a flag of this aspect."""
    kept = drawn_share(rng, level)
    piece = rng.uniform(0, 1 - kept, 2)
    size = rng.uniform(*level.size)
    width, height = size * min(aspect, ASPECT), size * min(aspect, ASPECT) / aspect
    room = np.array([ASPECT - width, 1 - height])
    centre = np.array([width, height]) / 2 + room * (rng.uniform(0, 1, 2) if level.tilt else 0.5)
    half = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * np.array([width, height]) / 2
    angle = np.deg2rad(rng.uniform(-level.tilt, level.tilt))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    moved = rng.uniform(-level.skew, level.skew, (4, 2)) * width
    return Pose(
        kept=kept,
        piece=piece,
        size=float(size),
        corners=half @ turn.T + centre + moved,
        wave=float(level.wave * rng.uniform(0.4, 1)),
        period=float(rng.uniform(0.5, 1.3)),
        phase=float(rng.uniform(0, 2 * np.pi)),
    )


def homography(corners: Float[np.ndarray, "4 2"]) -> Float[np.ndarray, "3 3"]:
    """The projective map of four corners, clockwise from the top left, to the unit square."""
    x, y = corners[:, 0], corners[:, 1]
    u, v = np.array([0.0, 1, 1, 0]), np.array([0.0, 0, 1, 1])
    one, zero = np.ones(4), np.zeros(4)
    rows_u = np.stack([x, y, one, zero, zero, zero, -u * x, -u * y], 1)
    rows_v = np.stack([zero, zero, zero, x, y, one, -v * x, -v * y], 1)
    solution = np.linalg.solve(np.concatenate([rows_u, rows_v]), np.concatenate([u, v]))
    return np.append(solution, 1.0).reshape(3, 3)


def augmented_view(
    drawing: DrawingPixels, level: Level, rng: np.random.Generator, *, size: int = 64
) -> Square:
    """A view of a drawing, `size` pixels square; the same stream gives the same view."""
    pose = drawn_pose(rng, level, drawing.shape[1] / drawing.shape[0])
    cloth = _hung_cloth(drawing, pose, level.shade, size * 3 // 2)
    cloth = _resized(cloth, size, Image.Resampling.BOX)
    ground = _background(rng, size) if level.tilt else np.full((1, 1, 3), GROUND / 255, np.float32)
    picture = cloth[..., :3] + ground * (1 - cloth[..., 3:])
    return _photographed(picture, level, rng)


def _hung_cloth(
    drawing: DrawingPixels, pose: Pose, shade: float, side: int
) -> Float[np.ndarray, "s s 4"]:
    """The cloth alone, premultiplied by its alpha, on a canvas of `side` pixels square."""
    texels_per_pixel = pose.kept * drawing.shape[0] / (pose.size * side)
    texture = _texture(drawing, halved=texels_per_pixel > 1.5)
    grid = (np.arange(side, dtype=np.float32) + 0.5) / side
    m = homography(pose.corners).astype(np.float32)
    x, y = grid[None, :] * np.float32(ASPECT), grid[:, None]
    depth = m[2, 0] * x + m[2, 1] * y + m[2, 2]
    u = (m[0, 0] * x + m[0, 1] * y + m[0, 2]) / depth
    v = (m[1, 0] * x + m[1, 1] * y + m[1, 2]) / depth
    visible = (u >= 0) & (u <= 1) & (v >= 0) & (v <= 1) & (depth > 0)
    rows, columns = np.nonzero(visible)
    u = np.float32(pose.piece[0]) + u[rows, columns] * np.float32(pose.kept)
    v = np.float32(pose.piece[1]) + v[rows, columns] * np.float32(pose.kept)
    angle = np.float32(2 * np.pi / pose.period) * u + np.float32(pose.phase)
    wave = np.float32(pose.wave)
    v = v * (1 + 2 * wave) - wave - wave * np.sin(angle)
    values = _bilinear(texture, u, v)
    values[:, :3] *= (1 + np.float32(shade) * np.cos(angle))[:, None]
    canvas = np.zeros((side, side, 4), np.float32)
    canvas[rows, columns] = values
    return canvas


def _texture(drawing: DrawingPixels, *, halved: bool) -> Float[np.ndarray, "rows columns 4"]:
    """A drawing as floats premultiplied by alpha, with a transparent rim of one texel."""
    image = drawing.astype(np.float32) / np.float32(255)
    image[..., :3] *= image[..., 3:]
    if halved:
        height, width = image.shape[0] // 2 * 2, image.shape[1] // 2 * 2
        image = image[:height, :width].reshape(height // 2, 2, width // 2, 2, 4).mean((1, 3))
    return np.pad(image, ((1, 1), (1, 1), (0, 0)))


def _bilinear(
    texture: Float[np.ndarray, "y x 4"], u: Float[np.ndarray, " p"], v: Float[np.ndarray, " p"]
) -> Float[np.ndarray, "p 4"]:
    """Texture values at shares (u, v) of its width and height; transparent outside of 0 to 1."""
    height, width = texture.shape[0] - 2, texture.shape[1] - 2
    x = np.clip(u * width + 0.5, 0, width + 0.999).astype(np.float32)
    y = np.clip(v * height + 0.5, 0, height + 0.999).astype(np.float32)
    left, top = x.astype(np.int32), y.astype(np.int32)
    x, y = (x - left)[:, None], (y - top)[:, None]
    flat = texture.reshape(-1, 4)
    first = top * texture.shape[1] + left
    second = first + texture.shape[1]
    upper = flat[first] * (1 - x) + flat[first + 1] * x
    lower = flat[second] * (1 - x) + flat[second + 1] * x
    return upper * (1 - y) + lower * y


def _bytes(image: Float[np.ndarray, "y x c"]) -> UInt8[np.ndarray, "y x c"]:
    return (np.clip(image, 0, 1) * np.float32(255) + np.float32(0.5)).astype(np.uint8)


def _resized(
    image: Float[np.ndarray, "y x c"], size: int, filter: Image.Resampling
) -> Float[np.ndarray, "s s c"]:
    """The image scaled to a square in 8 bits a channel; a fourth is a premultiplied alpha."""
    height, width, channels = image.shape
    mode = "RGBa" if channels == 4 else "RGB"
    scaled = Image.frombuffer(mode, (width, height), _bytes(image).tobytes()).resize(
        (size, size), filter
    )
    flat = np.frombuffer(scaled.tobytes(), np.uint8)
    return flat.reshape(size, size, channels).astype(np.float32) / np.float32(255)


def _background(rng: np.random.Generator, size: int) -> Float[np.ndarray, "s s 3"]:
    """A soft outdoor backdrop: a vertical gradient between two colours, with slow blotches."""
    top, bottom = rng.uniform(0.2, 1, 3), rng.uniform(0.1, 0.9, 3)
    down = np.linspace(0, 1, 6)[:, None, None]
    coarse = top * (1 - down) + bottom * down + rng.normal(0, 0.1, (6, 6, 3))
    return _resized(coarse, size, Image.Resampling.BICUBIC)


def _photographed(
    picture: Float[np.ndarray, "s s 3"], level: Level, rng: np.random.Generator
) -> Pixels:
    """The picture relit, faded, blurred, with sensor noise, and once through JPEG."""
    if level.light:
        low, high = 1 - level.light, 1 + level.light
        cast = rng.uniform(low, high, 3).astype(np.float32)
        picture = picture * cast + np.float32(rng.uniform(-0.6, 0.6) * level.light)
        picture = np.clip(picture, 0, 1) ** np.float32(rng.uniform(2 * low - 1, 2 * high - 1))
        grey = picture.mean(-1, keepdims=True)
        picture = grey + (picture - grey) * np.float32(rng.uniform(1 - level.fade, 1))
        grain = rng.standard_normal(picture.shape, np.float32)
        picture = picture + grain * np.float32(level.noise)
    photo = Image.fromarray(_bytes(picture))
    if level.blur:
        photo = photo.filter(ImageFilter.GaussianBlur(rng.uniform(0, level.blur)))
    low, high = level.quality
    stored = io.BytesIO()
    photo.save(stored, "JPEG", quality=int(rng.integers(low, high + 1)))
    return np.array(Image.open(stored))


class FlagImages:
    """The benchmark's images by key, rendered when first asked for; arrays are read-only.

    `kb:<entity>` is the base image, `view:<entity>:<artist>:<level>:<seed>` a query view, both
    `size` pixels square; `draw:<entity>:<artist>` is the drawing as rendered, on grey. Raises
    KeyError with the key when there is no such image, OSError when its drawing cannot be read.
    """

    def __init__(self, folder: Path, *, size: int = 64, cached: int = 16384):
        self.drawings = open_drawings(Path(folder))
        self.size = size
        unreadable = {name.partition("/")[2] for name in self.drawings.unreadable}
        self._known = unreadable.union(self.drawings.entities)
        self._drawing = lru_cache(maxsize=1024)(self._read)
        self._pixels = lru_cache(maxsize=cached)(self._render)

    def __call__(self, key: str) -> Pixels:
        return self._pixels(key)

    def drawing(self, entity: str, artist: str) -> DrawingPixels:
        """The RGBA pixels of a drawing, for callers that make their own views of it."""
        return self._drawing(entity, artist)

    def _read(self, entity: str, artist: str) -> DrawingPixels:
        if entity not in self._known or artist not in self.drawings.artists:
            raise KeyError(f"draw:{entity}:{artist}")
        return self.drawings.read(artist, entity)

    def _render(self, key: str) -> Pixels:
        kind, _, rest = key.partition(":")
        if kind == "view":
            view = parsed_view_key(key)
            drawing = self._drawing(view.entity, view.artist)
            level = LEVELS[view.level]
            pixels = augmented_view(drawing, level, view_stream(key), size=self.size)
        elif kind == "kb":
            pixels = base_image(self._drawing(rest, self.drawings.base), self.size)
        elif kind == "draw" and rest.count(":") == 1:
            pixels = on_ground(self._drawing(*rest.split(":")))
        else:
            raise KeyError(key)
        pixels.setflags(write=False)
        return pixels


def on_ground(drawing: DrawingPixels) -> Pixels:
    """A drawing laid on light grey."""
    alpha = drawing[..., 3:].astype(np.float32) / 255
    blended = drawing[..., :3] * alpha + GROUND * (1 - alpha)
    return (blended + 0.5).astype(np.uint8)


def base_image(drawing: DrawingPixels, size: int) -> Square:
    """A drawing as the base shows it: `size` pixels square, a flag of 3 to 2 filling it."""
    flag = Image.fromarray(on_ground(drawing))
    aspect = flag.width / flag.height
    width = round(size * min(aspect / ASPECT, 1))
    canvas = Image.new("RGB", (size, size), (GROUND,) * 3)
    canvas.paste(flag.resize((width, size), Image.Resampling.BOX), ((size - width) // 2, 0))
    return np.array(canvas)
