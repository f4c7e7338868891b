"""Choose the network and the image size of a study by what the hours can answer on this machine."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ....costs import compute_network_cost
from ....errors import UserError
from ....recipe.keys import Values
from ....recipe.words import write_all
from ....runs.environment import cores
from ..local import usable_gpus
from ..options import RELEASED
from ..task_options import resolve_options
from .plan import RunSeconds, RunSpeed, hours_needed, smallest_size, steps_of, too_few_hours
from .study_setup import StudyImages, StudySetup, build_setup

MODELS = ("vit_s16", "vit_ti16", "vit_ti8", "vit_n8", "vit_p8")
SIZES = (224, 128, 64, 32)
PATCHES = range(16, 257)  # patches per image: with fewer patches, a masked image shows too little
ROOM = 2  # a default network is chosen only if its smallest study fits into the hours twice
MEASURED = 3  # most networks to time
LIMIT = 15.0  # seconds after which no further network is timed
# Assumed before anything is timed: multiply-adds per second of one thread, and seconds of a run
# without its steps. The guesses only order the networks. Every proposed network is timed.
GUESSED_RATE, GUESSED_REST = 2e10, 10.0
TRAINING = 3  # cost of a forward and a backward pass, in forward passes
# options that decide the architecture of a network or its input
NETWORK_KEYS = ("data.size", "data.channels", "data.range", "data", "plugin", "init")

Calibrate = Callable[[StudySetup], RunSpeed]


class Network(NamedTuple):
    """Network at an image size.

    Attributes:
        options: Options that choose the network. Empty if the user or the recipe has chosen it.
        work: Multiply-adds of the forward pass of one image.
    """

    options: tuple[tuple[str, Any], ...]
    work: float

    @property
    def words(self) -> str:
        """Options as arguments of a command line."""
        return " ".join(write_all(dict(self.options)))

    @property
    def text(self) -> str:
        """Network and image size in words."""
        options = dict(self.options)
        parts = [options["model"]] if "model" in options else []
        if "data.size" in options:
            parts.append(f"{options['data.size']} px")
        return " at ".join(parts)


class NetworkChoice(NamedTuple):
    """Choice of a network: the setup with the network, the speed of the runs, and the reason."""

    setup: StudySetup
    speed: RunSpeed
    reason: str


def is_fixed(given: Mapping[str, Any], key: str) -> bool:
    """Return whether the user's options fix `key`, which is `model` or `data.size`.

    For example, the options `model.depth` and `init` both fix `model`.
    """
    if "init" in given:
        return True
    return any(name == key or name.startswith(f"{key}.") for name in given)


def networks(given: Values, side: int, ignore_given: bool = False) -> list[Network]:
    """Return the possible networks at the possible image sizes, the largest first.

    Args:
        given: Options of the user. A network or an image size that the user sets does not change.
        side: Shorter side of the images in pixels. No image is enlarged.
        ignore_given: Whether to ignore the network and the image size that the user sets.
    """
    # None means the image size or the model that the user sets
    sizes: Sequence[int | None] = [size for size in SIZES if size <= side] or [SIZES[-1]]
    models: Sequence[str | None] = MODELS
    if not ignore_given and is_fixed(given, "data.size"):
        sizes = [None]
    if not ignore_given and is_fixed(given, "model"):
        models = [None]
    choices = []
    for size in sizes:
        for model in models:
            named = (("model", model), ("data.size", size))
            options = tuple((key, value) for key, value in named if value is not None)
            work = count_work(given, options)
            if work is not None:
                choices.append(Network(options, work))
    return sorted(choices, key=lambda network: -network.work)


def count_work(given: Values, options: Sequence[tuple[str, Any]]) -> float | None:
    """Count the multiply-adds of an image's forward pass, or return None if patches do not fit.

    Args:
        given: Options of the user.
        options: Options that choose the network and the image size.

    Returns:
        Multiply-adds of the encoder. None if the patches do not divide the image size, or if
            `options` choose a network with fewer than 16 or more than 256 patches per image.
    """
    # the user's options that decide the network and its input
    network_options = {
        key: given[key] for key in given if key in NETWORK_KEYS or key.startswith("model")
    }
    if any(key == "model" for key, _ in options):  # `options` replace the user's network
        network_options = {
            key: network_options[key]
            for key in network_options
            if not key.startswith(("model", "init"))
        }
    try:
        recipe = resolve_options(
            {"recipe": "evaluate"} | network_options | dict(options), "", check_images=False
        )
    except UserError:  # the patches do not divide the size
        return None
    # a network that the user or the recipe chooses may have any number of patches
    if options and not recipe.model.convolutional and recipe.patches not in PATCHES:
        return None
    # `features`: multiply-adds of the encoder, from the image to its features
    return float(compute_network_cost(recipe).features or 0)


def choose(
    given: Values,
    images: StudyImages,
    hours: float,
    calibrate: Calibrate,
    clock: Callable[[], float] = time.perf_counter,
) -> NetworkChoice:
    """Choose the largest network and image size whose smallest study fits into the hours.

    A network or an image size that the user sets does not change. The smallest study should fit
    into the hours twice, which leaves time for a larger study.

    There is an exception with a GPU, if the user sets neither network nor image size. Then the
    recipe's own network comes first, followed by smaller networks, and the smallest study need fit
    only once.

    A few networks are timed. The speed of every other network is estimated from its work
    (multiply-adds per image).

    Args:
        given: Options of the user.
        images: Images of the study.
        hours: Hours that the study may take.
        calibrate: Function that times the runs of a study.
        clock: Function that returns seconds.

    Raises:
        UserError: The hours are too few for the network.
    """
    choices, room = networks(given, images.side), ROOM
    default = Network((), count_work(given, ()) or 0.0)
    if usable_gpus() and not is_fixed(given, "model") and not is_fixed(given, "data.size"):
        recipe = build_setup(given, images).recipe
        network_options = [("model", recipe.model.name), ("data.size", recipe.data.size)]
        default = default._replace(work=count_work({}, network_options) or 0.0)
        choices = [default, *(network for network in choices if network.work < default.work)]
        room = 1
    search = _Search(given, images, hours, calibrate, clock)
    chosen = search.largest(choices or [default], room)
    setup, speed = search.timed[chosen]
    if search.needed(chosen) <= hours:
        return NetworkChoice(setup, speed, _reason(search, chosen, choices))
    error = too_few_hours(setup, hours, speed)
    smaller = [
        network
        for network in networks(given, images.side, ignore_given=True)
        if network.work < chosen.work
    ]
    if smaller and "init" not in given:
        alternative = search.largest(smaller, 1)
        if search.needed(alternative) <= hours:
            raise UserError(
                f"{error} Or use a smaller network that fits into {hours:g} hours:"
                f" {alternative.words}."
            )
    raise UserError(error)


def _reason(search: "_Search", chosen: Network, choices: Sequence[Network]) -> str:
    """Return a line with the chosen network and the reason for the choice.

    For example, "network     vit_p8 at 64 px: the network of model= and data.size=".

    Args:
        search: Search that has chosen the network.
        chosen: The chosen network.
        choices: All networks to choose from, the largest first.
    """
    setup, _ = search.timed[chosen]
    fixed = [f"{key}=" for key in ("model", "data.size") if is_fixed(search.given, key)]
    if "init" in search.given:
        return f"network     {setup.network}: the network of init="
    # A network without options is not chosen by this search. The user has set model and image size,
    # or else the network is the network of the recipe.
    if not chosen.options:
        source = " and ".join(fixed) if fixed else f"recipe={setup.objective}"
        return f"network     {setup.network}: the network of {source}"
    kind = "GPU" if usable_gpus() else "CPU"
    condition = f", with {fixed[0]} as you have set it" if fixed else ""
    larger = ""
    if choices[0] != chosen:
        needed = search.needed(choices[0])
        larger = f" ({choices[0].text} would need about {needed:.2g} hours)"
    return (
        f"network     {setup.network}: the largest network for {search.hours:g} hours on this"
        f" {kind}{condition}{larger}"
    )


class _Search:
    """Search that times networks until the largest network that fits is known.

    Attributes:
        timed: `{network: (setup of the study, speed of the runs)}`.
    """

    def __init__(
        self,
        given: Values,
        images: StudyImages,
        hours: float,
        calibrate: Calibrate,
        clock: Callable[[], float],
    ) -> None:
        self.given, self.images, self.hours = given, images, hours
        self.calibrate, self.clock, self.began = calibrate, clock, clock()
        self.timed: dict[Network, tuple[StudySetup, RunSpeed]] = {}
        self.guess: tuple[Network, StudySetup, RunSpeed] | None = None

    def largest(self, choices: Sequence[Network], room: float) -> Network:
        """Return the largest network whose smallest study fits `room` times into the hours.

        1. Estimate for each network the hours of its smallest study, from the networks timed so
           far, and choose the largest network that fits. If none fits, choose the smallest.
        2. If the chosen network has been timed, return it.
        3. Otherwise time it, and repeat.

        After `MEASURED` networks or `LIMIT` seconds, no further network is timed. Then the result
        is the largest timed network whose smallest study fits into the hours once. If no timed
        network fits, the result is the smallest timed network.

        Args:
            choices: Networks, the largest first.
            room: Number of times that the smallest study must fit into the hours. 2 leaves half of
                the hours for a larger study.
        """
        while True:
            fits = (network for network in choices if room * self.needed(network) <= self.hours)
            chosen = next(fits, choices[-1])
            if chosen in self.timed:
                return chosen
            timed = [network for network in choices if network in self.timed]
            may_time_more = len(self.timed) < MEASURED and self.clock() - self.began <= LIMIT
            if timed and not may_time_more:
                fits = (network for network in timed if self.needed(network) <= self.hours)
                return next(fits, timed[-1])
            setup = self.setup(chosen)
            self.timed[chosen] = setup, self.calibrate(setup)

    def setup(self, network: Network) -> StudySetup:
        """Return the setup of the study with a network."""
        given = self.given
        if any(key == "model" for key, _ in network.options):  # replaces the user's network
            given = {key: given[key] for key in given if not key.startswith("model")}
        return build_setup(given | dict(network.options), self.images)

    def needed(self, network: Network) -> float:
        """Return the hours of the smallest study with a network.

        The speed of a network that has not been timed is estimated from the timed network with the
        most similar work (multiply-adds per image). If no network has been timed, the speed is
        guessed.
        """
        if network in self.timed:
            return hours_needed(*self.timed[network])
        if self.timed:
            nearest = min(self.timed, key=lambda timed: abs(timed.work - network.work))
            setup, speed = self.timed[nearest]
        else:
            if self.guess is None:
                self.guess = self._guess(network)
            nearest, setup, speed = self.guess
        ratio = network.work / nearest.work if nearest.work else 1.0
        # a released encoder has its own network, so the time of its steps stays the same
        clocks = {
            kind: clock if kind.endswith(RELEASED) else clock._replace(step=clock.step * ratio)
            for kind, clock in speed.clocks.items()
        }
        return hours_needed(setup, speed._replace(clocks=clocks))

    def _guess(self, network: Network) -> tuple[Network, StudySetup, RunSpeed]:
        """Guess how fast the runs of a network are, before anything is timed.

        Returns:
            The network, the setup of its study, and the guessed speed: the same seconds for every
                kind of run, with one run at a time.
        """
        setup = self.setup(network)
        # a step is the forward and backward pass of a batch
        work = TRAINING * network.work * setup.recipe.optim.batch
        clock = RunSeconds(step=work / (GUESSED_RATE * cores()), rest=GUESSED_REST)
        kinds = steps_of(setup, smallest_size(setup))
        return network, setup, RunSpeed(dict.fromkeys(kinds, clock), parallel=1)
