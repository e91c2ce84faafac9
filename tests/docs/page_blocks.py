"""The code blocks of README and of the site's pages: read, run in order in one folder a page, and compared.

- ``console``: lines that begin with ``$`` are commands. Lines below one are its output, ``...`` stands for lines that
  are left out; every other line has to be printed. A command may end in ``> FILE``.
- ``python``: one namespace a page.
- A block with ``title="NAME"``, or TOML that begins with ``# NAME.toml``, is written into the folder under that name.
  TOML and JSON blocks are parsed.
- ``<!-- not run: REASON -->`` above a block: its commands are parsed, and not run.
- ``<!-- exit code: N -->`` above a block: its last command ends with that code.

``python tests/docs/page_blocks.py`` brings shown output up to date: each line that is not printed any more becomes the
most similar line that is.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import os
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from knee.commands.main import main

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(
    r"^(?P<marks>(?:<!-- [^\n]* -->\n\n?)*)(?P<indent> *)```(?P<language>\w+)(?P<more>[^\n]*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"\s+# .*$")
PROGRAMS = {"make", "pip", "torchrun", "sbatch", "bash", "python", "curl", "ssh"}
"""What a command that is not run may begin with, beside knee."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A command, and the output that the page shows."""

    line: str
    output: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block."""

    language: str
    text: str
    title: str = ""
    not_run: str = ""
    exit_code: int = 0

    def commands(self) -> Iterator[Shown]:
        """Of a console block: each command, joined where it goes on in the next line."""
        line, output = "", []
        for row in self.text.replace("\\\n", "").splitlines():
            if row.startswith("$ "):
                if line:
                    yield Shown(line=line, output=tuple(output))
                line, output = COMMENT.sub("", row[2:]).strip(), []
            elif row.strip():
                output.append(row)
        if line:
            yield Shown(line=line, output=tuple(output))


def blocks_of(page: str) -> list[Block]:
    """Every fenced block of a page, in order."""
    found = []
    for match in BLOCK.finditer(page):
        marks = dict(re.findall(r"<!-- (not run|exit code): (.*?) -->", match["marks"]))
        title = re.search(r'title="([^"]+)"', match["more"]) or re.match(r"# (\S+\.toml)\b", match["text"])
        found.append(
            Block(
                language=match["language"],
                text=match["text"],
                title=title[1] if title else "",
                not_run=marks.get("not run", ""),
                exit_code=int(marks.get("exit code", 0)),
            )
        )
    return found


@dataclass
class Page:
    """What the blocks of one page share."""

    names: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    """Shown lines that were not printed -> what was."""

    def run(self, block: Block) -> None:
        """In the working folder."""
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text, encoding="utf-8")
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "python":
            code = compile(block.text, "block", "exec")
            if not block.not_run:
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(code, self.names)
        elif block.language == "console":
            shown = list(block.commands())
            assert shown, "a console block has no line that begins with $"
            for number, one in enumerate(shown):
                if block.not_run:
                    parse(one.line)
                else:
                    self.command(one, block.exit_code if number == len(shown) - 1 else 0)

    def command(self, shown: Shown, exit_code: int) -> None:
        """Run it in this process."""
        words = shlex.split(shown.line)
        assert words[0] == "knee", f"{words[0]} is not run here: mark the block with <!-- not run: REASON -->"
        target = Path(words[-1]) if len(words) > 2 and words[-2] == ">" else None
        result = CliRunner().invoke(main, words[1:-2] if target else words[1:])
        assert result.exit_code == exit_code, f"{shown.line}\n{result.stderr}\n{result.exception!r}"
        if target:
            target.write_text(result.stdout, encoding="utf-8")
        printed = [line.rstrip() for line in result.output.splitlines()]
        for line in shown.output:
            if line.strip() != "..." and line.rstrip() not in printed:
                self.missing[line] = printed


def parse(line: str) -> None:
    """Read a command without running it: a wrong option or word is found."""
    words = shlex.split(line)
    words = words[: next((i for i, word in enumerate(words) if word in ("<", ">", "|")), None)]
    if words[0] == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert words[1] in targets, f"make has no target {words[1]}"
        return
    if words[0] == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = re.findall(r"\[(.*?)\]", words[-1])
        assert set(",".join(extras).split(",")) - {""} <= set(project["optional-dependencies"]), line
        return
    assert words[0] in {"knee", *PROGRAMS}, f"{words[0]}: unknown program"
    if words[0] != "knee":
        if "knee" not in words:
            return
        words = words[words.index("knee") :]
    context = click.Context(main, info_name="knee", **main.context_settings)  # click keeps the help option it makes
    command, rest = main.get_command(context, words[1]), words[2:]
    assert command is not None, line
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        context = click.Context(command, parent=context, info_name=command.name)
        # a study's or a grid's name stands for `run`, as in `knee sweep fig6`
        part, *after = rest if rest[0] in command.list_commands(context) else ("run", *rest)
        command, rest = command.get_command(context, part), after
        assert command is not None, line
    with _without_files(command):
        command.make_context(command.name, rest, parent=context)


@contextlib.contextmanager
def _without_files(command: click.Command) -> Iterator[None]:
    """Files of an example need not be there to read its options."""
    types = [(parameter, parameter.type) for parameter in command.params]
    for parameter, kind in types:
        if isinstance(kind, click.Path | click.File):
            parameter.type = click.STRING
    try:
        yield
    finally:
        for parameter, kind in types:
            parameter.type = kind


def run_page(path: Path, folder: Path) -> dict[str, list[str]]:
    """Run all blocks in a folder; the shown lines that were not printed, and what was."""
    page, here, blocks = Page(), Path.cwd(), blocks_of(path.read_text(encoding="utf-8"))
    os.chdir(folder)
    try:
        for block in blocks:
            page.run(block)
    finally:
        os.chdir(here)
    return page.missing


def refresh(path: Path) -> int:
    """Put what is printed now in the place of what was; how many lines."""
    with tempfile.TemporaryDirectory() as folder:
        missing = run_page(path, Path(folder))
    text = path.read_text(encoding="utf-8")
    for line, printed in missing.items():
        (near,) = difflib.get_close_matches(line, printed, n=1, cutoff=0.0)
        text = text.replace(f"\n{line}\n", f"\n{near}\n")
    path.write_text(text, encoding="utf-8")
    return len(missing)


if __name__ == "__main__":
    os.environ.update({"COLUMNS": "80", "TERM": "dumb"})
    for path in [Path(name) for name in sys.argv[1:]] or PAGES:
        click.echo(f"{path}: {refresh(path)} lines changed")
