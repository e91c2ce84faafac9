"""Vega's SVG without what a page has no use for: a third of the size, and a tooltip on every mark with a text."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from knee.show.figures.vega import FONT

DROPPED = (
    *("class", "role", "aria-roledescription", "aria-hidden", "pointer-events", "font-family", "version"),
    *("stroke-miterlimit", "xlink"),
)
DEFAULTS = {
    "opacity": "1",
    "stroke-dasharray": "1,0",
    "font-size": "12px",
    "font-weight": "normal",
    "stroke-opacity": "1",
    "fill-opacity": "1",
    "transform": "translate(0,0)",
}
INHERITED = (
    *("fill", "stroke", "stroke-width", "font-size", "font-weight", "text-anchor", "stroke-dasharray"),
    "stroke-linecap",
)
NUMBER = re.compile(r"-?(?<!\d)\d++\.\d++(?:e-?\d++)?")
DISC = re.compile(r"^M([\d.]+),0A\1,\1,0,1,1,-\1,0A\1,\1,0,1,1,\1,0Z?$")
MOVED = re.compile(r"^translate\((-?[\d.]+),(-?[\d.]+)\)$")
SPACE = "{http://www.w3.org/2000/svg}"


def svg_for_page(svg: str, label: str) -> str:
    """The same picture in fewer bytes, for any width, and with one label for a screen reader.

    What was a mark's description is its title, which browsers show as a tooltip.
    """
    root = ET.fromstring(svg)  # our own, from vl-convert
    for element in root.iter():
        element.tag = element.tag.removeprefix(SPACE)
    _clean(root)
    kept = {name: root.attrib[name] for name in ("viewBox", "fill", "stroke") if name in root.attrib}
    root.attrib = {"xmlns": SPACE.strip("{}"), "role": "img", "aria-label": label} | kept
    root.attrib |= {"font-family": FONT, "font-size": "12"}
    return ET.tostring(root, encoding="unicode", short_empty_elements=True).replace(" />", "/>")


def is_tall(svg: str) -> bool:
    """Whether a picture takes the height of two."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    return box is not None and float(box[2]) > 1.15 * float(box[1])


def _clean(element: ET.Element) -> None:
    """Children first, so that what they have in common can move up."""
    for child in list(element):
        # Vega's frames of groups have neither fill nor stroke
        is_frame = child.get("class") == "background" and child.attrib.keys().isdisjoint(("fill", "stroke"))
        if is_frame or child.get("display") == "none":
            element.remove(child)
        else:
            _clean(child)
    _attributes(element)
    if element.tag == "g":
        _join_lines(element)
        _lift(element)
    kept: list[ET.Element] = []
    for child in element:
        bare = child.tag == "g" and not child.attrib
        if child.tag == "g" and not len(child):
            continue
        kept += list(child) if bare else [child]
    element[:] = kept


def _attributes(element: ET.Element) -> None:
    says = element.attrib.pop("aria-label", None)
    for name in list(element.attrib):
        value = element.attrib[name]
        if name in DROPPED or name.endswith("xlink") or DEFAULTS.get(name) == value:
            del element.attrib[name]
        elif name in ("transform", "d", "x", "y", "x2", "y2", "viewBox", "width", "height", "font-size"):
            element.attrib[name] = NUMBER.sub(_rounded, value).removesuffix("px" if name == "font-size" else "\0")
    if element.tag == "path" and (found := DISC.match(element.get("d", ""))):
        at = MOVED.match(element.attrib.pop("transform", "translate(0,0)"))
        del element.attrib["d"]
        element.tag = "circle"
        element.attrib |= {"cx": at[1] if at else "0", "cy": at[2] if at else "0", "r": found[1]}
    if says is not None and element.tag != "g":
        title = ET.Element("title")
        title.text = says
        element.insert(0, title)


def _rounded(found: re.Match[str]) -> str:
    short = f"{float(found[0]):.1f}".removesuffix(".0")
    return "0" if short == "-0" else short


def _join_lines(group: ET.Element) -> None:
    """Grid lines and ticks of one style as one path."""
    lines = list(group)
    if len(lines) < 2 or any(line.tag != "line" or len(line) for line in lines):
        return
    place = ("transform", "x2", "y2")
    styles = {tuple((k, v) for k, v in sorted(line.attrib.items()) if k not in place) for line in lines}
    places = [MOVED.match(line.get("transform", "translate(0,0)")) for line in lines]
    if len(styles) != 1 or not all(places):
        return
    d = "".join(
        f"M{at[1]},{at[2]}l{line.get('x2', '0')},{line.get('y2', '0')}"
        for at, line in zip(places, lines, strict=True)
        if at
    )
    group[:] = [ET.Element("path", dict(styles.pop()) | {"d": d})]


def _lift(group: ET.Element) -> None:
    """What all children have in common, and hand down, is said once."""
    children = list(group)
    if len(children) < 2:
        return
    for name in INHERITED:
        values = {child.get(name) for child in children}
        if len(values) == 1 and None not in values and name not in group.attrib:
            group.set(name, str(values.pop()))
            for child in children:
                del child.attrib[name]
