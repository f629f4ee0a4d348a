"""Reports and the console as a reader meets them: time to write a page, its size, its first paint and how long
interactions take until the next frame, in headless Chromium; and what an open console costs a run of 100 hosts."""

import argparse
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import measure
import report
from conditions import TICKS, Conditions

# Runs that are followed at the same time.
AT_ONCE = 20
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/runner/report"))
import browser as chromium  # noqa: E402  (the same driver as that of the tests)

# Waits for an event of a kind, and says after how many milliseconds the next frame is there.
LISTEN = """(() => { window.measured = new Promise((done) => addEventListener("%s", (event) => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => done(performance.now() - event.timeStamp);
    requestAnimationFrame(() => channel.port2.postMessage(0));
  }, { capture: true, once: true })); })()"""
PLACE = """(() => { const one = [...document.querySelectorAll(%s)].at(%d); one.scrollIntoView({ block: "center", behavior: "instant" });
    const box = one.getBoundingClientRect(); return [box.x + Math.min(box.width / 2, 60), box.y + box.height / 2]; })()"""


class Page(chromium.Tab):
    """A page in a window of 1280x900."""

    def __init__(self, browser, url):
        super().__init__(browser)
        self.resize(1280)
        # A tree for screen readers would be kept up to date at each change.
        self.call("Accessibility.disable")
        self.open(url)
        self.paint = self.evaluate("""new Promise((done) => new PerformanceObserver((list) => {
            for (const one of list.getEntriesByName("first-contentful-paint")) done(one.startTime);
        }).observe({ type: "paint", buffered: true }))""")
        # What a page prepares behind its first paint is not what is measured.
        time.sleep(1.5)

    def typed(self, selector, text):
        """Types into a field, and deletes it again; the slowest key, in milliseconds."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        times = []
        for key in [*text, *["Backspace"] * len(text)]:
            self.evaluate(LISTEN % "input")
            down = {"type": "keyDown", "key": key, **({"text": key} if len(key) == 1 else {"windowsVirtualKeyCode": 8})}
            self.call("Input.dispatchKeyEvent", **down)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
            times.append(self.evaluate("window.measured"))
        return max(times)

    def clicked(self, selector, index=0):
        x, y = self.evaluate(PLACE % (json.dumps(selector), index))
        self.evaluate(LISTEN % "click")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        return self.evaluate("window.measured")

    def chosen(self, selector, value):
        self.evaluate(LISTEN % "change")
        self.evaluate(f"""(() => {{ const one = document.querySelector({json.dumps(selector)}); one.value = {json.dumps(value)};
            one.dispatchEvent(new Event("change", {{ bubbles: true }})); }})()""")
        return self.evaluate("window.measured")


def image_context(folder, files):
    """Small files in the shape of a root file system."""
    folder.mkdir(parents=True)
    (folder / "Kubefile").write_text("FROM scratch\nCOPY usr usr\nCOPY lib lib\n")
    for number in range(files):
        top = "usr" if number % 3 else "lib"
        place = folder / top / f"share{number % 40}" / f"package-{number // 40 % 60}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"file-{number}.conf").write_bytes(b"x" * (number % 4000))


def plan_of(hosts):
    step = lambda host, phase, name, number: {
        "id": f"{phase}/{host}/{name}", "says": [f"{name} on {host}", f"cp file-{number} /etc/{name}"], "once": False, "bytes": 1000 * number}
    names = [f"10.{n // 250}.{n % 250}.7:22" for n in range(hosts)]
    phases = [("check", 4), ("files", 3), ("sync", 2), ("init", 5), ("join", 6), ("health", 2)]
    return {"verb": "run", "cluster": "large", "notes": [], "phases": [
        {"phase": phase, "order": "parallel", "hosts": [
            {"host": host, "steps": [step(host, phase, f"step{n}", n) for n in range(count)]} for host in names]}
        for phase, count in phases]}


def cluster_of(hosts):
    names = [f"10.{n // 250}.{n % 250}.7" for n in range(hosts)]
    host = lambda name, n: {
        "host": name, "roles": ["master" if n < 3 else "node"], "reachable": n % 50 != 7, "healthy": n % 25 != 7, "hostname": f"node-{n}",
        "architecture": "amd64", "system": "Debian GNU/Linux 12", "freeBytes": 10**10, "tree": "0123456789ab", "problems": ["no answer"] * (n % 25 == 7),
        "warnings": []}
    certificate = lambda name, file: {
        "host": name, "file": file, "subject": "CN=x", "issuer": "CN=ca", "authority": False, "notAfter": "2027-01-01T00:00:00Z", "daysLeft": 200}
    return {
        "about": {"report": "cluster", "schemaVersion": 1, "generator": "bench"},
        "cluster": {"name": "large", "runtime": "kubeadm", "healthy": False},
        "hosts": [host(name, n) for n, name in enumerate(names)],
        "nodes": [{"name": f"node-{n}", "ready": n % 25 != 7, "version": "v1.34.1", "containerRuntime": "containerd://1.7", "host": name}
                  for n, name in enumerate(names)],
        "certificates": [certificate(name, f"/etc/kubernetes/pki/{file}.crt") for name in names for file in ("apiserver", "kubelet")],
        "images": [], "runs": [], "upgrades": [], "problems": []}


class Bench:
    def __init__(self, imgctl, testing, base):
        self.imgctl, self.testing, self.base, self.results, self.rows = imgctl, testing, base, measure.Results(), []

    def report(self, job, *words, runs):
        """Writes a page; its file."""
        page = self.base / f"{job.replace(' ', '-').replace(',', '')}.html"
        for _ in range(runs + 1):
            cost = measure.run([self.imgctl, "--root", self.base / "store", "report", *words, "-o", page],
                               env={**os.environ, "SEALOS_RUNTIME_ROOT": str(self.base / "large")})
            self.results.add("pages", job, "imgctl", cost)
        # The first one reads from a cold cache.
        self.results.costs["pages", job, "imgctl"].pop(0)
        return page

    def measured(self, browser, job, page, actions):
        opened = Page(browser, page if isinstance(page, str) else page.absolute().as_uri())
        times = {name: round(act(opened)) for name, act in actions.items()}
        size = None if isinstance(page, str) else page.stat().st_size
        self.rows.append((job, size, round(opened.paint), times))
        print(f"  {job}: {opened.paint:.0f} ms, {times}", file=sys.stderr, flush=True)
        opened.close()


def interactions(bench, browser, pages):
    filtered = lambda section, text: lambda page: page.typed(f"#{section} input[type=search]", text)
    explorer = {
        "search, slowest key": lambda page: page.typed("#explorer input", "file-99"),
        "drill down": lambda page: page.clicked("#explorer tbody button"),
        "further down": lambda page: page.clicked("#explorer tbody button"),
        "up": lambda page: page.clicked("#explorer .crumbs button"),
        "by layer": lambda page: page.chosen("#explorer select", "layer"),
    }
    folded = lambda page: page.clicked("main details summary", -1)
    for job, page in pages.items():
        if job.startswith("image"):
            bench.measured(browser, job, page, explorer)
        elif job.startswith("plan"):
            bench.measured(browser, job, page, {"search, slowest key": filtered("hosts", "10.1"), "unfold": folded})
        elif job.startswith("run"):
            bench.measured(browser, job, page, {"search, slowest key": filtered("timeline", "10.1"), "unfold": folded})
        else:
            bench.measured(browser, job, page, {"search, slowest key": filtered("hosts", "10.1"),
                                                "of certificates": filtered("certificates", "10.1")})


class Console:
    """A running `imgctl ui`, and what its process has used."""

    def __init__(self, imgctl, store, states):
        self.process = subprocess.Popen([imgctl, "--json", "--root", store, "ui"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        env={**os.environ, "SEALOS_RUNTIME_ROOT": str(states)})
        self.url = json.loads(self.process.stdout.readline())["url"]
        self.address, token = re.match(r"http://([^/]+)(/.*)", self.url).groups()
        entered = self.get(token)
        self.cookie = entered.headers["set-cookie"].split(";")[0]
        self.base = entered.headers["location"].rstrip("/")

    def get(self, path, cookie=None):
        connection = http.client.HTTPConnection(self.address)
        connection.request("GET", path, headers={"cookie": cookie} if cookie else {})
        answer = connection.getresponse()
        answer.connection = connection
        return answer

    def page(self, path):
        return self.get(self.base + path, self.cookie).read().decode()

    def follow(self, path):
        """Reads the events of a page in a thread, until they end."""
        events = re.search(r'data-(?:events|changes)="([^"]+)"', self.page(path)).group(1).replace("&amp;", "&")
        answer = self.get(events, self.cookie)
        thread = threading.Thread(target=lambda: [None for _ in answer], daemon=True)
        thread.start()
        return thread

    def cpu(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self):
        self.process.terminate()
        self.process.wait()


def runs_of_100(bench, watched):
    """CPU seconds of a run of 100 hosts, and of the console that follows it. A run takes so little that its
    figure varies by a tenth: many go on at the same time, each followed, and their mean is taken."""
    states = bench.base / "watched"
    shutil.rmtree(states, ignore_errors=True)
    states.mkdir()
    console = Console(bench.imgctl, bench.base / "store", states) if watched else None
    clusters = [f"cluster{number}" for number in range(AT_ONCE)]
    runs = []
    for cluster in clusters:
        (states / "sim" / cluster).mkdir(parents=True)
        # The state of the simulation is that of a cluster of the console.
        (states / cluster).symlink_to(f"sim/{cluster}/state")
        runs.append(subprocess.Popen(
            [bench.testing, "--json", "--root", bench.base / "store", "simulate", "--dir", states / "sim" / cluster, "--hosts", "100",
             "--takes", "150", "--parallel", "20"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    console_cpu = 0.0
    if console:
        console.follow("/runs")
        for cluster in clusters:
            console.follow(f"/runs/{cluster}/{journal(states / cluster).stem}")
    used = 0.0
    for run in runs:
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        if run.returncode:
            raise measure.Failed(f"imgctl simulate ended with {run.returncode}")
        used += usage.ru_utime + usage.ru_stime
    if console:
        console_cpu = console.cpu()
        console.stop()
    return used / AT_ONCE, console_cpu / AT_ONCE


def journal(state):
    """The journal of a run, as soon as it has a record."""
    while True:
        if found := [file for file in state.glob("journal/*.jsonl") if file.stat().st_size]:
            return found[0]
        time.sleep(0.02)


def watched_runs(bench, pairs):
    """CPU seconds of each pair: a run by itself, one that is followed, the console. What comes first changes, since the
    machine's speed does."""
    found = []
    for number in range(pairs):
        order = (False, True) if number % 2 == 0 else (True, False)
        took = {watched: runs_of_100(bench, watched) for watched in order}
        found.append((took[False][0], *took[True]))
    return found


def interval(numbers):
    """The median, and where it lies with a probability of 95 %."""
    ordered, reach = sorted(numbers), 0.98 * len(numbers) ** 0.5
    middle = len(ordered) / 2
    low, high = max(0, int(middle - reach)), min(len(ordered) - 1, int(middle + reach))
    return median(ordered), ordered[low], ordered[high]


def idle(bench, path, seconds=10):
    console = Console(bench.imgctl, bench.base / "store", bench.base / "large")
    if path:
        console.follow(path)
    time.sleep(1)
    before = console.cpu()
    time.sleep(seconds)
    used = console.cpu() - before
    console.stop()
    return used


def table(bench):
    lines = ["| page | written in | CPU | size | first paint | interactions, to the next frame |", "|---|---:|---:|---:|---:|---|"]
    for job, size, paint, times in bench.rows:
        cost = bench.results.median(("pages", job, "imgctl"))
        lines.append(report.row([
            job, report.seconds(cost.wall) if cost else "-", report.seconds(cost.cpu) if cost else "-",
            f"{size / 1e6:.2f} MB" if size else "-", f"{paint} ms", ", ".join(f"{name} {took} ms" for name, took in times.items())]))
    return lines


def main(words):
    parser = argparse.ArgumentParser(prog="scripts/bench pages")
    report.options(parser, runs=5)
    parser.add_argument("--dir", default="/dev/shm/imgctl-bench-pages", help="a folder on tmpfs")
    chosen = report.parsed(parser, words)
    base, watch = Path(chosen.dir), Conditions()
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    imgctl = os.environ["IMGCTL"]
    bench = Bench(imgctl, os.environ.get("IMGCTL_TESTING") or imgctl, base)
    share = 20 if chosen.quick else 1
    pages = {}
    for files in (20_000 // share, 100_000 // share):
        job = f"image, {files:,} files"
        image_context(base / f"context-{files}", files)
        subprocess.run([imgctl, "--root", base / "store", "--no-sync", "build", "-q", "-t", f"image:{files}", base / f"context-{files}"],
                       check=True, stdout=subprocess.DEVNULL)
        pages[job] = bench.report(job, "image", f"image:{files}", runs=chosen.runs)
        shutil.rmtree(base / f"context-{files}")
    hosts = 500 // share
    (base / "plan.json").write_text(json.dumps(plan_of(hosts)))
    pages[f"plan, {hosts} hosts"] = bench.report(f"plan, {hosts} hosts", "plan", base / "plan.json", runs=chosen.runs)
    subprocess.run([bench.testing, "--no-sync", "--json", "--root", base / "store", "simulate", "--dir", base / "large", "--hosts", str(hosts),
                    "--takes", "1"], check=True, stdout=subprocess.DEVNULL)
    pages[f"run, {hosts} hosts"] = bench.report(f"run, {hosts} hosts", "run", "--cluster", "state", runs=chosen.runs)
    (base / "cluster.json").write_text(json.dumps(cluster_of(hosts)))
    pages[f"cluster, {hosts} hosts"] = bench.report(f"cluster, {hosts} hosts", "render", base / "cluster.json", runs=chosen.runs)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = chromium.Browser(profile)
        try:
            interactions(bench, browser, pages)
        finally:
            browser.end()
    pairs = watched_runs(bench, 4 * chosen.runs)
    alone, followed, console = (median(column) for column in zip(*pairs))
    ratio, low, high = interval([pair[1] / pair[0] for pair in pairs])
    quiet = {"no page": idle(bench, None), "the page of runs": idle(bench, "/runs")}
    shutil.rmtree(base, ignore_errors=True)
    slowest = max(took for *_, times in bench.rows for took in times.values())
    values = {"slowest interaction": slowest, "slowest paint": max(row[2] for row in bench.rows), "run alone": alone, "run followed": followed,
              "run followed, in pairs": ratio, "console": console, "idle": max(quiet.values())}
    lines = [*table(bench), "", f"A run of 100 simulated hosts takes {alone:.2f} s of CPU by itself and {followed:.2f} s while a client of the console "
             f"follows it and another the list of runs: {100 * (ratio - 1):+.1f} %, the median of {len(pairs)} pairs, with a probability of 95 % between "
             f"{100 * (low - 1):+.1f} and {100 * (high - 1):+.1f} %. {AT_ONCE} runs go on at the same time, each followed; for one, the console takes {console:.2f} s. Without a run, in 10 s: "
             + ", ".join(f"{used:.2f} s of CPU with {name} open" for name, used in quiet.items()) + "."]
    made = report.Report("pages", chosen.runs, chosen.quick, [measure_version()], watch.end(), lines, report.rows(bench.results), values)
    report.publish(made, chosen)


def measure_version():
    return subprocess.run(["chromium", "--version"], capture_output=True, text=True, check=False).stdout.strip() or "Chromium"
