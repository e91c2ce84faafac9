"""The pieces of figures: colours, columns in people's units, axes without lost labels, smaller pictures."""

from __future__ import annotations

import itertools
import re

import pytest

from knee.base.errors import MissingExtra
from knee.base.units import amount
from knee.show.figures import palette, vega
from knee.show.figures.axes import fitting, x_axis, y_axis
from knee.show.figures.heat_map import hatch_path
from knee.show.figures.labels import format_value, heading, label, value_with_name
from knee.show.figures.svg import svg_for_page

GPUS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)


def test_every_colour_is_one_thing() -> None:
    lights = [look.light for look in palette.STYLES]
    lights += [look.fill_light for look in palette.STYLES if look.fill_light]
    assert len(set(lights)) == len(lights) == len(palette.dark_of())
    assert set(palette.PARTS) == {"compute", "overlapped", "exposed", "bubble", "idle"}
    parts = {(look.dash, look.light == look.fill) for look in palette.PARTS.values()}
    assert len(parts) >= 4
    assert len({look.dash for look in palette.SERIES}) == len(palette.SERIES)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _contrast(one: str, other: str) -> float:
    a, b = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (a + 0.05) / (b + 0.05)


@pytest.mark.parametrize("ramp", [palette.MORE, palette.WORSE])
def test_numbers_in_cells_can_be_read_in_both_themes(ramp: tuple[palette.MarkStyle, ...]) -> None:
    for cell, words in zip(ramp, palette.CELL_TEXT, strict=True):
        assert _contrast(cell.light, words.light) >= 4.5
        assert _contrast(cell.dark, words.dark) >= 4.5
    # one hue by lightness: safe for every colour blindness
    light, dark = [[_luminance(c) for c in some] for some in ([x.light for x in ramp], [x.dark for x in ramp])]
    assert light == sorted(light, reverse=True)
    assert dark == sorted(dark)


@pytest.mark.parametrize("look", palette.SERIES)
def test_lines_show_on_both_grounds(look: palette.MarkStyle) -> None:
    assert _contrast(look.light, "#ffffff") >= 3
    assert _contrast(look.dark, "#14171b") >= 3


def test_a_missing_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(vega.importlib, "import_module", missing)
    with pytest.raises(MissingExtra, match=r"pip install 'knee\[report\]'"):
        vega.to_svg({})


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("mfu_frac", 0.4077, "40.8"),
        ("memory_bytes", 2.0**30, "1.0"),
        ("tokens_per_s", 10795934.2, "10,795,934"),
        ("gpus", 2048, "2,048"),
        ("step_s", 0.96, "0.9600"),
        ("bubble_s", 0.0, "0"),
        ("fits", True, "yes"),
        ("plan", "TP 2", "TP 2"),
        ("message_bytes", 2.0**26, "64 MiB"),
        ("nic_bytes_per_s", 50e9, "400"),
        ("bus_bytes_per_s", 352e9, "352"),
        ("power_w_per_gpu", 620.4, "620"),
        ("peak_flop_per_s", 989e12, "989"),
    ],
)
def test_values_as_people_read_them(column: str, value: object, words: str) -> None:
    assert format_value(column, value) == words


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("gpus", "GPUs"),
        ("exposed_comm_s", "exposed communication (s)"),
        ("tokens_per_s_per_gpu", "tokens/s per GPU"),
        ("plan", "plan"),
        ("tokens_per_s", "tokens/s"),
        ("power_w_per_gpu", "power per GPU (W)"),
        ("tokens_per_j", "tokens per joule"),
        ("mfu_frac", "MFU (%)"),
        ("memory_bytes", "memory per GPU (GiB)"),
        ("nic_bytes_per_s", "network per GPU (Gbit/s)"),
        ("bus_bytes_per_s", "bus bandwidth (GB/s)"),
        ("message_bytes", "message"),
        ("new_thing_s", "new thing (s)"),
        ("some_frac", "some (%)"),
    ],
)
def test_headings_carry_units(column: str, words: str) -> None:
    assert heading(column) == words


def test_values_in_a_sentence() -> None:
    assert value_with_name("tokens_per_s_per_gpu", 5140.2) == "5,140 tokens/s per GPU"
    assert value_with_name("exposed_frac", 0.344) == "exposed share of the step 34.4%"
    assert value_with_name("all_gather_s", 0.0342) == "all-gathers 34.20 ms"
    assert [label("gpus", 2048), label("tp", 4), label("series", "FSDP")] == ["2,048 GPUs", "TP 4", "FSDP"]
    assert label("message_bytes", 2**30) == "1 GiB"


def test_a_gpu_axis_is_log2_and_keeps_every_label() -> None:
    axis = x_axis("gpus", [*GPUS, *GPUS], room=40)
    assert axis["scale"] | {"domain": None} == {"type": "log", "base": 2, "nice": False, "domain": None}
    assert axis["scale"]["domain"][0] == 8
    assert axis["scale"]["domain"][1] > 2048
    assert axis["axis"]["values"] == list(GPUS)
    assert axis["axis"]["labelOverlap"] is False
    assert '"2048": "2,048"' in axis["axis"]["labelExpr"]


def test_labels_that_have_no_room_are_thinned_evenly() -> None:
    sizes = [2.0**k for k in range(20, 35)]
    some = fitting("message_bytes", sizes)
    assert some[0] == sizes[0]
    assert 4 <= len(some) < len(sizes)
    assert len({b / a for a, b in itertools.pairwise(some)}) == 1


def test_words_and_plain_numbers_have_axes_too() -> None:
    assert x_axis("model", ["b", "a", "b"])["scale"]["domain"] == ["b", "a"]
    assert x_axis("price", [1.0, 2.0])["type"] == "quantitative"
    assert x_axis("gpus", [8])["scale"] == {"zero": False}


def test_y_axes_are_in_the_unit_of_the_largest_value() -> None:
    axis, factor = y_axis("all_gather_s", [0.034, 0.726])
    assert (axis["title"], factor) == ("all-gathers (ms)", 1e3)
    axis, factor = y_axis("total_power_w", [8e3, 1.3e6])
    assert (axis["title"], factor) == ("power of all GPUs (MW)", 1e-6)
    axis, _ = y_axis("tokens_per_s", [70_000, 17e6], log=True)
    ticks = axis["axis"]["values"]
    assert ticks[:2] == [62_500, 125_000]
    assert all(b == 2 * a for a, b in itertools.pairwise(ticks))


def test_hatching_stays_inside_its_cell() -> None:
    numbers = [float(n) for n in re.findall(r"-?[\d.]+", hatch_path(60, 38))]
    assert numbers
    assert max(map(abs, numbers[::2])) <= 30
    assert max(map(abs, numbers[1::2])) <= 19


SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" version="1.1" class="marks" '
    'width="354" height="156" viewBox="0 0 354 156"><g fill="none" stroke-miterlimit="10" transform="translate(40,14)">'
    '<g class="root" role="graphics-object"><path class="background" d="M0,0h0v0h0Z"/>'
    '<g><line transform="translate(0,-100)" x2="0" y2="100" stroke="#d8dde3" opacity="1"/>'
    '<line transform="translate(30.00000000001,-100)" x2="0" y2="100" stroke="#d8dde3" opacity="1"/></g>'
    '<path aria-label="a &lt;b&gt;: 2" role="graphics-symbol" transform="translate(1.2345,0)" d="M9,0A9,9,0,1,1,-9,'
    '0A9,9,0,1,1,9,0" fill="#1b1f24"/><g aria-label="axis"><text font-family="x" font-size="12px">8</text></g>'
    '<path class="foreground" display="none" d=""/></g></g></svg>'
)


def test_pictures_get_smaller_and_say_what_a_mark_is() -> None:
    small = svg_for_page(SVG, "a & b")
    opening, small = small.split(">", 1)
    assert len(small) < len(SVG) / 1.5
    assert 'viewBox="0 0 354 156"' in opening
    assert 'role="img" aria-label="a &amp; b"' in opening
    assert "width" not in opening
    assert '<path stroke="#d8dde3" d="M0,-100l0,100M30,-100l0,100"/>' in small
    assert '<circle fill="#1b1f24" cx="1.2" cy="0" r="9"><title>a &lt;b&gt;: 2</title></circle>' in small
    assert "<text>8</text>" in small
    assert not re.search("class=|role=|aria-|xlink|foreground", small)


def test_large_numbers_are_written_as_people_write_them() -> None:
    assert [format_value("run_flop", value) for value in (1e25, 3.4e27, 5.883e23)] == ["1e25", "3.4e27", "5.883e23"]
    assert [amount(value) for value in (30_840_000.0, 1e25)] == ["30,840,000", "1e25"]
    # Vega looks labels up by a number as JavaScript writes it
    axis = x_axis("run_flop", [1e25, 1e26])["axis"]
    assert axis["labelExpr"].startswith('({"1e+25": "1e25", "1e+26": "1e26"})')
