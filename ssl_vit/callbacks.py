"""Define the Callback interface, and the signals that stop a run. No torch."""

import signal
from collections.abc import Callable, Iterable
from operator import methodcaller
from typing import Any

Row = dict[str, Any]


class Callback:
    """Base class of objects that are notified of each step, row of metrics, note and warning.

    A callback has no access to the model.
    """

    def on_step(self, step: int) -> None: ...
    def on_row(self, row: Row) -> None: ...
    def on_note(self, text: str) -> None: ...
    def on_warning(self, text: str) -> None: ...
    def close(self) -> None: ...

    def __str__(self) -> str:  # warnings name the callback by this text
        return type(self).__name__


class Callbacks:
    """List of a run's callbacks.

    A callback that raises an exception is removed with a warning, and training goes on.
    """

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = list(callbacks)

    def notify(self, notify: Callable[[Callback], None]) -> None:
        """Call a function with each callback. If a call fails, remove the callback."""
        for callback in list(self.callbacks):
            try:
                notify(callback)
            except Exception as error:
                # Remove the callback first, because `warn` notifies all callbacks in the list
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
