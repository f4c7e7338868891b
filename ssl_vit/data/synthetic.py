"""Draw the embedded set `shapes` from (split, index) alone, with NumPy.

Images show textured shapes. Colours are independent of the class. A patch's colour follows from the
surroundings only through the texture's rule and the shape's outline. The bytes are the same on
every machine, because pixels are computed only by +, -, *, /, sqrt and floor on float32, whose
results IEEE 754 defines exactly.

Legend: B images, H W rows and columns, K an image's four colours. Lengths are fractions of the
image side. x points right and y up.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .. import rng
from ..recipe.images import SIZES

CHUNK = 32  # images drawn together: at 64 px each array (512 KiB) stays in the cache

# x, y -> signed distance to the edge, in the unit of x and y; negative inside
Pattern = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _disc(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.sqrt(x * x + y * y) - 1


def _ring(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(np.sqrt(x * x + y * y) - 0.74) - 0.26  # radii from 0.48 to 1


def _square(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x), np.abs(y)) - 1


def _triangle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # equilateral, with a tip at (0, 1). The sides have a distance of 0.5 from the centre
    return np.maximum(0.8660254 * np.abs(x) + 0.5 * y, -y) - 0.5


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the signed distance to a star of five points, negative inside.

    The star consists of ten parts, each the mirror image of the next. All points are mirrored into
    one part, where the outline is a straight line: from the upper tip (0, 1) to the next notch, at
    a distance of 0.48 from the centre (after I. Quilez, "2D distance functions").
    """
    x = np.abs(x)
    # Mirror points beyond a line through the centre at this line: first the line with the normal
    # (cos 36, -sin 36), then with (-cos 36, -sin 36), in degrees. Then all points are in the two
    # parts at the upper tip
    for normal_x, normal_y in ((0.809017, -0.5877853), (-0.809017, -0.5877853)):
        twice_distance = 2 * np.maximum(normal_x * x + normal_y * y, 0)
        x = x - twice_distance * normal_x
        y = y - twice_distance * normal_y
    # `abs` mirrors the two parts into one. (0.9081, 0.4188) is the normal of the line from the tip
    # (0, 1) to the notch 0.48 (sin 36, cos 36)
    return 0.9081 * np.abs(x) + 0.4188 * (y - 1)


def _cross(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    y = np.abs(y)
    return np.maximum(np.maximum(x, y) - 1, np.minimum(x, y) - 0.33)  # bars of length 2, width 0.66


def _crescent(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # a disc around (0.25, 0), without a disc of radius 0.8 around (0.85, 0)
    return np.maximum(_disc(x - 0.25, y), 0.8 - np.sqrt((x - 0.85) ** 2 + y * y))


def _heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the signed distance to a square on its corner with a half-disc on each upper side."""
    x = np.abs(x)
    y = y + 0.15
    lobe = np.sqrt((x - 0.3535534) ** 2 + (y - 0.3535534) ** 2)
    return np.minimum(0.7071068 * (x + np.abs(y)), lobe) - 0.5


def _hourglass(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    y = np.abs(y)
    # |x| is at most 0.2 in the middle (y = 0), and at most 0.83 at the upper and lower side
    return np.maximum(y - 1, 0.848 * np.abs(x) - 0.53 * y - 0.17)


def _arrow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    # the head is a triangle from y = 0.1 to 1; the shaft below is a bar of width 0.66
    head = np.maximum(0.7071068 * (x + y - 1), 0.1 - y)
    return np.minimum(head, np.maximum(x - 0.33, np.abs(y + 0.4) - 0.6))


# Each outline, and the side of the square of equal area. Shapes are scaled by this side, so that
# the size of the foreground does not reveal the class.
OUTLINES: dict[str, tuple[Pattern, float]] = {
    "disc": (_disc, 1.7725),
    "ring": (_ring, 1.5549),
    "square": (_square, 2.0),
    "triangle": (_triangle, 1.1398),
    "star": (_star, 1.1926),
    "cross": (_cross, 1.4847),
    "crescent": (_crescent, 1.2996),
    "heart": (_heart, 1.3362),
    "hourglass": (_hourglass, 1.4321),
    "arrow": (_arrow, 1.2394),
}
CLASSES = tuple(OUTLINES)
MASK_CLASSES = ("ground", *CLASSES)  # classes of a pixel


def _wave(u: np.ndarray) -> np.ndarray:
    """Return a triangle wave of period 2 and slope 1 between -1/2 and 1/2.

    The wave is the signed distance to the nearest edge of unit stripes.
    """
    u = 0.5 * u
    return np.abs(2 * (u - np.floor(u)) - 1) - 0.5


def _checks(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    u = _wave(u)
    v = _wave(v)
    # negative (inside) where one of u and v is negative and the other is positive
    return np.maximum(np.minimum(u, v), -np.maximum(u, v))


def _dots(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    u = _wave(u) + 0.5
    v = _wave(v) + 0.5
    return np.sqrt(u * u + v * v) - 0.8  # discs of radius 0.8 cover half of the area


TEXTURES: tuple[Pattern, ...] = (
    lambda u, v: _wave(u),  # stripes
    _checks,
    _dots,
    lambda u, v: _wave(np.sqrt(u * u + v * v)),  # rings
    lambda u, v: _wave(u + _wave(v)),  # zigzag
)
# Widths of a texture's cell as fractions of the image side: the first row for upright textures, the
# second row for diagonal textures. The widths are 1.4 to 2.5 patches of 1/8.
CELLS = np.array([[3, 4, 5], [4 * 0.7071068, 5 * 0.7071068, 6 * 0.7071068]], np.float32) / 16

# Two deep and two bright colours for each hue of a circle, as octal RGB: 0o501 has the level 5 of
# red, 0 of green and 1 of blue. This number is also the class of a patch with this mean colour.
# Ground and figure have opposite tones, one deep and one bright, so that outlines are visible.
PALETTE = np.array(
    [
        [0o501, 0o613, 0o744, 0o753],  # red
        [0o520, 0o420, 0o741, 0o752],  # orange
        [0o341, 0o230, 0o761, 0o773],  # olive, yellow
        [0o130, 0o041, 0o571, 0o463],  # green
        [0o033, 0o044, 0o375, 0o477],  # teal
        [0o025, 0o014, 0o357, 0o267],  # blue
        [0o214, 0o315, 0o547, 0o657],  # violet
        [0o402, 0o111, 0o756, 0o777],  # wine, pink; and black and white, far enough from all hues
    ]
)

DEGREES = np.arange(360) * np.pi / 180
# rounded, because libraries differ in the last bits of cos and sin
COS = np.cos(DEGREES).round(6).astype(np.float32)
SIN = np.sin(DEGREES).round(6).astype(np.float32)


class Frame(NamedTuple):
    """Position, rotation and scale of a pattern in each image, each (B, 1, 1).

    Attributes:
        x: Horizontal position of the pattern's origin.
        y: Vertical position of the pattern's origin.
        turn: Rotation in degrees.
        unit: Scale: the length of one pattern unit, as a fraction of the image side.
    """

    x: np.ndarray
    y: np.ndarray
    turn: np.ndarray
    unit: np.ndarray


def labels(index: np.ndarray) -> np.ndarray:
    """Return the class of each image, int64 (B,): 0 to 9 in turn."""
    return np.asarray(index, np.int64) % len(CLASSES)


def render(index: np.ndarray, size: int, split: str = "train") -> np.ndarray:
    """Draw images as RGB bytes, uint8 (B, size, size, 3).

    Args:
        index: The numbers of the images in the split. A number gives the same scene at any size.
        size: The side of the images in pixels.
        split: "train", "validation" or "test".
    """
    image_BHWC = np.empty((len(index), size, size, 3), np.uint8)
    for chunk, key_B, label_B in _chunks(index, split):
        _paint(image_BHWC[chunk], key_B, label_B)
    return image_BHWC


def masks(index: np.ndarray, size: int, split: str = "train") -> np.ndarray:
    """Draw the class of each pixel of the images from `render`, uint8 (B, size, size).

    The class is an index into MASK_CLASSES: 0 for the ground around the shape, and 1 + the image's
    label for pixels whose centre is inside the shape.

    Args:
        index: The numbers of the images in the split.
        size: The side of the masks in pixels.
        split: "train", "validation" or "test".
    """
    mask_BHW = np.empty((len(index), size, size), np.uint8)
    for chunk, key_B, label_B in _chunks(index, split):
        inside_BHW = _figure(rng.stream(key_B, "outline"), label_B, size)
        # a pixel whose centre is on the edge of the shape counts as half covered (`_cover`)
        mask_BHW[chunk] = (inside_BHW >= 0.5) * (1 + label_B[:, None, None])
    return mask_BHW


def _chunks(index: np.ndarray, split: str) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield (slice of `index`, keys, labels) of at most CHUNK images that are drawn together."""
    key_B = rng.key(list(SIZES).index(split), index)
    for first in range(0, len(index), CHUNK):
        chunk = slice(first, first + CHUNK)
        yield chunk, key_B[chunk], labels(index[chunk])


def _paint(image_BHWC: np.ndarray, key_B: np.ndarray, label_B: np.ndarray) -> None:
    """Draw images from keys and labels into `image_BHWC`.

    Args:
        image_BHWC: The images, uint8, which are overwritten.
        key_B: Keys of the images, int64, from which random numbers are derived.
        label_B: The class of each image, which is the kind of shape.
    """
    size = image_BHWC.shape[1]
    inside_BHW = _figure(rng.stream(key_B, "outline"), label_B, size)
    ground_BHW = _texture(rng.stream(key_B, "ground"), size)
    figure_BHW = _texture(rng.stream(key_B, "figure"), size)
    light_BHW = _light(rng.stream(key_B, "light"), size)
    color_BKC = _colors(rng.stream(key_B, "color"))
    for channel in range(3):
        ground1, ground2, figure1, figure2 = (
            color_BKC[:, k, channel, None, None] for k in range(4)
        )
        # mix two colours: first + (second - first) * share of the second
        ground_color = ground1 + (ground2 - ground1) * ground_BHW
        figure_color = figure1 + (figure2 - figure1) * figure_BHW
        color_BHW = ground_color + (figure_color - ground_color) * inside_BHW
        # 0.5 is added because the conversion to bytes rounds down
        image_BHWC[..., channel] = color_BHW * light_BHW + 0.5


def _figure(key_B: np.ndarray, label_B: np.ndarray, size: int) -> np.ndarray:
    """Return how much of each pixel the shape covers, float32 (B, H, W) from 0 to 1.

    The shape has the area of a square with a side of 0.42 to 0.54, and is tilted by at most 40
    degrees.

    Args:
        key_B: Keys for the random numbers of the outline, int64.
        label_B: The class of each image, which is the kind of shape.
        size: The side of the images in pixels.
    """
    side = _uniform(key_B, 0, 0.42, 0.54)  # the side of the square of equal area
    # a shape reaches about 0.8 * side from its centre: keep this distance from the image's borders
    largest_shift = 0.5 - 0.8 * side
    x, y = (0.5 + largest_shift * _uniform(key_B, slot, -1, 1) for slot in (1, 2))
    tilt = (rng.integers(key_B, 3, 81) - 40)[:, None, None]  # in degrees
    outlines, outline_sides = zip(*OUTLINES.values(), strict=True)
    # the square of equal area has the side `outline_side` in pattern units and `side` in the image,
    # so the length of one pattern unit is side / outline_side
    outline_side = np.array(outline_sides, np.float32)[label_B, None, None]
    return _cover(outlines, label_B, Frame(x, y, tilt, side / outline_side), size)


def _texture(key_B: np.ndarray, size: int) -> np.ndarray:
    """Return how much of each pixel has the texture's second colour, float32 (B, H, W) from 0 to 1.

    A texture repeats a cell, such as a square of a chessboard, and is rotated by a multiple of 45
    degrees. The origin is at multiples of 1/16, and upright cells are 3/16, 4/16 or 5/16 wide
    (CELLS). A network with patches of 1/8 therefore meets few different pieces of a texture, and
    can learn these pieces.

    Args:
        key_B: Keys for the random numbers of the texture, int64.
        size: The side of the images in pixels.
    """
    kind_B = rng.integers(key_B, 0, len(TEXTURES))
    eighths = rng.integers(key_B, 1, 8)[:, None, None]  # eighths of a full turn
    x, y = (np.floor(_uniform(key_B, slot, 0, 16)) / 16 for slot in (2, 3))
    is_diagonal = eighths % 2  # rotated by 45, 135, 225 or 315 degrees
    width_index = rng.integers(key_B, 4, 3)[:, None, None]
    cell_width = CELLS[is_diagonal, width_index]
    return _cover(TEXTURES, kind_B, Frame(x, y, 45 * eighths, cell_width), size)


def _cover(patterns: Sequence[Pattern], kind_B: np.ndarray, frame: Frame, size: int) -> np.ndarray:
    """Return how much of each pixel lies inside a pattern, float32 (B, H, W) from 0 to 1.

    At the edge of the pattern, the covered share falls from 1 to 0 over a width of one pixel.

    Args:
        patterns: Functions that return the signed distance of points to the edge of a pattern,
            negative inside.
        kind_B: The index into `patterns` for each image.
        frame: Position, rotation and scale of the pattern in each image.
        size: The side of the images in pixels.
    """
    x, y = _axes(size)
    share_BHW = np.empty((len(kind_B), size, size), np.float32)
    for kind in np.unique(kind_B):
        has_kind_B = kind_B == kind
        x0, y0, turn, unit = (values[has_kind_B] for values in frame)
        u = (x - x0) / unit
        v = (y - y0) / unit
        # a negative turn counts from the end: COS[-40] is the cosine of 320 degrees
        cos = COS[turn]
        sin = SIN[turn]
        # rotate the points into the axes of the pattern
        distance = patterns[kind](u * cos + v * sin, v * cos - u * sin)
        distance_in_pixels = distance * (unit * size)
        share_BHW[has_kind_B] = np.clip(0.5 - distance_in_pixels, 0, 1)  # 1/2 on the edge
    return share_BHW


def _light(key_B: np.ndarray, size: int) -> np.ndarray:
    """Return the brightness of each pixel: a linear slope across the image, within 6% of 1.

    Palette colours are in the middle of a bin of 32 values in each channel. The slope is too small
    to move a colour into the next bin.

    Args:
        key_B: Keys for the random numbers of the slope, int64.
        size: The side of the images in pixels.

    Returns:
        Factors of the colours, float32 (B, H, W).
    """
    x, y = _axes(size)
    slope_x = _uniform(key_B, 0, -0.06, 0.06)
    slope_y = _uniform(key_B, 1, -0.06, 0.06)
    return 1 + (x - 0.5) * slope_x + (y - 0.5) * slope_y


def _colors(key_B: np.ndarray) -> np.ndarray:
    """Return two colours of the ground and two colours of the figure, 0 to 255, float32 (B, 4, 3).

    Either the ground or the figure is deep (dark), and the other is bright. An octal digit in
    PALETTE is one of 8 levels of red, green or blue, and means the middle of the level's 32 values.

    Args:
        key_B: Keys for the random numbers of the colours, int64.
    """
    tone_B = rng.integers(key_B, 0, 2)
    ground_B2 = _draw_two_colors(rng.bits(key_B, 1), tone_B)
    figure_B2 = _draw_two_colors(rng.bits(key_B, 2), 1 - tone_B)  # the opposite tone
    octal_BK = np.concatenate([ground_B2, figure_B2], 1)
    level_BKC = (octal_BK[..., None] >> np.array([6, 3, 0])) & 7  # the three octal digits
    return ((level_BKC + 0.5) * (255 / 8)).astype(np.float32)


def _draw_two_colors(key_B: np.ndarray, tone_B: np.ndarray) -> np.ndarray:
    """Draw two colours of the same tone from PALETTE for each image, octal RGB integers (B, 2).

    The rows of PALETTE are 8 hues in the order of the colour circle. The columns are two deep
    shades (tone 0) and two bright shades (tone 1). The two hues are not neighbours on the circle.

    Args:
        key_B: Keys for these random numbers, int64.
        tone_B: 0 for deep colours, 1 for bright colours.
    """
    hue1_B = rng.integers(key_B, 0, 8)
    hue2_B = (hue1_B + 2 + rng.integers(key_B, 1, 5)) % 8  # 2 to 6 hues further on the circle
    # slots 2 and 3 of each key choose one of two shades for each colour
    shade_B2 = rng.integers(key_B[:, None], np.array([2, 3]), 2)
    return PALETTE[np.stack([hue1_B, hue2_B], 1), 2 * tone_B[:, None] + shade_B2]


def _axes(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates of pixel centres, float32: x (1, 1, W) and y (1, H, 1)."""
    x_W = ((np.arange(size) + 0.5) / size).astype(np.float32)
    return x_W[None, None, :], x_W[None, ::-1, None]  # reversed, because y points up


def _uniform(key_B: np.ndarray, slot: int, low: float, high: float) -> np.ndarray:
    """Draw a uniform number from `low` to `high` for each key, float32 (B, 1, 1)."""
    return (low + (high - low) * rng.uniform(key_B, slot)).astype(np.float32)[:, None, None]
