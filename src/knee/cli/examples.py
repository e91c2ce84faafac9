"""The examples at the end of each command's ``--help``; a test parses every one of them."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "simulate": (
        "knee simulate llama2-7b --cluster dgx-h100 --gpus 256 --local-batch 2",
        "knee simulate llama2-70b --cluster dgx-h100 --gpus 512 --global-batch 1024 --tp 8 --recompute ops --tokens 2T",
    ),
    "plan": (
        "knee plan llama2-7b --cluster dgx-h100 --gpus 256 --global-batch 512",
        "knee plan llama2-70b --cluster dgx-h100 --gpus 512 --global-batch 1024 --tokens 2T --html plan.html",
    ),
    "scale": (
        "knee scale llama2-7b --cluster dgx-h100 --gpus 8..2048 --local-batch 2",
        "knee scale llama2-7b --cluster dgx-a100,dgx-h100 --gpus 8..1024 --local-batch 2 --plot scale.svg",
    ),
    "budget": ("knee budget --cluster dgx-h100 --gpus 2048 --days 30",),
    "train": (
        "knee train llama-tiny",
        "knee train llama2-7b --nproc 8 --tp 2 --local-batch 2 --out run",
        "knee train llama2-7b --nproc 8 --data shards --steps 10000 --lr-schedule cosine --lr-warmup 200 "
        "--checkpoint-every 500 --out run",
        "knee train llama2-7b --nproc 8 --data shards --resume run",
    ),
    "weights": ("knee weights run --out hf --dtype bf16",),
    "sweep": ("knee sweep run mine.toml --out runs --dry-run",),
    "tune": (
        "knee tune run llama2-7b --cluster dgx-h100 --gpus 64 --global-batch 128 --launcher slurm --out tuned",
        "knee tune status tuned",
        "knee tune run --replay published",
    ),
    "dryrun": ("knee dryrun llama2-7b --gpus 64 --tp 2",),
    "compare": ("knee compare runs/a/record.json runs/b/record.json",),
    "trace": ("knee trace step.json.gz",),
    "report": ("knee report runs/ --out page.html",),
    "study": ("knee study run fig3", "knee study run mine.toml --out out-mine"),
    "validate": (
        "knee validate",
        "knee validate runs.csv",
    ),
    "calibrate": ("knee calibrate runs.csv --out mine.toml",),
    "probe": ("knee probe kernels",),
    "data": ("knee data prepare corpus.jsonl --out shards --tokenizer bytes",),
    "catalog": ("knee catalog", "knee catalog dgx-h100"),
    "serve": ("knee serve", "knee serve --port 0 --records runs --study out"),
    "doctor": ("knee doctor",),
}
"""Command -> lines as a user types them."""


def epilog_of(command: str) -> str | None:
    """The paragraph that click prints last."""
    lines = EXAMPLES.get(command)
    return None if lines is None else "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def example_of(path: str) -> str | None:
    """A hint: how a command such as ``knee study run`` is called; None without an example."""
    lines = [line for examples in EXAMPLES.values() for line in examples if line.startswith(f"{path} ")]
    return f"for example: {lines[0]}; `{path} --help` lists the options" if lines else None
