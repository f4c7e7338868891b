"""Define the Callback interface, and the signals that stop a run. No torch."""

import signal
from collections.abc import Callable, Iterable
from operator import methodcaller
from typing import Any

Row = dict[str, Any]


class Callback:
    """Base class of objects that are called at each step, metrics row, note and warning.

    A callback never gets the model.
    """

    def on_step(self, step: int) -> None: ...
    def on_row(self, row: Row) -> None: ...
    def on_note(self, text: str) -> None: ...
    def on_warning(self, text: str) -> None: ...
    def close(self) -> None: ...

    def __str__(self) -> str:  # in warnings
        return type(self).__name__


class Callbacks:
    """Callbacks of a run.

    A callback that raises is removed with a warning, and training goes on.
    """

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = list(callbacks)

    def notify(self, notify: Callable[[Callback], None]) -> None:
        for callback in list(self.callbacks):
            try:
                notify(callback)
            except Exception as error:
                # Remove the callback before the warning, which it would get, too
                self.callbacks.remove(callback)
                self.warn(f"{callback} failed and is no longer used: {error!r}")

    def add(self, callback: Callback) -> None:
        self.callbacks.append(callback)

    def note(self, text: str) -> None:
        self.notify(methodcaller("on_note", text))

    def warn(self, text: str) -> None:
        self.notify(methodcaller("on_warning", text))

    def close(self) -> None:
        self.notify(methodcaller("close"))


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
