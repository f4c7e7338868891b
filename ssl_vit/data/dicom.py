"""Decode DICOM files, such as X-rays and slices of computed tomography, with the extra `dicom`.

The functions follow the DICOM standard, part 3: the modality LUT (C.11.1) turns stored values into
physical values, such as Hounsfield units. The window or VOI LUT (C.11.2) says which of these values
a viewer shows as black and white.
"""

import io
from typing import TYPE_CHECKING

import numpy as np

from ..extras import require

if TYPE_CHECKING:
    from pydicom import Dataset

COLORS = ("RGB", "YBR")  # how the color formats that pydicom converts to RGB begin


def read_dicom(raw: bytes) -> "Dataset":
    """Read the header of a DICOM file, without decoding pixels.

    Raises:
        ValueError: pydicom is not installed, or the file does not hold exactly one image of grey
            or RGB values.
    """
    dataset: Dataset = require("pydicom").dcmread(io.BytesIO(raw))
    if "PixelData" not in dataset:
        raise ValueError("this DICOM file has no image")
    frames = int(dataset.get("NumberOfFrames") or 1)
    if frames > 1:
        raise ValueError(f"this DICOM file has {frames} frames. Save each frame as a file")
    if "SharedFunctionalGroupsSequence" in dataset or "PerFrameFunctionalGroupsSequence" in dataset:
        raise ValueError(
            "this DICOM file is enhanced, and ssl_vit cannot read the window of such files"
        )
    kind = dataset.PhotometricInterpretation
    if not kind.startswith(("MONOCHROME", *COLORS)):
        raise ValueError(f"the pixels of this DICOM file are {kind}. Use grey values or RGB")
    return dataset


def shown_pixels(dataset: "Dataset") -> np.ndarray:
    """Decode a DICOM image to RGB bytes as a viewer shows the image, uint8 (H, W, 3).

    Grey values are scaled from the first window of the file, else from the VOI LUT. If the file has
    neither, the lowest value becomes black and the highest white. Colors and grey values of 8 bits
    without a window and a modality LUT stay unchanged.
    """
    from pydicom.pixels import apply_windowing

    pixels = dataset.pixel_array
    values = _apply_modality_lut(pixels, dataset)
    if pixels.ndim == 2 and dataset.get("WindowWidth"):
        # the two further values become black and white, for every function of windows
        windowed = apply_windowing(np.append(values, [-np.inf, np.inf]), dataset)
        values, (lowest, highest) = windowed[:-2].reshape(pixels.shape), windowed[-2:]
    elif pixels.ndim == 2 and dataset.get("VOILUTSequence"):
        lut = dataset.VOILUTSequence[0]
        values = _apply_voi_lut(values, lut)
        lowest, highest = 0, 2 ** lut.LUTDescriptor[2] - 1
    elif values is pixels and (pixels.ndim == 3 or pixels.dtype == np.uint8):
        lowest, highest = 0, 2**dataset.BitsStored - 1
    else:
        inside = values[~_is_padding(pixels, dataset)]
        inside = inside if inside.size else values
        lowest, highest = inside.min(), inside.max()
    share = (values - np.float64(lowest)) / (np.float64(highest) - lowest or 1)
    if _is_inverted(dataset):
        share = 1 - share
    image = np.rint(255 * share.clip(0, 1)).astype(np.uint8)
    return image if image.ndim == 3 else np.repeat(image[..., None], 3, 2)


def _apply_voi_lut(values: np.ndarray, lut: "Dataset") -> np.ndarray:
    """Look up values (H, W) in a VOI LUT (DICOM, part 3, C.11.2.1.1).

    pydicom 3.0 is not used, because its `apply_voi` is wrong for more than 256 entries of 8 bits,
    and does not read entries of one byte.
    """
    entries, first, _ = lut.LUTDescriptor
    entries = entries or 2**16  # 65,536 does not fit into the 16 bits of the descriptor
    if first >= 2**15 and values.min() < 0:
        first -= 2**16  # a negative number that the file declares as unsigned
    data = lut.LUTData
    raw = data if isinstance(data, bytes) else np.array(data).astype("<u2").tobytes()
    # entries of 8 bits take one byte or two
    table = np.frombuffer(raw, "u1" if len(raw) < 2 * entries else "<u2")[:entries]
    rows = (values.astype(np.float64) - first).clip(0, len(table) - 1)
    return table[rows.astype(int)]


def _is_padding(pixels: np.ndarray, dataset: "Dataset") -> np.ndarray:
    """Return which stored values only fill the image (DICOM, part 3, C.7.5.1.1.2), bool (H, W)."""
    padding = dataset.get("PixelPaddingValue")
    if padding is None:
        return np.zeros(pixels.shape, bool)
    ends = sorted((int(padding), int(dataset.get("PixelPaddingRangeLimit", padding))))
    return (pixels >= ends[0]) & (pixels <= ends[1])


def physical_values(dataset: "Dataset") -> np.ndarray:
    """Decode a DICOM image to the values after the modality LUT, (H, W) or (H, W, 3).

    The values are floating-point numbers if the modality LUT does not give whole numbers.
    Otherwise they are uint8 for stored values of 8 bits without a modality LUT, else int32.
    """
    pixels = dataset.pixel_array
    values = _apply_modality_lut(pixels, dataset)
    if _is_inverted(dataset):
        bits = dataset.BitsStored
        # the lowest and the highest stored value. PixelRepresentation is 1 for signed values
        ends = np.array([0, 2**bits - 1]) - dataset.PixelRepresentation * 2 ** (bits - 1)
        values = _apply_modality_lut(ends, dataset).sum(dtype=np.float64) - values
    whole_numbers = np.rint(values).astype(np.int32)
    if not np.array_equal(whole_numbers, values):
        return values
    return whole_numbers.astype(np.uint8) if pixels.dtype == np.uint8 else whole_numbers


def _apply_modality_lut(pixels: np.ndarray, dataset: "Dataset") -> np.ndarray:
    """Apply the modality LUT or rescaling. A scale of 1 with the offset 0 returns `pixels`."""
    from pydicom.pixels import apply_modality_lut

    if (dataset.get("RescaleSlope"), dataset.get("RescaleIntercept")) == (1, 0):
        return pixels
    return apply_modality_lut(pixels, dataset)


def _is_inverted(dataset: "Dataset") -> bool:
    """Return whether the lowest value is white."""
    return dataset.PhotometricInterpretation == "MONOCHROME1"
