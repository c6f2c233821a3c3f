"""Scan many models or checkpoints, and keep each result as soon as it is there.

MODELS are names, folders, globs ('runs/*/checkpoint-*', quoted) or a .txt file with one per line.
Each result is a Parquet file in the folder OUT, which pandas, pyarrow, DuckDB and polars read as
one table with a row per head, checkpoint and model. Repeat a command that was stopped, and it does
what is left; a second machine may run it in the same folder. docs/sweeps.md says more.

Examples:
    interp sweep 'runs/*/checkpoint-*' --out sweep
    interp sweep EleutherAI/pythia-70m --revisions 'step{0..143000..1000}' --out sweep --quick
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from interp import command


def main(
    models: Annotated[list[str], typer.Argument(help="Models, checkpoints, globs, lists.")],
    out: Annotated[Path, typer.Option(help="Folder of the results, of this sweep alone.")],
    revisions: Annotated[
        str | None, typer.Option(help="Revisions of hub ids, such as step{0..143000..1000}.")
    ] = None,
    what: Annotated[
        str, typer.Option(help="scan, explained, prompts (on --prompts) or effects (on a task).")
    ] = "scan",
    prompts: Annotated[
        str | None,
        typer.Option(help="File of prompts, .txt or .jsonl; for effects a task, such as ioi."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Processes to start, a model in each.  [default: this one]"),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Run on Ray: local (started here), auto (the cluster of this machine) or the"
            " address of a cluster."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each worker.")] = 1,
    kinds: command.Kinds = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of random tokens in a scan.  [default: 16]")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out nulls and effects: half the time.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63, help="Random seed.  [default: 0]")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.  [default: auto]")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16.  [default: float32]")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try again what has failed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what is left to do, and do nothing.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option(help="Also write a page to browse, such as sweep.html.")
    ] = None,
    watch: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for further checkpoints before the end.")
    ] = 0.0,
) -> None:
    from interp.errors import InputError
    from interp.sweeps.cluster import RayExecutor
    from interp.sweeps.sweep import sweep

    if page is not None and (page.suffix != ".html" or quick or what not in ("scan", "explained")):
        raise InputError(f"--page must be an .html file, of a scan without --quick, got {page}")
    given = {"kinds": kinds, "rows": rows, "quick": quick or None, "seed": seed}
    given |= {"device": device, "dtype": dtype}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with command.progress("sweeping") as step, ExitStack() as stack:
        executor = None if ray is None else stack.enter_context(RayExecutor(ray))
        done = sweep(
            models,
            revisions,
            prompts,
            what,
            out=out,
            processes=processes,
            executor=executor,
            threads=threads,
            retry_failed=retry_failed,
            dry_run=dry_run,
            watch=watch,
            progress=step.advance,
            **settings,
        )
    if dry_run:
        for row in done.plan.loc[done.plan["state"] != "done"].to_dict("records"):
            command.show(f"{row['state']}: {row['model']} {row['revision']}")
    else:
        for row in done.failed().to_dict("records"):
            command.show(f"failed: {row['model']} {row['revision']}: {row['failed']}")
        if page is not None:
            from interp.show.pages.sweep import sweep_page
            from interp.sweeps.trajectories import trajectories

            command.show(f"wrote {sweep_page(trajectories(out)).save(page)}")
    plan = done.plan.astype(str).to_dict("records")
    command.show(repr(done), result=plan)
