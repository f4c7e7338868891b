"""What a call refuses, in the one line that a user reads."""

from collections.abc import Callable
from typing import Any

import pytest

import ssl_vit


def refusal(call: Callable[..., Any], *given: Any, **options: Any) -> str:
    """Return the line with which a call is refused."""
    with pytest.raises(ssl_vit.UserError) as caught:
        call(*given, **options)
    line = str(caught.value)
    assert "\n" not in line
    return line
