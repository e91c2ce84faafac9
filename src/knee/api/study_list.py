"""``knee.list_studies`` and ``knee.describe_study``: what studies ask, run and are judged by, before they are run."""

from __future__ import annotations

from pathlib import Path

from knee.inputs.argument_types import checked_arguments
from knee.results.study_description import StudyDescription, StudySummary
from knee.studies.questions import points_of
from knee.studies.study_file import load_study, study_names


def list_studies() -> tuple[StudySummary, ...]:
    """List all studies: first those of the paper, in its order, then the others.

    >>> import knee
    >>> [one.place for one in knee.list_studies() if one.name == "fig6"]
    ['Figure 6, section 4.3']
    """
    return tuple(
        StudySummary(
            name=study.name,
            kind=study.kind,
            place=study.place,
            title=study.title,
            points=len(points_of(study)),
            claims=tuple(claim.id for claim in study.claim),
        )
        for study in map(load_study, study_names())
    )


@checked_arguments
def describe_study(name: str | Path) -> StudyDescription:
    """Describe a study, given by name or TOML file: its question, runs, assumptions and claims.

    >>> import knee
    >>> fig6 = knee.describe_study("fig6")
    >>> len(fig6.points) == len(fig6.rows()) > 0
    True
    """
    study = load_study(str(name))
    return StudyDescription(asked=str(name), study=study, points=tuple(points_of(study)))
