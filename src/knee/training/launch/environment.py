"""What surrounds the processes of a run, on every launcher alike: the set-up, then variables, then where knee is.

Values of variables may be secret. They are in one file of the sweep's folder that its owner alone can read, which
shells source; no command line, script, status or record has them.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import knee
from knee.base.errors import InputError
from knee.base.files import check_readable, make_folder
from knee.training.launch.site import Site, site_of

ENV = "env.sh"
PACKAGE = Path(knee.__file__).resolve().parent
PYTHON = "python"
"""Of a sweep's folder: what its ranks find knee in. The folder that knee is installed in may have another torch."""
SETUP_PYTHON = "KNEE_PYTHON"
"""The interpreter where a set-up may have brought its own."""
HIDDEN = "..."


def write_env(folder: Path, env: Mapping[str, str]) -> None:
    """The variables of all ranks, for shells to source; a job that waits in a queue finds the newest."""
    lines = [
        "# Variables of this sweep's runs. They may be secret: only the owner may read this file.",
        *(f"export {key}={shlex.quote(value)}" for key, value in env.items()),
    ]
    make_folder(folder)
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{ENV}.")  # mkstemp's files are for their owner alone
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        os.replace(name, folder / ENV)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"{folder / ENV} cannot be written: {getattr(error, 'strerror', None) or error}",
            hint="name a writable folder with free space",
            code="not-writable",
            field="out",
        ) from None


def stored_site(folder: Path, plain: Mapping[str, Any]) -> Site:
    """The site of a sweep that is there: ``sweep.json`` has the names of variables, the file beside it their values."""
    names = plain.get("env") or []
    if not isinstance(names, (list, dict)) or not all(isinstance(name, str) for name in names):
        hint = "repeat the complete `knee sweep` command"
        raise InputError("sweep.json: env is not a list of names", hint=hint, code="wrong-type", field="env")
    site = replace(site_of({**plain, "env": {}}, "sweep.json"), env=dict.fromkeys(names, HIDDEN))
    if names:
        hint = f"it has the values of {', '.join(names)}: repeat the complete `knee sweep` command, with --env"
        check_readable(folder / ENV, "env", hint=hint)
    elif not os.access(folder / ENV, os.R_OK):
        write_env(folder, {})
    return site


def without_secrets(words: Sequence[str]) -> list[str]:
    """Return a command line without the values of its variables, so that it can be written down."""
    found: list[str] = []
    for word in words:
        before = found[-1] if found else ""
        start = "--env=" if word.startswith("--env=") else ""
        if start or before == "--env":
            name, equals, _ = word.removeprefix(start).partition("=")
            word = f"{start}{name}={HIDDEN}" if equals else word
        found.append(word)
    return found


def setup_selects_python(site: Site) -> bool:
    """Whether the interpreter is known only after the set-up."""
    return bool(site.setup and not (site.python or site.container))


def environment_lines(site: Site, folder: Path, *, failed: str) -> list[str]:
    """Lines of a shell: the set-up, the site's variables on top of it, and knee's folder before what is on the path.

    ``failed`` is what is done once ``$knee_why`` says that the set-up failed; a trap is set, because a set-up may end
    the shell by itself (``exit``, or ``set -e``).
    """
    return [
        *(_set_up(site.setup, failed) if site.setup else ()),
        *(
            [
                'if [ "$(command -v python3)" = "$knee_was" ]; '
                f"then export {SETUP_PYTHON}={shlex.quote(sys.executable)}; else export {SETUP_PYTHON}=python3; fi"
            ]
            if setup_selects_python(site)
            else ()
        ),
        f"source {shlex.quote(str(folder / ENV))} || exit",
        "export PYTHONUNBUFFERED=1",
        path_line(folder),
    ]


def path_line(folder: Path) -> str:
    """A line of a shell: the sweep's knee is found first, and the rest as it is."""
    return f"export PYTHONPATH={shlex.quote(str(folder / PYTHON))}${{PYTHONPATH:+:$PYTHONPATH}}"


def _set_up(path: str, failed: str) -> list[str]:
    message = shlex.quote(f"error: the set-up {path} failed with code ")
    return [
        "knee_was=$(command -v python3) knee_here=$PWD",
        f"knee_no_setup() {{ trap - EXIT; set +eu; knee_why={message}$1; {failed}; }}",
        "trap 'knee_no_setup $?' EXIT",
        f"source {shlex.quote(path)}",
        "knee_code=$?",
        "set +eu +o pipefail",  # the set-up's own way with failures is not that of what follows
        "trap - EXIT",
        'cd "$knee_here"',  # a run is known by where it works
        '[ "$knee_code" = 0 ] || knee_no_setup "$knee_code"',
    ]


def in_environment(site: Site, folder: Path, line: str, *, more: Mapping[str, str] | None = None) -> list[str]:
    """One command that runs a shell's line in its surroundings; a single line, as shells of all kinds pass it on.

    The words of the line are not the shell's arguments: what a set-up sources would take them for its own.
    """
    lines = environment_lines(site, folder, failed='echo "$knee_why" >&2; exit 1')
    lines += [f"export {key}={shlex.quote(value)}" for key, value in (more or {}).items()]
    return ["bash", "-c", "; ".join([*lines, f"exec {line}"])]


def link_knee(folder: Path) -> None:
    """Let the ranks of a sweep find the knee that made it, and nothing else that is installed beside it."""
    link = folder / PYTHON / PACKAGE.name
    make_folder(link.parent)
    if link.is_symlink() and os.readlink(link) == str(PACKAGE):
        return
    link.unlink(missing_ok=True)
    link.symlink_to(PACKAGE)
