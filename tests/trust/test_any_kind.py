"""Planted heads of any kind, and the page about every kind, `docs/kinds.md`."""

import json

import pytest
from places import ROOT

import interp
from interp.kinds.builtin import KINDS, MORE
from interp.kinds.labels import HeadLabel
from interp.kinds.targets import latest
from interp.text import visible
from interp.trust import any_kind
from interp.trust.any_kind import describe_explained, describe_kinds, kind_accuracy, mixture_errors

RECORD = json.loads((ROOT / "figures" / "kinds.json").read_text(encoding="utf-8"))
STATIC = json.loads((ROOT / "figures" / "static.json").read_text(encoding="utf-8"))
EXPLAINED = json.loads((ROOT / "figures" / "explained.json").read_text(encoding="utf-8"))
MOVERS_OUT = ROOT / "figures" / "ioi" / "without_movers.csv"
BACKUP = interp.HeadEffects.load(ROOT / "figures" / "ioi" / "backup_movers.json")


@interp.kind("last comma")
def last_comma(tokens, texts):
    return latest([[text.strip() == "," for text in row] for row in texts])


@pytest.mark.parametrize("kind", ["previous token", last_comma])
def test_planted_heads_of_a_kind_get_its_label_and_near_misses_do_not(kind):
    found = kind_accuracy(kind, heads=24)
    assert found["right"] >= 23
    assert found["heads"] == 24


def test_wrong_labels_are_counted_by_role(monkeypatch):
    def never(patterns, tokens, **asked):
        return [HeadLabel(interp.Head(0, head), "mixed", ("mixed",), {}, {}) for head in range(6)]

    monkeypatch.setattr(any_kind, "classify_heads", never)
    found = kind_accuracy("previous token", heads=12)
    assert found["wrong"]["the kind"] >= 2
    assert found["right"] == 12 - sum(found["wrong"].values())


def test_the_shares_of_mixed_kinds_are_recovered():
    record = json.loads((ROOT / "figures" / "mixtures.json").read_text(encoding="utf-8"))
    assert (record["cases"], record["within"] >= 0.95) == (1000, True)
    found = mixture_errors(cases=12)
    assert found["within"] == 1
    assert 0 < found["largest"] < 0.03


def test_a_kind_without_targets_on_text_and_several_kinds_are_refused():
    with pytest.raises(interp.InputError, match="targets on text"):
        kind_accuracy(interp.kind("never")(lambda tokens: tokens * 0 - 1))
    with pytest.raises(interp.InputError, match="one kind"):
        kind_accuracy("default")


def kinds_page() -> str:
    """Every kind as a Markdown page, `docs/kinds.md`."""
    planted = RECORD["kinds"][0]["planted"]["heads"]
    lines = [
        "# Kinds of heads\n",
        f"Every built-in kind, and the heads of {RECORD['model']} that carry it. A default scan",
        f"scores {', '.join(f'`{name}`' for name in KINDS)} (`next_token` in bidirectional models",
        "only); `kinds=` and `--kinds` choose others: `all`, or `offset_K` for a distance. How to",
        "write your own is in the [README](../README.md).\n",
        "The strongest heads are listed even if they lack the label: score, 95 % interval, and the",
        "null that a label must exceed; the threshold is for the part above even attention. The",
        "last column is the share of right labels of",
        f"{planted} planted heads and near misses of that kind (`interp.trust.any_kind`).\n",
        "| kind | what it does | scored on | threshold | heads | strongest | right | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in RECORD["kinds"]:
        heads = [
            f"{best['name']} {best['score']:.2f} ({best['low']:.2f} to {best['high']:.2f}, null"
            f" {best['null_99']:.2f})"
            for best in row["strongest"]
        ]
        on = {"repeated": "random tokens that repeat", "random": "random tokens, before the repeat"}
        on["text"] = "text"
        lines.append(
            f"| `{row['name']}` | {row['look']} | {on.get(row['on'], 'fixed prompts')} |"
            f" {row['threshold']} | {row['heads'] or 'none'} | {'; '.join(heads)} |"
            f" {row['planted']['accuracy']:.1%} | {row['source']} |"
        )
    lines += [*backup_lines(), *explained_lines()]
    made_by = STATIC["made_by"]
    lines += [
        "\n## From the weights\n",
        "`interp.effects.static.static_scores` asks what a head would write for a",
        "token, from its weights alone, with the first MLP. The score is the",
        f"share of pairs (s, t) with t among the {made_by['top']} largest logits of s, for copy",
        "suppression with s among the smallest; the null is its 99 % quantile",
        "over shuffled pairs. Next to it are the share with t above all other",
        "targets, which is the score of a successor head, and the correlation",
        "over heads with their direct effect on t in prompts of such pairs. These",
        "are not labels: they do not say where a head attends.\n",
        "| relation | pairs | strongest | score | null | above all others | correlation |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in STATIC["strongest"]:
        known = STATIC["correlations"].get(row["relation"])
        shown = "" if known is None else f"{known:.2f}"
        lines.append(
            f"| {row['relation']} | {row['pairs']} | {row['name']} | {row['score']:.2f} |"
            f" {row['null_99']:.2f} | {row['within']:.2f} | {shown} |"
        )
    return "\n".join(lines) + "\n"


def backup_lines() -> list[str]:
    """The part on backup name movers."""
    out = BACKUP.made_by["given"]
    others = BACKUP.to_frame().sort_values("backup")
    helping = others[others["effect"] < 0].iloc[0]
    scan = interp.HeadScan.load(MOVERS_OUT)
    best = scan.frame[~scan.frame["name"].isin(out)].nlargest(2, "name_mover")
    assert {*map(str, scan.heads("name mover"))} <= {*out}
    lines = [
        "\n## Backup name movers\n",
        "Wang et al. also describe backup name movers, which take over once the name movers are",
        "out. They look where name movers look, so no rule tells the two apart; taking heads out",
        f"can (`interp.ablate(given=...)`). Without {', '.join(out)} no other head gets the label",
        "name mover: the strongest are "
        + ", ".join(f"{n} {x:.2f}" for n, x in zip(best["name"], best["name_mover"], strict=True))
        + ".",
        f"Nor does one of {len(others)} heads of later layers take over on",
        f"{len(BACKUP.made_by['prompts'])} pairs of names: of those that then help the right name,",
        f"{helping['name']} gains most, {-helping['backup']:.2f} logits."
        f" {' and '.join(others['name'][:2])} push the",
        "right name down, and do so less.\n",
        "| head | its effect | without the name movers | difference | others of its layer |",
        "|---|---|---|---|---|",
    ]
    assert others["alone"].iloc[1] > others["effect"].iloc[1] > 0
    for row in [*others.head(2).to_dict("records"), helping]:
        ends = f"({row['backup_low']:+.2f} to {row['backup_high']:+.2f})"
        band = f"{row['backup_random_low']:+.2f} to {row['backup_random_high']:+.2f}"
        lines.append(
            f"| {row['name']} | {row['alone']:+.2f} | {row['effect']:+.2f} |"
            f" {row['backup']:+.2f} {ends} | {band} |"
        )
    return lines


def explained_lines() -> list[str]:
    """The part on the explained share and what is left."""
    alone = EXPLAINED["share"] - EXPLAINED["by_kind"]["preferred"]
    lines = [
        "\n## Explained share\n",
        f"On {EXPLAINED['text']['tokens']} tokens that no rule was made on, two pages of docs",
        f"and a file of code, the kinds explain {EXPLAINED['share']:.1%} of the attention outside",
        f"sinks ({EXPLAINED['low']:.1%} to {EXPLAINED['high']:.1%}); as many keys drawn evenly,",
        f"{EXPLAINED['null']:.1%}. Without the keys that a head prefers for any query, the kinds",
        f"explain {alone:.1%}. What is left, by the four strongest pairs of each head, with the",
        "token that is meant in brackets:\n",
        "| key | tokens back | share of these pairs | heads | strongest: key, query |",
        "|---|---|---|---|---|",
    ]
    for row in EXPLAINED["clusters"]:
        pair = "{}, {}".format(*(in_text(row, side) for side in ("key", "query")))
        lines.append(
            f"| {row['key']} | {row['distance']} | {row['share']:.2f} | {row['heads']} |"
            f" {row['name']} {row['weight']:.2f}: {pair} |"
        )
    lines += [
        "\nThe heads with the most attention that nothing explains:\n",
        "| head | outside sinks | of that explained | prefers | strongest pairs left |",
        "|---|---|---|---|---|",
    ]
    for row in EXPLAINED["heads"]:
        words = [as_code(text) for text in (row["preferred"], row["unexplained"])]
        share = f"{row['outside_sinks']:.2f} | {row['explained']:.2f}"
        lines.append(f"| {row['name']} | {share} | {' | '.join(words)} |")
    return lines


def in_text(row: dict, side: str) -> str:
    """A token with a little of the text around it, the token in brackets."""
    before, after = row[f"{side}_before"][-20:], row[f"{side}_after"][:10]
    return as_code(visible(f"{before}[{row[f'{side}_token']}]{after}"))


def as_code(text: str) -> str:
    return f"`` {text.replace('|', chr(92) + '|')} ``"


def test_the_page_of_kinds_says_what_the_record_says():
    names = [row["name"] for row in RECORD["kinds"]]
    assert {*names} == {*KINDS, *MORE} - {"next_token"}
    assert min(row["planted"]["accuracy"] for row in RECORD["kinds"]) >= 0.995
    page = ROOT / "docs" / "kinds.md"
    if not page.exists() or page.read_text(encoding="utf-8") != kinds_page():
        page.write_text(kinds_page(), encoding="utf-8")
        pytest.fail("docs/kinds.md was out of date and has been written anew")


def test_every_kind_of_a_scan_is_described():
    score, chance = {"last_comma": 0.9}, {"last_comma": 0.1}
    head = HeadLabel(interp.Head(0, 0), "last comma", ("last comma",), score, chance)
    scan = interp.HeadScan.of([head], kinds=[last_comma])
    scan.made_by["kinds"] = {"last_comma": last_comma.record()}
    (row,) = describe_kinds(scan, heads=6)["kinds"]
    assert (row["name"], row["heads"]) == ("last_comma", 1)
    assert row["strongest"][0]["name"] == "L0H0"
    assert row["strongest"][0]["low"] is None


def test_the_explained_share_is_described_with_what_is_left():
    place = {"position": 30, "token": " a", "before": "b", "after": "c"}
    pairs = [
        {"weight": 0.6, "row": 0, "query": place, "key": place | {"position": 15, "token": "."}},
        {"weight": 0.2, "row": 0, "query": place, "key": place | {"position": 14, "token": " the"}},
    ]
    heads = [
        HeadLabel(
            interp.Head(0, n),
            "last comma",
            ("last comma",),
            {"last_comma": 0.9},
            {"last_comma": 0.1},
        )
        for n in (0, 1)
    ]
    columns = {"outside_sinks": 0.5, "explained_null": 0.1, "explained_low": 0.2}
    columns |= {"explained_high": 1.0, "preferred": "the", "unexplained": "a"}
    others = [
        columns | {"explained": share, "explained_by_last_comma": share} for share in (0.4, 0.8)
    ]
    made_by = {"explained": {"unexplained": {"L0H0": pairs, "L0H1": pairs[:1]}}}
    found = describe_explained(interp.HeadScan.of(heads, others, made_by, kinds=[last_comma]))
    assert [found["share"], found["by_kind"]["last_comma"]] == pytest.approx([0.6, 0.6])
    one, two = found["clusters"]
    assert (one["key"], one["distance"], one["heads"]) == ("punctuation", "up to 15", 2)
    assert one["share"] == pytest.approx(1.2 / 1.4, abs=1e-4)
    assert (two["key"], two["distance"], two["key_token"]) == ("function word", "16 to 63", " the")
    assert [head["name"] for head in found["heads"]] == ["L0H0", "L0H1"]
    assert found["heads"][0]["unexplained_share"] == pytest.approx(0.3)
