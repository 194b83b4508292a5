"""A headless Chromium, driven over the DevTools protocol with nothing but the standard library."""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request
import zlib


def find_chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    return None


class Browser:
    def __init__(self, path, width=1400, height=860):
        self._profile = tempfile.mkdtemp(prefix="berth-chromium-")
        self._process = subprocess.Popen(
            [path, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--disable-dev-shm-usage", "--force-device-scale-factor=1", "--remote-debugging-port=0",
             f"--user-data-dir={self._profile}", f"--window-size={width},{height}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = os.path.join(self._profile, "DevToolsActivePort")
        deadline = time.monotonic() + 60
        while not (os.path.exists(port_file) and open(port_file).read().count("\n") >= 1):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("Chromium did not start")
            time.sleep(0.05)
        port = open(port_file).read().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            target = next(t for t in json.load(answer) if t["type"] == "page")
        self._socket = socket.create_connection(("127.0.0.1", int(port)))
        self._read = self._socket.makefile("rb")
        path = target["webSocketDebuggerUrl"].split(port, 1)[1]
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall((f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
                              f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                              "Sec-WebSocket-Version: 13\r\n\r\n").encode())
        while self._read.readline() not in (b"\r\n", b""):
            pass
        self._next = 0
        self.events = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def close(self):
        self._read.close()
        self._socket.close()
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        head = bytes([0x81, 0x80 | (size if size < 126 else 126 if size < 65536 else 127)])
        head += b"" if size < 126 else struct.pack(">H" if size < 65536 else ">Q", size)
        self._socket.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def _receive(self):
        message = b""
        while True:
            first, second = self._read.read(2)
            size = second & 0x7F
            if size == 126:
                size, = struct.unpack(">H", self._read.read(2))
            elif size == 127:
                size, = struct.unpack(">Q", self._read.read(8))
            message += self._read.read(size)
            if first & 0x80:
                return json.loads(message)

    def call(self, method, **parameters):
        self._next += 1
        self._send(json.dumps({"id": self._next, "method": method, "params": parameters}))
        while True:
            answer = self._receive()
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, url):
        self.events.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + 60
        while self.run("document.readyState === 'complete' && Boolean(window.memoryMap)") is not True:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{url} did not finish loading; {self.problems()}")
            time.sleep(0.02)
        self.settle()

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", str(result)))
        return result["result"].get("value")

    def settle(self):
        """Waits until what was asked for has been drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def problems(self):
        """Everything the page complained about, and everything it tried to load beside itself."""
        found = []
        for event in self.events:
            kind, what = event.get("method"), event.get("params", {})
            if kind == "Runtime.exceptionThrown":
                found.append(what["exceptionDetails"].get("exception", {}).get("description", "exception"))
            if kind == "Log.entryAdded" and what["entry"]["level"] == "error":
                found.append(what["entry"]["text"])
            if kind == "Network.requestWillBeSent" and not what["request"]["url"].startswith(("file:", "about:", "data:")):
                found.append("loads " + what["request"]["url"])
        return found

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def click(self, x, y):
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="none" if kind == "mouseMoved" else "left", clickCount=1)

    def key(self, key, text=None):
        more = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def screenshot(self, path):
        with open(path, "wb") as out:
            out.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def pixel(self, x, y):
        """The colour on the screen at a point. A picture of one pixel: decoding a whole one here is slow."""
        clip = {"x": int(x), "y": int(y), "width": 1, "height": 1, "scale": 1}
        return first_pixel(base64.b64decode(self.call("Page.captureScreenshot", format="png", clip=clip)["data"]))


def first_pixel(data):
    """Red, green and blue of the first pixel of a PNG of eight bits a channel. No filter changes the first one."""
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            depth, colour = data[at + 16], data[at + 17]
            assert depth == 8 and colour in (2, 6), (depth, colour)
        if kind == b"IDAT":
            packed += data[at + 8:at + 8 + size]
        at += size + 12
    return tuple(zlib.decompress(packed)[1:4])
