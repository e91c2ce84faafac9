"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from knee.errors import InputError, KneeError, NotWritten, argument
from knee.signals import before_the_end

WRONG_PATHS = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EINVAL,
    errno.EEXIST,
    errno.ENXIO,
}
"""What the system says of a path that can never be written to; all else may pass (no space, no permission)."""
_unfinished: set[Path] = set()


def real_path(path: str | Path) -> Path:
    """The path without links. ``Path.resolve`` has no OSError for links in a circle; who opens this one gets it."""
    return Path(os.path.realpath(path))


def make_folder(path: Path) -> Path:
    """The folder, made if need be and known to take files."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (FileExistsError, NotADirectoryError) as error:
        text = f"{path} cannot be created: a file with that name exists"
        raise InputError(text, hint="name another folder", code="not-a-folder") from error
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


def check_writable(file: str | Path, field: str) -> None:
    """Refuse, before the work whose result goes there, a file that cannot be written; ``field`` names the argument."""
    path = Path(file)
    if path.is_dir():
        why = "it is a folder"
    elif not path.parent.is_dir():
        why = f"the folder {path.parent} does not exist"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "permission denied"
    else:
        return
    hint = f"give {argument(field)} another path"
    raise InputError(f"{file} cannot be written: {why}", hint=hint, code="not-writable", field=field)


def check_toml_name(path: Path, field: str) -> None:
    """Refuse a spec file of another name; ``field`` names the argument."""
    if path.suffix != ".toml":
        text = f"{argument(field)} is {str(path)!r}; it must be a file name that ends in .toml"
        raise InputError(text, code="not-a-toml-path", field=field)


def write_text(path: Path, text: str) -> None:
    """Text as UTF-8, lines as they are; see ``replacing``."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Bytes; see ``replacing``."""
    with replacing(path) as partial:
        partial.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside the file to write to. The file is replaced when the block ends, and kept as it was if it fails.

    A reader sees the old file or the new one, also where a signal ends the command. What is not a plain file (a
    device, a pipe) is written to as it is; a link's target is what is replaced.
    """
    try:
        # before it is resolved: what /dev/stdout leads to may have no name
        if path.exists() and not path.is_file():
            yield path
            return
        path = real_path(path)
        if path.is_symlink():  # in a circle, or it would be resolved; a rename would put the file in the link's place
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        partial = path.with_name(f".knee-{os.getpid()}-{secrets.token_hex(4)}.partial")
        _unfinished.add(partial)  # before it is there: a signal may come in between
        try:
            yield partial
            os.replace(partial, path)
        finally:
            _remove(partial)
    except OSError as error:
        raise cannot_write(path, error) from error


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for what is needed while the block runs."""
    path = Path(tempfile.gettempdir()) / f"knee-{os.getpid()}-{secrets.token_hex(4)}"
    _unfinished.add(path)
    try:
        path.mkdir(mode=0o700)
        yield path
    finally:
        _remove(path)


def cannot_write(path: Path, error: OSError, *, hint: str | None = None) -> KneeError:
    """The sentence for a file that cannot be written: wrong input if the path is, a failure of the system if not."""
    message = f"{path} cannot be written: {error.strerror or error}"
    if error.errno in WRONG_PATHS:
        return InputError(message, hint=hint or "name a file in an existing folder", code="not-writable")
    return NotWritten(message, hint=hint or "name a writable folder with free space")


def csv_text(records: Iterable[Mapping[str, Any]]) -> str:
    """Records, at least one, as CSV, one column a key of the first."""
    text, rest = io.StringIO(), iter(records)
    first = next(rest)
    writer = csv.DictWriter(text, fieldnames=list(first), lineterminator="\n")
    writer.writeheader()
    writer.writerow(first)
    writer.writerows(rest)
    return text.getvalue()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
    if not os.path.lexists(path):  # else a thread has just put a file there, and it is removed at the end
        _unfinished.discard(path)


@before_the_end
def remove_unfinished() -> None:
    """Remove what a signal left half written; the process is about to end."""
    for path in tuple(_unfinished):
        _remove(path)
