"""A question as the command line and as Python have it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from knee.base.errors import argument, as_flags
from knee.specs.plan import KNOBS


def command_of(function: str, asked: Mapping[str, Any]) -> str:
    """``knee simulate llama2-7b --cluster dgx-h100 ...``."""
    words = ["knee", function]
    with as_flags():
        for name, value in asked.items():
            if name == "model" and function != "budget":
                words += [str(one) for one in value] if isinstance(value, list) else [str(value)]
            else:
                words += _option(name, value)
    return shlex.join(words)


def _option(name: str, value: Any) -> list[str]:
    flag = argument(name)
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    if isinstance(value, Mapping):
        return [word for key, one in value.items() for word in (flag, f"{key}={one}")]
    if isinstance(value, (list, tuple)):
        if name == "gpus" or (name in KNOBS and KNOBS[name].many):
            return [flag, ("," if name == "gpus" else KNOBS[name].joint).join(map(str, value))]
        return [word for one in value for word in (flag, str(one))]
    return [flag, f"{value:g}" if isinstance(value, float) and value == int(value) else str(value)]


def python_of(function: str, asked: Mapping[str, Any]) -> str:
    """``knee.simulate("llama2-7b", cluster="dgx-h100", ...)``."""
    first = [_literal(asked["model"])] if "model" in asked and function != "budget" else []
    rest = [f"{name}={_literal(value)}" for name, value in asked.items() if name != "model" or function == "budget"]
    return f"import knee\n\nanswer = knee.{function}({', '.join(first + rest)})\n"


def _literal(value: Any) -> str:
    """Python's own form, with double quotation marks."""
    import json

    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)
