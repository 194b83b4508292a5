"""Uses the memory map as a person would, in headless Chromium.

    memory_map_test.py MAKE_MAPS FOLDER      screenshots stay in FOLDER
"""

import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from devtools import Browser, find_chromium  # noqa: E402

FOLDER = BROWSER = None


def address(name, fragment=""):
    return "file://" + os.path.join(FOLDER, name) + (("#" + fragment) if fragment else "")


class MemoryMap(unittest.TestCase):
    def open(self, name, fragment=""):
        BROWSER.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        BROWSER.mouse("mouseMoved", 2, 2)
        BROWSER.open(address(name, fragment))

    def tearDown(self):
        self.assertEqual(BROWSER.problems(), [])

    def run_js(self, script):
        return BROWSER.run(script)

    def centre(self, i, panel=0):
        """Where rectangle i is on the screen, in the page's own arithmetic."""
        return self.run_js(f"""(() => {{
          const p = memoryMap.panels[{panel}], s = p.source, box = p.canvas.getBoundingClientRect();
          return [box.left + p.xOf((s.first[{i}] + s.last[{i}]) / 2), box.top + p.yOf(s.offset[{i}] + s.bytes[{i}] / 2)];
        }})()""")

    def text(self, selector):
        return self.run_js(f"document.querySelector({json.dumps(selector)}).innerText")

    def view(self):
        return self.run_js("({...memoryMap.view})")

    def test_hover_names_a_buffer(self):
        self.open("ten.html")
        self.assertTrue(self.run_js("document.getElementById('tip').hidden"))
        BROWSER.mouse("mouseMoved", *self.centre(1))
        tip = self.text("#tip")
        self.assertIn("layer.0.op1", tip)
        self.assertIn("offset 0 to", tip)
        self.assertIn("levels", tip)
        BROWSER.screenshot(os.path.join(FOLDER, "ten-hover.png"))
        BROWSER.mouse("mouseMoved", 2, 2)
        self.assertTrue(self.run_js("document.getElementById('tip').hidden"))

    def test_names_are_text_and_never_markup(self):
        self.open("ten.html")
        self.assertEqual(self.run_js("document.title"), "Ten")
        BROWSER.mouse("mouseMoved", *self.centre(3))
        self.assertIn("</script><script>document.title='broken'</script>", self.text("#tip"))
        BROWSER.mouse("mouseMoved", *self.centre(4))
        self.assertIn("bad \ufffd byte \"quoted\" \\ caf\u00e9", self.text("#tip"))

    def test_click_pins_and_escape_unpins(self):
        self.open("ten.html")
        BROWSER.click(*self.centre(6))
        self.assertIn("layer.0.op6", self.text(".detail"))
        self.assertIn("These bytes before: layer.0.op5", self.text(".detail"))
        self.assertIn("after: layer.0.op7", self.text(".detail"))
        BROWSER.mouse("mouseMoved", 2, 2)
        self.assertIn("layer.0.op6", self.text(".detail"))
        BROWSER.key("Escape")
        self.assertIn("Point at a buffer", self.text(".detail"))

    def test_the_picture_shows_rectangles_where_they_are(self):
        for name, some in (("ten.html", (1, 6)), ("thousand.html", (0, 3, 120)), ("many.html", (0, 1))):
            for theme in ("light", "dark"):
                self.open(name, "theme=" + theme)
                BROWSER.screenshot(os.path.join(FOLDER, name.replace(".html", f"-{theme}.png")))
                background = tuple(self.run_js("""getComputedStyle(document.documentElement).getPropertyValue('--chart')
                  .trim().slice(1).match(/../g).map(d => parseInt(d, 16))"""))
                for i in some:
                    x, y = self.centre(i)
                    self.assertNotEqual(BROWSER.pixel(x, y), background, f"{name}, rectangle {i}")
                corner = self.run_js("""(() => { const b = memoryMap.panels[0].canvas.getBoundingClientRect();
                  return [b.right - 14, b.top + 11]; })()""")
                beyond = tuple(self.run_js("""getComputedStyle(document.documentElement).getPropertyValue('--card')
                  .trim().slice(1).match(/../g).map(d => parseInt(d, 16))"""))
                self.assertEqual(BROWSER.pixel(*corner), beyond)

    def test_every_pixel_of_a_hundred_thousand_buffers_answers(self):
        self.open("many.html")
        self.assertEqual(self.run_js("memoryMap.panels[0].count"), 100000)
        self.run_js("memoryMap.setView({t0: 1000, t1: 1100, b0: 2e6, b1: 2.2e6})")
        BROWSER.settle()
        wrong = self.run_js("""(() => {
          const p = memoryMap.panels[0], s = p.source;
          let wrong = 0, seen = 0;
          for (let x = 70; x < p.width - 12; x += 7) for (let y = 12; y < p.mapHeight; y += 7) {
            const found = p.pick(x, y), t = p.timeAt(x), b = p.bytesAt(y);
            const pt = 2 * (memoryMap.view.t1 - memoryMap.view.t0) / p.mapWidth;
            const pb = 2 * (memoryMap.view.b1 - memoryMap.view.b0) / p.mapHeight;
            if (found < 0) continue;
            ++seen;
            if (t < s.first[found] - pt || t > s.last[found] + pt || b < s.offset[found] - pb ||
                b > s.offset[found] + s.bytes[found] + pb) ++wrong;
          }
          return [wrong, seen];
        })()""")
        self.assertEqual(wrong[0], 0)
        self.assertGreater(wrong[1], 1000)
        times = self.run_js("""(() => { const p = memoryMap.panels[0]; memoryMap.reset();
          return Array.from({length: 9}, () => { p.dirty = true; const t = performance.now(); p.draw();
            return performance.now() - t; }).sort((a, b) => a - b); })()""")
        print(f"100,000 rectangles drawn in {times[4]:.1f} ms (median of 9)")

    def test_search_finds_and_goes_there(self):
        self.open("thousand.html")
        self.run_js("document.getElementById('search').focus()")
        BROWSER.call("Input.insertText", text="layer.77.op4")
        BROWSER.settle()
        self.assertEqual(self.text("#found"), "1 match")
        BROWSER.key("Enter", "\r")
        self.assertEqual(self.text("#found"), "1 of 1")
        self.assertIn("layer.77.op4", self.text(".detail"))
        x, y = self.centre(774)
        self.assertEqual(self.run_js(f"""(() => {{ const p = memoryMap.panels[0], b = p.canvas.getBoundingClientRect();
          return p.pick({x} - b.left, {y} - b.top); }})()"""), 774)
        BROWSER.screenshot(os.path.join(FOLDER, "thousand-search.png"))
        self.run_js("memoryMap.search('no such name')")
        self.assertEqual(self.text("#found"), "none")

    def test_wheel_zooms_where_the_mouse_is_and_reset_shows_everything(self):
        self.open("thousand.html")
        x, y = self.centre(120)
        before = self.view()
        BROWSER.mouse("mouseMoved", x, y)
        for _ in range(3):
            BROWSER.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300)
        after = self.view()
        self.assertLess(after["t1"] - after["t0"], 0.5 * (before["t1"] - before["t0"]))
        self.assertLess(after["b1"] - after["b0"], 0.5 * (before["b1"] - before["b0"]))
        now = self.centre(120)
        self.assertAlmostEqual(now[0], x, delta=1)
        self.assertAlmostEqual(now[1], y, delta=1)
        BROWSER.mouse("mouseMoved", x, y)
        BROWSER.mouse("mousePressed", x, y, button="left", clickCount=1)
        BROWSER.mouse("mouseMoved", x - 60, y + 30, button="left", buttons=1)
        BROWSER.mouse("mouseReleased", x - 60, y + 30, button="left", clickCount=1)
        moved = self.centre(120)
        self.assertAlmostEqual(moved[0], x - 60, delta=2)
        self.assertAlmostEqual(moved[1], y + 30, delta=2)
        self.assertIn("Point at a buffer", self.text(".detail"), "a drag is not a click")
        self.run_js("document.getElementById('reset').click()")
        self.assertEqual(self.view(), before)

    def test_keys_do_what_the_mouse_does(self):
        self.open("ten.html")
        full = self.view()
        self.run_js("memoryMap.panels[0].canvas.focus()")
        BROWSER.key("n")
        self.assertIn("layer.0.op", self.text("#tip"))
        first = self.text("#tip")
        BROWSER.key("n")
        self.assertNotEqual(self.text("#tip"), first)
        BROWSER.key("p")
        self.assertEqual(self.text("#tip"), first)
        self.assertIn("layer.0.op", self.run_js("document.getElementById('announce').textContent"))
        BROWSER.key("Enter")
        self.assertIn("layer.0.op", self.text(".detail"))
        BROWSER.key("0")
        BROWSER.key("+")
        zoomed = self.view()
        self.assertLess(zoomed["t1"] - zoomed["t0"], full["t1"] - full["t0"])
        BROWSER.key("ArrowRight")
        self.assertGreater(self.view()["t0"], zoomed["t0"])
        BROWSER.key("0")
        self.assertEqual(self.view(), full)
        BROWSER.key("/")
        self.assertEqual(self.run_js("document.activeElement.id"), "search")
        BROWSER.key("Escape")
        BROWSER.key("?")
        self.assertFalse(self.run_js("document.getElementById('keys').hidden"))

    def test_theme_follows_the_system_until_it_is_chosen(self):
        self.open("ten.html")
        theme = "document.documentElement.dataset.theme"
        self.assertEqual(self.run_js(theme), "light")
        BROWSER.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        BROWSER.settle()
        self.assertEqual(self.run_js(theme), "dark")
        self.assertLess(sum(BROWSER.pixel(5, 5)), 150)
        self.run_js("document.getElementById('theme').click()")
        BROWSER.settle()
        self.assertEqual(self.run_js(theme), "light")
        self.assertGreater(sum(BROWSER.pixel(5, 5)), 600)

    def test_two_panels_share_one_scale_and_one_cursor(self):
        self.open("two.html")
        self.assertEqual(self.run_js("[...document.querySelectorAll('h2')].map(h => h.innerText)"),
                         ["Stock arena", "With Berth"])
        boxes = self.run_js("memoryMap.panels.map(p => { const b = p.canvas.getBoundingClientRect(); return [b.left, b.top, b.width]; })")
        self.assertLess(boxes[0][0] + boxes[0][2], boxes[1][0])
        self.assertAlmostEqual(boxes[0][1], boxes[1][1], delta=1)
        self.assertAlmostEqual(*self.run_js("memoryMap.panels.map(p => p.yOf(1e6))"), delta=1)
        BROWSER.mouse("mouseMoved", *self.centre(5))
        self.assertIsNotNone(self.run_js("memoryMap.panels[1].crossTime"))
        BROWSER.click(*self.centre(21, 1))
        self.assertIn(" of second", self.run_js("document.querySelectorAll('.detail')[1].innerText"))
        BROWSER.screenshot(os.path.join(FOLDER, "two.png"))

    def test_a_link_carries_what_was_found(self):
        self.open("thousand.html", "theme=dark&find=op4&pin=layer.3.op1&window=10,60,0,200000")
        self.assertEqual(self.run_js("document.documentElement.dataset.theme"), "dark")
        self.assertEqual(self.text("#found"), "100 matches")
        self.assertIn("layer.3.op1", self.text(".detail"))
        self.assertEqual(self.view(), {"t0": 10, "t1": 60, "b0": 0, "b1": 200000})

    def test_nothing_is_shown_as_nothing(self):
        self.open("empty.html")
        self.assertIn("Nothing lives here", self.text(".detail"))


if __name__ == "__main__":
    chromium = find_chromium()
    if chromium is None:
        print("SKIPPED: Chromium is not installed, so the memory map was not tested (Debian's package: chromium)")
        sys.exit(77)
    FOLDER = os.path.abspath(sys.argv[2])
    subprocess.run([sys.argv[1], FOLDER], check=True)
    BROWSER = Browser(chromium)
    try:
        result = unittest.main(argv=[sys.argv[0]] + sys.argv[3:], exit=False).result
    finally:
        BROWSER.close()
    sys.exit(0 if result.wasSuccessful() else 1)
