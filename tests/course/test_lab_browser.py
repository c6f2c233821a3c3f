"""The attention lab in Chromium: its numbers equal Python's within 1e-6."""

import math
import re

import pytest
import torch

from interp.attention.multihead import multi_head_attention
from interp.attention.reference import attention, causal_mask, sliding_window_mask, softmax
from interp.course import costs
from interp.course import lab as page_data
from interp.course.designed import EXAMPLE, NAMES, WORD, designed_layer, embed, mixed_pattern
from interp.course.stepped import circuit

pytestmark = pytest.mark.browser

NARROW = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def made():
    return circuit()


@pytest.fixture(scope="module")
def written(tmp_path_factory, made):
    path = tmp_path_factory.mktemp("lab") / "lab.html"
    zoo = {
        "words": ["<s>", "<b>bold</b>"],
        "about": "</script>",
        "kinds": [
            {"name": "sink", "looks": "first", "head": "L0H0", "score": 0.5}
            | {"ideal": [[1, 0], [1, 0]], "pattern": [[1, 0], [0.25, 0.75]]}
        ],
    }
    path.write_text(page_data.lab({"circuit": made, "zoo": zoo}), encoding="utf-8")
    return path


@pytest.fixture
def page(open_page, written):
    return open_page(written, viewport={"width": 1200, "height": 900})


def state(page, section):
    """Numbers of a section, its lists as tensors."""
    read = page.evaluate("name => lab.state()[name]", section)
    return {
        name: torch.tensor(value, dtype=torch.bool if name == "mask" else torch.float64)
        if isinstance(value, list)
        else value
        for name, value in read.items()
    }


def same(ours, theirs):
    torch.testing.assert_close(ours, theirs.to(ours), atol=1e-6, rtol=0)


def move(page, section, name, value):
    """Set a slider, as an arrow key would."""
    page.eval_on_selector(
        f"#{section} input[data-name='{name}']",
        "(slider, to) => { slider.value = to; slider.dispatchEvent(new Event('input')); }",
        value,
    )


def check_scores(page):
    now = state(page, "scores")
    n = len(now["scores"])
    mask = causal_mask(n) if now["causal"] else torch.ones(n, n, dtype=torch.bool)
    pattern = softmax(now["scores"].masked_fill(~mask, -torch.inf))
    same(now["pattern"], pattern)
    same(now["out"], pattern @ now["values"])
    same(now["hidden"], now["scores"].masked_fill(~mask, -torch.inf))
    return now


def drag(page, cell, up):
    box = page.locator(f"#scores table.editable td[data-at='{cell}']")
    box.scroll_into_view_if_needed()
    at = box.bounding_box()
    x, y = at["x"] + at["width"] / 2, at["y"] + at["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - up / 2)
    page.mouse.move(x, y - up)
    page.mouse.up()
    page.mouse.move(x, y + 60)


def test_a_dragged_score_changes_its_own_row_as_in_python(page):
    before = check_scores(page)
    same(before["pattern"][0], torch.tensor([0.401113, 0.197775, 0.401113]))
    drag(page, "1,0", up=80)
    after = check_scores(page)
    assert after["scores"][1, 0] == 2.0
    assert after["row"] == 1
    changed = (after["pattern"] - before["pattern"]).abs().amax(-1) > 1e-9
    assert changed.tolist() == [False, True, False]
    shown = page.locator("#scores table").nth(1).locator("td[data-at='1,0']").inner_text()
    assert shown == f"{after['pattern'][1, 0]:.2f}"
    page.click("#scores button:has-text('add 1')")
    same(check_scores(page)["scores"][1], after["scores"][1] + 1)
    same(check_scores(page)["pattern"], after["pattern"])
    for up, limit in ((1200, 20), (-2400, -20)):  # Further out no visible digit changes.
        drag(page, "1,0", up=up)
        assert check_scores(page)["scores"][1, 0] == limit
    page.select_option("#scores select", label="eight words, all scores 0")
    assert (check_scores(page)["pattern"] == 1 / 8).all()


def test_the_causal_mask_hides_later_keys_and_keeps_their_scores(page):
    page.check("#scores input[data-name='causal mask']")
    masked = check_scores(page)
    assert masked["causal"]
    assert masked["pattern"].triu(1).sum() == 0
    drag(page, "0,2", up=80)
    page.focus("#scores table.editable td[data-at='0,2']")
    page.keyboard.press("+")
    assert check_scores(page)["scores"].equal(masked["scores"])
    page.uncheck("#scores input[data-name='causal mask']")
    assert check_scores(page)["pattern"][0, 2] > 0.1


def test_scores_are_changed_with_the_keyboard(page):
    page.focus("#scores select")
    for _ in range(4):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.at") == "0,0"
    for key in ("ArrowDown", "ArrowRight", "+", "+", "-"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.dataset.at") == "1,1"
    now = check_scores(page)
    assert now["scores"][1, 1] == 0.8
    assert now["row"] == 1
    page.keyboard.press("Tab")
    assert "weights A" in page.evaluate("document.activeElement.closest('table').ariaLabel")


def test_the_soft_lookup_is_attention(page):
    for angle, temperature in ((0, -2), (37, -0.5), (-150, 1)):
        move(page, "lookup", "query direction", angle)
        move(page, "lookup", "temperature", temperature)
        now = state(page, "lookup")
        assert now["temperature"] == pytest.approx(10**temperature)
        turn = torch.tensor(angle * torch.pi / 180, dtype=torch.float64)
        query = torch.stack([turn.cos(), turn.sin()])[None]
        expected = attention(query, now["keys"], now["values"], scale=1 / now["temperature"])
        same(now["weights"], expected.pattern[0])
        same(now["out"], expected.out[0])


def rotation(degrees, gain):
    """A rotation back by an angle, times the root of the gain and of the sqrt(d_k) of attention."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    back = torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64)
    return math.sqrt(gain * math.sqrt(2)) * back


def test_rotated_weights_give_the_pattern_of_python(page):
    for name, value in (("rotation of W_Q", 33.5), ("rotation of W_K", -12), ("gain", 42)):
        move(page, "turned", name, value)
    for masked in (False, True):
        page.set_checked("#turned input[data-name='causal mask']", masked)
        now = state(page, "turned")
        W_Q, W_K = rotation(33.5, 42), rotation(-12, 42)
        same(now["W_Q"], W_Q)
        same(now["W_K"], W_K)
        x = now["x"]
        expected = attention(x @ W_Q, x @ W_K, x, mask=causal_mask(len(x)) if masked else None)
        same(now["scores"], expected.scores)
        same(now["pattern"], expected.pattern)
        same(now["out"], expected.out)
    page.uncheck("#turned input[data-name='causal mask']")
    page.click("#turned button:has-text('one step back')")
    assert state(page, "turned")["pattern"].argmax(-1).tolist() == [0, *range(7)]
    page.click("#turned button:has-text('same rotation')")
    move(page, "turned", "gain", 10)
    same(state(page, "turned")["scores"].diagonal(), torch.full((8,), 10.0))


def test_masks_equal_those_of_python(page):
    for causal, window, padding in ((True, 10, 0), (False, 10, 0), (True, 3, 2), (False, 4, 5)):
        page.set_checked("#masks input[data-name=causal]", causal)
        move(page, "masks", "window", window)
        move(page, "masks", "padding at start", padding)
        now = state(page, "masks")
        mask = sliding_window_mask(10, window=window, causal=causal) & (torch.arange(10) >= padding)
        assert now["mask"].equal(mask)
        hidden = now["scores"].masked_fill(~mask, -torch.inf)
        same(now["hidden"], hidden)
        same(now["pattern"], softmax(hidden, allow_empty=True))


def test_mixed_heads_give_the_output_of_python(page):
    gates = [1.0, 0.3, 0.55, 0.8]
    for slider, gate in zip(page.locator("#mixed input[type=range]").all(), gates, strict=True):
        slider.evaluate(
            "(slider, to) => { slider.value = to; slider.dispatchEvent(new Event('input')); }", gate
        )
    x, gate = embed(EXAMPLE), torch.tensor(gates, dtype=torch.float64)
    words = torch.eye(x.shape[-1], dtype=torch.float64)[:, WORD:]
    brings = [[True] * 4, [n == "previous token" for n in NAMES], [n == "sink" for n in NAMES]]
    for mode, on in enumerate(brings):
        page.select_option("#mixed select", str(mode))
        now = state(page, "mixed")
        W_V = torch.stack([words * one for one in on])
        layer = designed_layer(EXAMPLE, window=page_data.WINDOW, gates=gate, W_V=W_V)
        done = multi_head_attention(x[None], layer, mask=causal_mask(len(x)))
        same(now["patterns"], done.pattern[0])
        same(now["mixed"], mixed_pattern(done.pattern[0], gate))
        same(now["out"], done.out[0])
        assert ("one pattern determines it" in page.inner_text("#mixed .readout")) == (mode == 0)


def test_the_circuit_runs_with_and_without_its_first_head(page, made):
    words, vocabulary = made["words"], made["vocabulary"]
    for way in ("previous", "next", "next"):
        page.click(f"#circuit button:has-text('{way} token')")
    now = state(page, "circuit")
    at = words.index("cat", 3)
    assert now["at"] == at
    for name in ("previous", "induction", "next"):
        same(now[name], torch.tensor(made["with_head"][name][at]))
    assert vocabulary[now["next"].argmax()] == words[at + 1]
    assert f"predicts “{words[at + 1]}”" in page.inner_text("#circuit .readout")
    page.uncheck("#circuit input[type=checkbox]")
    now = state(page, "circuit")
    same(now["induction"], torch.tensor(made["without_head"]["induction"][at]))
    assert now["induction"].argmax() == 0
    assert "no prediction" in page.inner_text("#circuit .readout")


def test_costs_by_formula_equal_the_counted_ones(page):
    for name, value in (("query heads", 1), ("layers", 0)):
        move(page, "cost", name, value)
    now = state(page, "cost")
    assert now["heads"] == now["kv_heads"] == 2
    counted = {r.name: r.measured for r in (*costs.operations(), *costs.cache_size())}
    counted |= {r.name: r.measured for r in costs.score_memory()}

    def cost(**changed):
        small = {"n": 64, "d": 64, "heads": 4, "kv_heads": 4, "layers": 1, "window": 64}
        return page.evaluate("shape => costOf(shape)", {**small, "tile": 128, **changed})

    for n in (64, 128, 256):
        assert cost(n=n)["projections"] == counted[f"projections, 8 n d^2, n = {n}, d = 64"]
        assert cost(n=n)["pairs"] == counted[f"pairs, 4 n^2 d, n = {n}, d = 64"]
    for name, kv_heads in (("multi-head", 32), ("grouped-query", 8), ("multi-query", 1)):
        llama = cost(n=1, d=4096, heads=32, kv_heads=kv_heads, layers=32)
        assert llama["cache_bytes"] == counted[f"{name}, one token"]
    one = cost(n=1024, heads=1, kv_heads=1)
    assert one["score_bytes"] == counted["all scores, 4 n^2, n = 1024"]
    assert one["tile_bytes"] == counted["tiles of 128, 4 tile^2, n = 1024"]
    for record in costs.reach():
        layers, back = map(int, re.findall(r"= (\d+)", record.name))
        assert cost(n=128, layers=layers, window=back + 1)["reach"] == record.measured
    wide, narrow = cost(window=1000), cost(window=16)
    assert wide["window_pairs"] == wide["pairs"] == 4 * narrow["window_pairs"]
    assert wide["window_cache_bytes"] == wide["cache_bytes"] == 4 * narrow["window_cache_bytes"]
    shared = cost(kv_heads=1)
    assert shared["projections"] == wide["projections"] * (2 + 2 / 4) / 4


def test_a_cell_of_the_zoo_is_read_out_and_its_text_is_escaped(page):
    page.locator("#zoo canvas").nth(1).focus()
    page.keyboard.press("ArrowRight")
    assert "query 1 <b>bold</b> to key 1 <b>bold</b>: 0.750" in page.inner_text("#zoo .readout")
    assert page.locator("#zoo b").count() == 0


CONTRAST = """() => {
  const cell = document.querySelector("td.weight");
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((c) =>
      c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(cell);
  return Array.from({ length: 101 }, (_, i) => {
    cell.style.setProperty("--w", i / 100);
    const both = [style.backgroundColor, style.color].map(luminance);
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  });
}"""


def test_the_number_in_a_cell_is_readable_on_every_weight_and_the_theme_can_be_chosen(
    open_page, written
):
    """At least 4.5 to 1, as WCAG 2.2 asks for text of this size (success criterion 1.4.3)."""
    page = open_page(written, color_scheme="dark")
    themes = []
    for theme in ("auto", "light"):
        page.select_option("#theme", theme)
        assert min(page.evaluate(CONTRAST)) >= 4.5
        themes.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    dark, light = (int(re.findall(r"\d+", colour)[0]) for colour in themes)
    assert dark < 127 < light


def test_a_phone_scrolls_one_way_only_and_a_finger_drags_a_cell(open_page, written):
    page = open_page(written, viewport=NARROW, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW["width"]
    # The selected token is visible, however long the row.
    box = page.locator("#circuit .arcs text.here").first.bounding_box()
    assert 0 < box["x"] < NARROW["width"] - box["width"]
    drag(page, "0,1", up=40)
    assert check_scores(page)["scores"][0, 1] == 1.0
    cell = "getComputedStyle(document.querySelector('table.editable td[data-at]'))"
    assert page.evaluate(f"{cell}.touchAction") == "none"


def test_without_scripts_there_is_a_note(open_page, written):
    page = open_page(written, java_script_enabled=False)
    assert "Scripts are off" in page.inner_text("body")
    assert not page.is_visible("#main")
