"""Wrap an objective as a module of tensors, for a training loop of the user's own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from .. import rng
from ..data import augment
from ..data.batching import Batch
from ..data.loaders import MEASURED_KEY
from ..data.pixel_values import check_integers
from ..data.transforms import eval_transform
from ..errors import UserError
from ..models import weights
from ..models.encoder import Backbone
from ..recipe import check, declaration, given, load, recipe_files, schema
from ..recipe.given import Given
from ..recipe.images import PIXEL_KEYS
from ..recipe.schema import Recipe
from . import global_batch
from .base import Objective, Output, StepHooks
from .building import Settings, build_objective

VIEW_KEYS = ("data.crop_area", "data.flip")  # used for views only
NAMES = ("plugin", "seed", "target")


class ObjectiveOfTensors(nn.Module):
    """Objective that takes images as a tensor.

    Args:
        objective: The objective.
        recipe: Recipe with the options of the objective.
        steps: Number of optimiser steps of the whole training, or None if no step depends on it.

    Attributes:
        steps_done: Optimiser steps so far, which `follow` counts.
        calls: Calls without keys in training so far.
    """

    def __init__(self, objective: Objective, recipe: Recipe, steps: int | None) -> None:
        super().__init__()
        self.objective, self.recipe, self.steps = objective, recipe, steps
        self.steps_done = self.calls = 0
        self._hooks: list[RemovableHandle] = []
        _, averages = objective.averages(0.0)
        has_hooks = any(isinstance(module, StepHooks) for module in objective.modules())
        self._must_follow = bool(steps) or has_hooks or any(True for _ in averages)
        for p in objective.frozen_weights(0.0):
            p.register_post_accumulate_grad_hook(self._drop_gradient)

    @property
    def exported(self) -> Backbone:
        """The encoder to keep after training: the trained encoder or, for DINO, the teacher."""
        return self.objective.exported

    @property
    def progress(self) -> float:
        """Share of the training that is done, from 0 to 1."""
        return min(1.0, self.steps_done / self.steps) if self.steps else 0.0

    def forward(
        self, images: Tensor, label: Tensor | None = None, key: Tensor | None = None
    ) -> Output:
        """Return the loss and the metrics of a batch.

        Args:
            images: Integers (B, 3, H, W) or, for an objective that compares views, also the views
                (B, 2, 3, H, W).
            label: Labels, int64 (B,), for an objective that learns labels.
            key: Keys of the images, int64 (B,). None: in training other keys in each call, in
                evaluation the same keys in each call.

        Raises:
            UserError: `follow` or `label` is missing, or the number of images does not suit the
                objective.
            TypeError, ValueError: The images have another type or shape.
        """
        name = f"objective={self.recipe.objective}"
        if self.training and self._must_follow:
            if not self._hooks:
                raise UserError(
                    f"{name}: a teacher or a schedule moves with each step of the optimiser. Call"
                    " objective.follow(optimizer) before training."
                )
            self.objective.start_step(self.progress)
        if label is None:
            if schema.learns_labels(self.recipe):
                raise UserError(
                    f"{name}: the labels are missing. Use objective(images, label=...)."
                )
            label = torch.full((len(images),), -1)
        self._check_images(images)
        self.recipe.declared.check_pass(self.recipe, len(images))
        index_B = np.arange(len(images))
        if key is None and self.training:
            key = torch.from_numpy(
                rng.key(self.recipe.seed, global_batch.rank(), self.calls, index_B)
            )
            self.calls += 1
        elif key is None:  # a measurement, which must not change the training
            key = torch.from_numpy(rng.key(MEASURED_KEY, index_B))
        batch = Batch(images, label, torch.from_numpy(index_B), key)
        device = self.objective.encoder.mean.device
        output: Output = self.objective(self._with_views(batch).map(lambda x: x.to(device)))
        return output

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the objective in place, with the arguments of `torch.compile`.

        `torch.compile(objective)` fails, because it also traces the checks of the images.
        """
        self.objective.compile(*args, **kwargs)

    def follow(self, optimizer: Optimizer) -> None:
        """Let the teacher and the schedules move whenever the optimiser steps.

        They do not move in a step that a `GradScaler` skips because a gradient is not finite.

        Args:
            optimizer: The optimiser of all weights that are trained.

        Raises:
            UserError: The optimiser does not have all of these weights.
        """
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for weight, p in self.objective.named_parameters():
            if p.requires_grad and id(p) not in held:
                raise UserError(
                    f"follow: the optimiser does not have the weight {weight}. Give the optimiser"
                    " objective.parameters()."
                )
        for hook in self._hooks:
            hook.remove()
        self._hooks = [optimizer.register_step_post_hook(self._after_step)]

    def get_extra_state(self) -> dict[str, int]:
        """Return the counts, for the state_dict."""
        return {"steps_done": self.steps_done, "calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Restore the counts from a state_dict."""
        self.steps_done, self.calls = state["steps_done"], state["calls"]

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        # GradScaler calls a fused optimiser even if it skips the step, and says so in `found_inf`
        is_skipped = bool(getattr(optimizer, "found_inf", False))
        device = self.objective.encoder.mean.device
        self.objective.after_step(torch.tensor(is_skipped, device=device))
        if is_skipped:
            return
        self.steps_done += 1
        momentum, averages = self.objective.averages(self.progress)
        for average, p in averages:
            average.lerp_(p, 1 - momentum)

    def _drop_gradient(self, p: Tensor) -> None:
        """Drop the gradient of a weight that is frozen in this step, so that it does not move."""
        if any(p is frozen for frozen in self.objective.frozen_weights(self.progress)):
            p.grad = None

    def _check_images(self, images: Any) -> None:
        """Check the type and the shape of a batch of images.

        Raises:
            TypeError, ValueError: The type or the shape is wrong.
        """
        data = self.objective.encoder.data
        if isinstance(images, list | tuple):
            raise TypeError(
                f"the images are a {type(images).__name__}. If a batch has images and labels, pass"
                " only the images: objective(batch[0])."
            )
        check_integers(images, data)
        shape, image = (*images.shape,), (data.channels, data.size, data.size)
        if schema.compared_views(self.recipe) is None:  # otherwise, views of this size are cut
            if shape[1:] != image:
                wanted = ", ".join(map(str, image))
                raise ValueError(f"the images have shape {shape}. Use the shape (B, {wanted}).")
        elif images.ndim not in (4, 5) or shape[-3] != data.channels:
            raise ValueError(
                f"the images have shape {shape}. Use the shape (B, {data.channels}, H, W)."
            )

    def _with_views(self, batch: Batch) -> Batch:
        """Return the batch with views, if the objective compares views."""
        views, data = schema.compared_views(self.recipe), self.recipe.data
        if views is None:
            return batch
        images, key_B = batch.image, batch.key.cpu().numpy()
        local = whole = None
        if images.ndim == 5:
            if views.local:
                raise UserError(
                    f"views.local={views.local}: local views are cut from whole images. Give images"
                    " of shape (B, 3, H, W), or use views.local=0."
                )
        else:
            whole = list(images.cpu())
            images = augment.random_views(whole, key_B, data.size, data.crop_area, data.flip, views)
            if views.local:
                local = augment.local_views(whole, key_B, data.flip, views)
        image = images[:, 0]
        if whole and not self.training:  # as in the evaluation of a run
            image = eval_transform(whole, data.size, data.eval_mode, data.eval_crop)
        return batch._replace(image=image, views=images, local=local)


def build(
    name: str, encoder: Backbone, steps: int | None, classes: int, options: Mapping[str, Any]
) -> ObjectiveOfTensors:
    """Build an objective around an encoder (see `ssl_vit.objectives.build`).

    Raises:
        UserError: An option is wrong or missing.
    """
    if not isinstance(encoder, Backbone):
        kind = type(encoder).__name__
        raise UserError(f"encoder: expected an encoder of ssl_vit.load_encoder, not {kind}.")
    recipe = _resolve(name, encoder, given.from_python({}, options))
    if not recipe.trains:
        raise UserError(f"objective={name}: this objective trains nothing. Use another one.")
    scheduled = check.parts_with_schedules(recipe)
    if scheduled and not (isinstance(steps, int) and steps > 0):
        raise UserError(
            f"steps={steps}: with {scheduled[0]}, a step depends on the length of the training."
            " Give the number of optimiser steps of the whole training, such as steps=10000."
        )
    if schema.learns_labels(recipe) and classes < 1:
        raise UserError(f"classes={classes}: objective={name} learns labels. Use classes=10.")
    objective = build_objective(Settings.from_recipe(recipe), encoder, classes)
    for key, network in objective.teachers().items():
        weights.load_weights(network, recipe.sources()[key])
    objective.to(encoder.mean.device)
    return ObjectiveOfTensors(objective, recipe, steps if scheduled else None).train()


def _resolve(name: str, encoder: Backbone, user: Given) -> Recipe:
    """Return the checked recipe of an objective for an encoder.

    Args:
        name: Name of the objective.
        encoder: The encoder, which says the model and the pixels.
        user: The user's options.

    Raises:
        UserError: An option is unknown, wrong, or of no use here.
    """
    declared = declaration.objective(name)
    chosen = {key: value for key, value in user.values.items() if key != "recipe"}
    file = user.values.get("recipe", name if name in recipe_files.recipe_names() else None)
    values = recipe_files.file_values(recipe_files.find_recipe(file)) if file else {}
    values |= chosen
    used = {*NAMES, *declared.groups_with(str(values.get("target", schema.DEFAULT_TARGET)))}
    used |= {*VIEW_KEYS} if "views" in used else set()
    for key in chosen:
        if not used & {key, key.split(".")[0]} and key.split(".")[0] in Recipe.model_fields:
            raise UserError(f"{key}={user.text(key)}: only a run uses this key. Leave out {key}.")
    values = {key: values[key] for key in values if used & {key, key.split(".")[0]}}
    values |= {f"model.{key}": value for key, value in encoder.model}
    values |= {f"data.{key}": getattr(encoder.data, key) for key in ("size", *PIXEL_KEYS)}
    values["objective"] = name
    texts = {key: user.text(key) for key in chosen}
    recipe = schema.build(values, typed=texts)
    if networks := load.describe_networks(recipe, chosen):
        recipe = schema.build(values | networks, typed=texts)
    check.check_used(recipe, user)
    check.check(recipe)
    return recipe
