"""``knee``, and ``python -m knee``, so that ``torchrun -m knee train ...`` starts it: first it hears signals."""

# The module that signal is made of, which needs no import: until there is a handler, Ctrl-C ends without a traceback.
import _signal  # type: ignore[import-not-found]

_signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import os  # noqa: E402 - after the line above
import sys  # noqa: E402


def main() -> None:
    """Run the command line; ends the process."""
    _fill_descriptors()
    from knee.base import signals

    try:
        signals.listen()
        from knee.commands.main import main as commands

        commands()
    except KeyboardInterrupt:  # while importing, or while an error was told
        signals.clean_up()
        sys.exit(signals.heard())


def _fill_descriptors() -> None:
    """Where stdin, stdout or stderr is closed, the next file to be opened would be taken for it. Not this one: it can
    neither be written to nor read from."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)


if __name__ == "__main__":
    main()
