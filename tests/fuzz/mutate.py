"""Changes of documents (trees of tables, lists and scalars), of bytes, and of packed files."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from copy import deepcopy
from math import isfinite
from random import Random
from typing import Any

from fuzz import values

Place = tuple[Any, Any]
"""A container, and the key or number of a value in it."""
CONTAINERS = (dict, list, tuple)


def copied(tree: Any) -> Any:
    """A tree of one's own, ten times as fast as ``deepcopy``: scalars are shared."""
    if type(tree) is dict:
        return {key: copied(one) if type(one) in CONTAINERS else one for key, one in tree.items()}
    if type(tree) is list:
        return [copied(one) if type(one) in CONTAINERS else one for one in tree]
    return deepcopy(tree)


def places(tree: Any) -> list[Place]:
    """Every value of a tree, by where it stands."""
    found: list[Place] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            found.append((node, key))
            if isinstance(node[key], (dict, list)):
                waiting.append(node[key])
    return found


def change_tree(rng: Random, tree: Any, times: int | None = None) -> Any:
    """Change a few values or keys of a tree, in place; the tree."""
    for _ in range(rng.choice((1, 1, 1, 2, 3)) if times is None else times):
        found = places(tree)
        if not found:
            return tree
        node, key = rng.choice(found)
        rng.choice(CHANGES)(rng, node, key, found)
    return tree


def _replace(rng: Random, node: Any, key: Any, found: list[Place]) -> None:  # noqa: ARG001
    node[key] = values.value(rng)


def _near(rng: Random, node: Any, key: Any, found: list[Place]) -> None:
    """A value of the same type, a little or a lot away."""
    old = node[key]
    if isinstance(old, bool):
        node[key] = not old
    elif isinstance(old, int) and abs(old) < 10**300:
        node[key] = rng.choice(
            (0, -old, old + 1, old - 1, old * 2, old * 10**9, float(old), old // 2, values.number(rng))
        )
    elif isinstance(old, float) and isfinite(old):
        node[key] = rng.choice(
            (0.0, -old, old * 2, old / 3, old * 1e12, old * 1e-12, int(abs(old) % 10**6), values.number(rng))
        )
    elif isinstance(old, str):
        node[key] = values.Raw(old) if isinstance(old, values.Raw) else change_text(rng, old)
    else:
        _replace(rng, node, key, found)


def _delete(rng: Random, node: Any, key: Any, found: list[Place]) -> None:  # noqa: ARG001
    del node[key]


def _rename(rng: Random, node: Any, key: Any, found: list[Place]) -> None:
    """A misspelt key, another table's key, or any text."""
    if not isinstance(node, dict):
        return _duplicate(rng, node, key, found)
    others = [other for _, other in found if isinstance(other, str)] or ["x"]
    node[rng.choice((change_text(rng, str(key)), rng.choice(others), values.text(rng)))] = node.pop(key)
    return None


def _duplicate(rng: Random, node: Any, key: Any, found: list[Place]) -> None:
    """The value a second time: beside itself, or somewhere else."""
    if isinstance(node, list) and rng.random() < 0.7:
        node[key:key] = [node[key]] * rng.choice((1, 1, 2, 30))
        return
    there, other = rng.choice(found)
    if isinstance(there, dict) or (isinstance(other, int) and other < len(there)):
        there[other] = deepcopy(node[key])


def _swap(rng: Random, node: Any, key: Any, found: list[Place]) -> None:
    there, other = rng.choice(found)
    if there is node and key in (there if isinstance(there, dict) else range(len(there))):
        there[other], node[key] = node[key], there[other]


def _retype(rng: Random, node: Any, key: Any, found: list[Place]) -> None:
    old = node[key]
    if isinstance(old, dict):
        node[key] = rng.choice((list(old.items()), list(old), list(old.values()), [old], values.said(old), {}))
    elif isinstance(old, list):
        node[key] = rng.choice(
            (old[0] if old else None, [], [old], dict(enumerate(map(values.said, old))), values.said(old))
        )
    elif isinstance(old, str):
        node[key] = rng.choice(([old], {old: old}, len(old), [], {}, None))
    elif old is None or (isinstance(old, int) and abs(old) > 10**300):
        _replace(rng, node, key, found)
    else:
        node[key] = rng.choice((str(old), [old], {"value": old}, bool(old), None, f"{old} GB", f" {old}"))


CHANGES: tuple[Callable[[Random, Any, Any, list[Place]], None], ...] = (
    _replace,
    _replace,
    _replace,
    _near,
    _near,
    _near,
    _delete,
    _delete,
    _rename,
    _duplicate,
    _swap,
    _retype,
    _retype,
)


def change_text(rng: Random, old: str) -> str:
    """Text with a letter more, less or other, or with something in it."""
    if rng.random() < 0.3:
        return values.text(rng)
    at = rng.randrange(len(old) + 1)
    return rng.choice(
        (
            old[:at] + old[at + 1 :],
            old[:at] + rng.choice("aZ0_-. ,=/é\0\n") + old[at:],
            old[:at],
            old.upper(),
            old * 2,
            f" {old} ",
            old[:at] + values.text(rng) + old[at:],
            old[::-1],
            old[:at] + old[at : at + 2][::-1] + old[at + 2 :],
        )
    )


def change_bytes(rng: Random, data: bytes) -> bytes:
    """Bytes with a few changes that need no knowledge of what they mean."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = _change_bytes(rng, data)
    return data


def _change_bytes(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    to = min(len(data), at + rng.choice((1, 2, 5, 40, 1000)))
    match rng.randrange(12):
        case 0 | 1:
            return data[:at]
        case 2:
            return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        case 3:
            return data[:at] + data[to:]
        case 4:
            return data[:to] + data[at:to] * rng.choice((1, 2, 20)) + data[to:]
        case 5:
            return b"\xef\xbb\xbf" + data
        case 6:
            return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"", b"\x0b", b"\xe2\x80\xa8")))
        case 7:
            return data[:at] + rng.choice((b"\0", b"\xff", b"\xed\xa0\x80", b"\x1a", b"\xc0\x80", b"\n")) + data[at:]
        case 8:
            word = values.text(rng).encode("utf-8", "surrogatepass")
            return data[:at] + word + data[at:]
        case 9:
            return (
                data[:at]
                + rng.choice((b"[", b'{"a":', b"9", b"(", b" ", b'"', b"\\", b"-", b",")) * rng.choice((1, 10, 3000))
                + data[at:]
            )
        case 10:
            return data[to:] + data[:at] if rng.random() < 0.5 else rng.choice((b"", data + data))
        case _:
            return data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-32-le", "latin-1")), "replace")


def change_packed(rng: Random, data: bytes) -> bytes:
    """Data packed with gzip, and what happens to such files."""
    packed = gzip.compress(data, 1, mtime=0)
    match rng.randrange(9):
        case 0 | 1:
            return packed[: rng.randrange(len(packed) + 1)]
        case 2:
            return change_bytes(rng, packed)
        case 3:
            at = rng.randrange(len(data) + 1)
            return gzip.compress(data[:at], 1, mtime=0) + gzip.compress(data[at:], 1, mtime=0)
        case 4:
            return packed + rng.choice((b"\0" * 100, b"garbage", packed, b"\x1f\x8b"))
        case 5:
            return gzip.compress(packed, 1, mtime=0)
        case 6:
            return packed[:-8] + bytes(rng.randrange(256) for _ in range(8))
        case _:
            return packed
