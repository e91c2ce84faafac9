"""The keys of a config: each is read by its type, and those that were read are remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knee.base.errors import InputError

LAYER_TYPES = {"full_attention": "f", "sliding_attention": "s"}
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "su", "llama3")
"""Ways to stretch the rotary embedding; none changes the work of a step."""


class Keys:
    """A config's values. ``used`` are the keys that somebody asked for: what changes the work and is not among them is
    refused."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path, self.values = path, values
        self.used: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value; the default also where it is null."""
        self.used.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def need(self, key: str) -> Any:
        """A value without which there is no model."""
        self.used.add(key)
        if self.values.get(key) is None:
            raise KeyError(key)
        return self.values[key]

    def number(self, key: str, default: float | None = None) -> Any:
        """What can be multiplied: a word would be repeated as often as the model is wide."""
        value = self.need(key) if default is None else self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, "should be a number", "correct it", code="wrong-type")
        return value

    def whole(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number that is not too small."""
        value = self.need(key) if default is None else self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "must be a whole number", "correct it", code="wrong-type")
        if value < least:
            raise self.wrong(key, f"must be at least {least}", "correct it", code="out-of-range")
        return value

    def wholes(self, key: str) -> list[int]:
        """A list of whole numbers, which may be missing."""
        value = self.get(key, [])
        if not isinstance(value, list) or any(isinstance(one, bool) or not isinstance(one, int) for one in value):
            raise self.wrong(key, "must be a list of whole numbers", "correct it, or remove it", code="wrong-type")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false, and no word that Python takes for true."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(
                key, "should be true or false", "write true or false without quotation marks", code="wrong-type"
            )
        return value

    def inside(self, key: str) -> Keys:
        """The keys of a nested table, which may be missing."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "should be an object", "correct it, or remove it", code="wrong-type")
        return Keys(self.path, value)

    def wrong(self, key: str, rule: str, hint: str, *, code: str) -> InputError:
        """The error about a value of this config."""
        shown = repr(self.values.get(key))
        shown = shown if len(shown) <= 60 else shown[:60] + "..."
        return InputError(f"{self.path}: {key} is {shown}; it {rule}", hint=hint, code=code, field=key)

    def choice(self, key: str, default: str, known: dict[str, str]) -> str:
        """A word in knee's own words."""
        value = str(self.get(key, default))
        if value not in known:
            hint = "describe the model in a TOML file with the nearest of knee's own fields"
            raise self.wrong(key, f"must be one of {', '.join(known)}", hint, code="not-modelled")
        return known[value]

    def rope(self) -> dict[str, Any]:
        """Base and rotated share, from this release's keys or from ``rope_parameters`` of later ones."""
        scaling, parameters = self.inside("rope_scaling"), self.inside("rope_parameters")
        tables = [t for t in parameters.values.values() if isinstance(t, dict)] or [parameters.values]
        for key, table in (("rope_scaling", scaling.values), *(("rope_parameters", t) for t in tables)):
            kind = table.get("rope_type", table.get("type", "default"))
            if kind not in ROPE_TYPES:
                text = f"{self.path}: {key} has the rope type {str(kind)[:60]!r}, which is not modelled"
                hint = f"use one of {', '.join(ROPE_TYPES)}; none of them changes the simulated time"
                raise InputError(text, hint=hint, code="not-modelled", field=key)
        # of several bases, that of the layers with full attention
        last = parameters.values.get("full_attention", tables[0])
        base = self.get("rope_theta", self.get("rotary_emb_base", last.get("rope_theta")))
        share = self.get("partial_rotary_factor", self.get("rotary_pct", last.get("partial_rotary_factor")))
        if base is not None and (isinstance(base, bool) or not isinstance(base, (int, float))):
            raise self.wrong("rope_theta", "should be a number", "correct it", code="wrong-type")
        return {"rope_base": base or 10_000.0, "rope_frac": 1.0 if share is None else share}

    def window(self, default: Any = None, *, pattern: str = "s") -> dict[str, Any]:
        """The sliding window and its layers, by ``layer_types`` where the config has them, else by a pattern."""
        types = self.get("layer_types")
        letters = pattern if types is None else self.letters(LAYER_TYPES)
        # null is an answer, full attention; only a key that is not there has the default
        window = self.get("sliding_window", None if "sliding_window" in self.values else default)
        if window is None or self.values.get("use_sliding_window") is False or "s" not in letters:
            self.flag("use_sliding_window")
            if types is not None and "s" in letters:
                hint = "give sliding_window its size, or make all layers full_attention"
                raise self.wrong(
                    "sliding_window", "is needed by layers with sliding_attention", hint, code="contradiction"
                )
            return {}
        self.flag("use_sliding_window")
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            hint = "give a number of tokens, or null for full attention"
            raise self.wrong("sliding_window", "must be a whole number of at least 1", hint, code="out-of-range")
        return {"window": window, "layer_pattern": letters}

    def letters(self, known: dict[str, str]) -> str:
        """``layer_types`` as the shortest pattern that repeats."""
        types, layers = self.need("layer_types"), self.number("num_hidden_layers")
        if not isinstance(types, list) or not all(isinstance(one, str) for one in types):
            raise self.wrong("layer_types", "must be a list of words", "correct it, or remove it", code="wrong-type")
        if len(types) != layers:
            text = f"{self.path}: layer_types has {len(types):,} entries, but num_hidden_layers is {layers:,}"
            hint = "give one entry per layer"
            raise InputError(text, hint=hint, code="contradiction", field="layer_types")
        unknown = sorted(set(types) - set(known))
        if unknown:
            text = f"{self.path}: layer_types has {unknown[0][:60]!r}, which is not modelled"
            hint = f"knee models {' and '.join(known)} here"
            raise InputError(text, hint=hint, code="not-modelled", field="layer_types")
        return shortest_pattern("".join(known[one] for one in types))


def shortest_pattern(letters: str) -> str:
    """The shortest pattern that gives these letters when it repeats and is cut."""
    length = len(letters)
    repeats = (letters[:n] for n in range(1, length + 1) if letters == (letters[:n] * length)[:length])
    return next(repeats, "f")
