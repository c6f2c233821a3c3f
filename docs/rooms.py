"""Draws `docs/rooms.svg`, the rooms of the package and what they import: `python docs/rooms.py`."""

import ast
from functools import cache
from html import escape
from pathlib import Path
from textwrap import wrap

PACKAGE = Path(__file__).parent.parent / "interp"
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
GROUND = "ground"
"""The modules directly under interp/, drawn as one room."""

COLUMNS = {"circuits": 0, "sweeps": 1, "show": 1, "trust": 2}
"""Column of each room that shares its floor; the others are as wide as the picture."""

WIDTH, HEIGHT, GAP, MARGIN = 900, 58, 22, 16


def imported(path: Path) -> set[str]:
    """The rooms that a file imports from."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("interp.")} & {*ROOMS}


@cache
def uses(room: str) -> frozenset[str]:
    """The rooms that a room imports, also through others."""
    direct = {name for path in (PACKAGE / room).rglob("*.py") for name in imported(path)} - {room}
    return frozenset(direct.union(*map(uses, direct)))


def nearest(room: str) -> list[str]:
    """The rooms that it uses through no other one: the arrows of the picture."""
    if room == GROUND:
        return []
    return sorted(uses(room).difference(*map(uses, uses(room)))) or [GROUND]


@cache
def floor(room: str) -> int:
    """How many rooms are below it, at most."""
    return 0 if room == GROUND else 1 + max(map(floor, nearest(room)))


def purpose(room: str) -> str:
    """The first line of its docstring; of the ground, its modules."""
    if room == GROUND:
        return ", ".join(sorted(path.stem for path in PACKAGE.glob("[a-z]*.py")))
    text = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text("utf-8")))
    return (text or "").splitlines()[0].replace("`", "")


def svg() -> str:
    """The picture: a box for each room, an arrow to each room that it imports directly."""
    rooms = [GROUND, *ROOMS]
    top = max(map(floor, rooms))
    boxes = {}
    for room in rooms:
        users = [floor(user) for user in ROOMS if room in nearest(user)]
        across_all = [floor(r) for r in ROOMS if r not in COLUMNS and floor(r) > floor(room)]
        upper = max(floor(room), min([*users, *across_all], default=0) - 1)
        across = 1 + max(COLUMNS.values()) if room in COLUMNS else 1
        width = (WIDTH - 2 * MARGIN - (across - 1) * GAP) / across
        x = MARGIN + COLUMNS.get(room, 0) * (width + GAP)
        y = MARGIN + (top - upper) * (HEIGHT + GAP)
        boxes[room] = (x, y, width, HEIGHT + (upper - floor(room)) * (HEIGHT + GAP))
    tall = 2 * MARGIN + (top + 1) * (HEIGHT + GAP) - GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}" font-size="12.5"'
        ' font-family="sans-serif" role="img">',
        "<title>The rooms of interp: an arrow points from a room to one that it imports</title>",
        '<marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#555"/></marker>',
        f'<rect width="{WIDTH}" height="{tall}" fill="#fff"/>',
    ]
    for room, (x, y, width, height) in boxes.items():
        for used in nearest(room):
            left, end, wide, _ = boxes[used]
            middle = (max(x, left) + min(x + width, left + wide)) / 2
            lines.append(
                f'<path d="M{middle:g} {y + height}V{end - 1}" stroke="#555"'
                ' marker-end="url(#tip)"/>'
            )
        lines.append(
            f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{height}" rx="6" fill="#eef3fa"'
            ' stroke="#4a6fa5"/>'
        )
        lines.append(f'<text x="{x + 12:g}" y="{y + 20}" font-weight="bold">{room}</text>')
        for i, line in enumerate(wrap(purpose(room), int(width / 6.8))):
            lines.append(f'<text x="{x + 12:g}" y="{y + 36 + 16 * i}">{escape(line)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "rooms.svg").write_text(svg(), encoding="utf-8")
