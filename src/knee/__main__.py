"""``python -m knee`` is ``knee``, so that ``torchrun -m knee train ...`` starts it."""

from knee.cli import main

main()
