"""What a run will cost."""

import pytest

from ssl_vit.lab.plan import plan

LARGE = ["model.width=4096", "model.depth=48", "model.heads=32", "model.mlp=16384", "device=t4"]


@pytest.mark.parametrize(("recipe", "of_images"), [("evaluate", False), ("mpp", True)])
def test_an_encoder_that_no_device_holds_has_a_warning(recipe: str, of_images: bool) -> None:
    """A ZeroDivisionError of an evaluation, which keeps no activations of an image."""
    (text,) = plan([f"recipe={recipe}", *LARGE]).warnings  # type: ignore[union-attr]
    assert ("image" in text) == of_images and text.endswith("try ZeRO with more processes=")
