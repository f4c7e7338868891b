"""What a study varies: values of keys, or named settings of several keys at once, become arms of
its pre-training.

`vary: {corruption.rate: [0.15, 0.5], optim.lr: [1e-3, 3e-3]}` is every combination; `vary: [{name:
all, corruption.mask: 1.0, corruption.random: 0, corruption.keep: 0}, ...]` is one arm for each
setting.
"""

import itertools
import re
from typing import Any

from omegaconf import OmegaConf

from ...config.computed import counts
from ...config.parsing import flatten, has_interpolation
from ...config.values import check_key, typed
from ...errors import UserError, suggest
from ...formatting import option_text
from ..arms import Settings, find_arm
from . import study_keys
from .spec_fields import hold, known, mapping, pretraining

PRESETS = ("recipe", "model", "data")
# keys that change what is computed, whatever their group says
PLACE = ("data.path", "data.hub", "compute.precision")


def expand(raw: dict[str, Any], where: str) -> tuple[dict[str, Any], Settings]:
    """A study's mapping with what it varies spelled out as arms, and the setting of each such arm.

    Arms that the file names itself stand beside them.

    Raises:
        UserError: a key that is unknown or changes nothing, a value that is alone or there twice.
    """
    if "vary" not in raw:
        return raw, {}
    settings, named = _settings(raw["vary"], f"{where}: vary"), raw.get("arms") or {}
    hold(isinstance(named, dict), where, "arms: expected a mapping")
    for arm in named:
        hold(
            arm not in settings,
            where,
            f"arms: {arm} is the name of a setting under vary; take another one",
        )
    parts = raw.get("parts") or {}
    trained = pretraining(parts)
    hold(trained, where, "vary: no part with tool: pretrain, whose options could be varied")
    arms = {arm: describe(setting) for arm, setting in settings.items()} | named
    varied = {
        name: parts[name] | {"by_arm": _by_arm(parts[name], settings, named)} for name in trained
    }
    report = _claimed(raw.get("report"), settings, f"{where}: report")
    return raw | {"arms": arms, "parts": parts | varied, "report": report}, settings


def check_report(report: dict[str, Any], settings: Settings, where: str) -> None:
    """Check that a report's claim, axis and measure are about keys that the study varies.

    Raises:
        UserError: one is not.
    """
    known(mapping(report, "claim", where), study_keys.CLAIM, f"{where}: claim")
    axes = list(dict.fromkeys(key for setting in settings.values() for key in setting))
    for key in ("claim", "axis", "measure"):
        message = f"{key}: the study varies nothing that it could be about"
        hold(key not in report or settings, where, message)
    axis = report.get("axis")
    hold(axis in (None, *axes), where, f"axis: {axis} is not varied; choices: {', '.join(axes)}")


def describe(setting: dict[str, Any]) -> str:
    """Description of a setting."""
    return (
        ", ".join(f"{key}={option_text(value)}" for key, value in setting.items())
        or "as the study's options say"
    )


def _by_arm(body: dict[str, Any], settings: Settings, named: dict[str, Any]) -> Any:
    """A part's options by arm: of the settings, and of the named arms that it has."""
    own = body.get("by_arm") or {}
    if not isinstance(own, dict):
        return own
    beside = {
        arm: options
        for arm, options in (own or dict.fromkeys(named)).items()
        if arm not in settings
    }
    return {arm: setting | (own.get(arm) or {}) for arm, setting in settings.items()} | beside


def _claimed(report: Any, settings: Settings, where: str) -> Any:
    """The report's keys, with a claim's values replaced by the arms that have them."""
    claim = report.get("claim") if isinstance(report, dict) else None
    if not isinstance(claim, dict):
        return report
    arms = {}
    for role in ("better", "worse"):
        hold(role in claim, where, f"claim: {role}: is missing")
        arms[role] = find_arm(claim[role], settings)
        hold(
            arms[role],
            where,
            f"claim: {role}={claim[role]}: is not varied; {suggest(str(claim[role]), settings)}",
        )
    hold(
        arms["better"] != arms["worse"],
        where,
        f"claim: better and worse are both {claim['better']}",
    )
    return report | {"claim": claim | arms}


def _settings(vary: Any, where: str) -> Settings:
    if isinstance(vary, dict):
        return _product(flatten(vary), where)
    hold(
        isinstance(vary, list) and len(vary) > 1,
        where,
        "expected keys with lists of values, or two settings or more",
    )
    found: Settings = {}
    for entry in vary:
        hold(
            isinstance(entry, dict),
            where,
            f"{entry}: a setting is a mapping of keys to values, and a name",
        )
        flat = flatten({key: value for key, value in entry.items() if key != "name"})
        setting = {key: _value(key, value, where) for key, value in flat.items()}
        arm = _plain(str(entry.get("name") or _short(setting)))
        hold(arm, where, "a setting without keys needs a name")
        hold(arm not in found, where, f"{arm}: two settings have that name")
        hold(setting not in found.values(), where, f"{describe(setting)}: a setting is there twice")
        found[arm] = setting
    return found


def _product(axes: dict[str, Any], where: str) -> Settings:
    """Every combination of the values of each key."""
    hold(axes, where, "no key is there")
    for key, values in axes.items():
        hold(isinstance(values, list), where, f"{key}: expected a list of values")
        axes[key] = [_value(key, value, where) for value in values]
        hold(
            len(values) > 1,
            where,
            f"{key}: one value cannot be compared; expected two at least",
        )
        hold(
            len({option_text(value) for value in axes[key]}) == len(values),
            where,
            f"{key}: a value is there twice",
        )
    every = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    found = {_plain(_short(setting)): setting for setting in every}
    hold(
        len(found) == len(every),
        where,
        "two combinations would have one name; say them as a list of named settings",
    )
    return found


def _value(key: str, value: Any, where: str) -> Any:
    """A value of a key that can be varied, as its key's type."""
    hold(not has_interpolation(value), where, f"{key}: {value}: cannot be taken as a value")
    hold(key != "seed", where, "seed: say seeds= for that")
    if key in PRESETS:
        return str(value)
    try:
        check_key(key, "")
        idle = not counts(key) and key not in PLACE
        hold(not idle, key, "changes nothing that is computed, so there is nothing to compare")
        parsed = typed(key, value)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return OmegaConf.to_container(parsed) if OmegaConf.is_config(parsed) else parsed


def _short(setting: dict[str, Any]) -> str:
    """An arm's name from its values: rate=0.5,lr=0.001; a key that shares its last part with
    another is written in full."""
    last = [key.rpartition(".")[2] for key in setting]
    names = [
        key if last.count(short) > 1 else short for key, short in zip(setting, last, strict=True)
    ]
    return ",".join(
        f"{name}={option_text(value)}" for name, value in zip(names, setting.values(), strict=True)
    )


def _plain(name: str) -> str:
    """As it can stand in a folder's name."""
    return re.sub(r"[^A-Za-z0-9_.,=+-]+", "_", name)
