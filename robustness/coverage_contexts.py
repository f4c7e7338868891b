"""A plugin of pytest: coverage's context is the test that runs, in the processes that it starts
too. `coverage run --rcfile=FILE -m pytest -p robustness.coverage_contexts --outcomes=FILE`.

What a fixture of a module or of the session runs belongs to no single test: its context is the
fixture, and --outcomes=FILE says which tests use it: {"tests": {test: [outcome, seconds]},
"fixtures": {context: [tests]}}.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

CONFIG = "COVERAGE_PROCESS_CONFIG"  # environment variable that coverage starts with in a process
FIXTURE = "fixture "


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", help="file for the tests' outcomes and seconds, as JSON")


@contextlib.contextmanager
def measured_as(context: str) -> Iterator[None]:
    """Lines of this process and of those that it starts or forks belong to `context`."""
    cov = coverage.Coverage.current()
    if cov is None:
        yield
        return
    before = cov.switch_context(context)
    outer = cov.config.context
    cov.config.context = context  # of a fork
    os.environ[CONFIG] = cov.config.serialize()
    try:
        yield
    finally:
        cov.switch_context(before or "")
        cov.config.context = outer
        os.environ[CONFIG] = cov.config.serialize()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    item.user_properties.append(("fixtures", shared_fixtures(item)))
    with measured_as(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Any:
    if fixturedef.scope == "function":
        return (yield)
    with measured_as(context_of(fixturedef)):
        return (yield)


def context_of(fixture: Any) -> str:
    return f"{FIXTURE}{fixture.baseid}::{fixture.argname}"


def shared_fixtures(item: pytest.Item) -> list[str]:
    """Contexts of the fixtures that a test shares with others."""
    known = getattr(item, "_fixtureinfo", None)
    every = [one for defs in known.name2fixturedefs.values() for one in defs] if known else []
    return [context_of(one) for one in every if one.scope != "function"]


class Outcomes:
    """Collects, in the process that reports, what every test came to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, list[Any]] = {}
        self.fixtures: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome, seconds = self.tests.get(report.nodeid, ["passed", 0.0])
        if report.outcome != "passed":
            outcome = report.outcome
        self.tests[report.nodeid] = [outcome, round(seconds + report.duration, 3)]
        if report.when == "teardown":
            for context in dict(report.user_properties).get("fixtures", ()):
                self.fixtures.setdefault(context, []).append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps({"tests": self.tests, "fixtures": self.fixtures}))


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(path)))
