"""One value as a setting wants it, or the reason why it does not fit.

A TOML value already has a type and is never converted, except an integer where a number is asked.
A command-line override is text and is read as the setting's own type.

Example
-------
>>> from boldcast.config.docs import settings
>>> from_text(settings()["data.horizons"], "1,2")
(1, 2)
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, cast

from boldcast.config.docs import Scalar, Setting, Value
from boldcast.config.nearest import did_you_mean

_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,39})", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_MOST_SHOWN = 60
_LARGEST = 2**53 - 1


class Unfit(ValueError):
    """A value that a setting cannot take.

    Parameters
    ----------
    rule : str
        What the value must be.
    shown : str
        The value as the user gave it.
    todo : str
        What to write instead; may be empty.
    """

    def __init__(self, rule: str, shown: str, todo: str = "") -> None:
        super().__init__(rule)
        self.rule, self.shown, self.todo = rule, shown, todo


def show(value: Any) -> str:
    """Return a value as TOML would write it, cut when very long."""
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        text = "[" + ", ".join(show(item) for item in value) + "]"
    elif isinstance(value, dict):
        text = "a table"
    elif isinstance(value, bool | str):
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = str(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"


def from_text(setting: Setting, text: str) -> Value:
    """Read a command-line value as the setting's type.

    Raises
    ------
    Unfit
        If the text is not of that type or out of bounds.
    """
    if setting.optional and text == "none":
        return None
    if not setting.many:
        return _fit(setting, _scalar_from_text(setting, text))
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    items = [_unquoted(item) for item in inner.split(",")] if inner.strip() else []
    return _fit_list(setting, [_scalar_from_text(setting, item) for item in items])


def from_toml(setting: Setting, value: Any) -> Value:
    """Check a TOML value against the setting's type.

    Raises
    ------
    Unfit
        If it has another type or is out of bounds.
    """
    if setting.many:
        if not isinstance(value, list):
            todo = "" if isinstance(value, dict) else f"Write [{show(value)}]."
            raise Unfit(_rule(setting), show(value), todo)
        return _fit_list(setting, [_scalar_from_toml(setting, item) for item in value])
    return _fit(setting, _scalar_from_toml(setting, value))


def _unquoted(item: str) -> str:
    item = item.strip()
    if len(item) >= 2 and item[0] == item[-1] and item[0] in "\"'":
        return item[1:-1]
    return item


def _scalar_from_text(setting: Setting, text: str) -> Scalar:
    if setting.base is str:
        return text
    if setting.base is bool:
        if text not in ("true", "false"):
            raise Unfit(_rule(setting), show(text), "Write true or false.")
        return text == "true"
    if setting.base is int:
        if not _INTEGER.fullmatch(text):
            raise Unfit(_rule(setting), show(text), _whole(text))
        return int(text)
    if not _NUMBER.fullmatch(text):
        todo = "Write a finite decimal number such as 0.5 or 3e-4."
        raise Unfit(_rule(setting), show(text), todo)
    return float(text)


def _whole(text: str) -> str:
    """Say how to write an integer that was given as a whole float or with separators."""
    plain = text.replace("_", "")
    if not _NUMBER.fullmatch(plain) or not float(plain).is_integer():
        return "Write decimal digits alone."
    return f"Write {float(plain):.0f}."


def _scalar_from_toml(setting: Setting, value: Any) -> Scalar:
    base = setting.base
    is_bool = isinstance(value, bool)
    if base is float and isinstance(value, int) and not is_bool and abs(value) <= _LARGEST:
        return float(value)
    if isinstance(value, base) and is_bool == (base is bool):
        return cast(Scalar, value)
    todo = ""
    if isinstance(value, str) and base is not str:
        todo = "Take the quotation marks away." if _reads(setting, value) else ""
    elif base is str and isinstance(value, bool | int | float):
        todo = f'Put it in quotation marks: "{show(value)}".'
    elif base is int and isinstance(value, float) and value.is_integer():
        todo = f"Write {value:.0f}, without a point."
    raise Unfit(_rule(setting), show(value), todo)


def _reads(setting: Setting, text: str) -> bool:
    try:
        _scalar_from_text(setting, text)
    except Unfit:
        return False
    return True


def _fit(setting: Setting, value: Scalar) -> Scalar:
    """Return ``value`` if it lies within the setting's bounds or choices."""
    if isinstance(value, str):
        return _fit_text(setting, value)
    if isinstance(value, bool):
        return value
    if not math.isfinite(value):
        raise Unfit(_rule(setting), show(value), "Write a finite number.")
    low, high = setting.bounds.low, setting.bounds.high
    too_low = low is not None and (value <= low if setting.bounds.above else value < low)
    too_high = high is not None and value > high
    shown = f"{show(value)} {setting.unit}".rstrip()
    if too_low or too_high:
        raise Unfit(_rule(setting), shown, _milliseconds(setting, value))
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise Unfit(f"an integer of at most {_LARGEST}", shown)
    return value


def _milliseconds(setting: Setting, value: float) -> str:
    low, high = setting.bounds.low, setting.bounds.high
    if setting.unit == "s" and low is not None and high is not None:
        seconds = value / 1000
        if low <= seconds <= high:
            return f"If these are milliseconds, write {seconds:g}."
    return ""


def _fit_text(setting: Setting, text: str) -> str:
    if setting.choices and text not in setting.choices:
        known = dict(setting.instead).get(text.lower())
        raise Unfit(_rule(setting), show(text), known or did_you_mean(text, setting.choices))
    if not text.isprintable():
        rule = "text without control characters that is valid Unicode"
        raise Unfit(rule, json.dumps(text), "Remove them.")
    return text


def _fit_list(setting: Setting, items: list[Scalar]) -> tuple[Scalar, ...]:
    fitted = tuple(_fit(setting, item) for item in items)
    if len(fitted) < setting.min_length:
        rule = f"{_rule(setting)}, with at least {setting.min_length} element"
        raise Unfit(rule, show(fitted))
    numbers = [item for item in fitted if not isinstance(item, str)]
    if setting.ascending and any(a >= b for a, b in zip(numbers, numbers[1:], strict=False)):
        todo = f"Write {show(sorted(set(numbers)))}."
        raise Unfit(_rule(setting), show(fitted), todo)
    return fitted


def _rule(setting: Setting) -> str:
    text = setting.type_text
    if text.startswith(("integer", "number", "list")):
        return ("an " if text.startswith("integer") else "a ") + text
    return text
