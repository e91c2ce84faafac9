"""``python -m knee.cli`` is ``knee``."""

from knee.cli import main

main()
