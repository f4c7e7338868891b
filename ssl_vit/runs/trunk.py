"""The run that another one goes on from at one of its steps: resume=RUN@STEP. No torch.

Before its decay nothing in a run of optim.schedule=wsd depends on its length. One that goes on from
another's checkpoint is therefore, to the bit, the run of its own length, and has that run's
identity; its training state and its result.json say where it began.
"""

from ..errors import UserError
from ..recipe.check import check_stable
from ..recipe.identity import computed_values, differences
from ..recipe.schema import Recipe
from .checkpoint_files import list_checkpoints, step_of

LENGTH = ("optim.steps", "optim.decay")


def check(recipe: Recipe, there: Recipe) -> None:
    """Check that the run `there` takes the same steps up to the one that a recipe begins at.

    Raises:
        UserError: it is of another recipe, or decays before it.
    """
    if differ := differences(computed_values(there), computed_values(recipe), LENGTH):
        text = f"is of another recipe: {', '.join(map(str, differ))}"
        raise recipe.error("resume", f"{text}; expected the same but for {' and '.join(LENGTH)}")
    check_stable(recipe, there)


def check_saved(recipe: Recipe, there: Recipe) -> None:
    """Check that the checkpoint that a recipe begins at is there.

    Raises:
        UserError: it is not; it names the keys that keep it.
    """
    trunk = recipe.trunk
    assert trunk is not None
    saved = [step_of(path) for path in list_checkpoints(trunk.folder / "checkpoints")]
    if trunk.step not in saved:
        keys = keeping(there, trunk.step)
        kept = f"; {keys} of that run would have kept it" if keys else ""
        text = f"expected a step of its checkpoints: {', '.join(map(str, saved)) or 'none'}"
        raise recipe.error("resume", text + kept)


def keeping(there: Recipe, step: int) -> str:
    """The options with which a run still has the checkpoint of a step when it has finished; empty
    where it has it as it is."""
    own, steps = there.checkpoint, there.optim.steps
    every = step if step % own.every else own.every
    keep = -(-steps // every) - step // every + 1  # the last step is saved too
    if every == own.every and keep <= own.keep:
        return ""
    return f"checkpoint.every={every} checkpoint.keep={max(keep, own.keep)}"
