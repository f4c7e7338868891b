"""What environment.json says of the code."""

import pytest

from ssl_vit.runs import environment


def test_an_installed_package_has_no_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed in an environment inside a repository it recorded that repository's commit."""
    monkeypatch.setattr(environment, "INSTALLED", True)
    assert environment._revision() is None
