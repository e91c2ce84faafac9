"""One folder per command: its function (api.py), result, options (cli.py), terminal text and page."""
