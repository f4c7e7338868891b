"""Find initial weights (`init=`) and read what the files next to them say. This module does not
import torch.

The weights themselves are read in models/weights.py.
"""

import hashlib
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .. import hub_files
from ..errors import UserError
from . import export_files, parsing, timm_models
from .images import PIXEL_KEYS
from .keys import Values
from .model import TRANSFORMERS
from .names import PLAIN_NAME
from .records import require
from .records.run import Result

SCRATCH = "scratch"
TIMM = "timm:"
# sources whose files, or timm, describe the model
DESCRIBED = "a run's folder, an export's folder, timm:NAME, hf-hub:USER/NAME"
CHOICES = f"choices: scratch, {DESCRIBED}, a Google .npz file"
COSTS = ("exaflop", "device_hours")
# Shell command that converts weights from torch's format to safetensors. Append the paths of the
# input file and the output file.
CONVERT = (
    'python -c "import sys, torch, safetensors.torch as s; weights = torch.load(sys.argv[1],'
    " weights_only=True, map_location='cpu'); s.save_file(weights, sys.argv[2])\""
)


class LocalWeights(NamedTuple):
    """Folders on this machine that hold weights.

    Attributes:
        export: Folder of the export; None for a .npz file.
        run: Folder of the run that made the export; None if no run made it.
    """

    export: Path | None = None
    run: Path | None = None


@dataclass(frozen=True)
class InitSource:
    """Source of trained or random weights, such as the value of `init=`.

    Files are looked up only when a method needs them. A run that resumes from a checkpoint needs no
    initial weights, so the files may have been deleted.

    Attributes:
        place: Value of the option: scratch, timm:NAME, hf-hub:USER/NAME, a file or a folder.
        key: Dotted key of the option, such as `init` or `distill.teacher`.
    """

    place: str
    key: str = "init"

    @property
    def option(self) -> str:
        """Option as the user types it, such as `init=runs/mpp`, used as the start of errors."""
        return f"{self.key}={self.place}"

    @property
    def kind(self) -> str:
        """Key without the group, such as `teacher`, which names the weights in environment.json."""
        return self.key.rpartition(".")[2]

    @property
    def is_scratch(self) -> bool:
        return self.place == SCRATCH

    @property
    def is_timm(self) -> bool:
        return self.place.startswith(TIMM)

    @property
    def is_on_hub(self) -> bool:
        return self.place.startswith(hub_files.SCHEME)

    @property
    def is_local(self) -> bool:
        """Return whether the weights are a file or folder on this machine."""
        return not (self.is_scratch or self.is_timm or self.is_on_hub)

    @property
    def public_name(self) -> str:
        """Place without private information.

        For a local path, this is only the last part: `mpp` for /home/me/runs/mpp.
        """
        return Path(self.place).name if self.is_local else self.place

    @property
    def short_name(self) -> str:
        """Return a short name of the weights, for the default name of a run.

        For example, `mpp` for init=runs/mpp and init=runs/mpp/export, and `vit_tiny_patch16_224`
        for init=timm:vit_tiny_patch16_224.
        """
        path = Path(self.place.split(":")[-1])
        if path.name == "export" and path.parent.name:
            return path.parent.name
        return path.name

    @property
    def timm_name(self) -> str:
        return self.place.removeprefix(TIMM)

    @property
    def network_key(self) -> str:
        """Key of the recipe whose value describes the network of these weights.

        - `distill.teacher` gives `distill.network`, whose value comes from `network_values`.
        - `init` gives an empty string, because the group `model` describes the network of `init`.
        """
        group = self.key.rpartition(".")[0]
        return f"{group}.network" if group else ""

    def locate(self) -> LocalWeights:
        """Check that the place can hold weights, and return the folders of local weights.

        For example, `runs/mpp` gives LocalWeights(export=runs/mpp/export, run=runs/mpp). Weights of
        timm and on the Hub are not looked up: the result is LocalWeights(None, None), also for
        scratch.

        Raises:
            UserError: The place does not exist, the folder is a run that has not finished, the
                folder holds no encoder, or the text after timm: is not the name of a model.
        """
        prefix = self.option
        if self.is_timm and not PLAIN_NAME.fullmatch(self.timm_name):
            raise UserError(
                f"{prefix}: expected the name of a model after timm:. For a repository on the Hub,"
                f" use hf-hub:USER/NAME{self._folder_hint}"
            )
        if not self.is_local:
            return LocalWeights()
        path = parsing.parse_path(self.place, self.key)
        if path.suffix == ".npz" and path.is_file():
            return LocalWeights()
        if not path.is_dir():
            raise UserError(f"{prefix}: no such folder or file, {CHOICES}")
        if (path / "recipe.yaml").exists():
            return LocalWeights(self._export_of_run(path), path)
        if (path / "config.json").exists() and (path / "model.safetensors").exists():
            has_run = (path.parent / "recipe.yaml").exists()
            return LocalWeights(path, path.parent if has_run else None)
        if (path / "config.json").exists() and (path / "pytorch_model.bin").exists():
            files = (path / name for name in ("pytorch_model.bin", "model.safetensors"))
            command = " ".join([CONVERT, *(shlex.quote(str(file)) for file in files)])
            text = "pytorch_model.bin cannot be read safely. Convert the file with this command:"
            raise UserError(f"{prefix}: {text} {command}")
        raise UserError(
            f"{prefix}: the folder is neither a run (recipe.yaml) nor an export (config.json and"
            f" model.safetensors), {CHOICES}"
        )

    def _export_of_run(self, run: Path) -> Path:
        """Return the folder of a run's export.

        Raises:
            UserError: The run has no export.
        """
        export = run / "export"
        if (export / "config.json").exists():
            return export
        if (run / "result.json").exists():
            text = (
                "this run measured an encoder and trained none. Use the encoder that it measured,"
                " which is the value of init"
            )
            raise UserError(f"{self.option}: {text} in {run / 'recipe.yaml'}.")
        again = f"To resume the run, start the same tool with recipe={run / 'recipe.yaml'}"
        raise UserError(f"{self.option}: this run has not finished and has no export. {again}.")

    def fetch_export(self, *names: str) -> Path | None:
        """Return the folder of the export, or None for scratch, timm:NAME and .npz files.

        An export on the Hub is downloaded.

        Args:
            names: Names of the files to download.

        Raises:
            UserError: The Hub has no such repository or revision, the export is no encoder that can
                be loaded, or local weights do not exist or are unfinished (`locate`).
        """
        prefix = self.option
        folder = self.locate().export
        if self.is_on_hub:
            folder = hub_files.fetch(self.place, prefix, names)
        if folder is None:
            return None
        if not (folder / "config.json").exists():
            raise UserError(f"{prefix}: the repository has no config.json and so no encoder.")
        try:
            config = export_files.read(folder)
            reason = export_files.unsupported(config)
        except Exception as error:  # any error that a foreign file can cause
            raise UserError(f"{prefix}: config.json cannot be read: {error!r}") from None
        if reason:
            raise UserError(f"{prefix}: config.json says {reason}.")
        return folder

    def read_description(self, model: bool = True) -> Values:
        """Return what is known about the weights without reading them, as {dotted key: value}.

        The values describe the model (`model.width`), the normalisation (`data.mean`), and how an
        evaluation resizes and crops (`data.eval_crop`).

        - timm:NAME: timm describes the weights.
        - A run: recipe.yaml describes the model, and config.json of the export the rest.
        - An export: config.json and preprocessor_config.json describe the weights. If config.json
          lacks the sizes, timm builds the network to find them.
        - Scratch and .npz files: the result is empty.

        Args:
            model: Whether timm may build the network to describe the model. This imports torch. Use
                False if the user names the model.

        Raises:
            UserError: The weights do not exist, the files cannot be read, or timm cannot build the
                network as a Vision Transformer that this package can train.
        """
        model_values: Values = {}
        if self.is_timm:
            cfg = self._published()
            data_values = {"mean": [*cfg.mean], "std": [*cfg.std]}
            data_values |= export_files.eval_crop_of_timm(vars(cfg))
            data_values = {f"data.{key}": value for key, value in data_values.items()}
        else:
            folder = self.fetch_export("config.json", "preprocessor_config.json")
            if folder is None:
                return {}
            run = self.locate().run
            with self._readable():
                data_values = export_files.preprocessing_values(folder)
                if run is not None:
                    model_values = parsing.load_yaml(run / "recipe.yaml")["model"]
                    model_values.pop("train", None)  # another run need not train the same part
                else:
                    model_values = export_files.model_values(export_files.read(folder))
        if model and not model_values:
            model_values = self._built_by_timm().values
        return {f"model.{key}": value for key, value in model_values.items()} | data_values

    def network_values(self) -> Values:
        """Return all values that are needed to build the network, for example of a teacher.

        Returns:
            {key: value} with the keys of `model` (`model.width`), the pixel format and the
            normalisation (`data.channels`, `data.mean`), `pool` (see `pooling`) and, for an export,
            `eps` of the layer norms.

        Raises:
            UserError: The source is scratch, nothing describes the network, or the description
                cannot be read.
        """
        described = {} if self.is_scratch else self.read_description()
        if "model.width" not in described:
            text = "nothing says which network these weights belong to. Choose from"
            raise UserError(f"{self.option}: {text}: {DESCRIBED}.")
        keys = [f"data.{key}" for key in PIXEL_KEYS]
        values = {
            key: value
            for key, value in described.items()
            if key in keys or key.startswith("model.")
        }
        values["pool"] = self.pooling()
        if folder := self.fetch_export("config.json"):
            values["eps"] = export_files.norm_eps(export_files.read(folder))
        return values

    def _published(self) -> Any:
        """Return timm's PretrainedCfg for timm:NAME, or raise a UserError if timm has none."""
        self.locate()
        try:
            return timm_models.published(self.timm_name)
        except ValueError as error:
            raise UserError(f"{self.option}: {error}{self._folder_hint}") from None

    @property
    def _folder_hint(self) -> str:
        """End of errors about timm:NAME.

        If NAME is a folder on this machine, the user probably meant the folder, and the hint says
        how to name it. Otherwise the hint is empty.
        """
        name = self.timm_name
        return f" (for the folder {name}, use {self.key}={name})" if Path(name).is_dir() else ""

    def _built_by_timm(self) -> timm_models.TimmDescription:
        """Build the network of weights in timm's format, and return a description.

        For an export, the architecture and the arguments for timm come from config.json. For
        timm:NAME, NAME is the architecture, and there are no arguments.

        Raises:
            UserError: The network is no Vision Transformer or Eva that can be an encoder.
        """
        # vit_tiny_patch16_224.augreg is the architecture vit_tiny_patch16_224 and a tag
        name = self.timm_name.partition(".")[0]
        args: Values = {}
        if not self.is_timm and (folder := self.fetch_export("config.json")):
            config = export_files.read(folder)
            name, args = config["architecture"], config.get("model_args") or {}
        try:
            return timm_models.describe(name, args)
        except (ValueError, UserError) as error:
            # For other networks, such as a ResNet, model= can name the network. For a Vision
            # Transformer such as vit_*, model= would not help.
            hint = ". To name the network yourself, use model="
            if name.startswith(TRANSFORMERS):
                hint = ""
            raise UserError(f"{self.option}: {error}{hint}") from None

    def feature_values(self) -> dict[str, Any]:
        """Return the values, besides weights and recipe, that change the features of an encoder.

        Returns:
            {name: value}, such as {"pool": "token", "architecture": ..., "model_args": {...}}. For
            a run, the options that choose the feature for the classifier are added
            (`supervised.pool`, `supervised.hidden`). Empty for weights without config.json.

        Raises:
            UserError: The weights do not exist, or their files cannot be read.
        """
        folder = self.fetch_export("config.json")
        if folder is None:
            return {}
        run = self.locate().run
        with self._readable():
            values = {"pool": self.pooling()} | export_files.feature_values(folder)
            if run is not None:
                supervised = parsing.load_yaml(run / "recipe.yaml").get("supervised") or {}
                values |= {f"supervised.{key}": supervised.get(key) for key in ("pool", "hidden")}
            return values

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn errors from config.json or recipe.yaml into a UserError of one line."""
        try:
            yield
        except Exception as error:  # any error that a foreign file can cause
            raise UserError(
                f"{self.option}: config.json or recipe.yaml cannot be read: {error!r}"
            ) from None

    def images(self) -> Values:
        """Return the group `data` of the run that made the weights, as {dotted key: value}.

        Return an empty dictionary if no run made the weights, or if the run's folder is unknown.

        Raises:
            UserError: The run's recipe.yaml cannot be read or names no images, or the weights do
                not exist.
        """
        run = self.locate().run
        if run is None:
            return {}
        data = parsing.load_yaml(run / "recipe.yaml").get("data")
        if not isinstance(data, dict):
            text = f"{run / 'recipe.yaml'} does not name the images of the run. Use data.path="
            raise UserError(f"{self.option}: {text}.")
        return {f"data.{key}": value for key, value in data.items()}

    def pooling(self) -> str:
        """Return how the network pools tokens into a feature.

        - "avg" (the mean of the patch tokens): if the folder of the weights, or timm, says so.
        - "token" (the class token): otherwise, and also for networks without tokens.
        """
        folder = self.fetch_export("config.json")
        if self.is_timm or (folder and export_files.is_timm_format(export_files.read(folder))):
            with suppress(UserError):  # raised if the network is no Vision Transformer
                return self._built_by_timm().pool
        return "token" if folder is None else export_files.read_pooling(folder)

    def image_size(self) -> int | None:
        """Return the side in pixels of the training images of the weights, or None if unknown.

        Raises:
            UserError: The weights do not exist, or their files cannot be read.
        """
        if self.is_timm:
            return int(self._published().input_size[-1])
        folder = self.fetch_export("config.json", "preprocessor_config.json")
        return None if folder is None else export_files.read_image_size(folder)

    def weights_hash(self) -> str | None:
        """Return a hash of the file of local weights.

        Return None if the weights are not on this machine, or no longer exist.
        """
        if not self.is_local:
            return None
        try:
            export = self.locate().export
        except UserError:
            return None
        return file_hash(Path(self.place) if export is None else export / "model.safetensors")

    def identity(self) -> dict[str, Any]:
        """Return the identity of local weights for environment.json, to detect later changes.

        Returns:
            For example {"file": hash, "heads": hash, "pool": "token", ...}: hashes of the files of
            weights, and the `feature_values`. Empty if the weights are not on this machine, or no
            longer exist.

        Raises:
            UserError: config.json or recipe.yaml next to the weights cannot be read.
        """
        weights_hash = self.weights_hash()
        if weights_hash is None:
            return {}
        hashes = {"file": weights_hash}
        export = self.locate().export
        heads_hash = None if export is None else file_hash(export / "heads.safetensors")
        if heads_hash:
            hashes["heads"] = heads_hash
        return hashes | self.feature_values()

    def upstream_cost(self) -> dict[str, float | None]:
        """Return the cost of the run that made the weights, and of all runs before it.

        Returns:
            {"exaflop": ..., "device_hours": ...}. Both are 0 if no run made the weights, or if the
            run has no result.json. exaflop is None if operations were not counted.

        Raises:
            UserError: The run's result.json is damaged, or the weights do not exist.
        """
        run = self.locate().run
        if run is None or not (run / "result.json").exists():
            return dict.fromkeys(COSTS, 0.0)
        path = run / "result.json"
        result = require(path, Result, f"restore this file of {self.option}")
        if not result.has(*(f"total_{key}" for key in COSTS)):
            text = f"{path} does not say what this run cost (total_exaflop, total_device_hours)"
            raise UserError(f"{self.option}: {text}. Restore this file.")
        return {key: result[f"total_{key}"] for key in COSTS}


def file_hash(path: Path) -> str | None:
    """Return a hash of a file's content (16 hexadecimal digits of the SHA-256).

    Return None if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return None
