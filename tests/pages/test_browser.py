"""The pages in a browser: they load nothing, raise no error, and charts zoom; they fit a phone,
follow the colour scheme, and axe finds nothing.

SSL_VIT_CHROMIUM names the browser, such as Debian's /usr/bin/chromium; `pip install 'ssl_vit[browser]'`
has the rest.
"""

import json
import os
from contextlib import contextmanager

import pytest
from PIL import Image

from helpers import arm_studies as arms
from helpers import run_pages as made
from ssl_vit.lab import report
from ssl_vit.pages import blocks, figure_blocks, run_page

CHROMIUM = os.environ.get("SSL_VIT_CHROMIUM")
if not CHROMIUM:
    pytest.skip("SSL_VIT_CHROMIUM names no browser", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="needs the extra [browser]")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs [browser]")

pytestmark = pytest.mark.slow

PHONE = {"width": 400, "height": 800}
SCREEN = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        # the sandbox of Chromium does not start as root, as in containers
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield found
        found.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs, one of which has names that look like markup, and a study."""
    runs = tmp_path_factory.mktemp("browser") / "runs"
    made.make_run(
        runs / "first", "corruption.rate=0.25", "optim.weight_decay=0.3", metrics=made.rows(200)
    )
    made.make_run(runs / "second", "corruption.rate=0.75", metrics=made.rows(40), finished=False)
    made.make_run(
        runs / "third", metrics=[], found={"loss": {"value": 10.5, "split": "validation"}}
    )
    made.evil_run(runs / "<b>\"'|&")
    figures = runs / "first" / "figures"
    Image.new("RGB", (300, 200), "white").save(figures / "filters.png")
    (figures / "filters.svg").write_text(made.SVG)
    figure_blocks.write(figures, ["Images of shapes.", "first: an encoder"])
    png, original = (figures / "filters.png").read_bytes(), (figures / "filters.png").as_uri()
    thumbnail = blocks.Image(png, "0.9 a.png", "Image of a.png", href=original)
    gallery = blocks.Section("Nearest", [blocks.Gallery([thumbnail] * 5)])
    (runs / "nearest.html").write_text(blocks.html("Images nearest to a.png", [gallery]))
    study = arms.study(runs / "gap")
    for path in study.glob("final-*"):
        lines = "".join(json.dumps(row) + "\n" for row in made.rows())
        (path / "metrics.jsonl").write_text(lines)
    report.write(study)
    run_page.write(runs / "first")
    run_page.write(runs / "<b>\"'|&")
    run_page.write(runs / "second", running=True)
    return runs


@contextmanager
def opened(browser, address, **settings):
    """A page that is ready; afterwards: it has raised no error and loaded nothing but itself."""
    context = browser.new_context(**{"viewport": SCREEN, "color_scheme": "light"} | settings)
    page = context.new_page()
    wrong = []
    loaded = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on("request", lambda request: loaded.append(request.url))
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    yield page
    assert not wrong
    assert {url for url in loaded if not url.startswith("data:")} == {address}
    context.close()


PAGES = [
    *("first/report.html", "%3Cb%3E%22'%7C&/report.html", "gap/report.html"),
    *("first/figures/figures.html", "nearest.html", "second/report.html"),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, SCREEN], ids=["phone", "screen"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(name, size, scheme, browser, folder):
    """With everything opened that can be."""
    with opened(browser, f"file://{folder}/{name}", viewport=size, color_scheme=scheme) as page:
        for summary in page.locator("summary").all():
            summary.click()
        for button in page.locator(".tools button[aria-expanded]").all()[:1]:
            button.click()
        found = axe.Axe().run(page).response["violations"]
        assert not found, [(one["id"], one["nodes"][0]["html"][:200]) for one in found]
        assert page.evaluate("document.documentElement.scrollWidth") == size["width"]
        assert page.locator("main b, main i").count() == 0


def test_charts_zoom_by_mouse_keyboard_and_button(browser, folder):
    with opened(browser, f"file://{folder}/first/report.html") as page:
        chart = page.locator(".chart[data-chart=Loss]")
        plot = chart.locator(".plot")

        def shown():
            return [float(plot.get_attribute(f"data-{end}")) for end in ("from", "to")]

        assert shown() == [10, 2000]
        plot.scroll_into_view_if_needed()
        box = plot.locator(".u-over").bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.25, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=4)
        page.mouse.up()
        assert shown() == pytest.approx([507, 1005], abs=15)
        chart.get_by_role("button", name="Show all steps").click()
        assert shown() == [10, 2000]
        chart.get_by_role("button", name="Zoom in").click()
        assert shown()[1] - shown()[0] == pytest.approx(995, abs=1)
        plot.focus()
        page.keyboard.press("0")
        assert shown() == [10, 2000]
        page.keyboard.press("+")
        assert shown()[1] - shown()[0] == pytest.approx(995, abs=1)
        page.keyboard.press("0")
        page.keyboard.press("ArrowRight")
        assert chart.locator("[aria-live]").inner_text().startswith("step 10: loss 5.9,")


def test_a_chart_shows_values_at_the_cursor_and_as_a_table(browser, folder):
    with opened(browser, f"file://{folder}/first/report.html") as page:
        chart = page.locator(".chart[data-chart=Loss]")
        loss = chart.locator(".keys button").first
        assert loss.inner_text() == "loss -14", "the last value, without the cursor"
        chart.scroll_into_view_if_needed()
        box = chart.locator(".u-over").bounding_box()
        page.mouse.move(box["x"] + 1, box["y"] + 20)
        assert loss.inner_text() == "loss 5.9"
        chart.get_by_role("button", name="Values as a table").click()
        assert chart.locator("tbody tr").count() == 200
        assert chart.locator("tbody tr").nth(9).inner_text().split() == ["100", "5", "4", "4.1"]
        loss.click()
        assert loss.get_attribute("aria-pressed") == "false"
        chart.get_by_role("button", name="Values as a table").click()
        assert chart.locator("tbody tr").count() == 0
        memory = page.locator(".chart[data-chart='Memory, GiB']")
        memory.get_by_role("button", name="Logarithmic scale").click()
        assert not chart.get_by_role("button", name="Logarithmic scale").count(), "below zero"


def test_a_value_that_is_not_finite_is_a_gap(browser, tmp_path):
    """Drawn over, it would look like a value; small values keep their digits."""
    metrics = made.rows(20)
    for place, row in enumerate(metrics):
        row |= {"lr": 2e-5 * (1 + place % 2), "grad_norm": 1.0 + place}
    for row in metrics[8:12]:
        row["loss"] = float("nan")
    metrics[-1]["grad_norm"] = float("inf")
    run_page.write(made.make_run(tmp_path / "made", metrics=metrics))
    with opened(browser, f"file://{tmp_path}/made/report.html") as page:
        keys = page.locator(".keys button").all_inner_texts()
        assert (
            "learning rate 0.00004" in keys
            and "norm of the gradient not finite" in keys
            and "loss 4" in keys
        )
        chart = page.locator(".chart[data-chart=Loss]")
        chart.get_by_role("button", name="Values as a table").click()
        assert chart.locator("tbody tr").nth(9).inner_text().split()[1:3] == ["not", "finite"]
        inked = """canvas => {
            const {width, height} = canvas, image = canvas.getContext("2d").getImageData(0, 0, width, height).data;
            const columns = new Set();
            for (let i = 0; i < image.length; i += 4)
              if (image[i] < 20 && image[i + 2] > 150) columns.add(i / 4 % width / width * 100 | 0);
            return [...columns];
        }"""  # where something is drawn in the first colour, in per cent of the width
        drawn = set(chart.locator("canvas").evaluate(inked))
        assert drawn & set(range(20, 40)) and drawn & set(range(75, 95))
        assert not drawn & set(range(52, 58)), "steps 90 to 120 of 200"


def test_the_page_of_a_running_run_loads_again_unless_it_is_in_use(browser, folder):
    """By a clock that the test turns: after a minute, but not while a part of it is opened."""
    context = browser.new_context()
    page = context.new_page()
    page.clock.install()
    address = f"file://{folder}/second/report.html"
    page.goto(address)
    page.evaluate("window.before = true")
    page.locator("summary").first.click()
    page.clock.run_for(121_000)
    assert page.evaluate("window.before")
    page.locator("summary").first.click()
    page.evaluate("document.activeElement.blur()")
    with page.expect_navigation():
        page.clock.run_for(61_000)
    assert page.evaluate("window.before") is None
    context.close()


def test_figures_are_of_one_width_and_named_in_the_contents(browser, folder):
    with opened(browser, f"file://{folder}/first/figures/figures.html") as page:
        widths = {one.bounding_box()["width"] for one in page.locator("figure img").all()}
        assert len(widths) == 1 and page.locator("figure img").count() == 2
        assert page.locator("nav .inner").all_inner_texts() == ["Predictions", "Filters"]
        page.get_by_role("link", name="Filters").click()
        assert page.locator("h3:target").inner_text() == "Filters"


def test_the_colours_follow_the_scheme(browser, folder):
    with opened(browser, f"file://{folder}/first/report.html") as page:

        def look():
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            return ground, page.evaluate("document.querySelector('canvas').toDataURL()")

        light = look()
        page.emulate_media(color_scheme="dark")
        page.wait_for_timeout(100)
        dark = look()
        assert light[0] == "rgb(255, 255, 255)" and dark[0] == "rgb(20, 23, 28)"
        assert light[1] != dark[1]


def visible_heads(page, table):
    """The heads of a table's columns that are whole inside the window, unscrolled."""
    code = """(table, width) => {
        const box = table.closest(".scroll").getBoundingClientRect();
        const inside = one => one.getBoundingClientRect().right <= Math.min(width, box.right) + 1;
        return [...table.querySelectorAll("thead th")].filter(inside).map(one => one.textContent);
    }"""
    return table.evaluate(code, page.viewport_size["width"])


def test_a_phone_shows_values_intervals_and_differences(browser, folder):
    with opened(browser, f"file://{folder}/first/report.html", viewport=PHONE) as page:
        heads = [visible_heads(page, table) for table in page.locator("table").all()]
        assert heads[0][:2] == ["100 held-out images", "this run"]
    with opened(browser, f"file://{folder}/gap/report.html", viewport=PHONE) as page:
        tables = [visible_heads(page, table) for table in page.locator("table").all()]
        compared, differences = tables[:2]
        assert compared[:4] == ["arm", "mean", "minus scratch", "97.5% interval"]
        assert differences[:3] == ["difference", "mean", "interval"]


def test_wide_tables_scroll_inside_their_box(browser, folder):
    with opened(browser, f"file://{folder}/gap/report.html", viewport=PHONE) as page:
        wide = [
            box
            for box in page.locator(".scroll").all()
            if box.evaluate("one => one.scrollWidth > one.clientWidth")
        ]
        assert wide and all(box.bounding_box()["width"] <= PHONE["width"] for box in wide)
        wide[0].focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("one => one.scrollLeft > 0", arg=wide[0].element_handle())


def test_a_page_is_whole_without_scripts(browser, folder):
    run_page.write(folder / "first")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"file://{folder}/first/report.html")
    assert "50.00%" in page.inner_text("main")
    assert page.locator("noscript").first.inner_text().startswith("This chart needs JavaScript")
    context.close()
