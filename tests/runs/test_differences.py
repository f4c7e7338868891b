"""In what two runs differ: one comparison of what they were computed from."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ssl_vit.recipe import schema
from ssl_vit.runs.identity import differences

KEYS = ("optim.lr", "optim.steps", "seed", "data.flip", "mae.rate")
NAMES = ("data:train", "data:test", "init:file", "init:heads", "unheard.of")
VALUES = st.sampled_from([0, 1, 0.5, True, None, "a", [1, 2]])
MAPPING = st.dictionaries(st.sampled_from([*KEYS, *NAMES]), VALUES)


def by_hand(there: dict[str, Any], here: dict[str, Any]) -> set[str]:
    """The keys that differ, by the rules of docs/design.md, one key at a time."""
    found = set()
    for key in there.keys() | here.keys():
        if ":" in key:
            if key in there and key in here and there[key] != here[key]:
                found.add(key)
            continue
        default = schema.defaults().get(key, "not known")
        if there.get(key, default) != here.get(key, default):
            found.add(key)
    return found


@given(MAPPING, MAPPING, st.sets(st.sampled_from(KEYS)))
def test_a_key_that_lacks_is_at_its_default_and_a_hash_that_lacks_does_not_count(
    there: dict[str, Any], here: dict[str, Any], undecided: set[str]
) -> None:
    found = differences(there, here, undecided)
    keys = [one.key for one in found]
    assert len(keys) == len({*keys}) and {*keys} == by_hand(there, here) - undecided
    turned = {one.key: (str(one.wanted), str(one.recorded)) for one in differences(here, there)}
    assert {
        one.key: (str(one.recorded), str(one.wanted)) for one in differences(there, here)
    } == turned
    assert all((one.kind, one.name) == _parts(one.key) for one in found)


def _parts(key: str) -> tuple[str, str]:
    return ("", key) if ":" not in key else (key.split(":")[0], key.split(":")[1])
