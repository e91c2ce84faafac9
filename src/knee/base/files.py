"""Files from outside, read up to a limit: one that never ends, or that nobody writes to, is refused in a sentence."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import re
import secrets
import select
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from knee.base.errors import InputError, KneeError, NotWritten, argument
from knee.base.limits import MOST_JSON_BYTES, WRITER_S
from knee.base.signals import before_the_end

WRONG_PATHS = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
WRONG_PATHS |= {errno.ELOOP, errno.EINVAL, errno.EEXIST, errno.ENXIO}
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


BLOCK_BYTES = 1 << 20
BOM = "\ufeff"
"""The byte order mark that some editors begin a file with."""
DEEPEST = 64
"""Tables inside tables."""
_INK = re.compile(r"\S")
NO_PATH = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
"""What a system says of a name that cannot be, or is not for us."""


class TooLarge(InputError, ValueError):
    """A file has more bytes than knee reads of its kind. Also a ValueError, as a document that cannot be parsed is."""

    def __init__(self, path: Path, most: int, has: int | None = None) -> None:
        size = f"has {_size(has)}" if has is not None else f"is larger than {_size(most)}"
        super().__init__(
            f"{path} {size}, but knee reads at most {_size(most)} of such a file",
            hint="check that this is the right file; if so, split it",
            code="too-large",
        )
        self.path, self.most, self.has = path, most, has


class NotText(InputError, ValueError):
    """A file has what no text has. Also a ValueError, as a document that cannot be parsed is."""


def cannot_use(error: OSError) -> InputError | None:
    """What was named and cannot be looked at, in words; None for other troubles."""
    if error.errno not in NO_PATH or error.filename is None:
        return None
    name = os.fsdecode(error.filename)
    short = name if len(name) <= 200 else name[:200] + "..."
    return InputError(f"{short} cannot be used: {error.strerror}", code=why_unreadable(error))


def why_unreadable(error: OSError | UnicodeDecodeError) -> str:
    """The code of what was named as a file and cannot be read: one rule, whoever reads it."""
    if isinstance(error, UnicodeDecodeError):
        return "not-utf8"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "no-file"
    return "not-a-file" if error.errno == errno.EISDIR else "unreadable"


def cannot_read(
    path: Path, error: OSError | UnicodeDecodeError, *, field: str | None = None, hint: str | None = None
) -> InputError:
    """The sentence for a file that cannot be read; ``field`` names the argument that it comes from."""
    code = why_unreadable(error)
    if code == "no-file":
        return InputError(f"there is no file {str(path)!r}", hint=hint, code=code, field=field)
    why = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror or error
    return InputError(f"{path} cannot be read: {why}", hint=hint, code=code, field=field)


def check_readable(file: str | Path, field: str, *, hint: str | None = None) -> None:
    """Refuse, before the work that needs it, what is no plain file or cannot be read; ``field`` names the argument."""
    path = Path(file)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder" if path.is_dir() else "it is a device or a pipe")
        path.open("rb").close()
    except OSError as error:
        raise cannot_read(path, error, field=field, hint=hint) from None


def _size(count: int) -> str:
    return f"{count >> 20:,} MiB" if count >= 1 << 20 else f"{count:,} bytes"


def is_deep(tree: object) -> bool:
    """Whether anything lies further inside than in any file of knee's: Python's own limit differs by version."""
    level: list[object] = [tree]
    for _ in range(DEEPEST):
        level = [
            one
            for node in level
            if isinstance(node, (dict, list))
            for one in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


def json_values(text: str) -> tuple[list[Any], int | None]:
    """The JSON values of a text, one after another, of lists their items; and where it stops being JSON, or None."""
    found: list[Any] = []
    decoder, at = json.JSONDecoder(), 0
    while ink := _INK.search(text, at):
        try:
            value, at = decoder.raw_decode(text, ink.start())
        except (ValueError, RecursionError):
            return found, ink.start()
        found += value if isinstance(value, list) else [value]
    return found, None


def read_text(path: Path, *, most: int = MOST_JSON_BYTES) -> str:
    """A text file as ``Path.read_text`` reads it, less a byte order mark; ``TooLarge`` beyond ``most`` bytes."""
    text = read_bytes(path, most).decode("utf-8").removeprefix(BOM)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_bytes(path: Path, most: int) -> bytes:
    """All of a file of text: a plain one that is too large is not read at all, and of others no more than ``most``."""
    with open_input(path) as file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_size > most:
            raise TooLarge(path, most, status.st_size)
        return read_all(file, path, most)


def read_all(file: BinaryIO, path: Path, most: int) -> bytes:
    """What an open file has. A zero byte ends it, since no text has one: a device may give nothing else forever."""
    found, left = [], most
    while block := file.read(min(BLOCK_BYTES, left + 1)):
        if (at := block.find(0)) >= 0:
            text = f"{path} is not UTF-8 text: it has a zero byte at position {most - left + at:,}"
            raise NotText(text, code="not-utf8")
        found.append(block)
        left -= len(block)
        if left < 0:
            raise TooLarge(path, most)
    return b"".join(found)


def open_input(path: Path) -> BinaryIO:
    """Open for reading without waiting for ever: InputError for a named pipe that nobody writes to."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISFIFO(mode):
            _await_writer(handle, path)
        if stat.S_ISFIFO(mode) or os.isatty(handle):
            os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _await_writer(handle: int, path: Path) -> None:
    """A pipe of this process (`<(...)`, the standard input) had its writer from the start; a named one may get one."""
    waits = select.poll()
    waits.register(handle, select.POLLIN)
    if os.path.realpath(path).startswith("/proc/") or waits.poll(0):
        return
    waits.poll(WRITER_S * 1000)
    with contextlib.suppress(OSError):  # a writer that comes and goes leaves an empty pipe hung up if it has no other
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    if any(event & select.POLLHUP and not event & select.POLLIN for _, event in waits.poll(0)):
        hint = "start the program that writes to it first"
        raise InputError(f"{path} is a pipe without a writer", hint=hint, code="unreadable")


def digest(value: Any) -> str:
    """The digest of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
