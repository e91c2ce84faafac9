"""Traces of anyone's PyTorch job: read exactly, whatever is left out is said. ``analyse(paths)`` is the whole of it."""

from knee.measure.traces.analyse import Analysis, analyse

__all__ = ["Analysis", "analyse"]
