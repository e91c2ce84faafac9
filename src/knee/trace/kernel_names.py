"""What a kernel's name says by itself: its function's own words, apart from template arguments and argument types.

``void vllm::rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, ...)`` says ``rms_norm_kernel`` in the scope ``vllm``;
what stands between brackets are the types that it was made for, and those name half of every library.
"""

from __future__ import annotations

import re
from typing import NamedTuple

BRACKETS = re.compile(r"[<>()]")
NAMELESS = re.compile(r"\((?:anonymous namespace|anonymous)\)|<unnamed>|\{anonymous\}")
CLONE, OBJECT = " [clone ", ".kd"
"""What ROCm puts behind a name."""
WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where a word begins inside of one that is written in camel case."""
MANGLED = re.compile(r"_ZN?K?(?=\d)")
MANGLED_PART = re.compile(r"\d{1,4}")
WRAPPER = re.compile(r"(?:device_|global_|trampoline_)?kernel\d?|kentry\d?|run_global|entry")
"""Functions that only call what their first template argument names: CUTLASS's, Composable Kernel's, rocPRIM's."""
INDUCTOR = re.compile(r"triton_(?:poi|red|per|tem|for|mix|split_scan|unk)_fused")


class KernelName(NamedTuple):
    """A kernel's name in parts, all of them words in lower case with ``_`` between them."""

    function: str
    scope: str
    """Its namespaces, each with ``::`` behind it."""
    target: str = ""
    """Of a function that calls what it is made for: that one's own name, and its scope."""
    target_scope: str = ""
    fused: str = ""
    """Of a kernel that Inductor wrote: all of its name, which lists the operators of the graph around it."""


def kernel_name(name: str) -> KernelName:
    """The parts of one name, in time linear in it."""
    plain = name.partition(CLONE)[0].removesuffix(OBJECT)
    if INDUCTOR.match(plain):
        return KernelName(function="", scope="", fused=plain.lower())
    mangled = MANGLED.match(plain)
    own, arguments = _demangled(plain, mangled.end()) if mangled else _own(plain)
    scope, function = _split(own)
    if not arguments or not WRAPPER.fullmatch(function):
        return KernelName(function=function, scope=scope)
    target_scope, target = _split(arguments)
    return KernelName(function=function, scope=scope, target=target, target_scope=target_scope)


def _own(name: str) -> tuple[str, str]:
    """The function's qualified name, and the first of its template arguments that is a name."""
    text = NAMELESS.sub("", name)
    if "<" not in text and "(" not in text:
        return text.removeprefix("void "), ""
    open_brackets: list[str] = []
    kept: list[str] = []
    begin = first_argument = 0
    named = False
    for found in BRACKETS.finditer(text):
        bracket = found[0]
        if bracket in "<(":
            if not open_brackets:
                kept.append(text[begin : found.start()])
                named = named or bool(kept[-1].strip(" :"))
                if bracket == "(" and named:  # what follows are arguments
                    break
                first_argument = found.end()
            open_brackets.append(bracket)
        elif open_brackets and open_brackets[-1] + bracket in ("<>", "()"):  # an operator > stands in parentheses
            open_brackets.pop()
        begin = found.end()
    else:
        if not open_brackets:
            kept.append(text[begin:])
    # a return type stands before the name
    own = "".join(kept).rstrip().rpartition(" ")[2]
    return own, _first_name(text, first_argument)


def _first_name(text: str, begin: int) -> str:
    """The first template argument that is no number, up to its own arguments."""
    if not begin:
        return ""
    end = BRACKETS.search(text, begin)
    names = (part.strip() for part in text[begin : end.start() if end else len(text)].split(","))
    return next((part for part in names if part and not part[0].isdigit()), "")


def _demangled(name: str, begin: int) -> tuple[str, str]:
    """The same of a name as the linker has it: a part is its length and its letters, ``I`` begins the arguments."""
    own, at = _mangled_parts(name, begin)
    if name[at : at + 1] != "I":
        return own, ""
    digit = MANGLED_PART.search(name, at)
    return own, _mangled_parts(name, digit.start())[0] if digit else ""


def _mangled_parts(name: str, at: int) -> tuple[str, int]:
    parts = []
    while found := MANGLED_PART.match(name, at):
        at = found.end() + int(found[0])
        parts.append(name[found.end() : at])
    return "::".join(parts), at


def _split(qualified: str) -> tuple[str, str]:
    """Scope and function, as words."""
    parts = [_words(part) for part in qualified.split("::") if part]
    return "".join(f"{part}::" for part in parts[:-1]), parts[-1] if parts else ""


def _words(name: str) -> str:
    return WORDS.sub("_", name.strip()).lower()
