"""``knee serve``: the explorer, a page that runs on this machine."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import click

from knee.base.errors import InputError, MissingExtra, argument
from knee.commands.options.sections import PATH, options

PORT = 8753
TOKEN = "KNEE_SERVE_TOKEN"
"""Variable with the token, where it is to be a certain one."""


@click.command()
@options(
    "Server",
    {
        ("--port N", click.IntRange(0, 65535), PORT): "Port to listen on. 0 takes a free one.",
        ("--host ADDRESS", str, "127.0.0.1"): "Address to listen on. Any address other than this machine's own needs a "
        f"token, which is part of the printed address; {TOKEN} sets it.",
        ("--token", bool): "Ask for a token on this machine too.",
        ("--open open_", bool): "Open the page in a browser.",
    },
)
@options(
    "Data",
    {
        ("--records FOLDER", PATH): "Folder whose records, runs and traces can be opened from the page. Nothing "
        "outside it is read.",
        ("--study FOLDER", PATH): "Folder of `knee study run`, served as /study/; its figures link to the explorer.",
    },
)
def command(port: int, host: str, token: bool, open_: bool, records: Path | None, study: Path | None) -> None:
    """Serve the explorer: one page with a step's timeline, scaling curves, plan searches and budgets.

    Change a control and the charts follow. The whole state is in the page's address, so that it can be shared. Every
    view can be copied as a command or as Python. The same JSON API can be used by scripts: /api/openapi.json describes
    it.

    The page and its data stay on this machine, and no network is needed. Press Ctrl-C to stop the server.
    """
    try:
        from knee.commands.serve.app import ServeOptions
        from knee.commands.serve.security import Door, is_loopback
        from knee.commands.serve.server import address_of, listening_socket, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "h11", "anyio"):
            raise
        text = f"knee serve needs {(error.name or '').partition('.')[0]}, which is not installed"
        raise MissingExtra(text, hint="pip install 'knee[serve]'") from None
    asks = token or not is_loopback(host)
    secret = (os.environ.get(TOKEN) or secrets.token_urlsafe(24)) if asks else None
    if secret is not None and len(secret) < 16:
        text = f"{TOKEN} has {len(secret)} characters; a token needs at least 16"
        raise InputError(text, hint=f"unset {TOKEN} to let knee make one", code="out-of-range", field="token")
    if records is not None and not records.is_dir():
        text = f"{argument('records')} {records} is not a folder"
        raise InputError(text, hint="`knee train --out FOLDER` writes records", code="no-file", field="records")
    if study is not None and not (study / "index.html").is_file():
        text = f"{argument('study')} {study} has no index.html"
        raise InputError(text, hint="`knee study run --out FOLDER` writes one", code="no-file", field="study")
    own = listening_socket(host, port)
    address = address_of(own, host, secret)

    def ready() -> None:
        click.echo(address)
        if study is not None:
            click.echo(f"{address.partition('#')[0]}study/")
        click.echo("knee serves the explorer at this address; press Ctrl-C to stop it", err=True)
        if open_:
            import webbrowser

            webbrowser.open(address)

    serve(ServeOptions(door=Door(host=host, token=secret), records=records, study=study), own, ready)
