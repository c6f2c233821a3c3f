import os
import shutil

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # As many workers as cores: one for each.

import pytest
from places import ROOT

pytest_plugins = ["typed"]

# torch is imported where it is used, so that the process that only hands out tests starts at once.


@pytest.fixture
def folder(tmp_path):
    """A local Hugging Face folder with a tiny grouped-query model and its tokenizer."""
    from tiny_models import tiny, words_tokenizer

    path = tmp_path / "tiny-llama"
    tiny("llama").save_pretrained(path)
    words_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def real_model():
    import interp

    return interp.load_model()


@pytest.fixture(scope="session")
def real_scan():
    """The committed scan of the default model; a test compares it with the README's command."""
    import interp

    return interp.HeadScan.load(ROOT / "figures" / "heads.parquet")


CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def chromium():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Opens a file; at the end nothing may have complained or asked for anything."""
    complaints, contexts = [], []

    def opened(path, **settings):
        context = chromium.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:"))
                else complaints.append(request.url)
            ),
        )
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
