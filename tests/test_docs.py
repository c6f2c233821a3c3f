"""Numbers, links, paths and code in the README and in docs/ agree with the repository."""

import doctest
import json
import re
import runpy

import pandas as pd
import pytest
from places import ROOT

import interp
from interp.circuits.compare import MEASURES
from interp.kinds.builtin import LABELS


def page(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def words(path: str) -> str:
    """The page as one line, so that a sentence may break anywhere."""
    return " ".join(page(path).split())


def record(path: str):
    return json.loads(page(path))


def span(interval: list[float], form: str = ".2f") -> str:
    return " to ".join(f"{end:{form}}" for end in interval)


HEADS = pd.read_csv(ROOT / "figures" / "heads.csv")
EXAM = pd.read_csv(ROOT / "figures" / "exam.csv")
COMPARISON = record("figures/circuits/comparison.json")
SINKS = record("figures/sink_experiment.json")
NUMBERS = {number["name"]: number for number in record("figures/attention_numbers.json")}


def written(name: str, form: str = ".4f") -> str:
    """A measured number, or a row of them, as a page writes it."""
    measured = NUMBERS[name]["measured"]
    row = measured if isinstance(measured, list) else [measured]
    return " ".join(f"{x:{form}}" for x in row)


def heads_rows():
    induction = HEADS[HEADS["label"] == "induction"].sort_values("induction", ascending=False)
    for _, row in induction.iterrows():
        ends = span([row["induction_low"], row["induction_high"]])
        also = ", ".join(label for label in row["labels"].split(";") if label != "induction")
        null, text = (f"{row[c]:.2f}" for c in ("induction_null_99", "text_induction"))
        effect = f"{row['induction_logit_effect']:+.2f}"
        yield row["name"], f"{row['induction']:.2f}", ends, null, text, effect, also


def scan_cost_rows():
    for run in record("benchmarks/streaming.json"):
        seconds = (f"{run[name]:.2f}" for name in ("forward_s", "stream_s", "ratio"))
        peers = ("transformer_lens_ratio", "transformer_lens_shared_ratio")
        ratios = (f"{run[name]:.1f}" if name in run else "-" for name in peers)
        yield f"{run['length']:,}", *seconds, f"{run['extra_memory_mb']:.0f}", *ratios


def effects_rows():
    for label, of in record("figures/effects.json")["labels"].items():
        if of["heads"]:
            random = span([min(of["random_effects"]), max(of["random_effects"])])
            verdict = of["verdict"].partition(":")[0]
            cost = f"{of['effect']:.2f}"
            yield label, str(len(of["heads"])), cost, span(of["interval"]), random, verdict


def comparison_rows():
    circuits = COMPARISON["circuits"].values()
    yield "earlier head", *(c["heads"]["previous_token"] for c in circuits)
    yield "induction head", *(c["heads"]["induction"] for c in circuits)
    for name, measure in MEASURES.items():
        places = 0 if name.endswith(("_rank", "_z")) else 2
        yield measure, *(f"{c[name]:.{places}f}" for c in circuits)


def worked_rows():
    parts = {"scaled scores": ".4f", "pattern": ".4f", "output": ".3f"}
    parts |= {"causal pattern": ".4f", "causal output": ".3f"}
    for word in ("나는", "학교에", "간다"):
        yield word, *(written(f"{part} of {word}", form) for part, form in parts.items())


def softmax_rows():
    spread = "standard deviation of q . k"
    for d in (4, 64, 512):
        divided = written(f"{spread} / sqrt(d_k), d_k = {d}", ".2f")
        yield f"{spread}, d_k = {d}", written(f"{spread}, d_k = {d}", ".2f"), divided
    for name, form in (("softmax of", ".4f"), ("norm of the gradient at", ".5f")):
        yield (
            f"{name} [10, 2, 1]",
            *(written(f"{name} [10, 2, 1]{by}", form) for by in ("", " / 8")),
        )


def attention_cost_rows():
    flops = ("projections, 8 n d^2", "pairs, 4 n^2 d")
    memory = ("all scores, 4 n^2", "tiles of 128, 4 tile^2")
    names = [f"{part}, n = {n}, d = 64" for n in (64, 128, 256) for part in flops]
    for name in names + [f"{part}, n = {n}" for n in (1024, 2048) for part in memory]:
        yield name, f"{written(name, ',.0f')} {NUMBERS[name]['unit']}"
    for shared in ("multi-head", "grouped-query", "multi-query"):
        one, all_of = NUMBERS[f"{shared}, one token"], f"{shared}, 8,192 tokens"
        yield (
            f"cache of Llama 3 8B's shape, {shared} ({one['note']})",
            f"{one['measured'] / 2**10:.0f} KiB a token, {written(all_of, 'g')} GiB for 8,192",
        )


def sink_rows():
    for name, held in SINKS["caches"].items():
        more = f"{SINKS['cost'][name]:+.2f}", span(SINKS["cost_interval"][name], "+.2f")
        yield held, f"{SINKS['loss'][name]:.2f}", *(("-", "-") if name == "full" else more)


def label_rows():
    for label, of in SINKS["labels"].items():
        numbers = f"{of['on_first']:.2f}", f"{of['cost']:+.2f}"
        kept = f"{of['cost_kept']:+z.2f}"
        yield label, str(of["heads"]), *numbers, span(of["cost_interval"], "+.2f"), kept


def strongest_rows(name: str, top: int):
    """The strongest heads of a record of effects in figures/ioi."""
    found = interp.HeadEffects.load(ROOT / "figures" / "ioi" / f"{name}.json")
    for row in found.strongest(top).to_dict("records"):
        ends = span([row["low"], row["high"]], "+.2f")
        yield row["name"], f"{row['effect']:+.2f}", ends


def ablation_rows():
    ways = [
        interp.HeadEffects.load(ROOT / "figures" / "ioi" / f"ablate_{how}.json").to_frame()
        for how in ("mean", "zero", "resample")
    ]
    for rows in zip(*(way.to_dict("records") for way in ways), strict=True):
        effects = (
            f"{row['effect']:+.2f} ({span([row['low'], row['high']], '+.2f')})" for row in rows
        )
        yield rows[0]["name"], *effects


def path_rows():
    paths = record("figures/ioi/paths.json")["edges"]
    changes = [(edge["metric_after"] - edge["metric_before"], edge) for edge in paths]
    for change, edge in sorted(changes, key=lambda pair: pair[0])[:6]:
        ends = span([edge["metric_change_low"], edge["metric_change_high"]], "+.2f")
        yield edge["from"], edge["to"], edge["path"], f"{change:+.2f}", ends


def circuit_rows():
    edges = interp.Circuit.load(ROOT / "figures" / "ioi" / "circuit.json").to_frame()
    for row in edges.head(14).to_dict("records"):
        yield row["source"], row["target"], row["path"], f"{row['score']:+.2f}"


def test_the_page_on_name_pairs_quotes_the_circuit():
    text, circuit = words("docs/ioi.md"), interp.Circuit.load(ROOT / "figures/ioi/circuit.json")
    frame, table = circuit.to_frame(), circuit.faithfulness
    by_size = table[table["ablation"] == "counterfactual"].set_index("edges", drop=False)
    kept, larger = (
        by_size.loc[round(share * len(frame))] for share in (circuit.made_by["share"], 0.05)
    )
    numbers = {
        f"{kept['edges']:.0f} of {len(frame):,} edges": "best ",
        f"{frame['kept'].sum()} of them": "kept, ",
        f"{kept['faithfulness']:.2f} of the difference": "prompts, ",
        f"{kept['random']:.2f}.": "random edges ",
        f"{circuit.jaccard:.2f} of these edges": "share ",
        f"{span([circuit.jaccard_low, circuit.jaccard_high], '.2f')})": "edges (",
        f"{larger['jaccard']:.2f}. CMD": f"{larger['edges']:,.0f} edges they share ",
        f"{circuit.cmd['counterfactual']:.3f}. It": "CMD is ",
        f"{circuit.cmd['mean']:.3f} if": "ablation: ",
        f"{circuit.cmd['zero']:.3f} if": "and ",
    }
    for number, before in numbers.items():
        assert before + number in text
    assert circuit.cmd["counterfactual"] <= 0.03
    assert circuit.jaccard >= 0.8


def onset_rows():
    seeds = record("figures/sweeps/seeds.json")
    labelled = {row["kind"]: row for row in seeds["labelled"]}
    for row in seeds["order"]:
        first = labelled.get(row["kind"])
        both = [
            f"{of['median']:g} [{of['low']:g}, {of['high']:g}]" if of else "-"
            for of in (row, first)
        ]
        numbers = [f"{of['models'] if of else 0} of {row['of']}" for of in (row, first)]
        yield row["kind"].replace("_", " "), both[0], numbers[0], both[1], numbers[1]


def exam_rows():
    edges = EXAM[EXAM["of"] == "edges"]
    medians = edges.groupby("method")["auroc"].median().sort_values(ascending=False)
    for method in medians.index:
        rows = edges[edges["method"] == method].dropna()
        numbers = medians[method], rows["auroc"].min(), rows["average_precision"].median()
        yield method, str(len(rows)), *(f"{number:.2f}" for number in numbers)


def grid_rows():
    grid = record("figures/sweeps/grid.json")
    strongest = {row["model"]: row for row in grid["last"] if row["kind"] == "induction"}
    for model, heads in grid["induction_heads"].items():
        onsets = [o for o in grid["onsets"] if o["model"] == model and o["kind"] == "induction"]
        first = min(onsets, key=lambda onset: onset["onset"], default=None)
        labelled = min((o["labelled"] for o in onsets if o["labelled"] is not None), default="-")
        layers = sorted({head.partition("H")[0][1:] for head in heads})
        last = strongest[model]
        score = f"{last['score']:.2f} [{last['low']:.2f}, {last['high']:.2f}]"
        between = f"{first['after']} to {first['onset']}" if first else "-"
        yield (
            *(model, between, str(labelled), ", ".join(layers) or "-"),
            *(score, f"{last['null_99']:.2f}"),
        )


TABLES = {
    "exam": ("docs/judging.md", exam_rows),
    "grid": ("docs/sweeps.md", grid_rows),
    "name pairs, patching": ("docs/ioi.md", lambda: strongest_rows("patch", 8)),
    "name pairs, logits": ("docs/ioi.md", lambda: strongest_rows("logits", 6)),
    "name pairs, ablation": ("docs/ioi.md", ablation_rows),
    "name pairs, paths": ("docs/ioi.md", path_rows),
    "name pairs, circuit": ("docs/ioi.md", circuit_rows),
    "induction heads": ("README.md", heads_rows),
    "costs of a scan": ("docs/costs.md", scan_cost_rows),
    "effects": ("docs/judging.md", effects_rows),
    "comparison": ("docs/induction.md", comparison_rows),
    "worked example": ("docs/attention.md", worked_rows),
    "softmax": ("docs/attention.md", softmax_rows),
    "costs": ("docs/attention.md", attention_cost_rows),
    "sinks": ("docs/attention.md", sink_rows),
    "onsets": ("docs/sweeps.md", onset_rows),
    "labels": ("docs/attention.md", label_rows),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_table_shows_the_numbers_of_its_committed_record(name):
    path, rows = TABLES[name]
    block = page(path).split(f"<!-- {name}: ")[1].split("<!-- end -->")[0]
    lines = block.strip().splitlines()[3:]
    assert lines == [f"| {' | '.join(row)} |" for row in rows()]


def test_the_readme_quotes_the_committed_records():
    text = words("README.md")
    accuracy = record("figures/accuracy.json")
    ratios = [run["ratio"] for run in record("benchmarks/streaming.json")]
    size, share = accuracy["sizes"]["report"], 100 * accuracy["accuracy"]
    for path in ("README.md", "docs/judging.md"):
        assert f"On {size:,} planted heads and near misses" in words(path)
        assert f"{share:.1f} % of the labels are right" in words(path)
    assert not any(near.get("fooled") for near in accuracy["near_misses"])
    assert f"A scan costs {span([min(ratios), max(ratios)])} times a plain forward pass" in text


def test_the_page_on_judging_quotes_the_thresholds_and_the_committed_records():
    text, thresholds = page("docs/judging.md"), interp.Thresholds()
    rows = re.findall(r"^\| ([a-z ]+) \| .* \| (0\.\d) \|$", text, re.MULTILINE)
    assert [label for label, _ in rows] == list(LABELS.values())
    for label, value in rows:
        assert getattr(thresholds, label.replace(" ", "_")) == float(value)
    assert f"the last {thresholds.window_width} positions" in text
    table = pd.read_csv(ROOT / "figures" / "sensitivity.csv")
    flipped = table[table["flips"].notna()]
    sinks = (flipped["kind"] == "sink").sum()
    flips = f"{len(flipped)} of {len(table)} labels flip, {sinks} of them sinks"
    assert flips in words("docs/judging.md")
    backups = EXAM[EXAM["of"] == "heads"]
    worst = f"AUROC of heads {backups['auroc'].min():.2f} at worst in {len(backups)} models"
    assert worst in words("docs/judging.md")
    assert f"on {EXAM['model'].nunique()} small models whose circuits" in words("docs/judging.md")
    assert record("figures/effects.json")["made_by"]["draws"] == 20


def test_the_page_on_costs_quotes_the_committed_benchmarks():
    text = words("docs/costs.md")
    run = next(run for run in record("benchmarks/streaming.json") if run["length"] == 2048)
    own = f"{run['transformer_lens_memory_mb'] / 1024:.0f}"
    shared = f"{run['transformer_lens_shared_memory_mb'] / 1024:.1f}"
    assert f"At 2,048 tokens they take {own} and {shared} GiB" in text
    maps = record("benchmarks/patching.json")
    assert f"of all {maps['heads']} heads by `interp.patch`, over {maps['pairs']} pairs" in text
    assert f"costs {maps['patch_per_forward']:.2f} of a plain forward pass" in text
    assert f"and {maps['patch_per_transformer_lens']:.2f} of the same map" in text
    assert f"costs {maps['attribution_per_forward']:.1f} forward passes in all" in text
    assert f"and {maps['integrated_per_forward']:.1f} with integrated gradients" in text
    assert max(maps["attribution_per_forward"], maps["integrated_per_forward"]) <= 8
    agree = maps["correlation_with_patch"]
    agree = f"{agree['patching']:.2f}, with integrated gradients {agree['integrated']:.2f}"
    assert f"correlation with the exact map {agree}" in text
    short, long = record("benchmarks/gallery.json")
    assert (short["length"], short["heads"]) == (128, 270)
    assert f"take {short['size_mb']:.1f} MB and appear within {short['view_s']:.1f} s" in text
    peer, seconds = short["circuitsvis_size_mb"], short["circuitsvis_view_s"]
    assert f"from CircuitsVis takes {peer:.0f} MB and {seconds:.0f} s" in text
    assert short["bertviz_view_s"] is None
    assert f"from BertViz {short['bertviz_size_mb']:.0f} MB" in text
    assert short["size_mb"] <= 4
    assert long["size_mb"] <= 20
    assert max(gallery["max_error"] for gallery in (short, long)) <= 0.002


def edge(source: str, to: str) -> dict:
    ends = (source, to, "K")
    return next(e for e in COMPARISON["edges"] if (e["from"], e["to"], e["path"]) == ends)


def lost(source: str, to: str) -> float:
    return edge(source, to)["stripe_before"] - edge(source, to)["stripe_after"]


def test_the_page_on_sweeps_quotes_the_committed_benchmarks():
    text, known = words("docs/sweeps.md"), record("benchmarks/sweeps.json")
    kills, right = known["kills"], known["matching"]["right"]
    assert f"at {kills['kills']} random moments" in text
    assert kills["killed_same_bytes"]
    assert kills["two_processes_same_bytes"]
    many = known["many"]
    took = f"take two processes {many['wall_s'] / 60:.1f} minutes"
    assert f"{many['checkpoints']} checkpoints of that size {took}" in text
    assert right["same_rows"] == 1
    assert f"same random rows, and {100 * right['other_rows']:.0f} % from" in text
    assert f"as much time as {known['callback']['steps_a_scan']:.0f} training steps" in text


def test_the_page_on_induction_quotes_the_committed_records():
    text = words("docs/induction.md")
    targets = ("L17H3", "L17H4", "L18H6")
    share = max(lost("L11H1", to) / lost("L16H0", to) for to in targets)
    assert f"removing L11H1 costs at most {100 * share:.0f} % of that" in text
    real = COMPARISON["circuits"]["real"]["previous_token_heads"]
    assert f"L16H0 ({real['L16H0']:.2f}) and L11H1 ({real['L11H1']:.2f})" in text
    assert all(lost("L16H0", to) > 0.9 * edge("L16H0", to)["stripe_before"] for to in targets)
    assert f"L17H8, which costs it {lost('L17H8', 'L18H6'):.2f}" in text
    ways = {way["way"]: way for way in record("benchmarks/composition.json")}
    ours, theirs = ways["interp"], ways["transformer_lens_by_layer"]
    assert f"take {ours['seconds']:.1f} s and {ours['peak_mb']:.0f} MiB" in text
    asked = re.search(r"allocate (\d+) bytes", ways["transformer_lens"]["failed"])
    assert asked
    assert f"would need {int(asked[1]) / 1e9:.1f} GB" in text
    assert f"takes {theirs['seconds']:.0f} s layer by layer" in text


def test_the_page_on_attention_quotes_the_committed_records():
    text = words("docs/attention.md")
    assert all(number["ok"] for number in NUMBERS.values())
    step = written("p_0 / p_1 where scores differ by 1", ".3f")
    assert f"one weight is {step} times the other" in text
    ratio = written("ratio of the gradient norms, scores / 8 to scores", ".0f")
    assert f"makes it {ratio} times as large" in text
    first, second, _ = NUMBERS["causal pattern of 학교에"]["measured"]
    one, two, _ = NUMBERS["pattern of 학교에"]["measured"]
    assert first / second == pytest.approx(one / two, abs=1e-6)
    assert f"{first:.4f} and {second:.4f}, in the same ratio as {one:.4f} and {two:.4f}" in text
    reach = written("L = 3 layers that look w = 16 back, L w", ".0f")
    assert f"3 layers that look 16 back reach {reach}" in text
    swapped = "two V, swapped between previous token and sink: largest change of the"
    assert NUMBERS[f"{swapped} mixed pattern"]["measured"] == 0
    assert f"the output changes by {written(f'{swapped} output', '.2f')}" in text


def test_the_page_on_attention_quotes_the_sink_experiment():
    text, cost, labels = words("docs/attention.md"), SINKS["cost"], SINKS["labels"]
    assert SINKS["verdict"].startswith("the window alone is clearly worse")
    assert f"recover {100 * SINKS['recovered']:.0f} % of that" in text
    assert f"{cost['sink_window']:+.2f}, is what the older text was worth" in text
    made = SINKS["made_by"]
    assert f"holds {made['size']} tokens of a text of {made['length']}" in text
    assert f"one small model, {made['rows']} texts" in text
    assert labels["sink"]["cost"] > cost["window"]
    by_cost = sorted(labels, key=lambda label: -labels[label]["cost"])
    assert by_cost[:2] == ["sink", "induction"]
    assert labels["induction"]["heads"] == 8
    assert labels["induction"]["on_first"] > labels["sink"]["on_first"]


GENERATED = ("docs/columns.md", "docs/families.md")
"""Pages that other tests write."""

SITE = ("docs/index.md", "docs/faults.md", "docs/figures.md", "docs/changes.md")
"""Pages of the site alone: its front page, and copies that its build makes."""

PAGES = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "figures/README.md"),
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
]
PAGES = [path for path in PAGES if path not in SITE]


@pytest.mark.parametrize("path", PAGES)
def test_every_link_leads_to_a_file_and_every_page_leads_back(path):
    targets = set(re.findall(r"\]\(([^)#:]+)[)#]", page(path)))
    folder = (ROOT / path).parent
    assert {target for target in targets if not (folder / target).exists()} == set()
    if path not in ("README.md", *GENERATED):
        assert targets & {"README.md", "../README.md"}


@pytest.mark.parametrize("path", ["docs/architecture.md", "docs/attention.md", "docs/howto.md"])
def test_the_code_on_a_page_prints_what_the_page_says(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bare = re.sub(r"^```.*$", "", page(path), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(bare, {}, path, None, 0)
    assert len(test.examples) >= 4
    assert not doctest.DocTestRunner().run(test).failed


def test_the_page_on_attention_names_every_section_of_the_lab():
    template = page("interp/show/pages/template/lab.html")
    sections = set(re.findall(r"<h2>(.*?)</h2>", template))
    steps = re.findall(
        r"\*\*In the lab\*\*,(.*?)(?:\n\n|$)", page("docs/attention.md"), flags=re.DOTALL
    )
    named = {" ".join(name.split()) for step in steps for name in re.findall(r"\*([^*]+)\*", step)}
    assert named == sections


def test_the_page_on_architecture_describes_every_room_and_names_what_exists():
    text = page("docs/architecture.md")
    rooms = {path.parent.name for path in (ROOT / "interp").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `interp/(\w+)/` \|", text, re.MULTILINE)) == rooms
    paths = set(re.findall(r"`((?:interp|scripts|tests|docs)/[\w./]*|\.ci/\w+)`", text))
    assert {path for path in paths if not (ROOT / path).exists()} == set()


def test_the_picture_of_the_rooms_shows_the_imports():
    done = runpy.run_path(str(ROOT / "docs" / "rooms.py"))
    assert page("docs/rooms.svg") == done["svg"](), "run python docs/rooms.py"
