"""``--set key=value``."""

from __future__ import annotations

from collections.abc import Sequence

from knee.base.errors import InputError


def parse_sets(texts: Sequence[str]) -> list[tuple[str, str]]:
    """``key=value`` texts as pairs."""
    pairs = []
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            raise InputError(
                f"--set {text!r} is not key=value",
                hint="for example --set fabric.nic_bytes_per_s=200Gbit/s",
                code="not-key-value",
                field="overrides",
            )
        pairs.append((key, value))
    keys = [key for key, _ in pairs]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise InputError(
            f"--set {min(twice)} is given twice", hint="give it once", code="contradiction", field="overrides"
        )
    return pairs
