"""Galleries in a real browser: Chromium, without a screen and without a network."""

import functools
import itertools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
import torch
from paged import (
    BREAKOUTS,
    TOKENS,
    hostile,
    looking_across,
    looking_ahead,
    patterns_of,
    plain,
    scan_of,
)
from tiny_models import chat_model

import interp
from interp.kinds.probes import passages
from interp.patterns.classify import classify_heads
from interp.show.pages.gallery import gallery, gallery_of_model
from interp.text import visible

pytestmark = pytest.mark.browser

CLOSE = 0.002


@pytest.fixture
def show(open_page, tmp_path):
    """Opens a document as a file."""
    numbers = itertools.count()

    def opened(document, **settings):
        path = tmp_path / f"page{next(numbers)}.html"
        path.write_text(document, encoding="utf-8", newline="\n")
        return open_page(path, **{"viewport": {"width": 1280, "height": 900}, **settings})

    return opened


def heads_of(page):
    return [button.get_attribute("data-head") for button in page.query_selector_all(".head")]


def open_head(page, name):
    page.click(f"[data-head={name}]")
    page.wait_for_selector("dialog[open]")
    page.wait_for_function("name => document.getElementById('name').textContent === name", arg=name)


def move_to(page, query, key):
    """Puts the pointer on a cell of the head in full."""
    corner = page.eval_on_selector(
        "#map", "map => { const b = map.getBoundingClientRect(); return [b.x, b.y]; }"
    )
    left, top, size = page.evaluate("[view.left, view.top, view.size]")
    page.mouse.move(corner[0] + left + (key + 0.5) * size, corner[1] + top + (query + 0.5) * size)


def read(page):
    """Query, key and weight as the page gives them."""
    query, key, value = (
        page.get_attribute("#readout", f"data-{name}") for name in ("query", "key", "value")
    )
    return int(query), int(key), float(value)


@pytest.fixture(scope="module")
def planted():
    return plain()


def test_heads_are_grouped_filtered_found_and_sorted(show, planted):
    made, patterns = planted
    page, scan = show(made.to_html()), scan_of(patterns)
    assert page.inner_text("#count") == "9 of 9 heads"
    titles = [title.inner_text().split(" ")[0] for title in page.query_selector_all("#heads h2")]
    assert titles == [label.split(" ")[0] for label in scan.summary()]
    induction = [h for h in map(str, scan.heads("induction")) if h in ("L1H0", "L2H1")]
    assert [h for h in heads_of(page) if h in induction] == induction
    page.click("#filters [data-label=induction]")
    assert heads_of(page) == [str(head) for head in scan.heads("induction")]
    assert page.inner_text("#count") == f"{len(heads_of(page))} of 9 heads"
    page.click("#filters button:first-child")
    assert len(heads_of(page)) == 9
    for text, found in (("l1", ["L1H0", "L1H1", "L1H2"]), ("L2H1", ["L2H1"]), ("L7", [])):
        page.fill("#find", text)
        assert sorted(heads_of(page)) == found
    assert page.is_visible("#none")
    page.fill("#find", "")
    page.select_option("#order", "previous_token")
    frame = scan.frame.sort_values("previous_token", ascending=False, kind="stable")
    assert heads_of(page)[0] == frame["name"].tolist()[0]
    under = page.inner_text(f"[data-head={heads_of(page)[0]}] i")
    assert under == f"{frame['previous_token'].tolist()[0]:.2f}"
    page.select_option("#order", "layer")
    assert heads_of(page) == sorted(heads_of(page))


def test_values_of_heads_are_shown_in_colour_and_sort_the_pictures(show, planted):
    _, patterns = planted
    values = {"L1H1": -0.5, "L0H2": 0.25, "L2H0": 0.0}
    page = show(gallery(scan_of(patterns), patterns, TOKENS, values=values).to_html())
    assert heads_of(page)[:2] == ["L1H1", "L0H2"]
    assert page.inner_text("[data-head=L1H1] u") == "-0.50"
    colours = [
        page.eval_on_selector(f"[data-head={name}] u", "u => getComputedStyle(u).backgroundColor")
        for name in values
    ]
    assert colours == ["rgb(129, 112, 200)", "rgba(240, 145, 40, 0.5)", "rgba(240, 145, 40, 0)"]
    assert page.query_selector("[data-head=L0H0] u") is None
    assert "value -0.50" in page.get_attribute("[data-head=L1H1]", "aria-label")
    page.select_option("#order", "layer")
    assert heads_of(page) == sorted(heads_of(page))


def test_the_value_under_the_pointer_is_the_tensors(show, planted):
    made, patterns = planted
    page = show(made.to_html())
    for name, layer, head in (("L1H0", 1, 0), ("L0H2", 0, 2)):
        open_head(page, name)
        for zoom, places in (
            ("1", [(24, 13), (24, 0), (5, 4), (0, 0), (24, 24)]),
            ("2", [(10, 4)]),
        ):
            page.select_option("#zoom", zoom)
            for place in places:
                move_to(page, *place)
                query, key, value = read(page)
                assert (query, key) == place
                assert abs(value - patterns[layer, 0, head, query, key].item()) < CLOSE
                label = page.inner_text("#readout")
                assert f"query {query} ␣t{TOKENS[query]}" in label
                assert f"key {key} ␣t{TOKENS[key]}" in label
        page.select_option("#zoom", "1")
        page.keyboard.press("Escape")
    open_head(page, "L1H0")
    assert "over the queries of the labelled attention patterns" in page.inner_text("#scored")
    move_to(page, 24, 13)
    page.mouse.down()
    page.mouse.up()
    move_to(page, 3, 1)
    assert read(page)[:2] == (24, 13)  # A click holds the cell.
    strip = page.query_selector_all("#strip bdi")
    shades = [token.evaluate("token => token.style.background") for token in strip]
    assert shades[13] == max(shades, key=lambda shade: float(shade.split(",")[-1].strip(" )")))
    strip[20].click()
    assert read(page)[0] == 20


def test_everything_can_be_done_with_the_keyboard(show, planted):
    made, _ = planted
    page = show(made.to_html())
    first, second = heads_of(page)[:2]
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "head":
            break
    assert page.evaluate("document.activeElement.dataset.head") == first
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.dataset.head") == heads_of(page)[-1]
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.dataset.head") in heads_of(page)[:-1]
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.id === 'map'")
    assert page.inner_text("#name") == first
    query, _, _ = read(page)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert read(page)[:2] == (query - 1, 1)
    page.keyboard.press("PageDown")
    page.wait_for_function("name => $('name').textContent === name", arg=second)
    page.keyboard.press("Escape")
    # The browser gives the focus back before it tells the page that the view was closed.
    page.wait_for_function("name => document.activeElement.dataset.head === name", arg=second)
    assert not page.evaluate("document.querySelector('dialog').open")


def test_a_thumbnail_is_painted_with_the_weights(show, planted):
    made, patterns = planted
    page = show(made.to_html())
    page.wait_for_function("() => document.querySelector('[data-head=L0H0] canvas').width === 25")
    pixels = page.evaluate(
        "[...document.querySelector('[data-head=L0H0] canvas').getContext('2d')"
        ".getImageData(0, 0, 25, 25).data]"
    )
    colours = torch.tensor(pixels).view(25, 25, 4)
    assert (colours[..., 3] > 0).equal(torch.ones(25, 25).tril().bool())
    # The more weight, the darker.
    rows, columns = torch.tril_indices(25, 25)
    weight, light = patterns[0, 0, 0][rows, columns], colours[..., :3].sum(-1)[rows, columns]
    order = weight.argsort()
    assert (light[order].diff() <= 1).all()
    assert light[order][0] - light[order][-1] > 300


def test_a_page_that_nobody_scrolled_is_printed_with_every_head(show, planted):
    page = show(planted[0].to_html(), viewport={"width": 150, "height": 100})
    assert page.evaluate("document.documentElement.scrollHeight") > 1000
    sides = "[...document.querySelectorAll('.head canvas')].map((canvas) => canvas.width)"
    page.wait_for_function(f"() => {sides}.every((side) => side === 25)", timeout=5000)
    page.emulate_media(media="print")
    shown = (
        "[...document.querySelectorAll('.head')].map((h) => getComputedStyle(h).contentVisibility)"
    )
    assert page.evaluate(shown) == ["visible"] * 9


@pytest.mark.fault("B07", "B08")
def test_no_text_gets_out_of_hand(show, planted):
    made, texts = hostile()
    page = show(made.to_html())
    assert page.evaluate("window.X") is None
    assert page.title() == visible(BREAKOUTS[0]).replace("␣", " ")
    assert page.inner_text("h1") == BREAKOUTS[0]
    assert page.evaluate("document.scripts.length") == show(planted[0].to_html()).evaluate(
        "document.scripts.length"
    )
    open_head(page, "L0H2")
    labels = page.eval_on_selector_all("#strip bdi", "all => all.map((one) => one.innerText)")
    assert labels[: len(BREAKOUTS)] == [visible(text) for text in BREAKOUTS]
    assert len(set(labels)) == len(texts)
    # What no font has would be the same box each time, and reads as its number instead.
    assert page.evaluate("legible('a\\u{10fffe}\\u{10ffff}')") == "aU+10FFFEU+10FFFF"
    assert page.evaluate("legible('aé\u03a9')") == "aé\u03a9"
    page.click("#circuitsvis-open")
    page.frame_locator("#frame iframe").locator("canvas").first.wait_for()
    for frame in page.frames:
        assert frame.evaluate("window.X") is None


def test_a_sinks_other_columns_are_outlined(show):
    length = 40
    tokens = torch.arange(length)
    both = (torch.eye(length)[tokens.clamp(max=5)] + torch.eye(length)[[0] * length]) / 2
    page = show(gallery(classify_heads(both[None], tokens), both[None], tokens).to_html())
    small = "document.querySelector('[data-head=L0H0] canvas')"
    page.wait_for_function(f"() => {small}.width === 40")
    page.check("#outline")
    page.wait_for_function(f"() => {small}.width === 280")  # 7 pixels a cell.
    row = f"[...{small}.getContext('2d').getImageData(0, 143, 280, 1).data]"
    red, _, blue, _ = torch.tensor(page.evaluate(row)).view(280, 4).T
    lines = (red > blue + 60).nonzero().flatten() / 7
    assert {*lines.round().tolist()} == {0, 1, 5, 6}  # Around the columns 0 and 5.
    open_head(page, "L0H0")
    targets = page.evaluate("targetsOf(view.head, prompt())")
    assert targets == [[] if q == 0 else [0, 5] if q > 5 else [0] for q in range(length)]


@pytest.mark.fault("B57")
def test_a_head_that_looks_ahead_is_read_on_both_sides_of_the_query(show):
    patterns = looking_ahead()
    page = show(gallery(classify_heads(patterns), patterns).to_html())
    assert not page.is_visible(".unseen")
    page.wait_for_function("() => document.querySelector('[data-head=L0H0] canvas').width === 28")
    opaque = page.evaluate(
        "[...document.querySelector('[data-head=L0H0] canvas').getContext('2d')"
        ".getImageData(0, 0, 28, 28).data].every((value, i) => i % 4 < 3 || value === 255)"
    )
    assert opaque
    for name in ("L0H0", "L0H3"):
        head = int(name[-1])
        open_head(page, name)
        for place in ((3, 4), (2, 13), (0, 27), (27, 0), (14, 3)):
            move_to(page, *place)
            query, key, value = read(page)
            assert (query, key) == place
            assert abs(value - patterns[0, 0, head, query, key].item()) < CLOSE
        page.keyboard.press("Escape")
    open_head(page, "L0H5")
    assert page.evaluate("targetsOf(view.head, prompt())[10]") == [0, 7, 27]
    page.keyboard.press("End")
    assert read(page)[:2] == (27, 27)
    for _ in range(30):
        page.keyboard.press("ArrowUp")
    assert read(page)[:2] == (0, 27)
    page.click("#circuitsvis-open")
    page.frame_locator("#frame iframe").locator("canvas").first.wait_for()


def test_attention_to_another_text_is_read_with_the_tokens_of_both(show):
    both, prompt = looking_across(), 1
    page = show(gallery(None, both, titles=["wide", "tall"]).to_html())
    page.select_option("#prompt", label="tall")
    patterns = both[prompt]
    queries, keys = patterns.shape[-2:]
    open_head(page, "L1H2")
    assert page.is_hidden("#circuitsvis-open")
    assert page.is_hidden("#marking")
    for place in ((0, 0), (queries - 1, keys - 1), (0, keys - 1), (queries - 1, 0)):
        move_to(page, *place)
        query, key, value = read(page)
        assert (query, key) == place
        assert abs(value - patterns[1, 0, 2, query, key].item()) < CLOSE
        told = page.inner_text("#readout")
        assert f"query {query} {patterns.texts[0][query]}" in told
        assert f"key {key} {patterns.key_texts[0][key]}" in told
    for strip, count in (("#queries", queries), ("#strip", keys)):
        assert page.locator(f"{strip} bdi").count() == count
    page.locator("#queries bdi").nth(1).click()
    assert read(page)[:2] == (1, patterns[1, 0, 2, 1].argmax().item())
    page.locator("#strip bdi").nth(2).click()
    assert read(page)[:2] == (1, 2)
    page.select_option("#role", "key")
    shades = page.eval_on_selector_all(
        "#queries bdi",
        "all => all.map((one) => parseFloat(one.style.background.split(',')[3] ?? '1'))",
    )
    assert shades == pytest.approx(patterns[1, 0, 2, :, 2].tolist(), abs=0.01)


def test_keys_pressed_faster_than_heads_open_skip_none(show, planted):
    made, _ = planted
    page = show(made.to_html())
    shown = heads_of(page)
    open_head(page, shown[0])
    page.evaluate(
        "for (let i = 0; i < 5; i++) $('view').dispatchEvent("
        "new KeyboardEvent('keydown', { key: 'PageDown', bubbles: true, cancelable: true }))"
    )
    page.wait_for_function("name => $('name').textContent === name", arg=shown[5])
    # Nor does one that opens late take the place of what was asked for after it.
    for then in ("openHead(data.heads[1])", "$('view').close()"):
        page.evaluate(
            "() => { const own = inflate; let late = true; inflate = async (id) => {"
            " if (late) { late = false; await new Promise((done) => setTimeout(done, 200)); }"
            f" return own(id); }}; openHead(data.heads[0]); {then}; }}"
        )
        page.wait_for_timeout(300)
        assert page.inner_text("#name") == page.evaluate("data.heads[1].name")
    assert not page.evaluate("$('view').open")


def test_the_prompt_of_an_open_head_can_be_changed(show, planted):
    long, short = patterns_of(), patterns_of(tokens=TOKENS[:7])
    made = gallery(scan_of(long), [long, short], titles=["the long one", "the short one"])
    page = show(made.to_html())
    open_head(page, "L0H2")
    assert page.evaluate("document.activeElement.id") == "map"
    page.select_option("#prompt-here", label="the short one")
    page.wait_for_function("() => $('strip').children.length === 7")
    assert page.inner_text("#name") == "L0H2"
    move_to(page, 6, 2)
    query, key, value = read(page)
    assert (query, key) == (6, 2)
    assert abs(value - short[0, 0, 2, 6, 2].item()) < CLOSE
    page.keyboard.press("Escape")
    assert page.evaluate("$('prompt').selectedOptions[0].textContent") == "the short one"
    page = show(planted[0].to_html())
    open_head(page, "L0H2")
    assert page.is_hidden("#prompts-here")


def test_circuitsvis_shows_the_same_head_in_a_frame_without_an_origin(show, planted):
    made, _ = planted
    page = show(made.to_html())
    open_head(page, "L1H0")
    page.click("#circuitsvis-open")
    page.frame_locator("#frame iframe").locator("canvas").first.wait_for()
    assert page.frames[-1].evaluate("self.origin") == "null"
    page.click("#circuitsvis-open")
    assert page.query_selector("#frame iframe") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_is_the_systems_until_another_is_chosen(show, scheme, planted):
    page = show(planted[0].to_html(), color_scheme=scheme)

    def ground():
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return "light" if int(colour.split("(")[1].split(",")[0]) > 127 else "dark"

    assert ground() == scheme
    other = "dark" if scheme == "light" else "light"
    page.select_option("#theme", other)
    assert ground() == other


def test_a_phone_scrolls_one_way_only(show, planted):
    page = show(planted[0].to_html(), viewport={"width": 360, "height": 740})
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(fits)
    open_head(page, "L1H0")
    assert page.evaluate(fits)
    assert page.evaluate("$('view').scrollWidth <= $('view').clientWidth")


@pytest.mark.fault("B12")
def test_without_scripts_there_is_a_note_a_picture_and_a_table(show, planted):
    page = show(planted[0].to_html(), java_script_enabled=False)
    text = page.inner_text("body")
    assert "Scripts are off" in text
    assert "L1H0" in text
    assert page.locator("img.still").bounding_box()["height"] > 100
    assert not page.is_visible("#main")


def test_two_galleries_in_one_notebook_do_not_disturb_each_other(show):
    first, second = patterns_of(), patterns_of()
    made = [
        gallery(scan_of(first), first, title="one"),
        gallery(scan_of(second), second, title="two", heads=["L0H0", "L1H0"]),
    ]
    # Read in another encoding than it is written in, the views are still what they were.
    head = "<!doctype html><meta charset='windows-1252'><p id='own'>notebook</p>"
    page = show(head + "".join(g._repr_html_() for g in made))
    frames = [page.frame_locator("iframe").nth(i) for i in range(2)]
    page.locator("iframe").nth(1).scroll_into_view_if_needed()
    frames[1].locator("#count").wait_for()
    assert frames[0].locator("h1").inner_text() == "one"
    assert frames[0].locator("#count").inner_text() == "9 of 9 heads"
    assert frames[1].locator("#count").inner_text() == "2 of 2 heads"
    frames[0].locator("[data-head=L0H1]").click()
    frames[0].locator("dialog[open] #readout b").first.wait_for()
    assert frames[1].locator("dialog[open]").count() == 0
    assert page.evaluate("typeof data") == "undefined"
    assert page.inner_text("#own") == "notebook"


@pytest.mark.fault("C38")
def test_three_fragments_in_one_document_all_draw(show):
    patterns = patterns_of()
    made = gallery(scan_of(patterns), patterns, title="all <b>")
    pages = [made, made, made.head("L1H0")]
    page = show("<!doctype html><p>own</p>" + "".join(p.fragment(height=500) for p in pages))
    for number, one in enumerate(pages):
        frame = page.frame_locator("iframe").nth(number)
        page.locator("iframe").nth(number).scroll_into_view_if_needed()
        assert page.locator("iframe").nth(number).get_attribute("title") == one.title
        canvas = frame.locator("#map" if one.alone else "[data-head=L0H0] canvas")
        canvas.wait_for()
        assert canvas.evaluate(
            "async (c) => { await new Promise((done) => setTimeout(done, 300));"
            " const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            " return new Set(data).size > 20; }"
        )
    assert page.evaluate("document.querySelectorAll('[id]').length") == 0


@pytest.mark.fault("C27", "C32")
def test_special_tokens_and_the_chat_template_are_marked_and_explained(show):
    model = chat_model()
    scan = interp.scan_heads(model, rows=1, quick=True)
    chat = [{"role": "w9", "content": "w5 w6 w7"}]
    page = show(gallery_of_model(scan, model, [chat, "w5 </s> w6", [5, 6, 7]]).to_html())
    open_head(page, "L0H0")

    def marked(name):
        tokens = page.query_selector_all("#strip bdi")
        return [i for i, one in enumerate(tokens) if name in one.get_attribute("class").split()]

    def legends():
        every = page.query_selector_all("dialog .marks")
        return [one.inner_text().strip() for one in every if one.is_visible()]

    assert (marked("template"), marked("special")) == ([0, 1, 2, 3, 7], [0, 7])
    assert "special token, chat template" in page.locator("#strip bdi").first.get_attribute("title")
    assert legends() == ["special token", "chat template"]
    margin = page.evaluate(
        "() => { const at = (i) => 4 * Math.floor(view.top + (i + 0.5) * view.size);"
        " const line = $('map').getContext('2d').getImageData(1, 0, 1, $('map').height).data;"
        " return [...Array(8).keys()].map((i) => line.slice(at(i), at(i) + 4).join()); }"
    )
    assert [i for i in range(8) if margin[i] == margin[1]] == [0, 1, 2, 3, 7]
    page.locator("#strip bdi").nth(4).click()
    assert marked("here") == [4]
    assert marked("template") == [0, 1, 2, 3, 7]
    page.select_option("#prompt-here", index=1)
    page.wait_for_function("() => $('strip').children.length === 4")
    assert (marked("template"), marked("special"), legends()) == ([], [0, 2], ["special token"])
    page.select_option("#prompt-here", index=2)
    page.wait_for_function("() => $('strip').children.length === 3")
    assert (marked("special"), legends()) == ([], [])


class Counting(SimpleHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self):
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *arguments):
        pass


@pytest.mark.fault("B12", "B102")
def test_what_a_page_tries_to_fetch_never_leaves_it(chromium, tmp_path):
    plain()[0].save(tmp_path / "gallery.html")
    (tmp_path / "free.html").write_text("<!doctype html><link rel='icon' href='data:,'>")
    fetching = """async () => {
        const picture = new Image();
        picture.src = "/picture";
        await new Promise((done) => { picture.onload = picture.onerror = done; });
        await fetch("/fetch").catch(() => null);
    }"""
    page = chromium.new_page()
    handler = functools.partial(Counting, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("gallery", "free"):
            page.goto(f"http://127.0.0.1:{server.server_port}/{name}.html")
            page.evaluate(fetching)
        server.shutdown()
    page.close()
    # Without the page's policy both are asked for.
    assert Counting.asked == ["/gallery.html", "/free.html", "/picture", "/fetch"]


@pytest.mark.real_model
def test_the_real_models_gallery_opens_and_reads_right(show, real_model, real_scan):
    tokens = real_model.to_tokens(passages()["prose"])[:, :128]
    patterns = interp.attention_patterns(real_model, tokens)
    page = show(interp.gallery(real_scan, patterns).to_html())
    assert page.inner_text("#count") == "270 of 270 heads"
    page.click("#filters [data-label=induction]")
    assert heads_of(page) == [str(head) for head in real_scan.heads("induction")]
    open_head(page, "L18H6")
    for place in ((127, 0), (127, 126), (64, 63), (100, 0)):
        move_to(page, *place)
        query, key, value = read(page)
        assert (query, key) == place
        assert abs(value - patterns[18, 0, 6, query, key].item()) < CLOSE
