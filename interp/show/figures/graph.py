"""A circuit as a graph by layer, and how faithful and how stable circuits of each size are."""

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from interp.errors import Count, InputError, checked
from interp.show.figures.page import Page, drawn
from interp.show.figures.style import ACCENT, BLUE, DASHED, GREEN, QUIET
from interp.show.figures.words import prose

PATHS = {"q": (BLUE, "queries"), "k": (ACCENT, "keys"), "v": (GREEN, "values")}
"""Colour and name of what an edge feeds."""

_NODE, _ROW = 0.26, 0.34
"""Inches that a node needs, and from head to head of a layer."""


@drawn
@checked
def circuit_graph(circuit: Any, edges: Count | None = None) -> Page:
    """The edges of a circuit, from the embedding on the left to the logits on the right.

    Each node stands above its layer: heads as circles with their number, and what else the layer
    adds (M, its MLP) as a square in the lowest row. Layers without a node are left out. The colour
    of an edge says whether it feeds queries, keys or values, its width the size of its score; a
    dashed edge has a negative score. An edge into shared keys or values ends at each head of the
    group that is in the circuit.

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
    page = Page(
        f"{len(records)} edges that carry the {circuit.made_by['metric']}",
        f"{circuit.made_by['model']}, {len(circuit.made_by['prompts'])} pairs of prompts."
        " E: embedding. Circles: heads, by number. M: what else a layer adds (MLP). U: logits.",
        notes="Width: size of the score. Dashed: the edge lowers the metric. Layers and heads count"
        " from 0.",
    )
    draw_graph(page, records, circuit.made_by["group"])
    lines = [Line2D([], [], color=c, label=f"into {w}") for c, w in PATHS.values()]
    lines.append(Line2D([], [], color=QUIET, label="into MLP or logits"))
    page.legend(lines)
    return page


@drawn
@checked
def faithfulness_curve(circuit: Any) -> Page:
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
        notes="CMD: area between faithfulness and 1 over the share of edges, 0 is best. Dotted:"
        f" {made_by['random']}. Right: pairs of circuits from resampled prompts, edges in both over"
        " edges in either, middle 95 % shaded. Dashed: size of the circuit that is kept.",
    )
    size = made_by["share"] * len(circuit.frame)
    panels = [*page.grid(["faithfulness", "overlap (Jaccard)"], 1.9, slot=2.2, under=0.34)]
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
    panels[1].set(ylim=(0, 1.03))
    for panel in panels:
        panel.axvline(size, **DASHED)
        panel.set(xscale="log", xlabel="edges")
        panel.xaxis.set_major_formatter("{x:,g}")
        panel.minorticks_off()
        panel.tick_params(labelleft=True)
    page.legend(panels[0].get_legend_handles_labels()[0])
    return page


def draw_graph(
    page: Page,
    records: Sequence[tuple[str, str, str, float]],
    group: int = 1,
    *,
    colours: Mapping[str, str] = MappingProxyType({}),
    numbered: bool = False,
) -> None:
    """Arrows by their `source, target, path, score` over an axis of layers.

    `colours` are those of some heads' circles, and `numbered` says whether arrows have their score.
    """
    names = {name for source, target, *_ in records for name in (source, target)}
    wide = page.width - 0.3
    places, layers = _places({name for name in names if "KV" not in name}, wide)
    ends = [x for x, _ in places.values()]
    scale = np.array([wide / (max(ends) - min(ends) + 1), _ROW])
    nodes = {name: np.array(at) * scale for name, at in places.items()}
    largest = max(abs(score) for *_, score in records)
    arrows = [
        (nodes[source], nodes[end], path, score)
        for source, target, path, score in reversed(records)
        for end in _members(target, group, places)
    ]
    curves = [_around(start, stop, [*nodes.values()]) for start, stop, *_ in arrows]
    inked = np.concatenate([*(curve for _, curve in curves), [*nodes.values()]])[:, 1] / _ROW
    low, high = inked.min() - 0.6, max(inked.max() + 0.5, inked.min() + 2.0)
    panel = page.panel(0.15, 0.05, wide, (high - low) * _ROW)
    panel.set(xlim=(min(ends) - 0.5, max(ends) + 0.5), ylim=(low, high), yticks=[])
    for (start, stop, path, score), (bend, _) in zip(arrows, curves, strict=True):
        size = (abs(score) / largest) ** 0.5
        arrow = FancyArrowPatch(
            tuple(start / scale),
            tuple(stop / scale),
            connectionstyle=f"arc3,rad={bend}",
            arrowstyle="-|>",
            mutation_scale=3 + 3 * size,
            shrinkA=6,
            shrinkB=6,
            color=PATHS.get(path, (QUIET,))[0],
            alpha=0.35 + 0.6 * size,
            linewidth=0.4 + 2.4 * size,
            linestyle="--" if score < 0 else "-",
        )
        panel.add_patch(arrow)
    if numbered:
        scores = [score for *_, score in arrows]
        _number(panel, scores, [curve for _, curve in curves], [*nodes.values()], scale)
    for name, (x, y) in places.items():
        short, is_head = _short(name)
        box = {"boxstyle": "circle,pad=0.2" if is_head else "square,pad=0.2"}
        box |= {"facecolor": colours.get(name, "white"), "edgecolor": QUIET, "linewidth": 0.6}
        panel.text(x, y, short, ha="center", va="center", bbox=box, zorder=3)
    shown = [*layers.items()][:: max(1, math.ceil(0.2 * len(layers) / wide))]
    panel.set_xticks([place for _, place in shown], [str(layer) for layer, _ in shown])
    panel.set_xlabel("layer")
    panel.spines[["left", "top", "right"]].set_visible(False)


def _around(
    start: np.ndarray, stop: np.ndarray, nodes: Sequence[np.ndarray]
) -> tuple[float, np.ndarray]:
    """The bend of an arrow that passes no node but its own, and points of its curve, in inches."""
    (right, up), t = stop - start, np.linspace(0, 1, 25)[:, None]
    others = [at for at in nodes if not np.array_equal(at, start) and not np.array_equal(at, stop)]
    tried = []
    for bend in (0.08, -0.08, 0.25, -0.25, 0.4, -0.4):
        middle = (start + stop) / 2 + bend * np.array([up, -right])
        curve = (1 - t) ** 2 * start + 2 * t * (1 - t) * middle + t**2 * stop
        far = min((np.hypot(*(curve - at).T).min() for at in others), default=1.0)
        tried.append((min(far, 0.16), -abs(bend), bend, curve))
    *_, bend, curve = max(tried, key=lambda one: one[:3])
    return bend, curve


def _number(
    panel: Axes,
    scores: Sequence[float],
    curves: Sequence[np.ndarray],
    nodes: Sequence[np.ndarray],
    scale: np.ndarray,
) -> None:
    """The score of each arrow at that place of it that is farthest from all others."""
    taken = [*nodes]
    for place, (score, curve) in enumerate(zip(scores, curves, strict=True)):
        others = np.concatenate(
            [curve for n, curve in enumerate(curves) if n != place] + [nodes[:1]]
        )
        inner = curve[4:-4]
        far = np.hypot(*(inner[:, None] - others).T).min(0)
        apart = np.hypot(*((inner[:, None] - np.array(taken)) / (2, 1)).T).min(0)
        best = inner[int(np.argmax(np.minimum(far, apart)))]
        taken.append(best)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
        words = f"{score:.2f}".replace("0.", ".", 1)
        x, y = (best / scale).tolist()
        panel.text(x, y, words, ha="center", va="center", bbox=box, zorder=2)


def _layer(name: str) -> int | None:
    found = re.match(r"L(\d+)", name)
    return None if found is None else int(found[1])


def _short(name: str) -> tuple[str, bool]:
    """What a node is called above its layer, and whether it is a head."""
    head = re.fullmatch(r"L\d+H(\d+)", name)
    return (head[1], True) if head else ({"embedding": "E", "logits": "U"}.get(name, "M"), False)


def _places(
    names: set[str], width: float
) -> tuple[dict[str, tuple[float, float]], dict[int, float]]:
    """A place for each node, the heads of a layer above each other; and the place of each layer.

    Layers with a node are side by side. Where `width` has no room for that, the heads of
    neighbouring layers are in different rows.
    """
    layers = sorted({layer for name in names if (layer := _layer(name)) is not None})
    at = {layer: float(place) for place, layer in enumerate(layers)}
    ends = {"embedding": (-1.0, 0.0), "logits": (float(len(layers)), 0.0)}
    places = {name: place for name, place in ends.items() if name in names}
    apart = math.ceil(_NODE * (len(layers) + 2) / width)
    rows: dict[int, int] = {}
    for name in sorted(names - {*places}, key=lambda name: (_layer(name), len(name), name)):
        layer, (_, is_head) = _layer(name), _short(name)
        assert layer is not None
        start = int(at[layer]) % max(2, apart)
        row = rows.setdefault(layer, start) if is_head else -1
        rows[layer] = rows.get(layer, start) + is_head * (apart if apart > 1 else 1)
        places[name] = at[layer], float(row)
    return places, at


def _members(target: str, group: int, places: dict[str, tuple[float, float]]) -> list[str]:
    """The nodes of a target that are drawn: of shared keys and values, the heads of their group."""
    layer, shared, number = target.partition("KV")
    if not shared:
        return [target]
    first = int(number) * group
    heads = (f"{layer}H{head}" for head in range(first, first + group))
    return [head for head in heads if head in places]
