"""``python -m knee.cli`` is ``knee``."""

from knee.__main__ import main

main()
