"""Flat names of metrics and the keys that they stand for."""

import json
from itertools import product

import pytest

from helpers.options import ROOT
from ssl_vit.measurements import (
    PATCHES,
    SHARE,
    SUBSTITUTES,
    Baseline,
    Metric,
    MetricKey,
    all_baselines,
    all_metrics,
    find_baseline,
    find_metric,
    flat_name,
    read_flat_name,
    use_plugin_rows,
)
from ssl_vit.metrics import MEASURES, compared_with
from ssl_vit.recipe import declaration

BY_HAND = {
    "loss": MetricKey("loss"),
    "validation/loss": MetricKey("loss", is_held_out=True),
    "accuracy_masked": MetricKey("accuracy", patches="masked"),
    "validation/mpp/loss_kept": MetricKey("loss", part="mpp", patches="kept", is_held_out=True),
    "validation/mpp/entropy": MetricKey("loss", "entropy", "mpp", "masked", is_held_out=True),
    "neighbors": MetricKey("accuracy", "neighbors", patches="masked"),
    "commonest": MetricKey("accuracy", "commonest", patches="masked"),
    "commonest_knn": MetricKey("knn", "commonest_class"),
    "majority": MetricKey("accuracy", "majority"),
    "majority_top1": MetricKey("top1", "majority_top1"),
    "knn": MetricKey("knn"),
    "probe/knn": MetricKey("knn", is_probe=True, is_held_out=True),
    "probe/fresh_few_shot_5": MetricKey("few_shot_5", "untrained", "", "", True, True),
    "probe_few_shot_5": MetricKey("few_shot_5", is_probe=True),
    "fresh_probe_knn": MetricKey("knn", "untrained", is_probe=True),
    "start_probe_linear": MetricKey("linear", "initial", is_probe=True),
    "pixels_knn": MetricKey("knn", "pixels"),
    "features/effective_rank": MetricKey("effective_rank", part="features"),
    "pixel_accuracy": MetricKey("pixel_accuracy"),
    "masked": MetricKey("masked"),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_flat_name_is_read_and_written(name: str) -> None:
    assert read_flat_name(name) == BY_HAND[name]
    assert flat_name(BY_HAND[name]) == name


def declared_names() -> set[str]:
    """The names that objectives, targets and probes of the package may measure."""
    declaration.objectives()
    names = {metric.name.replace("*", "5") for metric in all_metrics()}
    names |= {baseline.name for baseline in all_baselines()}
    names |= {f"{metric}_{kind}" for metric, kind in product(("loss", "accuracy"), PATCHES)}
    probes = {name.replace("*", "5") for one in MEASURES.values() for name in one.metrics}
    for subject, is_probe in product(("", *SUBSTITUTES), (False, True)):
        names |= {flat_name(MetricKey(one, subject, is_probe=is_probe)) for one in probes}
    return names


def test_every_declared_name_is_read_and_written() -> None:
    names = declared_names()
    names |= {f"{part}/{name}" for part, name in product(declaration.objectives(), names)}
    held_out = {f"validation/{name}" for name in names if "probe_" not in name}
    held_out |= {f"probe/{name}" for name in names if "probe_" not in name}
    keys = {name: read_flat_name(name) for name in names | held_out}
    assert {name: flat_name(key) for name, key in keys.items()} == {name: name for name in keys}
    assert len({*keys.values()}) == len(keys)


def names_in(content: object) -> set[str]:
    """The keys of all objects in a JSON file that have a value or a curve."""
    if isinstance(content, list):
        return set().union(*map(names_in, content))
    if not isinstance(content, dict):
        return set()
    return {*content}.union(*map(names_in, content.values()))


@pytest.mark.parametrize("folder", ["results", "tests/golden", "tests/freeze"])
def test_every_recorded_name_is_read_and_written(folder: str) -> None:
    """Also what is no metric, such as a file's name, comes back unchanged."""
    files = (ROOT / folder).glob("*.json")
    names = set().union(*(names_in(json.loads(path.read_text())) for path in files))
    assert names and {name for name in names if flat_name(read_flat_name(name)) != name} == set()


def test_a_plugins_rows_decide_what_a_name_means() -> None:
    rows = [
        Metric("near", unit=SHARE),
        Metric("start_error", higher=False),
        Baseline("closest", "the closest view", ("near",)),
    ]
    assert read_flat_name("closest") == MetricKey("closest")
    with use_plugin_rows(rows):
        closest = read_flat_name("validation/closest")
        assert closest == MetricKey("near", "closest", is_held_out=True)
        assert flat_name(closest) == "validation/closest"
        assert find_baseline(closest) == rows[2] and find_metric(closest).unit == SHARE
        error = read_flat_name("start_error")
        assert error == MetricKey("start_error") and not find_metric(error).higher
    with use_plugin_rows(rows, [Metric("closest")]):  # two plugins disagree
        assert read_flat_name("closest") == MetricKey("closest")


def test_the_keys_of_one_metric_differ_in_what_was_measured() -> None:
    key = read_flat_name("fresh_probe_few_shot_10")
    assert (key.name, key.of_model.name, key.shots) == (
        *("fresh_probe_few_shot_10", "probe_few_shot_10", ""),
    )
    assert key.of_model.shots == "10" and find_metric(key).words == "10-shot"


def test_a_declared_name_that_begins_like_a_probe_is_no_probe() -> None:
    """Its held-out values went to the column of a probe, and `checkpoint.best` took it for one."""
    with use_plugin_rows([Metric("probe_x")]):
        key = read_flat_name("probe_x")
        assert not key.is_probe
        assert flat_name(key._replace(is_held_out=True)) == "validation/probe_x"
    assert read_flat_name("probe_x").is_probe


def test_a_baseline_of_kept_patches_is_compared_with_kept_patches() -> None:
    """It was compared with the accuracy of masked patches, if that was measured, too."""
    with use_plugin_rows([Baseline("repeat", "the patch itself", ("accuracy_kept",))]):
        measured = {read_flat_name(name) for name in ("accuracy_kept", "accuracy_masked")}
        assert compared_with(read_flat_name("repeat"), measured) == read_flat_name("accuracy_kept")
