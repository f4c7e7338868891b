"""Write a folder of features in shards, and find the images nearest to queries.

FOLDER/  embed.json (encoder, settings, images, hashes)  SPLIT-00000-of-00005.parquet ...
         nearest.html (answers to the last queries)
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from ..data import check_pixels, fingerprints, run_splits, transforms
from ..data.batch_layout import BatchLayout
from ..data.batching import check_unreadable
from ..data.class_numbers import ClassList, shared_names
from ..data.loaders import evaluation_loader
from ..data.source import Source, without_lists
from ..data.workers import InterruptibleLoader
from ..errors import UserError
from ..evaluation import embedding
from ..evaluation.embedding import FeatureShard, Neighbor, TokenReader
from ..evaluation.features import ENCODER, check_finite, is_finite
from ..formatting import crop_text, feature_text, format_image_count, text_line
from ..models.encoder import Backbone, Encoder
from ..recipe.images import CROPPING, PIXEL_KEYS
from ..recipe.init_source import file_hash
from ..recipe.operation import Precision
from ..recipe.records import Record
from ..recipe.schema import Data
from ..recipe.tools import TOP, EmbedOptions
from ..runs.files import write_atomically
from ..runs.identity import Difference, differences, facts
from ..runs.output_folder import OutputFolder
from ..training.distributed import broadcast_from_main, on_main
from ..training.loop import autocast
from . import nearest_images, resources
from .encoders import NamedEncoder, named_split
from .nearest_images import ComparedImages, Query
from .session import Session

RECORD = "embed.json"
CHECKED = 8  # number of images whose features are checked before anything is written
OWN_NAMES = re.compile(
    rf"{re.escape(RECORD)}|{re.escape(nearest_images.PAGE)}|.+-\d{{5,}}-of-\d{{5,}}\.parquet"
)
# Keys of the recipe that features depend on. `FeatureFolder._settings` adds the model, the weights
# and further settings
SETTINGS = (
    *("probe.layer", "data.labels", "data.size", "compute.precision"),
    *CROPPING,
    *(f"data.{key}" for key in PIXEL_KEYS),
)


class Embedded(Record):
    """Content of embed.json.

    Attributes:
        encoder: Value of `init=` for the encoder, with the absolute path for local weights.
        label_names: Names of the classes, starting with label 0. Empty if there are no names.
        settings: {key: value} of everything that the features depend on, except the images.
        splits: {split: {"images": number of images, "data": fingerprint}}.
        shards: {name of the file: hash} of the shards written so far.
    """

    encoder: str | None = None
    label_names: list[str] = Field(default_factory=list)
    settings: dict[str, Any]
    splits: dict[str, Any]
    shards: dict[str, str] = Field(default_factory=dict)


@dataclass(eq=False, repr=False)
class FeatureFolder:
    """Folder of features that all processes write together.

    Attributes:
        options: Options of the tool.
        encoder: Encoder. `out` and `name` of its recipe give the folder.
        data: Data set of the images.
        session: Session of the processes.
    """

    options: EmbedOptions
    encoder: NamedEncoder
    data: Data
    session: Session

    def __post_init__(self) -> None:
        self.accelerator = self.session.accelerator
        self.recipe = self.encoder.recipe
        self.folder = Path(self.recipe.out) / self.recipe.name
        self.output = OutputFolder(self.folder, OWN_NAMES, RECORD, Embedded)

    def run(self) -> tuple[list[Path], list[Neighbor], str]:
        """Write the missing shards, each on a single process, then answer the queries.

        If the options set no precision, new features have the precision of the existing shards.

        Returns:
            The paths of the shards, the images nearest to each query, and the page with these
            images. Images and page are empty without a query, and on processes other than rank 0.

        Raises:
            UserError: The weights, the images or the folder are unsuitable, or too many images
                cannot be read.
        """
        accelerator = self.accelerator
        # Rank 0 reads the splits first, so that the other processes find the prepared files
        self.splits = on_main(accelerator, self._load_splits) or self._load_splits()
        paths, data = self.options.query or [], self.recipe.data
        # Read the queries before the work, so that an unreadable query costs no time
        queries = on_main(
            accelerator, lambda: [nearest_images.read_query(path, data) for path in paths]
        )
        self.session.hold(self.output.hold())
        network, weights_hash = self._network()
        patches = self.options.patches
        read = embedding.token_reader(network, self.encoder.pool, self.recipe.probe.layer, patches)
        # Compute a few features. If they are not finite, an error is raised before embed.json is
        # written. A few images are enough, because bad weights spoil the features of most images
        split, source = next(iter(self.splits.items()))
        self._content(split, np.arange(min(CHECKED, len(source))), read, workers=0)
        missing, precision = broadcast_from_main(accelerator, lambda: self._open(weights_hash))
        self.recipe.compute.precision = precision  # on all processes
        # Divide the missing shards: with 2 processes, rank 0 writes the first, third, ... of them
        for number in missing[accelerator.process_index :: accelerator.num_processes]:
            self._write(self.shards[number], read)
        accelerator.wait_for_everyone()
        on_main(accelerator, self._record_new_shards)
        nearest, page = self._answer(queries, read) if queries else ([], "")
        return [shard.file for shard in self.shards], nearest, page

    def _load_splits(self) -> dict[str, Source]:
        """Open the splits whose features are written: the splits in split=, or all with images.

        A shard has a single label for each image, so labels of a column of lists are dropped. On
        rank 0, print warnings about the images, and where the labels come from.

        Returns:
            {name of the split: images}.
        """
        opened = run_splits.open_for_testing(self.data)
        with_images = {name: source for name, source in opened.splits.items() if len(source)}
        requested = self.options.split or with_images
        names = [named_split(name, with_images) for name in requested]
        splits = {
            name: without_lists(with_images[name], f"the features of {name}") for name in names
        }
        if self.accelerator.is_main_process:
            self._describe_images(splits, opened.guesses)
        return splits

    def _describe_images(self, splits: dict[str, Source], guesses: Sequence[str]) -> None:
        """Print warnings about the images, and where the labels come from.

        Args:
            splits: {name of the split: images}.
            guesses: Warnings about how the data was read.
        """
        # The range of pixel values is the range that the encoder was trained with. So the warnings
        # must not advise to set data.range=
        warnings = check_pixels.check(splits, self.data, check_pixels.RANGE_OF_ENCODER)
        for warning in (*guesses, *warnings):
            print(f"warning: {text_line(warning)}", flush=True)
        first_split = next(iter(splits.values()))
        labels_text = run_splits.describe_labels(first_split, self.data)
        print(f"labels      {text_line(labels_text)}", flush=True)

    @cached_property
    def shards(self) -> list[FeatureShard]:
        """List all shards of the splits.

        Files are named as on the Hugging Face Hub. For example, the first of 5 shards of the split
        train is train-00000-of-00005.parquet.
        """
        rows = self.options.shard_rows
        shards = []
        for split, source in self.splits.items():
            num_shards = math.ceil(len(source) / rows)
            for number in range(num_shards):
                file = self.folder / f"{split}-{number:05d}-of-{num_shards:05d}.parquet"
                first = number * rows
                last = min(first + rows, len(source))
                shards.append(FeatureShard(split, first, last, file))
        return shards

    def _network(self) -> tuple[Backbone, str]:
        """Load the encoder, and set `self.encoder.pool`, the pooling of the encoder's tokens.

        For a network without tokens, such as a ResNet, `pool` is only a text for messages.

        Returns:
            The network on the device, and a hash of the weights.

        Raises:
            UserError: The weights are unsuitable, or the options ask for patches or a class token
                that the encoder does not have.
        """
        init, encoder = self.options.init, self.encoder
        network, weights_hash = encoder.load()
        if not isinstance(network, Encoder):
            encoder.pool = "its own pooling"
            if self.options.patches:
                raise UserError(
                    f"patches=true: the network of init={init} has no patches. Use patches=false."
                )
        elif network.has_class_token:
            encoder.pool = self.recipe.probe.pool or encoder.pool
        elif self.recipe.probe.pool == "token":
            raise UserError(
                f"probe.pool=token: the encoder of init={init} has no class token. "
                "Use probe.pool=avg."
            )
        else:
            encoder.pool = "avg"
        return network.to(self.accelerator.device), weights_hash

    def _open(self, weights_hash: str) -> tuple[list[int], Precision]:
        """Check that an existing embed.json describes the same features, and write embed.json.

        Only rank 0 calls this method. It also prints the encoder, the splits and how many shards
        exist.

        Args:
            weights_hash: Hash of the encoder's weights.

        Returns:
            The numbers of the missing shards, and the precision. The precision is the value in the
            options. If the options set none, it is the value in an existing embed.json, and for a
            new folder the value of the recipe.

        Raises:
            UserError: The folder holds features of other images, or features computed with other
                settings, or a shard was replaced by another file.
        """
        record = self.output.read()
        compute = self.recipe.compute
        if record and "compute.precision" not in self.options.unread.keys:
            compute.precision = record.settings.get("compute.precision", compute.precision)
        settings = self._settings(weights_hash)
        splits = {
            name: {"images": len(source), "data": fingerprints.fingerprint(source)}
            for name, source in self.splits.items()
        }
        class_lists = {name: ClassList.of(source) for name, source in self.splits.items()}
        recorded_shards = {}
        if record:
            recorded_facts = record.settings | facts("data", record.splits)
            for difference in differences(recorded_facts, settings | facts("data", splits)):
                self._raise_difference(difference)
            splits = record.splits | splits
            class_lists |= {str(self.folder): ClassList(record.label_names)}
            recorded_shards = record.shards
        missing = [number for number, shard in enumerate(self.shards) if not shard.file.exists()]
        names = [shard.file.name for shard in self.shards]
        unchanged_shards = self.output.check_unchanged(recorded_shards, names)
        self.output.write(
            Embedded(
                encoder=self.encoder.identity,
                label_names=shared_names(class_lists, self.recipe.data.location),
                settings=settings,
                splits=splits,
                shards=unchanged_shards,
            )
        )
        print(f"encoder     {self._describe()}")
        for name, source in self.splits.items():
            print(f"split       {name}: {format_image_count(len(source))}", flush=True)
        existing = len(self.shards) - len(missing)
        if existing:
            print(f"shards      {existing} of {len(self.shards)} exist already", flush=True)
        return missing, compute.precision

    def _settings(self, weights_hash: str) -> dict[str, Any]:
        """Return {key: value} of everything that the features depend on, except the images.

        The order matters: if several keys differ from an existing folder, the error names the
        first. Another data.size resizes the position embeddings, which changes the hash of the
        weights, so data.size comes before the hash.
        """
        values = self.recipe.values()
        model_keys = [key for key in values if key.startswith("model.") and key != "model.name"]
        return {
            **{key: values[key] for key in SETTINGS},
            "probe.pool": self.encoder.pool,
            "patches": self.options.patches,
            "rows": self.options.shard_rows,
            "init": weights_hash,
            **{key: values[key] for key in model_keys},
            # arguments of the architecture in timm for which there is no key model.*
            "model_args": self.encoder.source.feature_values().get("model_args"),
        }

    def _raise_difference(self, difference: Difference) -> None:
        """Raise a UserError that says how the features in the folder differ from the new features.

        Args:
            difference: Difference in the images of a split (`kind` is then "data"), in the weights
                (`key` is "init") or in another setting.
        """
        if difference.kind == "data":
            raise UserError(
                f"data={self.data.place}: {self.folder} holds features of other images of split "
                f"{difference.name}. Use another name=."
            )
        if difference.key == "init":
            raise UserError(
                f"init={self.options.init}: {self.folder} holds features of other weights. "
                "Use another name=."
            )
        wanted = json.dumps(difference.wanted).strip('"')
        recorded = json.dumps(difference.recorded).strip('"')
        raise UserError(
            f"{difference.key}={wanted}: {self.folder} holds features made with "
            f"{difference.key}={recorded}. Use another name=."
        )

    def _describe(self) -> str:
        """Describe the encoder and how the features are computed."""
        data = self.recipe.data
        network = f"{self.encoder.label}: {self.encoder.describe()}"
        crop = crop_text(data.eval_mode, data.eval_crop)
        feature = feature_text(self.encoder.pool, self.recipe.probe.layer)
        return f"{network}, {crop}; {feature}, computed in {self.recipe.compute.precision}"

    def _write(self, shard: FeatureShard, read: TokenReader) -> None:
        """Compute the features of a shard, and write the file atomically."""
        workers = resources.workers(self.recipe, self.accelerator)
        content = self._content(shard.split, np.arange(shard.first, shard.last), read, workers)
        write_atomically(shard.file, content)
        print(f"shard       {shard.file.name}: {len(content) / 1e6:.1f} MB", flush=True)

    def _content(self, split: str, rows: np.ndarray, read: TokenReader, workers: int) -> bytes:
        """Compute the features of some images of a split, on this process alone.

        Args:
            split: Name of the split.
            rows: Rows of the images in the split.
            read: Reader of features.
            workers: Number of data loading processes.

        Returns:
            The content of a parquet file with these features.

        Raises:
            NonFiniteError: Some of the features are not finite.
        """
        recipe, source = self.recipe, self.splits[split]
        size = resources.device_batch(recipe, self.accelerator)
        # Each process writes its own shards, so the rows are not divided among the processes
        batch_layout = BatchLayout(global_batch=size, device_batch=size, rank=0, processes=1)
        loader = evaluation_loader(source, recipe.data, batch_layout, workers, rows)
        with (
            autocast(recipe.compute.precision, self.accelerator),
            InterruptibleLoader(loader) as batches,
        ):
            watched_batches = self.accelerator.watch_loader(batches)
            return embedding.embed(read, watched_batches, source, self.accelerator.device)

    def _record_new_shards(self) -> None:
        """Record the hashes of new shards in embed.json, and print which images were left out.

        Raises:
            UserError: More images are unreadable than data.unreadable allows.
        """
        images, unreadable = self._read_summaries()
        record = self.output.read()
        assert record is not None
        files = [shard.file.name for shard in self.shards]
        new_files = [file for file in files if file not in record.shards]
        record.shards |= {file: file_hash(self.folder / file) or "" for file in new_files}
        self.output.write(record)
        for name in unreadable:
            print(f"warning: an image is left out: {text_line(name)}", flush=True)
        total = images + len(unreadable)
        check_unreadable(len(unreadable), total, self.recipe.data, unreadable)
        counts = f"{images:,} of {format_image_count(total)}"
        print(f"finished    features of {counts}: {self.folder}", flush=True)

    def _read_summaries(self) -> tuple[int, list[str]]:
        """Return the number of images in all shards, and the names of unreadable images."""
        summaries = [embedding.summary(shard.file) for shard in self.shards]
        unreadable = [name for _, names in summaries for name in names]
        return sum(images for images, _ in summaries), unreadable

    def _answer(self, queries: Sequence[Query], read: TokenReader) -> tuple[list[Neighbor], str]:
        """Find and show the images whose features are most similar to each query.

        The images are printed and written to nearest.html. A query's own file is left out.

        Args:
            queries: The query images.
            read: Reader of features.

        Returns:
            The nearest images of all queries, each with the name of its query, and the page.
        """
        top = self.options.top or TOP
        x_QD = np.stack([self._feature(query, read) for query in queries])
        # Find an additional image, because the query itself may be among the images. The similarity
        # of all pairs of images is shown for comparison
        found, pair_similarity = embedding.search(x_QD, self.shards, self.splits, top + 1)
        answers = [
            (query, nearest_images.without_query(query, neighbours, self.splits)[:top])
            for query, neighbours in zip(queries, found, strict=True)
        ]
        command = ""  # the command that repeats the search with untrained weights
        if not self.encoder.source.is_scratch:
            command = nearest_images.fresh_weights_command(self.options)
        num_images, _ = self._read_summaries()
        searched = ComparedImages(
            self.splits, num_images, self.recipe.data, pair_similarity, self._describe(), command
        )
        page = nearest_images.show(answers, searched, self.folder)
        return [neighbour for _, neighbours in answers for neighbour in neighbours], page

    def _feature(self, query: Query, read: TokenReader) -> np.ndarray:
        """Compute the feature (D,) of a query image, float32.

        Args:
            query: The query image.
            read: Reader of features.

        Raises:
            NonFiniteError: The feature is not finite.
        """
        data = self.recipe.data
        image_B3HW = transforms.eval_transform(
            [query.pixels_CHW], data.size, data.eval_mode, data.eval_crop
        )
        with torch.no_grad(), autocast(self.recipe.compute.precision, self.accelerator):
            x_BD, _ = read(image_B3HW.to(self.accelerator.device))
        check_finite(ENCODER, is_finite(x_BD))
        return x_BD[0].float().cpu().numpy()
