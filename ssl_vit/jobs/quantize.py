"""Export an encoder, and quantise an ONNX export to int8 if its accuracy stays about the same."""

import shutil
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data import contents, loaders, run_splits
from ..data.batch_layout import BatchLayout
from ..data.pixel_values import normalisation
from ..data.source import Source, labelled_images, without_lists
from ..errors import UserError
from ..evaluation.baselines import accuracy_difference
from ..evaluation.probes import knn
from ..extras import require
from ..formatting import format_bytes
from ..models import interop
from ..recipe.export_files import read_config
from ..recipe.given import Arguments, Given
from ..recipe.schema import Data
from ..recipe.tool import parse
from ..recipe.tools import MAX_DROP, ExportOptions
from . import encoders

TRAINING_IMAGES, HELD_OUT_IMAGES = 5000, 2000  # most images that an accuracy is measured with
LEAST_LABELLED = 20  # held-out images; an accuracy on fewer says nothing
BATCH = 64  # images


class Outputs(NamedTuple):
    """Outputs of the float model and of the int8 model for the same images.

    Attributes:
        float_ND: Outputs of the float model.
        int8_ND: Outputs of the int8 model.
        label_N: Labels, int64, -1 for none.
        content_N: Hash of each image's content, int64.
    """

    float_ND: Tensor
    int8_ND: Tensor
    label_N: Tensor
    content_N: Tensor


def main(arguments: list[str]) -> None:
    """Convert an export and print the path of the result.

    Raises:
        UserError: An option is wrong, or the export cannot be converted.
    """
    print(f"written     {convert(parse(ExportOptions, Arguments(arguments)))}")


def convert(options: ExportOptions) -> Path:
    """Write an export in another format, quantised if asked, and return the path.

    Raises:
        UserError: As in `interop.convert`, the images of the run cannot be read, or the int8 model
            is too inaccurate.
    """
    if options.quantize is None:
        if options.max_drop != MAX_DROP:
            raise UserError(
                f"max_drop={options.max_drop:g}: has no effect without quantize=int8. Leave out"
                " max_drop."
            )
        return interop.convert(options)
    if options.format != "onnx":
        raise UserError(f"quantize={options.quantize}: only for format=onnx. Leave out quantize.")
    require("onnxruntime", f"quantize={options.quantize}")
    named = encoders.find_encoder(options.init, Given())
    if named.run is None:
        raise UserError(
            f"init={options.init}: the run of this export is not known, and quantize=int8 is"
            " measured on the images of the run. Name the folder of a run."
        )
    return interop.convert(options, partial(_quantize, options, named))


def _quantize(options: ExportOptions, named: encoders.NamedEncoder, path: Path) -> None:
    """Replace the ONNX file at `path` by an int8 model, and print what changes.

    Raises:
        UserError: The accuracy falls by more than max_drop.
    """
    # Imported late, because both are optional
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with TemporaryDirectory() as folder:
        prepared, int8 = Path(folder) / "prepared.onnx", Path(folder) / "int8.onnx"
        quant_pre_process(path, prepared, skip_optimization=True, skip_symbolic_shape=True)
        # Only products with weights are quantised. Their other factors are quantised while the
        # model runs, with one scale for the batch, so no images are needed to find ranges
        quantize_dynamic(
            prepared, int8, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul", "Gemm"]
        )
        drop, text = _compare(named, path, int8)
        if drop > options.max_drop / 100:
            raise UserError(
                f"max_drop={options.max_drop:g}: {text}. Nothing was written. Use a larger"
                " max_drop, or leave out quantize."
            )
        print(f"int8        {text}")
        sizes = [format_bytes(file.stat().st_size) for file in (path, int8)]
        print(f"size        {sizes[0]} as float32, {sizes[1]} as int8")
        shutil.copyfile(int8, path)


def _compare(named: encoders.NamedEncoder, float_path: Path, int8_path: Path) -> tuple[float, str]:
    """Measure the float model and the int8 model on held-out images of the run.

    Returns:
        By how much the accuracy falls, as a share, and a text that says what was measured. Without
        labelled held-out images, 0 and the similarity of the outputs.
    """
    data = encoders.find_data(named, Given())
    splits = run_splits.load(data)
    train, held_out = (without_lists(x, "images") for x in (splits.train, splits.validation))
    paths = (float_path, int8_path)
    tested = _outputs(paths, labelled_images(held_out), HELD_OUT_IMAGES, data)
    export = named.source.locate().export
    assert export is not None  # `interop.convert` has read the export
    is_classifier = read_config(export)["num_classes"] > 0
    is_labelled = held_out.has_labels and (is_classifier or train.has_labels)
    images = len(tested.label_N)
    if not is_labelled or data.validation == 0 or images < LEAST_LABELLED:
        similarity_N = torch.cosine_similarity(tested.float_ND, tested.int8_ND)
        return 0.0, (
            "accuracy not measured, because too few images have labels. max_drop was not checked."
            f" Cosine similarity of the outputs {similarity_N.mean():.4f} (lowest"
            f" {similarity_N.min():.4f}, n = {images})"
        )
    if is_classifier:
        measure = "top-1"
        predictions = [x_ND.argmax(1) for x_ND in (tested.float_ND, tested.int8_ND)]
    else:
        measure = "k-NN"
        learned = _outputs(paths, labelled_images(train), TRAINING_IMAGES, data)
        classes = 1 + int(torch.cat([learned.label_N, tested.label_N]).max())
        k = min(named.recipe.probe.neighbors, len(learned.label_N))
        predictions = [
            knn(train_ND, learned.label_N, test_ND, classes=classes, k=k)
            for train_ND, test_ND in zip(learned[:2], tested[:2], strict=True)
        ]
    right, right_int8 = ((predicted_N == tested.label_N)[None] for predicted_N in predictions)
    copies = contents.count_copies(tested.content_N.numpy(), tested.label_N.numpy())
    change = accuracy_difference(right_int8, right, copies)
    before, after = (float(right_N.double().mean()) for right_N in (right, right_int8))
    points = [f"{100 * share:+.1f}" for share in (change.mean, change.low, change.high)]
    # images of a group are not independent
    interval = f", 95% CI {points[1]} to {points[2]}" if data.group is None else ""
    return -change.mean, (
        f"{measure} {before:.1%} as float32 and {after:.1%} as int8 ({points[0]} points{interval},"
        f" n = {images:,} held-out images)"
    )


def _outputs(paths: tuple[Path, Path], source: Source, most: int, data: Data) -> Outputs:
    """Compute the outputs of both models for at most `most` images, prepared for evaluation."""
    onnxruntime: Any = require("onnxruntime", "quantize=int8")
    float_model, int8_model = (
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        for path in paths
    )
    offset_C11, divisor_C11 = normalisation(data.mean, data.std, data.pixel_range)
    layout = BatchLayout(BATCH, BATCH, rank=0, processes=1)
    rows = loaders.held_out_rows(source, most)
    parts = []
    for batch in loaders.evaluation_loader(source, data, layout, 0, rows):
        clipped = batch.image.float().clamp(*data.pixel_range)
        given = {"pixels": ((clipped - offset_C11) / divisor_C11).numpy()}
        # one by one, because the outputs of the int8 model depend on the batch
        singles = [int8_model.run(None, {"pixels": one[None]})[0] for one in given["pixels"]]
        outputs = float_model.run(None, given)[0], np.concatenate(singles)
        parts.append((*outputs, batch.label.numpy(), batch.content))
    return Outputs(*(torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True)))
