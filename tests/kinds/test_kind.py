from dataclasses import replace

import pytest
import torch
from matplotlib.text import Text
from tiny_models import tiny, words_tokenizer

import interp
from interp.errors import InputError
from interp.kinds.builtin import KINDS, MORE, as_kinds, kinds_in
from interp.kinds.labels import HeadLabel
from interp.kinds.scores import STATISTICS
from interp.kinds.targets import NONE, latest
from interp.scan.report import report
from interp.show.figures import head_zoo, pattern_page, score_mosaic

TEXTS = ["<s>", "a", ",", "b", "c", ",", "d", "e", "f", "g", "h", "i"]
TOKENS = torch.arange(12)[None]


@interp.kind("last comma", threshold=0.3)
def last_comma(tokens, texts):
    return latest([[text.strip() == "," for text in row] for row in texts])


def made(rule, **options):
    return interp.kind("tried", **options)(rule)


def test_a_function_becomes_a_kind_that_is_called_like_it():
    assert (last_comma.name, last_comma.label, last_comma.threshold) == (
        *("last_comma", "last comma", 0.3),
    )
    keys = last_comma(TOKENS, [TEXTS])
    assert keys[0, :, 0].tolist() == [NONE] * 3 + [2, 2, 2] + [5] * 6


def test_the_same_key_twice_counts_once_and_keys_may_be_lists():
    twice = made(lambda tokens: [[[0, 0], [1, 0], [1, 1]]])
    assert [sorted({*row} - {NONE}) for row in twice(torch.tensor([[5, 6, 7]]))[0].tolist()] == [
        *([0], [0, 1], [1]),
    ]
    assert (twice(torch.tensor([[5, 6, 7]])) == 1).sum() == 2


def test_a_rule_may_change_its_tokens_and_give_arrays():
    def rule(tokens):
        tokens[:] = 1
        return tokens.numpy() - 1

    tokens = torch.tensor([[5, 6, 7], [8, 9, 5]])
    assert made(rule)(tokens).tolist() == [[[0]] * 3] * 2
    assert tokens.tolist() == [[5, 6, 7], [8, 9, 5]]


def rolled(tokens):
    return tokens.roll(1, 0)[..., None] % 2 - 1  # Keys that another row decides.


BAD = {
    "later": (lambda tokens: torch.full_like(tokens, 1), "at or before the query, got 1 for query"),
    "beyond": (lambda tokens: torch.full_like(tokens, 40), "got 40 for query 0 of row 0"),
    "below": (lambda tokens: torch.full_like(tokens, -2), "got -2 for query 0"),
    "padding": (lambda tokens: torch.where(tokens == 9, 3, NONE), "got 3 for query 4 of row 1"),
    "shape": (lambda tokens: tokens[:, :2], "must give whole numbers"),
    "fractions": (lambda tokens: tokens / 2, "must give whole numbers"),
    "rows of other lengths": (lambda tokens: [[[0], [0, 1]]] * 2, "gives keys, got ValueError"),
    "others": (rolled, "with and without other rows, got others for query 0 of row 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_keys_that_would_give_wrong_numbers_are_refused_with_the_query_named(case):
    rule, said = BAD[case]
    rows = torch.tensor([[0, 1, 2, 3, 5], [1, 2, 3, NONE, 9]])
    with pytest.raises(InputError, match=said):
        made(rule)(rows)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: made(lambda tokens, words: tokens), "rule must take"),
        (lambda: interp.kind("layer")(lambda tokens: tokens), "name must"),
        (lambda: interp.kind("explained null")(lambda tokens: tokens), "no column of tables"),
        (lambda: interp.kind("sink high")(lambda tokens: tokens), "no column of tables"),
        (lambda: interp.kind(lambda tokens: tokens), r"name must be given, as in @interp\.kind\("),
        (lambda: made(lambda tokens: tokens, null="shuffle"), "null must be shuffled, drawn"),
        (lambda: made(lambda tokens: tokens[7])(TOKENS), "got IndexError.* in line .*test_kind.py"),
        (lambda: interp.kind("x", threshold=0.0)(lambda tokens: tokens), "threshold must"),
        (lambda: as_kinds("induktion"), "kinds must be some of default, all, induction"),
        (lambda: as_kinds([]), "at least one"),
        (lambda: as_kinds([last_comma, replace(last_comma, threshold=0.5)]), "last_comma twice"),
        (lambda: last_comma(TOKENS), "texts must"),
        (lambda: interp.classify_heads(torch.eye(12)[None], TOKENS, kinds=last_comma), "texts"),
    ],
)
def test_mistakes_get_one_line(make, said):
    with pytest.raises(InputError, match=said):
        make()


def test_kinds_are_named_in_words_or_sets_and_those_that_hold_others_come_last():
    assert list(as_kinds(["sink", "previous token", last_comma, "offset 7"])) == [
        *("previous_token", "last_comma", "offset_7", "sink"),
    ]
    assert [*as_kinds("all")] == [*[*KINDS][:-2], *MORE, "local_window", "sink"]


def head_on(keys):
    """A pattern whose queries put .8 on their key, if they have one, and the rest on the first."""
    pattern = torch.zeros(len(keys), len(keys))
    pattern[:, 0] = 1
    for query, key in enumerate(keys):
        if key != NONE:
            pattern[query, 0] -= 0.8
            pattern[query, key] += 0.8
    return pattern


def test_a_head_of_your_own_kind_gets_its_label_with_scores_and_chance():
    keys = last_comma(TOKENS, [TEXTS])[0, :, 0].tolist()
    patterns = torch.stack([head_on(keys), head_on([NONE] * 12)])
    kinds = ["default", last_comma]
    one, other = interp.classify_heads(patterns, TOKENS, kinds=kinds, texts=[TEXTS])
    assert one.label == "last comma"
    assert one.scores["last_comma"] == pytest.approx(0.8)
    assert one.chance["last_comma"] == pytest.approx(sum(1 / n for n in range(4, 13)) / 9)
    assert "last comma" not in other.labels
    table = interp.HeadScan.of([one, other], kinds=kinds)
    assert table.heads("last comma") == table.heads("last_comma") == [one.head]
    assert "1 last comma" in repr(table)


@pytest.fixture(scope="module")
def scanned():
    model = interp.load_model(tiny("llama"), words_tokenizer())
    kinds = [*(last_comma, "offset 2", "sink"), odd_prompts, by_match]
    return model, interp.scan_heads(model, kinds=kinds, rows=4)


@interp.kind("own prompts", on=[[5, 6, 7, 8, 9, 10, 11, 12]] * 3, look="looks two back")
def odd_prompts(tokens):
    return (torch.arange(tokens.shape[1]) - 2).clamp(min=NONE).repeat(len(tokens), 1)


@interp.kind("by match", on="repeated", null="shuffled")
def by_match(tokens):
    return KINDS["induction"](tokens)


def test_a_scan_has_every_column_of_your_own_kinds(scanned):
    _, scan = scanned
    frame = scan.to_frame()
    for name in ("last_comma", "own_prompts", "by_match", "offset_2"):
        ends = [f"{name}_{end}" for end in ("chance", "low", "high", "null", "null_99")]
        if name != "last_comma":  # The tokenizer of words has no comma.
            assert frame[[name, *ends]].notna().all(axis=None), name
    assert frame["induction"].isna().all()
    same = interp.scan_heads(scanned[0], rows=4).to_frame()
    assert frame["by_match"].tolist() == same["induction"].tolist()
    assert frame["by_match_null_99"].tolist() == same["induction_null_99"].tolist()
    assert scan.made_by["kinds"]["by_match"]["null"] == "shuffled"
    assert "last_comma: natural text was not run" in frame["not_measured"][0]


@pytest.mark.parametrize("ending", ["json", "csv", "parquet"])
def test_tables_of_your_own_kinds_are_read_back_with_their_labels(scanned, ending, tmp_path):
    _, scan = scanned
    scan.frame.loc[0, "label"] = "by match"
    scan.frame.at[0, "labels"] = ["by match"]
    scan.save(tmp_path / f"heads.{ending}")
    read = interp.HeadScan.load(tmp_path / f"heads.{ending}")
    assert [str(head) for head in read.heads("by match")] == ["L0H0"]
    assert not read.kinds["by_match"].has_rule
    again = interp.HeadScan.load(tmp_path / f"heads.{ending}", kinds=[by_match, odd_prompts])
    assert again.kinds["by_match"].has_rule


def test_pictures_outline_the_targets_of_your_own_kinds(scanned, tmp_path):
    model, scan = scanned
    scan.frame.loc[0, "label"] = "by match"
    scan.frame.at[0, "labels"] = ["by match"]
    patterns = interp.attention_patterns(model, [[1, 5, 6, 7, 5, 6, 7, 5]])
    page = interp.gallery(scan, patterns)
    assert page.prompts[0].targets["by_match"] == [*[[]] * 4, [2], [3], [4], [2, 5]]
    assert '"word":"by match"' in page.to_html().replace(": ", ":")
    lost = kinds_in(scan.frame.columns)
    assert lost["by_match"].look == ""
    for figure in (pattern_page(scan, patterns), head_zoo(scan, patterns), score_mosaic(scan)):
        assert "by match" in str([text.get_text() for text in figure.findobj(Text)])


def test_a_null_may_be_a_rule_of_your_own(scanned):
    """The rule itself as its null: the scores are equal."""
    model, _ = scanned
    aim = lambda tokens: (torch.arange(tokens.shape[1]) - 3).clamp(min=NONE).repeat(len(tokens), 1)  # noqa: E731
    same = interp.kind("same", on=[[5, 6, 7, 8, 9, 10, 11, 12]] * 3, null=aim)(aim)
    frame = interp.scan_heads(model, kinds=[same], rows=4).to_frame()
    assert frame["same_null"].tolist() == frame["same"].tolist()


def test_prompts_are_scored_for_your_own_kinds(scanned):
    model, _ = scanned
    scores = interp.score_prompts(model, [[1, 5, 6, 7, 5, 6, 7, 5, 6]], kinds=[odd_prompts])
    assert "own_prompts" in {*scores.to_frame()["score"]} <= {"own_prompts", *STATISTICS}


def test_a_kind_in_a_file_is_named_by_its_path(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import interp\n@interp.kind('two back')\ndef mine(tokens):\n    return tokens * 0 - 1\n"
    )
    assert as_kinds(f"{path}:mine")["two_back"].look == "looks at its targets"
    with pytest.raises(InputError, match="other must be a kind"):
        as_kinds(f"{path}:other")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: made(lambda tokens: tokens > 0)(TOKENS), "whole numbers"),
        (lambda: made(lambda tokens: None)(TOKENS), "whole numbers"),
        (lambda: made(lambda tokens: tokens, on="txt"), "on must be"),
        (lambda: as_kinds(replace(last_comma, name="last_punctuation")), "name of a built-in"),
    ],
)
def test_what_would_be_scored_as_something_else_is_refused(make, said):
    with pytest.raises(InputError, match=said):
        make()


def test_another_threshold_of_a_built_in_kind_is_taken():
    assert as_kinds(replace(MORE["digits"], threshold=0.2))["digits"].threshold == 0.2


def test_a_table_takes_the_rules_of_its_own_kinds_only(scanned, tmp_path):
    scanned[1].save(tmp_path / "heads.json")
    with pytest.raises(InputError, match="kinds must be of the table"):
        interp.HeadScan.load(tmp_path / "heads.json", kinds=[made(lambda tokens: tokens)])


def test_a_table_refuses_another_rule_of_the_same_name(scanned, tmp_path):
    scanned[1].save(tmp_path / "heads.json")

    @interp.kind("by match")
    def other(tokens):
        return KINDS["duplicate_token"](tokens)

    with pytest.raises(InputError, match="another rule for by_match"):
        interp.HeadScan.load(tmp_path / "heads.json", kinds=[other])
    assert made(lambda tokens: tokens[7]).digest == ""


def test_kinds_of_text_are_refused_for_a_model_without_texts(scanned):
    with pytest.raises(InputError, match="got last_comma: natural text was not run"):
        interp.scan_heads(scanned[0], kinds=last_comma)
    with pytest.raises(InputError, match="got last_comma, digits: the model has no tokenizer"):
        interp.scan_heads(tiny("gpt2"), kinds=[last_comma, "digits"])


def test_the_report_gives_a_kind_of_text_its_score_as_that_on_text():
    score, chance = {"last_comma": 0.83}, {"last_comma": 0.1}
    head = HeadLabel(interp.Head(0, 0), "last comma", ("last comma",), score, chance)
    scan = interp.HeadScan.of([head], kinds=[last_comma])
    table = [part for part in report(scan, 3) if not isinstance(part, str)][1]
    at = [column.header for column in table.columns].index("on text")
    assert [*table.columns[at].cells] == ["0.83"]


def test_heads_of_your_own_kind_are_verified(scanned):
    model, scan = scanned
    found = interp.verify(model, scan, kinds="by match", draws=1, rows=2)
    assert "by match" in found.to_frame().to_string()
