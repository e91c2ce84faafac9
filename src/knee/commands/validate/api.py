"""``knee.validate``: published runs and measured collectives against predictions."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from knee.base.errors import InputError, argument, either
from knee.base.progress import Progress, watched
from knee.commands.job_request import ClusterLike, ProfileLike, named_cluster, named_profile
from knee.commands.study.record_store import Store
from knee.commands.study.run_study import points_to_run, recorded, results
from knee.commands.study.study_file import study_names
from knee.commands.validate.result import BandwidthsValidation, CarriedValidation, RunsValidation, Validation
from knee.specs.argument_types import checked_arguments
from knee.specs.load import forget_files
from knee.trust.validation.bandwidth_errors import (
    carried_bandwidths,
    is_bandwidths,
    read_bandwidths,
    validate_bandwidths,
)
from knee.trust.validation.bundled_runs import carried_fidelity, carried_moe_runs, carried_runs, moe_fidelity
from knee.trust.validation.csv_cells import Lines, read_table, text_of
from knee.trust.validation.published_runs import REQUIRED, read_runs
from knee.trust.validation.run_errors import validate as validate_runs
from knee.trust.validation.run_to_job import job_of, unseen_job_of
from knee.trust.validation.user_records import is_json, records_of

CARRIED = "knee's own validation set"


@checked_arguments
def validate(
    file: str | Path | None = None,
    *,
    profile: ProfileLike | None = None,
    cluster: ClusterLike | None = None,
    unseen: bool = False,
    progress: Progress | None = None,
) -> Validation:
    """Predict measured runs or bandwidths, and show the errors of the predictions.

    ``file`` is a CSV file (``"-"`` is the standard input) of training runs, one per row, or of bandwidths as nccl-tests
    prints them; a folder of ``knee sweep`` or ``knee train``; or JSON of knee's own records. ``knee validate --help``
    lists the columns. Without a file, knee predicts the published runs and bandwidths that it ships, and checks the
    claims of the paper. ``profile`` and ``cluster`` replace those that the rows of training runs state; a row's own
    node size and network rate still apply.

    With ``unseen``, each published source is predicted with constants that were fitted without it. Expect this error
    for runs of a new software stack. Without a file, runs of mixtures of experts are in the result's ``moe_runs``.

    ``progress`` is called with the current activity, the number of rows done and their total. The result has one row
    per row of the file. If no row could be predicted, ``used`` is False and ``check_used()`` raises with the reasons.

    >>> import knee
    >>> carried = knee.validate()  # doctest: +SKIP
    >>> carried.fidelity.headline_frac < 0.1  # doctest: +SKIP
    True
    >>> mine = knee.validate("runs.csv", profile="mine.toml")  # doctest: +SKIP
    >>> mine.found.headline_frac  # doctest: +SKIP
    0.041
    """
    forget_files()
    if file is None:
        if profile is not None or cluster is not None:
            raise InputError(
                f"{argument('profile')} and {argument('cluster')} need a file of training runs",
                hint=either('knee.validate("runs.csv", profile=...)', "knee validate runs.csv --profile ..."),
                code="missing-argument",
                field="file",
            )
        return _unseen(progress) if unseen else _carried(progress)
    if unseen and (profile is not None or cluster is not None):
        raise InputError(
            f"{argument('unseen')} chooses the profile of each run itself, so it cannot be combined with "
            f"{argument('profile')} or {argument('cluster')}",
            hint="leave one of them out",
            code="contradiction",
            field="unseen",
        )
    path = Path(file)
    text = None if path.is_dir() else text_of(path)  # once: it may be a pipe
    if text is not None and not is_json(text):
        header, _ = read_table(path, REQUIRED, text)
        if is_bandwidths(header):
            if profile is not None or cluster is not None:
                raise InputError(
                    f"{path} contains bandwidths of collectives; {argument('profile')} and {argument('cluster')} apply "
                    "only to training runs",
                    hint="leave them out",
                    code="contradiction",
                    field="cluster" if profile is None else "profile",
                )
            table = read_bandwidths(path, text, watch=partial(_reading, text, progress))
            return BandwidthsValidation(path=path, file=table, found=validate_bandwidths(table))
    stack = None if profile is None else named_profile(profile).spec
    where = None if cluster is None else named_cluster(cluster).spec
    if text is None or is_json(text):
        runs, ask = records_of(path, text, stack, where)
    else:
        runs = read_runs(path, text, watch=partial(_reading, text, progress))
        ask = unseen_job_of if unseen else partial(job_of, profile=stack, cluster=where)
    found = validate_runs(runs, ask, lambda every: watched(every, "predicting", len(every), progress))
    return RunsValidation(path=path, file=runs, found=found)


def _unseen(progress: Progress | None) -> RunsValidation:
    """The carried runs, each without anything that was learned from its source."""
    file, moe_file = carried_runs(), carried_moe_runs()
    found = validate_runs(file, unseen_job_of, lambda runs: watched(runs, "predicting", len(runs), progress))
    moe = RunsValidation(path=Path(CARRIED), file=moe_file, found=validate_runs(moe_file, unseen_job_of))
    return RunsValidation(path=Path(CARRIED), file=file, found=found, moe_runs=moe)


def _carried(progress: Progress | None) -> CarriedValidation:
    file, other = carried_runs(), carried_bandwidths()
    runs, links = validate_runs(file), validate_bandwidths(other)
    moe_file = carried_moe_runs()
    moe_runs = validate_runs(moe_file)
    names = study_names("paper")
    points = points_to_run(names)
    store = Store(coming=[point.question for point in points])
    answered = list(watched(recorded(points, store.record), "claims of the paper", len(points), progress))
    return CarriedValidation(
        fidelity=carried_fidelity(runs, links),
        moe_fidelity=moe_fidelity(moe_runs),
        runs=RunsValidation(path=Path(CARRIED), file=file, found=runs),
        moe_runs=RunsValidation(path=Path(CARRIED), file=moe_file, found=moe_runs),
        bandwidths=BandwidthsValidation(path=Path(CARRIED), file=other, found=links),
        verdicts=tuple(verdict for one in results(names, answered) for verdict in one.verdicts),
    )


def _reading(text: str, progress: Progress | None, lines: Lines) -> Lines:
    return watched(lines, "reading", text.count("\n"), progress)
