"""Measure the cost of a page with every head, next to CircuitsVis and BertViz.

On the default model, for each length: seconds to make and write our page without the model's run,
its size, the largest difference of its weights from the tensor's, and seconds until Chromium,
without a network, has painted its window. At the shortest length the same for CircuitsVis'
`attention_heads` and, if installed (`pip install bertviz ipython`), for BertViz' `model_view`. A
view that is not painted within PATIENCE seconds is null. Needs Chromium and playwright.
"""

import importlib.util
import json
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from playwright.sync_api import Browser, Error, sync_playwright

import interp
from interp import command, files
from interp.errors import InputError
from interp.kinds import probes as tokens
from interp.models.hooks import AttentionPatterns
from interp.show.pages.gallery import gallery
from interp.show.pages.packing import unpacked

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
WINDOW = {"width": 1280, "height": 900}

# Whether every canvas of the selector in the window has been painted.
CANVASES = """(selector) => {
  const inside = (canvas) => canvas.getBoundingClientRect().top < innerHeight && canvas.width > 0;
  const shown = [...document.querySelectorAll(selector)].filter(inside);
  const small = Object.assign(document.createElement('canvas'), { width: 4, height: 4 });
  const context = small.getContext('2d', { willReadFrequently: true });
  return shown.length > 0 && shown.every((canvas) => {
    context.clearRect(0, 0, 4, 4);
    context.drawImage(canvas, 0, 0, 4, 4);
    return context.getImageData(0, 0, 4, 4).data.some((value) => value > 0);
  });
}"""
LINES = "(selector) => document.querySelectorAll(selector).length > 0"


def first_view(
    browser: Browser, page: Path, painted: str, what: str, patience: float
) -> float | None:
    """Seconds until `what` is painted in a new window without a network; None if it is not."""
    context = browser.new_context(viewport=WINDOW, offline=True)  # pyright: ignore
    try:
        start = time.perf_counter()
        tab = context.new_page()
        tab.goto(page.as_uri(), timeout=1000 * patience, wait_until="commit")
        left = patience - (time.perf_counter() - start)
        tab.wait_for_function(painted, arg=what, timeout=1000 * max(left, 0.001), polling=50)
        return time.perf_counter() - start
    except Error:  # Too slow, or the page crashed.
        return None
    finally:
        context.close()


def ours(scan: interp.HeadScan, patterns: AttentionPatterns, path: Path) -> dict[str, Any]:
    """Seconds to make and write our page, its size, and its largest error."""
    start = time.perf_counter()
    made = gallery(scan, patterns)
    made.save(path)
    taken = time.perf_counter() - start
    error = max(
        (unpacked(made.prompts[0].weights[head]) - patterns[head.layer, 0, head.head])
        .abs()
        .max()
        .item()
        for head in made.heads
    )
    return {"heads": len(made.heads), "write_s": taken, "max_error": error}


def circuitsvis(patterns: AttentionPatterns, path: Path) -> None:
    """All heads in CircuitsVis' view, with its script in the page."""
    from circuitsvis.attention import attention_heads

    shown = attention_heads(patterns[:, 0].flatten(0, 1), patterns.texts[0])
    path.write_text(f'<!doctype html><meta charset="utf-8">{shown.local_src}', encoding="utf-8")


def bertviz(patterns: AttentionPatterns, path: Path) -> None:
    """All heads in BertViz' model view."""
    from bertviz import model_view  # pyright: ignore

    attention = [layer.as_subclass(torch.Tensor) for layer in patterns]
    shown = model_view(attention, patterns.texts[0], html_action="return")
    path.write_text(f'<!doctype html><meta charset="utf-8">{shown.data}', encoding="utf-8")


def measure(
    length: int,
    browser: Browser,
    scan: interp.HeadScan,
    *,
    repeats: int,
    patience: float,
    peers: bool,
) -> dict[str, Any]:
    """The record of one length: seconds, and sizes in millions of bytes."""
    model = interp.load_model()
    probe = tokens.repeated(model.vocabulary, rows=1, length=length, bos=model.bos, seed=0)
    patterns = interp.attention_patterns(model, probe.tokens)
    record: dict[str, Any] = {"length": length}
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        runs = [ours(scan, patterns, page) for _ in range(repeats)]
        record |= runs[0] | {"write_s": statistics.median(run["write_s"] for run in runs)}
        record["size_mb"] = page.stat().st_size / 1e6
        views = [
            first_view(browser, page, CANVASES, ".head canvas", patience) for _ in range(repeats)
        ]
        record["view_s"] = None if None in views else statistics.median(filter(None, views))
        ways: dict[str, tuple[Callable[..., None], str, str]] = {
            "circuitsvis": (circuitsvis, CANVASES, "canvas")
        }
        if importlib.util.find_spec("bertviz"):
            ways["bertviz"] = (bertviz, LINES, "svg line")
        for name, (write, painted, what) in ways.items() if peers else ():
            start = time.perf_counter()
            write(patterns, page)
            record[f"{name}_write_s"] = time.perf_counter() - start
            record[f"{name}_size_mb"] = page.stat().st_size / 1e6
            record[f"{name}_view_s"] = first_view(browser, page, painted, what, patience)
    return record


def main(
    out: Annotated[Path, typer.Option(help="File for the records, as JSON.")] = Path(
        "benchmarks/gallery.json"
    ),
    lengths: Annotated[str, typer.Option(help="Tokens, comma-separated.")] = "128,512",
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of our page.")] = 5,
    patience: Annotated[
        float, typer.Option(min=1, help="Longest wait for a page, in seconds.")
    ] = 120.0,
    scan: Annotated[
        Path, typer.Option(help="Table of the default model's heads, for the labels.")
    ] = Path("figures/heads.parquet"),
) -> None:
    sizes = command.whole_numbers(lengths, name="--lengths", least=12)
    table = interp.HeadScan.load(scan)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise InputError("chromium must be installed, got none on the path")
    with files.staged(out.parent) as scratch, sync_playwright() as playwright:
        records = []
        for size in sizes:
            # A new browser: a page that exhausts one does not slow the next.
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            record = measure(
                size,
                browser,
                table,
                repeats=repeats,
                patience=patience,
                peers=size == min(sizes),
            )
            record["made_on"] = {
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "machine": platform.machine(),
                "python": platform.python_version(),
                "chromium": browser.version,
            }
            browser.close()
            records.append(record)
            command.show(json.dumps(record))
        files.write_json(scratch / out.name, records)


if __name__ == "__main__":
    command.run(main)
