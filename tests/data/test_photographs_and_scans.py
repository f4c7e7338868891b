"""HEIC photographs and DICOM scans become the pixels that pillow_heif and pydicom decode, in every
container. Without the extras, the files are counted, and the line to type is said."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from helpers.images import encode, on_white, png, tar
from helpers.sources import listed, opened, refusal
from helpers.tables import parquet
from ssl_vit.data import check_pixels, decoding
from ssl_vit.data.pixel_values import decoder
from ssl_vit.errors import UserError
from ssl_vit.jobs.nearest_images import read_query
from ssl_vit.recipe.schema import Data

pillow_heif = pytest.importorskip("pillow_heif", reason="needs the extra [heic]")
pydicom = pytest.importorskip("pydicom", reason="needs the extra [dicom]")

HEIC, DICOM = "pip install 'ssl_vit[heic]'", "pip install 'ssl_vit[dicom]'"
NOISE = np.random.default_rng(0).integers(0, 256, (24, 40, 4), dtype=np.uint8)
SCAN = np.arange(600, dtype=np.uint16).reshape(20, 30)  # all values different


def heic(pixels: np.ndarray, orientation: int = 1, **options: object) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file, image = io.BytesIO(), pillow_heif.from_pillow(Image.fromarray(pixels))
    image.info["exif"] = exif.tobytes()
    image.save(file, **{"quality": 90} | options)
    return file.getvalue()


def dicom(pixels: np.ndarray, kind: str = "MONOCHROME2", syntax: str = "", **tags: object) -> bytes:
    """A DICOM file, which may begin like a TIFF, as those of some scanners do."""
    made = pydicom.Dataset()
    made.file_meta = pydicom.dataset.FileMetaDataset()
    made.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    made.SOPClassUID, made.SOPInstanceUID = pydicom.uid.SecondaryCaptureImageStorage, "1.2.3"
    made.Rows, made.Columns = pixels.shape[:2]
    made.SamplesPerPixel, made.PhotometricInterpretation = pixels[0, 0].size, kind
    if made.SamplesPerPixel > 1:
        made.PlanarConfiguration = 0
    made.BitsAllocated, made.PixelRepresentation = (
        8 * pixels.itemsize,
        int(pixels.dtype.kind == "i"),
    )
    made.BitsStored = min(12, made.BitsAllocated)
    made.HighBit = made.BitsStored - 1
    made.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(made, name, value)
    if syntax:
        made.compress(getattr(pydicom.uid, syntax))
    file = io.BytesIO()
    made.preamble = b"II*\0" + bytes(124)
    made.save_as(file, enforce_file_format=True)
    return file.getvalue()


def decoded(raw: bytes) -> np.ndarray:
    return decoding.decode(raw).permute(1, 2, 0).numpy()


PHOTOGRAPHS = {
    "RGB": lambda: heic(NOISE[..., :3]),
    "grey": lambda: heic(NOISE[..., 0]),
    "alpha": lambda: heic(NOISE),
    "turned": lambda: heic(NOISE[..., :3], 6),
    "10 bits": lambda: heic(NOISE[..., :3], bit_depth=10),
}


@pytest.mark.parametrize("make", PHOTOGRAPHS.values(), ids=PHOTOGRAPHS)
def test_a_photograph_is_what_pillow_heif_decodes(make: Callable[[], bytes]) -> None:
    raw = make()
    pixels = np.asarray(pillow_heif.open_heif(raw, convert_hdr_to_8bit=True))
    alpha = pixels[..., 3] if pixels.shape[2:] == (4,) else np.full(pixels.shape[:2], 255)
    color = pixels if pixels.ndim == 2 else pixels[..., :3]
    assert np.array_equal(decoded(raw), on_white(color, alpha))
    assert decoding.is_transparent(raw) == (alpha.min() < 255)
    if alpha.min() == 255:
        read = decoder(Data(channels=1 if pixels.ndim == 2 else 3, range=[0, 255]))(raw)
        assert np.array_equal(read.permute(1, 2, 0).squeeze(2).numpy(), pixels)


def test_a_photograph_is_turned_upright() -> None:
    """Smooth, so that the pixels before encoding are nearly those after it."""
    y, x = np.mgrid[:32, :48]
    pixels = np.stack([6 * y, 5 * x, 2 * x + 2 * y], -1).astype(np.uint8)
    upright = decoded(heic(pixels, 6)).astype(int)
    assert np.abs(upright - np.rot90(pixels, -1)).max() < 40
    with pytest.raises(Image.UnidentifiedImageError):  # Pillow elsewhere opens what it opened
        Image.open(io.BytesIO(heic(pixels)))


@pytest.mark.parametrize("bits", [8, 10, 12])
def test_the_bits_of_a_photograph_are_counted(bits: int) -> None:
    raw = bytearray(heic(NOISE[..., :3]))
    raw[raw.index(b"hvcC") + 4 + 17] = 0xF8 | bits - 8
    assert decoding.stored_bits(bytes(raw)) == bits


def linear(values: np.ndarray, center: float, width: float) -> np.ndarray:
    """PS3.3 C.11.2.1.2, for an output from 0 to 255."""
    return np.rint(255 * ((values - (center - 0.5)) / (width - 1) + 0.5).clip(0, 1))


def voi(table: list[int], first: int, bits: int, kind: str = "US") -> pydicom.Sequence:
    item = pydicom.Dataset()
    item.add_new("LUTDescriptor", "SS" if first < 0 else "US", [len(table), first, bits])
    words = np.array(table, "<u2")
    packed = np.array(table, "<u1").tobytes() if kind == "packed" else words.tobytes()
    data = {"US": table, "OW": packed, "packed": packed + bytes(len(packed) % 2)}[kind]
    item.add_new("LUTData", "US" if kind == "US" else "OW", data)
    return pydicom.Sequence([item])


TWO = {"WindowCenter": [301, 9], "WindowWidth": [200, 5]}  # the first window is used
HOUNSFIELD = {"RescaleSlope": 2, "RescaleIntercept": -1000, "WindowCenter": 40, "WindowWidth": 400}
LUT = voi([255 - n % 256 for n in range(512)], 20, 8)
SIGNED = SCAN.astype(np.int16) - 300
BYTES = SCAN.astype(np.uint8)
YBR = pydicom.pixels.convert_color_space(NOISE[..., :3], "RGB", "YBR_FULL")
SCANS = {
    "range of values": (dicom(SCAN + 100), np.rint(SCAN / 599 * 255)),
    "window": (dicom(SCAN, **TWO), linear(SCAN, 301, 200)),
    "white is 0": (dicom(SCAN, "MONOCHROME1", **TWO), 255 - linear(SCAN, 301, 200)),
    "modality LUT": (dicom(SCAN, **HOUNSFIELD), linear(2.0 * SCAN - 1000, 40, 400)),
    "below 0": (
        dicom(SCAN.astype(np.int16) - 300, WindowCenter=0, WindowWidth=412),
        linear(SCAN - 300.0, 0, 412),
    ),
    "sigmoid": (
        dicom(SCAN, WindowCenter=300, WindowWidth=400, VOILUTFunction="SIGMOID"),
        np.rint(255 / (1 + np.exp(-4 * (SCAN - 300.0) / 400))),
    ),
    "VOI LUT": (dicom(SCAN, VOILUTSequence=LUT), 255 - (SCAN.clip(20, 531) - 20) % 256),
    "VOI LUT, bytes": (
        dicom(SCAN, VOILUTSequence=voi([3 * n for n in range(85)], 20, 8, "packed")),
        3 * (SCAN.clip(20, 104) - 20),
    ),
    "VOI LUT, below 0, as unsigned": (
        dicom(SIGNED, VOILUTSequence=voi([*range(256)], 2**16 - 100, 8)),
        (SIGNED + 100).clip(0, 255),
    ),
    "8 bits": (dicom(BYTES, RescaleSlope=1, RescaleIntercept=0), BYTES),
    "8 bits, white is 0": (dicom(BYTES, "MONOCHROME1"), 255 - BYTES),
    "one value": (dicom(np.full((2, 2), 7, np.uint16)), np.zeros((2, 2))),
    "RLE": (dicom(SCAN, syntax="RLELossless", **TWO), linear(SCAN, 301, 200)),
    "RGB": (dicom(NOISE[..., :3].copy(), "RGB"), NOISE[..., :3]),
    "RGB of 16 bits": (
        dicom(np.stack([SCAN] * 3, -1), "RGB"),
        np.stack([np.rint(SCAN / 4095 * 255)] * 3, -1),
    ),
    "YBR": (
        dicom(YBR, "YBR_FULL"),
        pydicom.pixels.convert_color_space(YBR, "YBR_FULL", "RGB"),
    ),
}


SQUARES = [n * n for n in range(256)]  # up to 65,025
BY_PYDICOM = {
    "first value below 0": dicom(SIGNED, VOILUTSequence=voi(SQUARES, -120, 16)),
    "first value below 0, OW": dicom(SIGNED, VOILUTSequence=voi(SQUARES, -120, 16, "OW")),
    "12 bits": dicom(SCAN, VOILUTSequence=voi([n // 16 for n in SQUARES], 50, 12)),
    # pydicom wraps rows above 255 around
    "8 bits": dicom(SCAN % 256, VOILUTSequence=voi([*range(256)], 50, 8, "OW")),
    "first value below 0 of fractions": dicom(
        SCAN, VOILUTSequence=voi(SQUARES, -20, 16), RescaleSlope=0.3, RescaleIntercept=-30
    ),
}


@pytest.mark.filterwarnings("ignore:Applying a VOI LUT on a float")
@pytest.mark.parametrize("raw", BY_PYDICOM.values(), ids=BY_PYDICOM)
def test_a_voi_lut_is_that_of_pydicom(raw: bytes) -> None:
    dataset = pydicom.dcmread(io.BytesIO(raw))
    values = pydicom.pixels.apply_modality_lut(dataset.pixel_array, dataset)
    looked_up = pydicom.pixels.apply_voi_lut(values, dataset)
    highest = 2 ** dataset.VOILUTSequence[0].LUTDescriptor[2] - 1
    expected = np.rint(255 * (looked_up / highest)).astype(np.uint8)
    assert len(np.unique(expected)) > 40
    assert np.array_equal(decoded(raw), np.stack([expected] * 3, -1))


@pytest.mark.parametrize(("raw", "expected"), SCANS.values(), ids=SCANS)
def test_a_scan_is_shown_as_by_a_viewer(raw: bytes, expected: np.ndarray) -> None:
    expected = expected if expected.ndim == 3 else np.stack([expected] * 3, -1)
    assert np.array_equal(decoded(raw), expected)
    assert not decoding.is_transparent(raw) and decoding.count_images(raw) == 1


def test_a_scan_of_lossless_jpeg(tmp_path: Path) -> None:
    gdcm = pytest.importorskip("gdcm")
    (tmp_path / "raw.dcm").write_bytes(dicom(SCAN))
    reader, change, writer = (
        gdcm.ImageReader(),
        gdcm.ImageChangeTransferSyntax(),
        gdcm.ImageWriter(),
    )
    reader.SetFileName(str(tmp_path / "raw.dcm"))
    assert reader.Read()
    change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGLosslessProcess14_1))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer.SetFileName(str(tmp_path / "jpeg.dcm"))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()
    raw = (tmp_path / "jpeg.dcm").read_bytes()
    assert pydicom.dcmread(io.BytesIO(raw)).file_meta.TransferSyntaxUID.is_compressed
    assert np.array_equal(decoding.decode_stored_values(raw, 1)[0], SCAN)


CT = dicom(SCAN, RescaleSlope=2, RescaleIntercept=-1000)  # from -1000 to 198
STORED = {
    "as stored": (dicom(SCAN, **TWO), [0, 4095], SCAN),
    "Hounsfield units": (CT, [-1000, 1000], 2.0 * SCAN - 1000),
    "clipped": (CT, [-100, 100], (2.0 * SCAN - 1000).clip(-100, 100)),
    "clipped at 0": (CT, [0, 2000], (2.0 * SCAN - 1000).clip(0)),
    "white is 0": (dicom(SCAN, "MONOCHROME1"), [0, 4095], 4095 - SCAN.astype(int)),
    "white is 0, signed": (
        dicom(SCAN.astype(np.int16) - 300, "MONOCHROME1"),
        [-2048, 2047],
        -1 - (SCAN.astype(int) - 300),
    ),
    "white is 0, in units": (
        dicom(SCAN, "MONOCHROME1", RescaleSlope=2, RescaleIntercept=-1000),
        [-1000, 7190],
        2 * (4095 - SCAN.astype(int)) - 1000,
    ),
    "8 bits": (dicom(BYTES), None, BYTES),
}


@pytest.mark.parametrize(("raw", "bounds", "expected"), STORED.values(), ids=STORED)
def test_one_channel_holds_the_values_after_the_modality_lut(
    raw: bytes, bounds: list[int] | None, expected: np.ndarray
) -> None:
    image = decoder(Data(channels=1, range=bounds))(raw)
    assert image.dtype == (torch.int32 if bounds else torch.uint8)
    assert np.array_equal(image[0].numpy(), expected)


def test_a_range_below_0_is_proposed_and_warned_of() -> None:
    with pytest.raises(UserError, match=r"data.range=\[-1000,198\], .* clips 0 of 600 values"):
        check_pixels.set_mean_and_std(Data(channels=1), listed([CT]))
    data = Data(channels=1, range=[-1000, 198], path="scans")
    check_pixels.set_mean_and_std(data, listed([CT]))
    scaled = (2.0 * SCAN) / 1198
    assert np.allclose([*data.mean, *data.std], [scaled.mean(), scaled.std()], rtol=1e-5)
    data.range = [-400, 0]
    (warning,) = check_pixels.check({"train": listed([CT])}, data)
    assert f"{300 / 600:.1%} below the range, {99 / 600:.1%} above" in warning
    assert "lie from -1000 to 198" in warning
    (warning,) = check_pixels.check({"train": listed([CT])}, Data(path="scans"))
    assert "12 in" in warning and "the window" in warning


def test_values_below_0_of_arrays_need_a_range_below_0() -> None:
    array = np.full((4, 4), -3, np.int16)
    assert decoder(Data(channels=1, range=[-9, 9]))(array).eq(-3).all()
    with pytest.raises(ValueError, match="from -3 to -3"):
        decoder(Data(channels=1, range=[0, 999]))(array)


NO_IMAGE = dicom(SCAN).replace(
    b"\xe0\x7f\x10\x00OW", b"\xe1\x7f\x10\x00OW"
)  # the tag of the pixels
REFUSED = {
    "frames": (
        dicom(np.stack([SCAN] * 2), NumberOfFrames=2),
        "2 frames. Save each frame as a file",
    ),
    "palette": (dicom(BYTES, "PALETTE COLOR"), "are PALETTE COLOR"),
    "no image": (NO_IMAGE, "no image"),
    "cut off": (dicom(SCAN)[:-9], "less than expected"),
    "cut off photograph": (heic(NOISE)[:600], "cannot decode"),
    "too large": (dicom(SCAN, Rows=30000, Columns=30000), "30000 x 30000 pixels"),
}


def test_values_above_32767_next_to_values_below_0_do_not_wrap() -> None:
    wide = np.array([[0, 1024], [40000, 65535]], np.uint16)
    raw = dicom(wide, BitsStored=16, HighBit=15, RescaleSlope=1, RescaleIntercept=-1024)
    values = decoder(Data(channels=1, range=[-1024, 60000]))(raw)
    assert values[0].tolist() == [[-1024, 0], [38976, 60000]]
    array = np.array([[-5, 40000]])
    assert decoding.decode_stored_values(array, 1, -10).tolist() == [[[-5, 40000]]]


def test_bytes_are_no_values_of_a_range_below_0() -> None:
    grey = encode(Image.fromarray(NOISE[..., 0]), "PNG")
    with pytest.raises(ValueError, match="8 bits"):
        decoder(Data(channels=1, range=[-160, 240]))(grey)


def test_padding_is_not_the_darkest_tissue() -> None:
    scan = np.array([[-2000, 0], [50, 100]], np.int16)
    raw = dicom(scan, PixelPaddingValue=-2000)
    assert decoded(raw)[..., 0].tolist() == [[0, 0], [128, 255]]


@pytest.mark.parametrize(("raw", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_said(raw: bytes, why: str) -> None:
    for read in (decoding.decode, lambda raw: decoding.decode_stored_values(raw, 1)):
        with pytest.raises(ValueError, match=why) as caught:
            read(raw)
        assert "\n" not in str(caught.value)


def test_a_scale_that_gives_fractions_is_refused() -> None:
    with pytest.raises(ValueError, match="float64"):
        decoding.decode_stored_values(dicom(SCAN, RescaleSlope=0.3, RescaleIntercept=0), 1)


FILES = {"a.heic": heic(NOISE), "b.HIF": heic(NOISE[::-1]), "c.dcm": CT, "d.DICOM": dicom(BYTES)}


def folder(root: Path) -> Path:
    root.mkdir()
    for name, raw in FILES.items():
        (root / name).write_bytes(raw)
    return root


def in_tar(root: Path) -> Path:
    return tar(root / "train.tar", FILES.items()).parent


CELLS = {"image": [{"bytes": raw, "path": None} for raw in FILES.values()]}
FEATURES = datasets.Features(image=datasets.Image())


def in_parquet(root: Path) -> Path:
    return parquet(root / "train.parquet", CELLS, FEATURES).parent


def saved(root: Path) -> Path:
    datasets.Dataset.from_dict(CELLS, FEATURES).save_to_disk(root)
    return root


@pytest.mark.parametrize("write", [folder, in_tar, in_parquet, saved])
def test_every_container_gives_the_same_pixels(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    source, _ = opened(write(tmp_path / "images"))
    raw, _ = source.fetch(np.arange(len(source)))
    assert raw == [*FILES.values()]


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pillow_heif", "pydicom"):
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.usefixtures("without_extras")
@pytest.mark.parametrize("write", [folder, in_tar])
def test_without_the_extras_the_files_are_counted(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    place = write(tmp_path / "images")
    said = refusal(place)
    for text in ("2 HEIC files", HEIC, "2 DICOM files", DICOM):
        assert text in said
    if write is folder:
        (place / "e.png").write_bytes(png(0))
    else:
        tar(place / "train.tar", [*FILES.items(), ("e.png", png(0))])
    source, notes = opened(place)
    assert len(source) == 1
    assert [note for note in notes if "cannot use 2 HEIC files" in note and HEIC in note]
    assert [note for note in notes if "cannot use 2 DICOM files" in note and DICOM in note]


@pytest.mark.usefixtures("without_extras")
@pytest.mark.parametrize(("name", "command"), [("a.heic", HEIC), ("c.dcm", DICOM)])
def test_without_the_extra_an_image_says_what_to_type(
    name: str, command: str, tmp_path: Path
) -> None:
    """Also the query of `embed`, and a file with the ending of another format."""
    (tmp_path / "a.jpg").write_bytes(FILES[name])
    with pytest.raises(UserError) as caught:
        read_query(str(tmp_path / "a.jpg"), Data())
    assert command in str(caught.value)


def test_an_avif_is_not_taken_for_a_heic() -> None:
    raw = bytearray(encode(Image.fromarray(NOISE[..., :3]), "AVIF"))
    same = decoded(bytes(raw))
    raw[8:12] = b"mif1"  # the first brand of both formats
    assert np.array_equal(decoded(bytes(raw)), same)
