"""One live page over the functions of ``import knee``: a JSON API, worker processes behind it, and the page."""
