"""What the pages under docs/ say is what the committed records hold."""

import json
import re
from pathlib import Path

import pytest

from interp.circuits.compare import MEASURES

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
COMPARISON = json.loads(
    (ROOT / "figures" / "circuits" / "comparison.json").read_text(encoding="utf-8")
)


def comparison_lines() -> list[str]:
    circuits = COMPARISON["circuits"].values()
    rows = [["earlier head", *(c["heads"]["previous_token"] for c in circuits)]]
    rows += [["induction head", *(c["heads"]["induction"] for c in circuits)]]
    for name, words in MEASURES.items():
        places = 0 if name.endswith(("_rank", "_z")) else 2
        rows.append([words, *(f"{c[name]:.{places}f}" for c in circuits)])
    return [f"| {' | '.join(row)} |" for row in rows]


def test_the_comparison_shown_is_that_of_the_committed_run():
    page = (ROOT / "docs" / "induction.md").read_text(encoding="utf-8")
    block = page.split("comparison.json -->")[1].split("<!-- end -->")[0]
    assert block.strip().splitlines()[2:] == comparison_lines()


def lost(source: str, to: str) -> float:
    edge = next(
        edge
        for edge in COMPARISON["edges"]
        if (edge["from"], edge["to"], edge["path"]) == (source, to, "K")
    )
    return edge["stripe_before"] - edge["stripe_after"]


def test_the_heads_that_the_page_names_do_what_it_says():
    page = " ".join((ROOT / "docs" / "induction.md").read_text(encoding="utf-8").split())
    targets = ("L17H3", "L17H4", "L18H6")
    share = max(lost("L11H1", to) / lost("L16H0", to) for to in targets)
    assert f"of L11H1 at most {100 * share:.0f} % of that" in page
    real = COMPARISON["circuits"]["real"]["previous_token_heads"]
    assert f"L16H0 ({real['L16H0']:.2f}) and L11H1 ({real['L11H1']:.2f})" in page
    assert all(lost("L16H0", to) > 0.9 * lost_before(to) for to in targets)
    assert f"L17H8, which costs it {lost('L17H8', 'L18H6'):.2f}" in page


def lost_before(to: str) -> float:
    return next(edge["stripe_before"] for edge in COMPARISON["edges"] if edge["to"] == to)


LINKS = [
    (page.name, target)
    for page in PAGES
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "target"), LINKS)
def test_what_is_linked_is_there(page, target):
    assert (ROOT / "docs" / target).exists()
