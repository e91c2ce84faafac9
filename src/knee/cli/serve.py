"""``knee serve``: the explorer, a page that runs on this machine."""

from __future__ import annotations

import click

from knee.cli.options.plan_options import option


@click.command()
@option("--port", section="Server", type=click.IntRange(0, 65535), default=8753, show_default=True, help="Port to listen on; 0 takes a free one.")
def command(port: int) -> None:
    """Serve the explorer."""
    import uvicorn

    from knee.serve.app import make_app

    click.echo(f"http://127.0.0.1:{port}/", err=True)
    uvicorn.run(make_app(), host="127.0.0.1", port=port, log_level="warning")
