import json
import socket
from contextlib import ExitStack

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

import interp
from interp.show.live.server import PAGES
from interp.show.pages.packing import unpacked


@pytest.fixture(scope="module")
def toy():
    return interp.build_circuit("absolute", vocabulary=1024, length=65)


@pytest.fixture(scope="module")
def scan(toy):
    return interp.scan_heads(toy, rows=4, quick=True)


@pytest.fixture(scope="module")
def page(toy, scan):
    live = interp.live(toy, scan, prompt="one two one two", open_browser=False)
    yield live
    live.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{live.port}/")


@pytest.fixture(scope="module")
def cookie(page):
    """The cookie that the first browser gets for the token, which then is used up."""
    assert page.address.startswith("http://127.0.0.1:")
    first = httpx.get(page.address)
    assert (first.status_code, first.headers["location"]) == (303, "/")
    given = first.headers["set-cookie"]
    assert "HttpOnly" in given
    assert "samesite=strict" in given.lower()
    assert httpx.get(page.address).status_code == 403
    return given.partition(";")[0]


def test_a_page_is_for_the_first_browser_alone_and_fetches_from_its_server_only(page, cookie):
    home = f"http://127.0.0.1:{page.port}/"
    assert httpx.get(home).status_code == 403
    assert httpx.get(f"{home}?token=guess").status_code == 403
    for wrong in ({"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}):
        assert httpx.get(home, headers={"cookie": cookie, **wrong}).status_code == 403
    answer = httpx.get(home, headers={"cookie": cookie})
    assert answer.status_code == 200
    assert "default-src 'self'; script-src 'sha256-" in answer.text
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["x-frame-options"] == "DENY"
    assert httpx.get(f"{home}../../etc/passwd", headers={"cookie": cookie}).status_code == 404
    assert httpx.post(home, headers={"cookie": cookie}).status_code == 405


def connected(page, cookie, origin=None, host=None):
    return connect(
        f"ws://{host or f'127.0.0.1:{page.port}'}/ws",
        sock=socket.create_connection(("127.0.0.1", page.port)),
        origin=origin or f"http://127.0.0.1:{page.port}",
        additional_headers={"cookie": cookie},
        max_size=2**24,
    )


def answers(opened, **ask):
    opened.send(json.dumps({"type": "run", "id": 1, **ask}))
    messages = []
    while not messages or messages[-1]["type"] not in ("done", "error"):
        messages.append(json.loads(opened.recv(30)))
    return messages


def test_a_typed_prompt_is_answered_layer_by_layer_with_the_models_own_numbers(toy, page, cookie):
    text, head = "one two three one two three one", "L0H3"
    with connected(page, cookie) as opened:
        whole = answers(opened, prompt=text)
        changed = answers(opened, prompt=text, without=[head])
    kinds = ["prompt", "next", "layer", "layer", "scores", "done"]
    assert [message["type"] for message in whole] == kinds
    patterns = interp.attention_patterns(toy, text)
    assert whole[0]["prompt"]["ids"] == patterns.tokens[0].tolist()
    for message in whole[2:4]:
        for name, packed in message["weights"].items():
            layer, number = interp.Head.parse(name)
            assert (unpacked(packed) - patterns[layer, 0, number]).abs().max() < 0.002
    labels = {str(one.head): one.scores for one in interp.classify_heads(patterns)}
    for name, score in whole[4]["scores"]["L1H5"].items():
        assert score == pytest.approx(labels["L1H5"][name], abs=1e-4)
    assert whole[1]["without"] is None
    assert whole[1]["whole"][0][0].strip() == "two"
    assert changed[1]["whole"] == whole[1]["whole"]
    with interp.ablated(toy, [head]):
        logits = toy.plain(patterns.tokens).logits[0, -1]
    assert changed[1]["without"][0][1] == pytest.approx(logits.softmax(-1).max().item(), abs=1e-4)


def test_hostile_connections_and_messages_are_refused_and_the_page_goes_on(page, cookie):
    for wrong in (
        {"cookie": "interp=guess"},
        {"origin": "http://evil.example"},
        {"host": "evil.example"},
    ):
        with pytest.raises(InvalidStatus) as error, connected(page, **{"cookie": cookie, **wrong}):
            pass
        assert error.value.response.status_code == 403
    with connected(page, cookie) as opened:
        for message in ("{", "[]", b"\xff", '{"type": "run", "id": 1, "prompt": "a", "path": 1}'):
            opened.send(message)
            assert json.loads(opened.recv(30))["type"] == "error"
        for ask in ({"prompt": "one " * 900}, {"prompt": "one", "without": ["L9H9"]}):
            assert answers(opened, **ask)[-1]["type"] == "error"
        opened.send("x" * 2**17)
        with pytest.raises(ConnectionClosedError):
            opened.recv(30)
    with connected(page, cookie) as opened:
        assert answers(opened, prompt="one two")[-1]["type"] == "done"


def test_of_a_hundred_connections_some_are_refused_and_a_newer_prompt_replaces_an_older(
    page, cookie
):
    with ExitStack() as stack:
        pages, refused = [], 0
        for _ in range(100):
            try:
                pages.append(stack.enter_context(connected(page, cookie)))
            except InvalidStatus:
                refused += 1
        assert (len(pages), refused) == (PAGES, 100 - PAGES)
        opened = pages[-1]
        for number in range(20):
            ask = {"type": "run", "id": number, "prompt": "one two three " * 20}
            opened.send(json.dumps(ask))
        seen = []
        while not seen or seen[-1] != ("done", 19):
            message = json.loads(opened.recv(60))
            seen.append((message["type"], message["id"]))
        assert sum(kind == "done" for kind, _ in seen) < 20


@pytest.mark.browser
def test_typing_a_prompt_and_taking_a_head_out_changes_the_next_token(toy, scan, chromium):
    live = interp.live(toy, scan, prompt="one two one", open_browser=False)
    with chromium.new_context() as context:
        page, errors = context.new_page(), []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(live.address)
        page.fill("#typed", "one two three one two three one")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#next-whole tr")
        assert page.inner_text("#next-whole tr:first-child").split()[:2] == ["two", "1.000"]
        page.wait_for_selector("[data-head=L1H5] em:text('here 1.00')")
        page.click("[data-head=L0H3]")
        page.check("#take")
        page.wait_for_selector("#next-other:not([hidden])")
        assert page.inner_text("#next-without tr:first-child").split()[0] != "two"
        page.click("#close")
        page.click("#removed button")
        page.wait_for_selector("#next-other[hidden]", state="attached")
        assert errors == []
    live.stop()


def test_other_models_ports_and_hosts_are_refused_or_warned_about(toy, scan, caplog):
    live = interp.live(toy, scan, prompt="one", open_browser=False, host="0.0.0.0")
    assert "can be reached from other machines" in caplog.text
    with pytest.raises(interp.InputError, match="port must be free"):
        interp.live(toy, scan, prompt="one", open_browser=False, port=live.port)
    live.stop()
