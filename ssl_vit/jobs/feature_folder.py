"""A folder of features: which encoder and images they are of, its shards, and the images nearest to
queries.

FOLDER/  embed.json (encoder, settings, images, hashes)  SPLIT-00000-of-00005.parquet ...
         nearest.html (of the last queries)
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import torch
from pydantic import AfterValidator, Field

from ..data import fingerprints, transforms
from ..data.batch_layout import BatchLayout
from ..data.batching import Unreadable, check_unreadable
from ..data.loaders import evaluation_loader
from ..data.source import Source
from ..data.workers import InterruptibleLoader
from ..errors import UserError
from ..evaluation import embedding
from ..evaluation.embedding import FeatureShard, Neighbor, TokenReader
from ..formatting import count_of_images, crop_text, text_line
from ..models import weights
from ..models.encoder import Backbone, Encoder, build_backbone
from ..recipe.identity import Difference, differences, facts
from ..recipe.operation import Precision
from ..recipe.records import Record, Whole
from ..recipe.tools import TOP, EmbedOptions
from ..runs import output_folder
from ..runs.files import write_atomically
from ..runs.output_folder import OutputFolder
from ..training.distributed import broadcast_from_main, on_main
from ..training.loop import autocast
from . import nearest_images, resources
from .encoders import NamedEncoder
from .nearest_images import Gathered, Query
from .session import Session

RECORD = "embed.json"
OWN = re.compile(
    rf"{re.escape(RECORD)}|{re.escape(nearest_images.PAGE)}|.+-\d{{5,}}-of-\d{{5,}}\.parquet"
)
PRECISIONS = ("float32", "bfloat16")  # what compute.precision=auto becomes
# Settings that every version has recorded
FIRST = ("init", "patches", "rows", "data.size", "compute.precision")
LARGEST_LIST = 2**31 - 1  # numbers of a shard's column: Arrow's lists have offsets of 32 bits


def _of_features(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings that have what every version has recorded, and a precision that was computed in."""
    if lacking := [key for key in FIRST if key not in settings]:
        raise ValueError(f"expected {', '.join(lacking)}")
    if settings["compute.precision"] not in PRECISIONS:
        raise ValueError(f"compute.precision: expected one of {', '.join(PRECISIONS)}")
    return settings


class Embedded(Record):
    """embed.json."""

    settings: Annotated[dict[str, Any], AfterValidator(_of_features)]
    splits: dict[str, Any]
    encoder: str | None = None
    width: Whole | None = None
    patches: list[Whole] | None = None
    shards: dict[str, str] = Field(default_factory=dict)  # {name: hash}


@dataclass(eq=False, repr=False)
class FeatureFolder:
    """One folder of features, written by all processes."""

    options: EmbedOptions
    one: NamedEncoder
    session: Session

    def __post_init__(self) -> None:
        self.accelerator = self.session.accelerator
        self.recipe = self.one.recipe
        self.folder = Path(self.one.recipe.out) / self.one.recipe.name
        self.output = OutputFolder("name", self.folder, OWN, RECORD, Embedded)

    def run(self, splits: dict[str, Source]) -> tuple[list[Path], list[Neighbor]]:
        """Write the shards that are missing, each on one process; answer the queries.

        Returns:
            The shards, and the images nearest to each query; none without one, and on other
            processes than rank 0.

        Raises:
            UserError: the weights or the folder do not suit, or too many images cannot be read.
        """
        recipe = self.recipe
        texts = self.options.query or []
        # before the work, not after it
        queries = on_main(
            self.accelerator,
            lambda: [nearest_images.read_query(text, recipe.data) for text in texts],
        )
        self.session.hold(self.output.hold())
        network, weights_hash = self._network()
        on_main(self.accelerator, lambda: self._check(network))
        read = embedding.token_reader(
            network, self.one.pool, recipe.probe.layer, self.options.patches
        )
        shards = [shard for name, source in splits.items() for shard in self._cut(name, source)]
        precision, missing = broadcast_from_main(
            self.accelerator, lambda: self._open(splits, shards, network, weights_hash)
        )
        recipe.compute.precision = cast(Precision, precision)
        done = len(shards) - len(missing)
        if self.accelerator.is_main_process and done:
            print(f"shards      {done} of {len(shards)} are there already", flush=True)
        for number in missing[self.accelerator.process_index :: self.accelerator.num_processes]:
            self._write(shards[number], splits[shards[number].split], read)
        self.accelerator.wait_for_everyone()
        on_main(self.accelerator, lambda: self._conclude(shards))
        nearest = []
        if queries:
            nearest = self._answer(queries, shards, splits, read)
        return [shard.file for shard in shards], nearest

    def _network(self) -> tuple[Backbone, str]:
        """The encoder on the device, and a hash of its weights."""
        torch.manual_seed(self.recipe.seed)
        network = build_backbone(self.recipe.model, self.recipe.data, class_token=False)
        digest = weights.fingerprint(network.backbone.state_dict())
        if not self.one.source.is_scratch:
            digest = weights.load_weights(network, self.one.source)
        if not isinstance(network, Encoder):
            self.one.pool = "its own pooling"
        elif self.recipe.probe.pool:
            self.one.pool = self.recipe.probe.pool
        elif not network.has_class_token:
            self.one.pool = "avg"
        return network.to(self.accelerator.device).eval(), digest

    def _check(self, network: Backbone) -> None:
        """Check that the encoder has what is wanted of it.

        Raises:
            UserError: it has no patches or no class token; or a shard would be too large.
        """
        options = self.options
        if not isinstance(network, Encoder):
            if options.patches:
                text = f"init={options.init} is convolutional and has no patches"
                raise UserError(f"patches=true: {text}")
            return
        if self.one.pool == "token" and not network.has_class_token:
            text = f"init={options.init} has no class token; expected avg"
            raise UserError(f"probe.pool=token: {text}")
        most = LARGEST_LIST // (network.patches * network.width)
        if options.patches and options.shard_rows > most:
            text = f"expected at most {most:,}, of {network.patches} patches each"
            raise UserError(f"rows={options.shard_rows}: {text}")

    def _open(
        self,
        splits: Mapping[str, Source],
        shards: Sequence[FeatureShard],
        network: Backbone,
        weights_hash: str,
    ) -> tuple[str, list[int]]:
        """Write embed.json, or check that it and the shards describe these features; print what is
        done.

        Returns:
            The precision (where the options give none, that of the folder), and the numbers of the
            shards that are missing.

        Raises:
            UserError: the folder holds other features, of which it names the key, or another file
                is in a shard's place.
        """
        there = self.output.read()
        if there and "compute.precision" not in self.options.overrides:
            self.recipe.compute.precision = there.settings["compute.precision"]
        settings = self._settings(weights_hash)
        made = {
            name: {"images": len(source), "data": fingerprints.fingerprint(source)}
            for name, source in splits.items()
        }
        if there:
            was = settings | there.settings  # earlier versions recorded fewer
            for one in differences(
                was | facts("data", there.splits), settings | facts("data", made)
            ):
                self._refuse(one)
            made = there.splits | made
        missing = [number for number, shard in enumerate(shards) if not shard.file.exists()]
        recorded = there.shards if there else {}
        kept = self.output.intact(recorded, [shard.file.name for shard in shards])
        for shard in shards:
            if shard.file.exists() and shard.file.name not in kept:
                _check_rows(shard, splits[shard.split])
        self.output.write(
            Embedded(
                encoder=self.one.identity,
                width=network.width,
                patches=list(getattr(network, "grid", ())) or None,
                settings=settings,
                splits=made,
                shards=kept,
            )
        )
        self._print_banner(splits)
        return self.recipe.compute.precision, missing

    def _settings(self, weights_hash: str) -> dict[str, Any]:
        data = self.recipe.data
        model = self.recipe.model.model_dump()
        crop = data.eval_crop if data.eval_mode == "crop" else None
        return {
            "probe.pool": self.one.pool,
            "probe.layer": self.recipe.probe.layer,
            "patches": self.options.patches,
            "rows": self.options.shard_rows,
            "data.labels": data.labels,
            "data.size": data.size,
            "data.eval_mode": data.eval_mode,
            "data.eval_crop": crop,
            "data.channels": data.channels,
            "data.range": data.range,
            "data.mean": list(data.mean),
            "data.std": list(data.std),
            "compute.precision": self.recipe.compute.precision,
            # after data.size, to another of which positions are resized
            "init": weights_hash,
            **{f"model.{key}": value for key, value in model.items() if key != "name"},
            "model_args": self.one.source.feature_values().get("model_args"),
        }

    def _refuse(self, one: Difference) -> None:
        """Raises UserError: the folder's features have another value of a key, or other images."""
        if one.kind:
            place = self.recipe.data.path or self.recipe.data.hub or self.recipe.data.name
            text = f"{self.folder} holds features of other images in its split {one.name}"
            text = f"data={place}: {text}"
        elif one.key == "init":
            text = f"init={self.options.init}: {self.folder} holds features of other weights"
        else:
            here, was = (json.dumps(value).strip('"') for value in (one.here, one.there))
            text = f"{one.key}={here}: {self.folder} holds features of {one.key}={was}"
        raise UserError(f"{text}; give another name=")

    def _print_banner(self, splits: Mapping[str, Source]) -> None:
        data = self.recipe.data
        cut = crop_text(data.eval_mode, data.eval_crop)
        feature = self._describe_feature()
        print(f"encoder     {self.one.label}: {self.one.describe()}, {cut}; {feature}")
        for name, source in splits.items():
            print(f"split       {name}: {count_of_images(len(source))}", flush=True)

    def _describe_feature(self) -> str:
        layer = self.recipe.probe.layer
        where = f"after block {layer}" if layer else "after the final norm"
        pooled = {"token": "class token", "avg": "mean of the patches"}
        precision = self.recipe.compute.precision
        return f"{pooled.get(self.one.pool, self.one.pool)}, {where}, computed in {precision}"

    def _cut(self, split: str, source: Source) -> Iterator[FeatureShard]:
        """The shards of a split, with the Hub's names."""

        rows = self.options.shard_rows
        count = math.ceil(len(source) / rows)
        for number in range(count):
            name = f"{split}-{number:05d}-of-{count:05d}.parquet"
            last = min((number + 1) * rows, len(source))
            yield FeatureShard(split, number * rows, last, self.folder / name)

    def _write(self, shard: FeatureShard, source: Source, read: TokenReader) -> None:
        """Compute a shard's features, and write its file whole or not at all."""
        recipe = self.recipe
        rows = np.arange(shard.first, shard.last)
        size = resources.device_batch(recipe, self.accelerator)
        workers = resources.workers(recipe, self.accelerator)
        alone = BatchLayout(size, size, 0, 1)
        loader = evaluation_loader(source, recipe.data, alone, workers, rows, Unreadable.LEFT_OUT)
        cast = autocast(recipe.compute.precision, self.accelerator)
        with cast, InterruptibleLoader(loader) as batches:
            watched = self.accelerator.watch_loader(batches)
            made = embedding.embed(read, watched, source, self.accelerator.device)
        content = embedding.encode(made, source.classes)
        write_atomically(shard.file, content)
        count = f"{count_of_images(len(made.index))}, {len(content) / 1e6:.1f} MB"
        print(f"shard       {shard.file.name}: {count}", flush=True)

    def _conclude(self, shards: Sequence[FeatureShard]) -> None:
        """Record the hashes of new shards; name the images without features, and print where the
        others are.

        Raises:
            UserError: a file is damaged, or more images than data.unreadable cannot be read.
        """

        images = 0
        unreadable: list[str] = []
        for shard in shards:
            try:
                count, texts = embedding.summary(shard.file)
            except (OSError, ValueError, KeyError) as error:
                raise _damaged(shard, error) from None
            images += count
            unreadable += texts
        record = self.output.read()
        assert record is not None
        new = [one.file.name for one in shards if one.file.name not in record.shards]
        record.shards |= output_folder.hashes(self.folder, new)
        self.output.write(record)
        for text in unreadable:
            print(f"warning: left out: {text_line(text)}", flush=True)
        total = images + len(unreadable)
        last = unreadable[-1] if unreadable else ""
        check_unreadable(len(unreadable), total, self.recipe.data, last)
        print(f"finished    features of {images:,} of {total:,} images: {self.folder}", flush=True)

    def _answer(
        self,
        queries: Sequence[Query],
        shards: Sequence[FeatureShard],
        splits: Mapping[str, Source],
        read: TokenReader,
    ) -> list[Neighbor]:
        """Show the images whose features are most similar to each query's, and return them.

        Raises:
            UserError: their page cannot be written.
        """
        data, top = self.recipe.data, self.options.top or TOP
        x_QD = np.stack([self._feature(query, read) for query in queries])
        found, pairs = embedding.search(x_QD, shards, top + 1)  # the query may be among them
        nearest = [
            nearest_images.without_query(query, own, splits)[:top]
            for query, own in zip(queries, found, strict=True)
        ]
        about = f"{self.one.label}: {self.one.describe()}; {self._describe_feature()}"
        command = "" if self.one.source.is_scratch else nearest_images.comparison(self.options)
        among = Gathered(splits, data, pairs, about, command)
        try:
            nearest_images.show(list(zip(queries, nearest, strict=True)), among, self.folder)
        except OSError as error:
            raise UserError(f"name={self.folder.name}: {self.folder}: {error.strerror}") from None
        return [one for own in nearest for one in own]

    def _feature(self, query: Query, read: TokenReader) -> np.ndarray:
        """The feature (D,) of a query."""
        data = self.recipe.data
        image_B3HW = transforms.eval_transform(
            [query.pixels_CHW], data.size, data.eval_mode, data.eval_crop
        )
        with torch.no_grad(), autocast(self.recipe.compute.precision, self.accelerator):
            x_BD, _ = read(image_B3HW.to(self.accelerator.device))
        return x_BD[0].float().cpu().numpy()


def _check_rows(shard: FeatureShard, source: Source) -> None:
    """Check that a file has a shard's rows, where a start was cut off before its hash was recorded.

    Raises:
        UserError: it has others.
    """
    try:
        found = embedding.decode(shard.file)
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(shard, error) from None
    rows = found.index.tolist()
    whole = len(rows) + len(found.unreadable) == shard.last - shard.first
    within = all(shard.first <= row < shard.last for row in rows)
    # earlier versions wrote the names of shares and of images without labels as in warnings
    named = any(found.file == [name(row) for row in rows] for name in (source.file_of, source.name))
    if not (whole and within and named):
        text = f"has other rows than {shard.first:,} to {shard.last - 1:,} of {shard.split}"
        raise UserError(f"{shard.file} {text}; remove it, and give the command again")


def _damaged(shard: FeatureShard, error: Exception) -> UserError:
    text = " ".join(str(error).split())[:200]
    return UserError(f"{shard.file} is damaged; remove it: {text}")
