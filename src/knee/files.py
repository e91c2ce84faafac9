"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from knee.errors import InputError

NO_PATH = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
"""What a system says of a name that cannot be, or is not for us."""


def cannot_use(error: OSError) -> InputError | None:
    """What was named and cannot be looked at, in words; None for other troubles."""
    if error.errno not in NO_PATH or error.filename is None:
        return None
    name = os.fsdecode(error.filename)
    return InputError(f"{name if len(name) <= 200 else name[:200] + '...'} cannot be used: {error.strerror}")


def make_folder(path: Path) -> Path:
    """The folder, made if need be and known to take files; InputError if that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(
            f"{path} cannot be a folder: a file of that name is in the way", hint="name another folder"
        ) from error
    except OSError as error:
        raise _cannot(path, error) from error
    return path


def write_text(path: Path, text: str) -> None:
    """Text as UTF-8, lines as they are; see ``write_bytes``."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write beside the file and move it into place: a reader sees the old one or the new one.

    What is not a plain file (a device, a pipe) is written to as it is; a link's target is what is replaced.
    """
    try:
        path = path.resolve()
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(name, 0o666 & ~_umask())  # mkstemp's file is for its owner alone
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
    except OSError as error:
        raise _cannot(path, error) from error


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as CSV, one column a key of the first."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cannot(path: Path, error: OSError) -> InputError:
    return InputError(
        f"{path} cannot be written: {error.strerror or error}",
        hint="name a folder that can be written to, with space left",
    )
