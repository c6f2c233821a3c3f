"""Show every attention head of a model: a page for the browser, and pictures for a paper.

Runs the model on a prompt or several, labels its heads (or takes the labels of an earlier scan),
and writes gallery.html, one file that needs no network, and gallery.png, .svg or .pdf.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interp import command

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from interp import Head, HeadScan, Model

PICTURES = ("page", "heads", "arcs", "zoo", "layers")


def main(
    model: command.ModelName = "SmolLM2-135M",
    scan: command.HeadTable = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="A text to show the heads on; may be given several times.  [default: random"
            " tokens that repeat, and a passage of prose]"
        ),
    ] = None,
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option(help="A UTF-8 file whose text is a prompt; may be given several times."),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Only heads with one of these labels, by commas: 'induction,sink'."),
    ] = None,
    heads: Annotated[str | None, typer.Option(help="Only these heads, by commas: L5H1,L18H6.")] = (
        None
    ),
    format: Annotated[str, typer.Option(help="html, png, svg, pdf, by commas.")] = "html",
    draw: Annotated[
        str | None,
        typer.Option(
            help="The pictures, by commas: page (the strongest heads of each label), heads (each"
            " of HEADS in full), arcs (where one query of each of HEADS looks), zoo (a head of"
            " each kind beside its ideal), layers (scores by layer).  [default: page; with HEADS"
            " heads too]"
        ),
    ] = None,
    query: Annotated[
        int | None,
        typer.Option(min=0, help="Position of the query for arcs.  [default: the last]"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("results"),
    limit: Annotated[
        float, typer.Option(help="Size of the page in millions of bytes at most.")
    ] = 20.0,
    seed: command.Seed = 0,
    device: command.Device = "auto",
    dtype: command.Dtype = "float32",
) -> None:
    """Show every attention head of a model: a page for the browser, and pictures for a paper.

    Writes to the folder OUT: gallery.html, one self-contained page with all heads, by label, each
    of which opens in full; and gallery.png, .svg or .pdf, the strongest heads of each label on the
    first prompt (gallery_2 and so on for further ones); and what else DRAW lists, as head_L5H1,
    arcs_L5H1, zoo and score_by_layer, the last two once. A page that would be larger than LIMIT
    shows the strongest heads of each label, and of a prompt its first 1,024 tokens; it says so.

    Exit code: 0 when every file is there and whole, 2 for a mistake in the call.
    """
    import interp
    from interp import files, plots
    from interp.labels import LABELS
    from interp.pages import gallery as pages

    notes = []
    formats = command.listed(format, ("html", "png", "svg", "pdf"), name="--format")
    texts = [*(prompt or []), *(_read(path) for path in prompt_file or [])]
    with command.about("--scan"):
        table = None if scan is None else interp.HeadScan.load(scan)
    named = _named(heads)
    if named and label is not None:
        raise interp.InputError("--heads must stand without --label, got both")
    pictures = [ending for ending in formats if ending != "html"]
    asked = command.listed(draw or ("page,heads" if named else "page"), PICTURES, name="--draw")
    if not named and {"heads", "arcs"} & set(asked):
        raise interp.InputError(f"--draw must list heads and arcs with --heads alone, got {draw}")
    if not pictures and (draw is not None or query is not None):
        option = "draw" if draw is not None else "query"
        raise interp.InputError(f"--{option} must come with a picture, got --format {format}")
    with files.staged(out) as scratch:
        with command.progress(f"loading {model}") as step:
            opened = interp.load_model(model, dtype=dtype, device=device)
            rows, titles = _prompts(opened, texts, seed)
            if table is None:
                step(f"scanning {opened.name}")
                table = interp.scan_heads(opened, seed=seed, progress=step.advance)
            elif table.made_by.get("model", opened.name) != opened.name:
                of = table.made_by["model"]
                raise interp.InputError(f"--scan must be of {opened.name}, got one of {of}")
            if absent := [
                head for head in named or [] if str(head) not in set(table.frame["name"])
            ]:
                raise interp.InputError(
                    f"--heads must be in the scan, got {absent[0]}, which is not"
                )
            chosen = named or _labelled(table, label)
            count = len(chosen or table.frame)
            if "html" in formats:
                size = pages.estimate(count, [len(row) for row in rows])
                step(f"drawing {count} heads, a page of about {size:.1f} million bytes")
                page = pages.gallery_of_model(
                    table,
                    opened,
                    rows,
                    heads=chosen,
                    titles=titles,
                    limit=limit,
                    progress=step.advance,
                )
                page.save(scratch / "gallery.html")
                notes += page.notes
            if pictures and (longest := max(map(len, rows))) > pages.LONGEST:
                notes.append(
                    f"Pictures of a prompt of {longest:,} tokens show its first {pages.LONGEST:,}."
                )
            kinds = [kind for kind, word in LABELS.items() if label and word in label.split(",")]
            layers = None if chosen is None else sorted({head.layer for head in chosen})
            drawn: dict[str, "Figure"] = {}
            if pictures and "layers" in asked:
                drawn["score_by_layer"] = plots.score_by_layer(table)
            if pictures and "zoo" in asked:
                step("drawing the zoo")
                of = sorted({head.layer for head in plots.zoo_heads(table).values()}) or [0]
                patterns = interp.attention_patterns(opened, rows[0][: pages.LONGEST], of)
                drawn["zoo"] = plots.head_zoo(table, patterns)
            for number, row in enumerate(rows, start=1):
                if not pictures or not {"page", "heads", "arcs"} & set(asked):
                    break
                step(f"drawing prompt {number}")
                patterns = interp.attention_patterns(opened, row[: pages.LONGEST], layers)
                end = "" if number == 1 else f"_{number}"
                if "page" in asked:
                    drawn[f"gallery{end}"] = plots.pattern_page(
                        table,
                        patterns,
                        top=4 if chosen is None else 8,
                        heads=chosen,
                        kinds=kinds or list(LABELS),
                    )
                for head in named or []:
                    if "heads" in asked:
                        drawn[f"head_{head}{end}"] = plots.head_page(patterns, head, scan=table)
                    if "arcs" in asked:
                        arcs = plots.attention_arcs(patterns, head, query, scan=table)
                        drawn[f"arcs_{head}{end}"] = arcs
            for name, figure in drawn.items():
                for ending in pictures:
                    plots.save_figure(figure, scratch / f"{name}.{ending}")
        written = sorted(path.name for path in scratch.iterdir())
    command.show(*notes, f"wrote {', '.join(written)} to {out}")


def _read(path: Path) -> str:
    from interp import InputError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        told = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InputError(f"--prompt-file must be a text file, got {path}: {told}") from None


def _prompts(model: "Model", texts: list[str], seed: int) -> tuple[list[Any], list[str] | None]:
    """The token ids of each prompt, and titles where the prompts are our own."""
    from interp import tokens
    from interp.scan import encoded_passages

    if texts:
        return [model.to_tokens(text)[0].tolist() for text in texts], None
    length = min(49, model.n_ctx)
    probe = tokens.repeated(model.vocabulary, rows=1, length=length, bos=model.bos, seed=seed)
    rows, titles = [probe.tokens[0].tolist()], [f"{length} random tokens that repeat"]
    encoded = dict(zip(tokens.passages(), encoded_passages(model)))
    if "prose" in encoded:
        opening = [] if model.bos is None else [model.bos]
        rows.append([*opening, *encoded["prose"].tolist()][: min(128, model.n_ctx)])
        titles.append(f"{len(rows[1])} tokens of prose")
    return rows, titles


def _named(heads: str | None) -> list["Head"] | None:
    from interp import Head

    with command.about("--heads"):
        return (
            None
            if heads is None
            else list(dict.fromkeys(Head.parse(part) for part in heads.split(",")))
        )


def _labelled(scan: "HeadScan", label: str | None) -> list["Head"] | None:
    from interp import InputError

    if label is None:
        return None
    with command.about("--label"):
        found = {head for word in label.split(",") for head in scan.heads(word)}
    if not found:
        raise InputError(f"--label must be one that some head has, got {label!r}")
    return sorted(found)


if __name__ == "__main__":
    command.run(main)
