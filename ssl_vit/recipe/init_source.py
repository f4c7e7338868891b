"""init=: where initial weights come from. No torch here; models/weights.py reads them."""

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
DESCRIBED = "a run's folder, an export's folder, timm:NAME, hf-hub:USER/NAME"  # their own models
CHOICES = f"choices: scratch, {DESCRIBED}, a Google .npz file"
COSTS = ("exaflop", "device_hours")
# A shell's command; two paths follow
CONVERT = (
    'python -c "import sys, torch, safetensors.torch as s;'
    " s.save_file(torch.load(sys.argv[1], weights_only=True, map_location='cpu'), sys.argv[2])\""
)


class LocalWeights(NamedTuple):
    """Where weights lie on this machine: the export's folder, None for a .npz file; and the folder
    of the run that made the export, None where no run did."""

    export: Path | None = None
    run: Path | None = None


@dataclass(frozen=True)
class InitSource:
    """Weights as `init=` names them: scratch, timm:NAME, hf-hub:USER/NAME, a file or a folder.

    Attributes:
        place: that name.
        key: the key of the recipe whose value it is.

    Files are looked up when a method needs them, not before: a run that resumes from a checkpoint
    needs its initial weights no more, and they may be gone.
    """

    place: str
    key: str = "init"

    @property
    def option(self) -> str:
        """As it is given; opens errors."""
        return f"{self.key}={self.place}"

    @property
    def kind(self) -> str:
        """Of its facts (recipe/identity.py): the key without its group."""
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
        """Whether it is a file or folder of this machine."""
        return not (self.is_scratch or self.is_timm or self.is_on_hub)

    @property
    def public_name(self) -> str:
        """The place without what is private: of a local path, the last name alone."""
        return Path(self.place).name if self.is_local else self.place

    @property
    def short_name(self) -> str:
        """The weights in the default name of a run: the last part of the place, or of an export's
        folder the run."""
        path = Path(self.place.split(":")[-1])
        return path.parent.name if path.name == "export" and path.parent.name else path.name

    @property
    def timm_name(self) -> str:
        return self.place.removeprefix(TIMM)

    @property
    def network_key(self) -> str:
        """The key that gets `network_values`; empty of init, whose the recipe's model is."""
        group = self.key.rpartition(".")[0]
        return group and f"{group}.network"

    def locate(self) -> LocalWeights:
        """Check the place, and that there are weights if it is local.

        Raises:
            UserError: there is nothing; the folder is a run that has not finished, or holds no
                encoder; or the text after timm: is no model's name.
        """
        prefix = self.option
        if self.is_timm and not PLAIN_NAME.fullmatch(self.timm_name):
            raise UserError(
                f"{prefix}: expected a model's name after timm:; for a repository type"
                f" hf-hub:USER/NAME{self._folder_hint}"
            )
        if not self.is_local:
            return LocalWeights()
        path = parsing.parse_path(self.place, self.key)
        if path.suffix == ".npz" and path.is_file():
            return LocalWeights()
        if not path.is_dir():
            raise UserError(f"{prefix}: no such folder or file; {CHOICES}")
        if (path / "recipe.yaml").exists():
            return LocalWeights(self._export_of_run(path), path)
        if (path / "config.json").exists() and (path / "model.safetensors").exists():
            has_run = (path.parent / "recipe.yaml").exists()
            return LocalWeights(path, path.parent if has_run else None)
        if (path / "config.json").exists() and (path / "pytorch_model.bin").exists():
            files = (path / name for name in ("pytorch_model.bin", "model.safetensors"))
            command = " ".join([CONVERT, *(shlex.quote(str(file)) for file in files)])
            raise UserError(f"{prefix}: pytorch_model.bin is not read; convert it: {command}")
        raise UserError(
            f"{prefix}: expected a run (recipe.yaml) or an export (config.json, model.safetensors);"
            f" {CHOICES}"
        )

    def _export_of_run(self, run: Path) -> Path:
        export = run / "export"
        if (export / "config.json").exists():
            return export
        if (run / "result.json").exists():
            text = "measured an encoder and made none; give the init= of its recipe.yaml"
            raise UserError(f"{self.option}: that run {text}")
        again = f"its command, or its tool with recipe={run / 'recipe.yaml'}, resumes it"
        raise UserError(f"{self.option}: that run has not finished: it has no export yet; {again}")

    def fetch_export(self, *names: str) -> Path | None:
        """The folder of the export; of one on the Hub, those files of it are downloaded. None for
        scratch, timm: and .npz files.

        Raises:
            UserError: the Hub has no such repository or revision, or it holds no encoder that can
                be loaded; as `locate`.
        """
        prefix = self.option
        folder = self.locate().export
        if self.is_on_hub:
            folder = hub_files.fetch(self.place, prefix, names)
        if folder is None:
            return None
        if not (folder / "config.json").exists():
            raise UserError(f"{prefix}: the repository is no encoder: it has no config.json")
        try:
            config = export_files.read(folder)
            reason = export_files.unsupported(config)
        except Exception as error:  # whatever a file written by others causes
            raise UserError(f"{prefix}: its config.json cannot be read: {error!r}") from None
        if reason:
            raise UserError(f"{prefix}: its config.json says {reason}")
        return folder

    def described_values(self, model: bool = True) -> Values:
        """{dotted key: value} of the model that the weights were made with, their normalisation and
        their evaluation's resizing and cropping, as far as their folder or timm says.

        Args:
            model: whether the model of weights in timm's format is asked for.

        Raises:
            UserError: its files cannot be read, or name no Vision Transformer of timm that this
                package can train; as `fetch_export`.
        """
        of_model: Values = {}
        if self.is_timm:
            cfg = self._published()
            found = {"mean": [*cfg.mean], "std": [*cfg.std]}
            found |= export_files.of_pretrained_cfg(vars(cfg))
            found = {f"data.{key}": value for key, value in found.items()}
        else:
            folder = self.fetch_export("config.json", "preprocessor_config.json")
            if folder is None:
                return {}
            run = self.locate().run
            with self._readable():
                found = export_files.preprocessing_values(folder)
                if run is not None:
                    of_model = parsing.load_yaml(run / "recipe.yaml")["model"]
                else:
                    of_model = export_files.model_values(export_files.read(folder))
        if model and not of_model:
            of_model = self._built_by_timm().values
        return {f"model.{key}": value for key, value in of_model.items()} | found

    def network_values(self) -> Values:
        """What a network is built from before its weights are read: `described_values` of the model
        and the pixels, `pool` as `pooling`, and `eps` of its layer norms where a config.json says
        it.

        Raises:
            UserError: it is scratch, or nothing says what it is; as `described_values`.
        """
        found = {} if self.is_scratch else self.described_values()
        if "model.width" not in found:
            raise UserError(f"{self.option}: expected trained weights that say what they are of")
        keys = [f"data.{key}" for key in PIXEL_KEYS]
        values = {key: one for key, one in found.items() if key in keys or key[:6] == "model."}
        values["pool"] = self.pooling()
        if folder := self.fetch_export("config.json"):
            values["eps"] = export_files.norm_eps(export_files.read(folder))
        return values

    def _published(self) -> Any:
        """What timm knows of the weights of timm:NAME; a UserError where it has none."""
        self.locate()
        try:
            return timm_models.published(self.timm_name)
        except ValueError as error:
            raise UserError(f"{self.option}: {error}{self._folder_hint}") from None

    @property
    def _folder_hint(self) -> str:
        """Ends errors of a timm:NAME that is a folder's."""
        name = self.timm_name
        return f"; a folder of this machine is {self.key}={name}" if Path(name).is_dir() else ""

    def _built_by_timm(self) -> timm_models.Described:
        """The network that weights in timm's format are of.

        Raises:
            UserError: it is no Vision Transformer or Eva that an encoder can be.
        """
        name, args = self.timm_name.partition(".")[0], Values()
        if not self.is_timm and (folder := self.fetch_export("config.json")):
            config = export_files.read(folder)
            name, args = config["architecture"], config.get("model_args") or {}
        try:
            return timm_models.describe(name, args)
        except (ValueError, UserError) as error:
            hint = "" if name.startswith(TRANSFORMERS) else "; or say what it is with model="
            raise UserError(f"{self.option}: {error}{hint}") from None

    def feature_values(self) -> dict[str, Any]:
        """{name: value} of what decides a feature beside the weights and the keys of a recipe, as
        far as their folder says: what an image's feature is and the arguments of the architecture;
        of a run the feature that its head reads.

        Raises:
            UserError: as `described_values`.
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
        """Turn errors of the files that describe the weights into one line."""
        try:
            yield
        except Exception as error:  # whatever a file written by others causes
            raise UserError(
                f"{self.option}: its config.json or recipe.yaml cannot be read: {error!r}"
            ) from None

    def images(self) -> Values:
        """{dotted key: value} of the `data` that the run was made with whose weights these are;
        empty where no run's folder is at hand.

        Raises:
            UserError: its recipe.yaml cannot be read; as `locate`.
        """
        run = self.locate().run
        if run is None:
            return {}
        data = parsing.load_yaml(run / "recipe.yaml").get("data")
        if not isinstance(data, dict):
            raise UserError(f"{self.option}: {run / 'recipe.yaml'} does not say its data")
        return {f"data.{key}": value for key, value in data.items()}

    def pooling(self) -> str:
        """What the weights' network gives as an image's feature: "avg" (the mean of the patches)
        where its folder or timm says so, else "token"."""
        folder = self.fetch_export("config.json")
        if self.is_timm or (folder and export_files.is_timms(export_files.read(folder))):
            with suppress(UserError):  # of a network without patches
                return self._built_by_timm().pool
        return "token" if folder is None else export_files.pooling(folder)

    def image_size(self) -> int | None:
        """The side in pixels of the images that the weights were made for; None where that is not
        known.

        Raises:
            UserError: as `described_values`.
        """
        if self.is_timm:
            return int(self._published().input_size[-1])
        folder = self.fetch_export("config.json", "preprocessor_config.json")
        return None if folder is None else export_files.image_size(folder)

    def weights_hash(self) -> str | None:
        """A hash of the file of local weights; None of other places, and where it is gone."""
        if not self.is_local:
            return None
        try:
            export = self.locate().export
        except UserError:
            return None
        return file_hash(Path(self.place) if export is None else export / "model.safetensors")

    def identity(self) -> dict[str, Any]:
        """What environment.json records of local weights, to notice a change of what they give:
        hashes of their files, and `feature_values`. Empty for other places, and where they are
        gone.

        Raises:
            UserError: as `feature_values`.
        """
        file = self.weights_hash()
        if file is None:
            return {}
        export = self.locate().export
        heads = None if export is None else file_hash(export / "heads.safetensors")
        return {"file": file} | ({"heads": heads} if heads else {}) | self.feature_values()

    def upstream_cost(self) -> dict[str, float | None]:
        """What the run that made the weights took, with what its own initial weights took: exaflop
        and device_hours, 0 if unknown; exaflop is None where they were not counted.

        Raises:
            UserError: its result.json is damaged; as `locate`.
        """
        run = self.locate().run
        if run is None or not (run / "result.json").exists():
            return dict.fromkeys(COSTS, 0.0)
        path = run / "result.json"
        result = require(path, Result, f"it belongs to {self.option}")
        if not result.has(*(f"total_{key}" for key in COSTS)):
            raise UserError(f"{self.option}: {path} is damaged")
        return {key: result[f"total_{key}"] for key in COSTS}


def file_hash(path: Path) -> str | None:
    """A hash of a file's content; None where there is no file that can be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return None
