"""A circuit as a graph by layer, and how faithful and how stable circuits of each size are."""

import math
import re
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from interp.errors import Count, InputError, checked
from interp.show.figures.page import Page
from interp.show.figures.style import ACCENT, BLUE, DASHED, GREEN, QUIET, styled
from interp.show.figures.words import prose

PATHS = {"q": (BLUE, "queries"), "k": (ACCENT, "keys"), "v": (GREEN, "values")}
"""Colour and name of what an edge feeds."""

_STEP, _ROW = 0.34, 0.36  # Inches from layer to layer, and from head to head.


@checked
def circuit_graph(circuit: Any, edges: Count | None = None) -> Figure:
    """The edges of a circuit, from the embedding on the left to the logits on the right.

    Each node stands above its layer: heads as circles with their number, and what else the layer
    adds (M, its MLP) as a square in the lowest row. The colour of an edge says whether it feeds
    queries, keys or values, its width the size of its score; a dashed edge has a negative score. An
    edge into shared keys or values ends at each head of the group that is in the circuit.

    Args:
        circuit: Circuit, from `interp.find_circuit`.
        edges: Largest number of edges, the strongest first; all that are kept if left out.

    Raises:
        InputError: If the circuit keeps no edge.
    """
    table = circuit.to_frame()
    table = table.loc[table["kept"]].head(edges or len(table))
    if not len(table):
        raise InputError("circuit must keep at least one edge, got none")
    columns = (table[name].tolist() for name in ("source", "target", "path", "score"))
    records = [*zip(*columns, strict=True)]
    names = {name for source, target, *_ in records for name in (source, target)}
    group, layers = circuit.made_by["group"], circuit.made_by["n_layers"]
    places = _places({name for name in names if "KV" not in name}, layers)
    top = max(y for _, y in places.values())
    width, height = _STEP * (layers + 2) + 0.5, max(_ROW * (top + 2), 1.6)
    page = Page(
        f"{len(records)} edges that carry the {circuit.made_by['metric']}",
        f"{circuit.made_by['model']}, {len(circuit.made_by['prompts'])} pairs of prompts."
        " E: embedding. Circles: heads, by number. M: what else a layer adds (MLP). U: logits.",
        width=max(7.2, width + 0.3),
        body=height + 0.95,
        notes="Width: size of the score. Dashed: the edge lowers the metric. Layers and heads count"
        " from 0.",
    )
    largest = max(abs(score) for *_, score in records)
    with styled():
        panel = page.panel(0.35, 0.05, page.width - 0.5, height)
        panel.set_xlim(-1.7, layers + 0.7)
        panel.set_ylim(-1.6, top + 0.7)
        for source, target, path, score in reversed(records):
            for end in _members(target, group, places):
                colour = PATHS.get(path, (QUIET,))[0]
                size = abs(score) / largest
                (x, y), (to_x, to_y) = places[source], places[end]
                flat = y == to_y and to_x > x + 1  # Around what is between them, just as far.
                bend = min(0.25, 0.9 / (to_x - x)) if flat else 0.08
                arrow = FancyArrowPatch(
                    (x, y),
                    (to_x, to_y),
                    connectionstyle=f"arc3,rad={bend}",
                    arrowstyle="-|>",
                    mutation_scale=3 + 3 * size**0.5,
                    shrinkA=5,
                    shrinkB=5,
                    color=colour,
                    alpha=0.35 + 0.6 * size**0.5,
                    linewidth=0.4 + 2.4 * size**0.5,
                    linestyle="--" if score < 0 else "-",
                )
                panel.add_patch(arrow)
        for name, (x, y) in places.items():
            short, is_head = _short(name)
            box = {"boxstyle": "circle,pad=0.25" if is_head else "square,pad=0.25"}
            box |= {"facecolor": "white", "edgecolor": QUIET, "linewidth": 0.6}
            panel.text(x, y, short, size=5.5, ha="center", va="center", bbox=box, zorder=3)
        panel.set_yticks([])
        panel.set_xticks(range(0, layers, math.ceil(layers / 15)))
        panel.set_xlabel("layer")
        panel.spines[["left", "top", "right"]].set_visible(False)
        lines = [Line2D([], [], color=c, label=f"into {w}") for c, w in PATHS.values()]
        lines.append(Line2D([], [], color=QUIET, label="into MLP or logits"))
        page.legend(lines, 0.35, height + 0.5, ncols=4)
    return page.figure


@checked
def faithfulness_curve(circuit: Any) -> Figure:
    """The faithfulness of circuits of each size under each ablation, and their overlap.

    Left: 1 is the whole model and 0 the model without edges; random edges are dotted. Right: the
    overlap of circuits of resampled prompts, with its middle 95 %. The kept size is dashed.

    Args:
        circuit: Circuit, from `interp.find_circuit`.
    """
    table, made_by = circuit.faithfulness, circuit.made_by
    page = Page(
        f"{prose(str(made_by['model']))}: faithfulness of circuits by size",
        f"{made_by['metric'].capitalize()}, {len(made_by['prompts'])} pairs of prompts. The best"
        " edges stay, all others are ablated. 1: the whole model, 0: no edges.",
        body=3.15,
        notes="CMD: area between faithfulness and 1 over the share of edges, 0 is best. Dotted:"
        f" {made_by['random']}. Right: pairs of circuits from resampled prompts, edges in both over"
        " edges in either, middle 95 % shaded. Dashed: size of the circuit that is kept.",
    )
    size = made_by["share"] * len(circuit.frame)
    with styled():
        panels = page.panel(0.55, 0.15, 3.35, 2.1), page.panel(4.5, 0.15, 2.4, 2.1)
        shades = zip(table.groupby("ablation", sort=False), (ACCENT, BLUE, GREEN))
        for (how, rows), shade in shades:
            words = f"{how}: CMD {circuit.cmd[how]:.3f}"
            columns = [rows[name].to_numpy() for name in ("edges", "faithfulness", "random")]
            panels[0].plot(*columns[:2], "o-", color=shade, label=words)
            panels[0].plot(columns[0], columns[2], ":", color=shade)
        rows = table[table["ablation"] == table["ablation"].iloc[0]]
        low, high = (rows[f"jaccard_{end}"].to_numpy() for end in ("low", "high"))
        panels[1].fill_between(rows["edges"].to_numpy(), low, high, color=BLUE, alpha=0.2)
        panels[1].plot(rows["edges"].to_numpy(), rows["jaccard"].to_numpy(), "o-", color=BLUE)
        panels[1].set(ylim=(0, 1.03), ylabel="overlap (Jaccard)")
        panels[0].set_ylabel("faithfulness")
        for panel in panels:
            panel.axvline(size, **DASHED)
            panel.set(xscale="log", xlabel="edges")
            panel.xaxis.set_major_formatter("{x:,g}")
            panel.minorticks_off()
        page.legend(panels[0].get_legend_handles_labels()[0], 0.45, 2.7, ncols=3)
    return page.figure


def _layer(name: str) -> int | None:
    found = re.match(r"L(\d+)", name)
    return None if found is None else int(found[1])


def _short(name: str) -> tuple[str, bool]:
    """What a node is called above its layer, and whether it is a head."""
    head = re.fullmatch(r"L\d+H(\d+)", name)
    return (head[1], True) if head else ({"embedding": "E", "logits": "U"}.get(name, "M"), False)


def _places(names: set[str], layers: int) -> dict[str, tuple[float, float]]:
    """A place for each node: its layer, and the heads of a layer above each other."""
    places = {"embedding": (-1.0, 0.0), "logits": (float(layers), 0.0)}
    rows: dict[int, int] = {}
    for name in sorted(names - {*places}, key=lambda name: (_layer(name), len(name), name)):
        layer, (_, is_head) = _layer(name), _short(name)
        assert layer is not None
        row = rows.setdefault(layer, layer % 2) if is_head else -1
        rows[layer] = rows.get(layer, layer % 2) + is_head
        places[name] = float(layer), float(row)
    return places


def _members(target: str, group: int, places: dict[str, tuple[float, float]]) -> list[str]:
    """The nodes of a target that are drawn: of shared keys and values, the heads of their group."""
    layer, shared, number = target.partition("KV")
    if not shared:
        return [target]
    first = int(number) * group
    heads = (f"{layer}H{head}" for head in range(first, first + group))
    return [head for head in heads if head in places]
