"""What several test files share. No test is in here, and no test file imports another."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    *(f"helpers.{path.stem}" for path in Path(__file__).parent.glob("[a-z]*.py"))
)
