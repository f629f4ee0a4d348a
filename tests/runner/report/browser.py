#!/usr/bin/env python3
"""Opens pages in headless Chromium and says what happened, as JSON on stdout.

  browser.py OUT WORK.json

WORK.json is a list of {"name", "file" or "url", "width", "scheme", "everywhere", "act", "after"}: a page, the width of
the window and `light` or `dark`, or all of them, and optionally scripts whose values are returned, before and after the
screenshots. A page of a URL may ask its own origin. "steady" is how often a page that changes must look the same. Speaks
the DevTools protocol over a pipe and needs only the standard library. Screenshots go to the directory OUT.
"""

import base64
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time

WIDTHS, SCHEMES = [1280, 390], ["light", "dark"]
HIGHEST = 5000
PATIENCE = 120
# So many readings of the accessibility tree have to agree with the one before.
STEADY = 8


class Browser:
    def __init__(self, profile):
        to_browser, self.out = os.pipe()
        self.into, from_browser = os.pipe()
        os.set_inheritable(to_browser, True)
        os.set_inheritable(from_browser, True)

        def pipes():
            # Above 4 first, so that neither overwrites the other.
            first, second = os.dup(to_browser), os.dup(from_browser)
            os.dup2(first, 3)
            os.dup2(second, 4)

        command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                   "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                   "--disable-component-update", "--hide-scrollbars", "--force-color-profile=srgb",
                   f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(command, preexec_fn=pipes, close_fds=False, stdin=subprocess.DEVNULL,
                                        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number = 0
        self.buffer = b""
        self.events = []

    def end(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def read(self, deadline):
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.into], [], [], left)[0]:
                raise TimeoutError("Chromium does not answer")
            piece = os.read(self.into, 1 << 20)
            if not piece:
                raise EOFError("Chromium has ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self.read(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait_loaded(self, loader, session):
        """Waits until the document of a navigation is loaded: not another one before it, such as about:blank."""
        deadline = time.monotonic() + PATIENCE
        while True:
            for event in self.events:
                seen = event.get("params", {})
                if (event.get("method") == "Page.lifecycleEvent" and event.get("sessionId") == session
                        and seen["name"] == "load" and seen["loaderId"] == loader):
                    return
            self.events.append(self.read(deadline))


def settled_tree(browser, session, steady):
    """Returns roles and names when the tree no longer changes: Chromium builds it after the page, in steps."""
    words = lambda node, key: str((node.get(key) or {}).get("value") or "")
    deadline = time.monotonic() + PATIENCE
    same, before = 0, None
    while same < steady and time.monotonic() < deadline:
        nodes = browser.call("Accessibility.getFullAXTree", session)["nodes"]
        tree = [[words(node, "role"), words(node, "name")] for node in nodes
                if not node.get("ignored") and words(node, "role") not in ("none", "InlineTextBox")]
        same, before = (same + 1, tree) if tree == before else (0, tree)
        time.sleep(0.1)
    return before


class Tab:
    """A page of the browser, in a window of its own."""

    def __init__(self, browser):
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        browser.events.clear()
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"]:
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def resize(self, width):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url):
        self.browser.wait_loaded(self.call("Page.navigate", url=url)["loaderId"], self.session)

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def overflow(self):
        """Pixels by which the page is wider than the window."""
        return self.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def shoot(self, file, width):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": width, "height": min(size["height"], HIGHEST), "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)


def visit(browser, work, out):
    tab = Tab(browser)
    # Of a page that is wanted everywhere: wide and narrow as loaded so, light and dark by turning the light off.
    everywhere = work.get("everywhere", False)
    widths = WIDTHS if everywhere else [work["width"]]
    schemes = SCHEMES if everywhere else [work["scheme"]]
    has_scripts = work.get("scripts", True)
    tab.call("Emulation.setScriptExecutionDisabled", value=not has_scripts)
    url = work.get("url") or pathlib.Path(work["file"]).absolute().as_uri()
    origin = "/".join(url.split("/")[:3]) + "/" if "url" in work else None
    page = {"name": work["name"], "overflow": -1}
    for width in widths:
        tab.resize(width)
        tab.prefer(schemes[0])
        tab.open(url)
        if width == widths[0]:
            if has_scripts:
                page["title"] = tab.evaluate("document.title")
                page["pwned"] = tab.evaluate("window.pwned === undefined ? null : String(window.pwned)")
                page["paint"] = tab.evaluate("""new Promise((done) => requestAnimationFrame(() => setTimeout(() =>
                    done((performance.getEntriesByName('first-contentful-paint')[0] || {}).startTime))))""")
                page["elements"] = tab.evaluate("document.getElementsByTagName('*').length")
                if work.get("act"):
                    page["acted"] = tab.evaluate(work["act"])
            page["tree"] = settled_tree(browser, tab.session, work.get("steady", STEADY))
        else:
            page["narrow"] = settled_tree(browser, tab.session, work.get("steady", STEADY) // 2)
        for scheme in schemes:
            tab.prefer(scheme)
            if has_scripts:
                page["overflow"] = max(page["overflow"], tab.overflow())
            name = f"{work['name']}-{width}-{scheme}" if everywhere else work["name"]
            tab.shoot(out / f"{name}.png", width)
    if work.get("after"):
        page["after"] = tab.evaluate(work["after"])
    page["errors"], page["requests"] = complaints(browser, tab.session, url, origin)
    tab.close()
    return page


def complaints(browser, session, url, origin):
    """Errors and warnings of a page, and the addresses that it has asked which are not its own."""
    errors, requests = [], []
    for event in browser.events:
        if event.get("sessionId") != session:
            continue
        method, parameters = event["method"], event.get("params", {})
        if method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            errors.append(f"{parameters['entry']['source']}: {parameters['entry']['text']}")
        elif method == "Runtime.exceptionThrown":
            errors.append(json.dumps(parameters["exceptionDetails"])[:1000])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            errors.append(json.dumps(parameters["args"])[:1000])
        elif method == "Page.javascriptDialogOpening":
            errors.append(f"dialog: {parameters['message']}")
        elif method == "Network.requestWillBeSent":
            address = parameters["request"]["url"]
            is_own = address.startswith(origin) if origin else address.split("#")[0] == url
            if not is_own and not address.startswith("data:"):
                requests.append(address)
    return errors, requests


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    works = json.loads(pathlib.Path(sys.argv[2]).read_text())
    # Helpers of the browser may still write for a moment when they are killed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            json.dump([visit(browser, work, out) for work in works], sys.stdout)
        finally:
            browser.end()


if __name__ == "__main__":
    main()
