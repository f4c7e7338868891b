"""What may follow a run: the callback interface, the rows it gets, and the signals that end a run. No torch here."""

import signal
from collections.abc import Callable, Iterable
from operator import methodcaller
from typing import Any

Row = dict[str, Any]


class Listener:
    """Told of each step, each row and each warning; not of the model. Every method may be left out."""

    def on_step(self, step: int) -> None: ...
    def on_row(self, row: Row) -> None: ...
    def on_warning(self, text: str) -> None: ...
    def close(self) -> None: ...


class Audience:
    """The listeners of a run. One that fails is dropped with a warning; training goes on."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self.listeners = list(listeners)

    def tell(self, tell: Callable[[Listener], None]) -> None:
        for listener in list(self.listeners):
            try:
                tell(listener)
            except Exception as error:
                self.listeners.remove(listener)
                self.warn(f"{type(listener).__name__} failed and is left out from here on: {error!r}")

    def warn(self, text: str) -> None:
        self.tell(methodcaller("on_warning", text))

    def close(self) -> None:
        self.tell(methodcaller("close"))


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
