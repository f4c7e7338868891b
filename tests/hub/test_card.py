"""What a model card says of the images that were held out."""

import pytest

from ssl_vit.hub import card
from ssl_vit.runs.folder import Run


@pytest.mark.parametrize(
    ("validation", "held_out"),
    [(None, "A part"), (0.1, "A part"), (0, "Nothing"), ("val", "Split `val`")],
)
def test_what_was_held_out_is_said(run: Run, validation: object, held_out: str) -> None:
    """ "Nothing" of a run that measured on held-out images, as data.validation=null does."""
    run.recipe.data.validation = validation  # type: ignore[assignment]
    text = f". {held_out} was held out for evaluation during training."
    assert text in card.write(run, run.export)
