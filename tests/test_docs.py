"""What the pages under docs/ say is what the committed records hold."""

import doctest
import json
import re

import pytest
from places import ROOT

from interp.circuits.compare import MEASURES

PAGES = sorted((ROOT / "docs").glob("*.md"))
COMPARISON = json.loads(
    (ROOT / "figures" / "circuits" / "comparison.json").read_text(encoding="utf-8")
)


ATTENTION = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")
SINKS = json.loads((ROOT / "figures" / "sink_experiment.json").read_text(encoding="utf-8"))
NUMBERS = {
    record["name"]: record
    for record in json.loads(
        (ROOT / "figures" / "attention_numbers.json").read_text(encoding="utf-8")
    )
}


def shown(page: str, block: str) -> list[str]:
    """The lines of a page's table, without its two head lines."""
    return page.split(f"<!-- {block}: ")[1].split("<!-- end -->")[0].strip().splitlines()[3:]


def written(name: str, form: str = ".4f") -> str:
    """A measured number, or a row of them, as the page writes it."""
    measured = NUMBERS[name]["measured"]
    row = measured if isinstance(measured, list) else [measured]
    return " ".join(f"{x:{form}}" for x in row)


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


def test_the_cost_of_composition_is_that_of_the_committed_run():
    page = " ".join((ROOT / "docs" / "induction.md").read_text(encoding="utf-8").split())
    text = (ROOT / "benchmarks" / "composition.json").read_text(encoding="utf-8")
    ways = {record["way"]: record for record in json.loads(text)}
    ours, theirs = ways["interp"], ways["transformer_lens_by_layer"]
    assert f"take {ours['seconds']:.1f} s and {ours['peak_mb']:.0f} MiB" in page
    asked = re.search(r"allocate (\d+) bytes", ways["transformer_lens"]["failed"])
    assert asked
    assert f"asks for {int(asked[1]) / 1e9:.1f} GB" in page
    assert f"takes {theirs['seconds']:.0f} s layer by layer" in page


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


def worked_lines() -> list[str]:
    parts = {"scaled scores": ".4f", "pattern": ".4f", "output": ".3f"}
    parts |= {"causal pattern": ".4f", "causal output": ".3f"}
    return [
        "| "
        + " | ".join([word, *(written(f"{part} of {word}", form) for part, form in parts.items())])
        + " |"
        for word in ("나는", "학교에", "간다")
    ]


def softmax_lines() -> list[str]:
    spread = "standard deviation of q . k"
    lines = [
        f"| {spread}, d_k = {d} | "
        f"{written(f'{spread}, d_k = {d}', '.2f')} | "
        f"{written(f'{spread} / sqrt(d_k), d_k = {d}', '.2f')} |"
        for d in (4, 64, 512)
    ]
    for name, form in (("softmax of", ".4f"), ("norm of the gradient at", ".5f")):
        raw, divided = (written(f"{name} [10, 2, 1]{by}", form) for by in ("", " / 8"))
        lines.append(f"| {name} [10, 2, 1] | {raw} | {divided} |")
    return lines


PARTS = ("projections, 8 n d^2", "pairs, 4 n^2 d")
MEMORY = ("all scores, 4 n^2", "tiles of 128, 4 tile^2")


def costs_lines() -> list[str]:
    names = [f"{part}, n = {n}, d = 64" for n in (64, 128, 256) for part in PARTS]
    names += [f"{part}, n = {n}" for n in (1024, 2048) for part in MEMORY]
    lines = [f"| {name} | {written(name, ',.0f')} {NUMBERS[name]['unit']} |" for name in names]
    for shared in ("multi-head", "grouped-query", "multi-query"):
        one, all_of = f"{shared}, one token", f"{shared}, 8,192 tokens"
        lines.append(
            f"| cache of Llama 3 8B's shape, {shared} ({NUMBERS[one]['note']}) |"
            f" {NUMBERS[one]['measured'] / 2**10:.0f} KiB a token, {written(all_of, 'g')} GiB for"
            " 8,192 |"
        )
    return lines


def span(interval: list[float]) -> str:
    return " to ".join(f"{end:+.2f}" for end in interval)


def sinks_lines() -> list[str]:
    cost, interval = SINKS["cost"], SINKS["cost_interval"]
    return [
        f"| {held} | {SINKS['loss'][name]:.2f} | "
        + ("- | - |" if name == "full" else f"{cost[name]:+.2f} | {span(interval[name])} |")
        for name, held in SINKS["caches"].items()
    ]


def labels_lines() -> list[str]:
    return [
        f"| {label} | {of['heads']} | {of['on_first']:.2f} | {of['cost']:+.2f} |"
        f" {span(of['cost_interval'])} | {of['cost_kept']:+z.2f} |"
        for label, of in SINKS["labels"].items()
    ]


TABLES = {
    "worked example": worked_lines,
    "softmax": softmax_lines,
    "costs": costs_lines,
    "sinks": sinks_lines,
    "labels": labels_lines,
}


@pytest.mark.parametrize("block", TABLES)
def test_the_tables_on_attention_are_those_of_the_committed_runs(block):
    assert shown(ATTENTION, block) == TABLES[block]()


def test_the_sentences_on_attention_say_what_the_committed_runs_hold():
    page = " ".join(ATTENTION.split())
    assert all(record["ok"] for record in NUMBERS.values())
    step = written("p_0 / p_1 where scores differ by 1", ".3f")
    assert f"one weight is {step} times the other" in page
    ratio = written("norm of the gradient, divided by 8 over raw", ".0f")
    assert f"makes it {ratio} times as large" in page
    first, second, _ = NUMBERS["causal pattern of 학교에"]["measured"]
    one, two, _ = NUMBERS["pattern of 학교에"]["measured"]
    assert first / second == pytest.approx(one / two, abs=1e-6)
    assert f"{first:.4f} and {second:.4f}, which is {one:.4f} to {two:.4f} as before" in page
    reach = written("L = 3 layers that look w = 16 back, L w", ".0f")
    assert f"3 layers that look 16 back reach {reach}" in page
    swapped = "two V, swapped between previous token and sink: largest change of the"
    assert NUMBERS[f"{swapped} mixed pattern"]["measured"] == 0
    assert f"the output changes by {written(f'{swapped} output', '.2f')}" in page
    assert SINKS["verdict"].startswith("the window alone is clearly worse")
    assert f"save {100 * SINKS['recovered']:.0f} % of that" in page
    assert f"{SINKS['cost']['sink_window']:+.2f}, is what the older text was worth" in page
    made = SINKS["made_by"]
    assert f"Here it is {made['size']} tokens, on text of {made['length']}" in page
    assert f"one small model, {made['rows']} texts" in page
    labels = SINKS["labels"]
    assert labels["sink"]["cost"] > SINKS["cost"]["window"]
    by_cost = sorted(labels, key=lambda label: -labels[label]["cost"])
    assert by_cost[:2] == ["sink", "induction"]
    assert labels["induction"]["heads"] == 8
    assert labels["induction"]["on_first"] > labels["sink"]["on_first"]


def test_the_code_on_attention_prints_what_the_page_says():
    bare = re.sub(r"^```.*$", "", ATTENTION, flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(bare, {}, "attention.md", None, 0)
    assert len(test.examples) >= 9
    assert not doctest.DocTestRunner().run(test).failed


def test_what_the_page_on_attention_sends_one_to_is_in_the_lab():
    template = ROOT / "interp" / "pages" / "template" / "lab.html"
    sections = set(re.findall(r"<h2>(.*?)</h2>", template.read_text(encoding="utf-8")))
    steps = re.findall(r"\*\*In the lab\*\*,(.*?)(?:\n\n|$)", ATTENTION, flags=re.DOTALL)
    named = {" ".join(name.split()) for step in steps for name in re.findall(r"\*([^*]+)\*", step)}
    assert named == sections
