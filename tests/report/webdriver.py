"""A headless Chromium, driven through chromedriver by its HTTP interface."""

import base64
import json
import re
import subprocess
import tempfile
import time
import urllib.request


class Browser:
    """One window; ends with the `with` block."""

    def __init__(self, width=1400, height=1000):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        port = None
        for line in self.driver.stdout:
            found = re.search(r"on port (\d+)", line)
            if found and "successfully" in line:
                port = found[1]
                break
        if port is None:
            raise RuntimeError("chromedriver does not start")
        self.url = f"http://127.0.0.1:{port}/session"
        options = {
            "args": [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                # It asks for nothing that the page does not.
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                f"--user-data-dir={self.profile.name}",
                f"--window-size={width},{height}",
            ]
        }
        capabilities = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        session = self._post("", {"capabilities": {"alwaysMatch": capabilities}})
        self.url += "/" + session["sessionId"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self._call(urllib.request.Request(self.url, method="DELETE"))
        finally:
            self.driver.terminate()
            self.driver.wait(20)
            self.profile.cleanup()

    def _call(self, request):
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def _post(self, path, body):
        return self._call(urllib.request.Request(self.url + path, json.dumps(body).encode(), method="POST"))

    def open(self, url):
        self._post("/url", {"url": url})

    def run(self, script, *args):
        """Value of a function body run in the page."""
        return self._post("/execute/sync", {"script": script, "args": list(args)})

    def cdp(self, command, **params):
        return self._post("/goog/cdp/execute", {"cmd": command, "params": params})

    def wait(self, script, what):
        deadline = time.monotonic() + 60
        while not self.run(script):
            if time.monotonic() > deadline:
                raise AssertionError(f"still missing: {what}")
            time.sleep(0.05)

    def mouse(self, kind, x, y, **more):
        self.cdp("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def complaints(self):
        """What the page wrote to the console."""
        return [entry["message"] for entry in self._post("/se/log", {"type": "browser"})]

    def shot(self, path, whole=False):
        image = self.cdp("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(image))
