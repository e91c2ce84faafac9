"""Claims on the page: with their study, and all together; each with its paper value, its bar, what was found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from knee.report.html import Markup, join, scrolling, tag, text
from knee.studies.claims import Outcome, Tally, Verdict

MARKS: dict[Outcome, str] = {"reproduced": "✓", "off": "≈", "contradicted": "✗", "not testable": "–"}
"""Beside the word, so that neither colour nor a sign alone says it."""
OUTCOMES: tuple[Outcome, ...] = ("reproduced", "off", "contradicted", "not testable")
KINDS = {"not fitted on": False, "fitted on": True}
MEANING = (
    "Reproduced: every test of it holds. Off: a number misses its bar, by as much as is said. Contradicted: an "
    "ordering or a trend is the other way round. Not testable: these runs do not say. Fitted on: a constant of the "
    "simulator, or the test itself, was chosen with this claim in view, so that its agreement is no evidence."
)


def anchor(claim: str) -> str:
    """Of a claim in the table of all."""
    return "claim-" + re.sub(r"[^A-Za-z0-9]+", "-", claim).lower()


def outcome(v: Verdict) -> Markup:
    """The verdict in a sign and a word."""
    return tag("span", f"{MARKS[v.verdict]} {v.verdict}", class_=f"verdict {v.verdict.replace(' ', '-')}")


def tally_table(verdicts: Sequence[Verdict]) -> Markup:
    """Outcomes of claims that were not fitted on, of those that were, and of all."""
    counts = {name: [v for v in verdicts if bool(v.fitted) is of] for name, of in KINDS.items()}
    rows = [*counts.items(), ("all", list(verdicts))]
    head = join(
        tag("th", name, scope="col", class_="number" if i else None)
        for i, name in enumerate(("claims", *OUTCOMES, "in all"))
    )
    body = join(
        tag(
            "tr",
            tag("th", name, scope="row"),
            *(_count(sum(v.verdict == one for v in some)) for one in OUTCOMES),
            _count(len(some)),
            raw=True,
        )
        for name, some in rows
    )
    return scrolling("Claims of the paper, by what came of them", head, body)


def _count(number: int) -> Markup:
    return tag("td", tag("data", str(number), value=repr(number)), raw=True, class_="number")


def tally_sentence(verdicts: Sequence[Verdict]) -> str:
    """The line that the command ends with."""
    return f"claims: {Tally.of(verdicts)}"


def study_claims(verdicts: Sequence[Verdict], title: str) -> Markup:
    """With their study: what the paper says, what was found, and why where it is not the same."""
    rows = []
    for v in verdicts:
        found = [tag("p", v.found), tag("p", f"counts as reproduced: {v.bar}", class_="small")]
        found += [tag("p", tag("strong", v.off), raw=True)] if v.off else []
        found += [tag("p", f"Why: {v.why}", class_="small")] if v.why else []
        fitted = [tag("p", f"fitted on: {v.fitted}", class_="small")] if v.fitted else []
        link = tag("a", v.id, href=f"#{anchor(v.id)}")
        cells = {
            "claim": tag("p", link, text(f" {v.says}"), raw=True),
            "paper": tag("p", v.paper),
            "found": join(found),
            "verdict": join([outcome(v), *fitted]),
        }
        rows.append(cells)
    return _cards(f"Claims of {title}", rows)


def all_claims(verdicts: Sequence[Verdict], studies: Mapping[str, str]) -> Markup:
    """Every claim once, with a link to its study (name -> its title)."""
    rows = [
        {
            "claim": tag("p", tag("strong", v.id), raw=True),
            "statement": tag(
                "p", text(f"{v.says} ("), tag("a", studies[v.study], href=f"#{v.study}"), text(")"), raw=True
            ),
            "paper": tag("p", v.paper),
            "bar": tag("p", v.bar),
            "found": tag("p", v.found + (f"; {v.off}" if v.off else "")),
            "verdict": outcome(v),
            "fitted on": tag("p", v.fitted or "nothing"),
        }
        for v in verdicts
    ]
    return _cards(
        "Every claim, held against the runs; the bar is what counts as reproduced",
        rows,
        [anchor(v.id) for v in verdicts],
    )


def _cards(caption: str, rows: Sequence[Mapping[str, Markup]], ids: Sequence[str] = ()) -> Markup:
    """A table whose rows become cards on a narrow screen; there its roles are lost, so they are spelt out."""
    names = list(rows[0])
    head = tag("tr", *(tag("th", name, scope="col", role="columnheader") for name in names), raw=True, role="row")
    body = []
    for number, row in enumerate(rows):
        first, *rest = row.items()
        cells = [tag("td", cell, raw=True, role="cell", data_label=name) for name, cell in rest]
        head_cell = tag("th", first[1], raw=True, scope="row", role="rowheader")
        body.append(tag("tr", head_cell, *cells, raw=True, role="row", id=ids[number] if ids else None))
    return tag(
        "table",
        tag("caption", caption),
        tag("thead", head, raw=True, role="rowgroup"),
        tag("tbody", *body, raw=True, role="rowgroup"),
        raw=True,
        role="table",
        class_=f"claims {'all' if ids else 'few'}",
    )


def claims_section(verdicts: Sequence[Verdict], studies: Mapping[str, str], uncounted: Mapping[str, str]) -> Markup:
    """All claims, the failed ones first with their reasons, and the statements that none was made of."""
    failed = [v for v in verdicts if v.failed]
    parts = [
        tag("h2", "All claims", id="claims-title"),
        tag("p", tag("strong", tally_sentence(verdicts)), raw=True),
        tag("p", MEANING, class_="lead"),
        tally_table(verdicts),
    ]
    if failed:
        items = join(
            tag("li", tag("a", v.id, href=f"#{anchor(v.id)}"), text(f" {v.says}: {v.why or v.found}"), raw=True)
            for v in failed
        )
        parts += [tag("h3", f"The {len(failed)} that are not reproduced, and why"), tag("ul", items, raw=True)]
    parts += [tag("h3", "Every claim"), all_claims(verdicts, studies)]
    if uncounted:
        head = join([tag("th", "statement", scope="col"), tag("th", "why no claim is made of it", scope="col")])
        body = join(tag("tr", tag("th", key, scope="row"), tag("td", why), raw=True) for key, why in uncounted.items())
        parts += [
            tag("h3", "Not counted, and why"),
            scrolling("Statements of the paper that no claim is made of", head, body),
        ]
    return tag("section", *parts, raw=True, id="claims", aria_labelledby="claims-title")
