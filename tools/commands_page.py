"""``python tools/commands_page.py [FILE]`` writes ``docs/commands.md`` from what the commands say in ``--help``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from knee.commands.main import main

WIDTH = 100
HEAD = """# Commands

Made from the commands' own `--help` by `python tools/commands_page.py`; a test holds the two together.
"""


def commands_page() -> str:
    """The page: the group, then every command."""
    top = _context(main, "knee", None)
    parts = [HEAD, _block("knee", main.get_help(top))]
    for name in main.list_commands(top):
        command = main.get_command(top, name)
        assert command is not None
        inner = _context(command, name, top)
        parts.append(_block(f"knee {name}", command.get_help(inner)))
        if isinstance(command, click.Group):
            for below in command.list_commands(inner):
                part = command.get_command(inner, below)
                assert part is not None
                parts.append(_block(f"knee {name} {below}", part.get_help(_context(part, below, inner))))
    return "\n".join(parts)


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    # Both widths are fixed, so that the page does not depend on the terminal it is made in.
    return click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )


def _block(title: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"## {title}\n\n```text\n{lines}\n```\n"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/commands.md")
    target.write_text(commands_page(), encoding="utf-8")
    click.echo(f"wrote {target}", err=True)
