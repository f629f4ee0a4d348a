// Follows a run: what its journal gets while the page is open comes as events.
(() => {
  const place = document.getElementById("progress");
  if (!place || !data) return;
  const MOST_MESSAGES = 20, QUIET = 10000;
  const body = place.querySelector("tbody");
  const part = (name) => document.getElementById(`progress-${name}`);
  const status = part("status"), log = part("log");
  const hosts = new Map();
  data.hosts.forEach((one, index) => hosts.set(one.host, { open: new Set(one.open), done: one.done, failed: new Set(one.failed), row: body.rows[index] }));
  let told = 0, ended = false;

  function hostOf(name) {
    let host = hosts.get(name);
    if (!host) {
      const row = element("tr", {}, element("th", { scope: "row" }, element("code", {}, element("bdi", {}, shown(name)))),
        element("td", { class: "now" }), element("td", { class: "number" }), element("td", { class: "failed" }));
      body.append(row);
      host = { open: new Set(), done: 0, failed: new Set(), row };
      hosts.set(name, host);
    }
    return host;
  }
  function say(text, bad) {
    log.prepend(element("li", {}, element("span", { class: bad ? "badge bad" : "badge" }, bad ? "attention" : "note"), " ", element("bdi", {}, shown(text, 1000))));
    while (log.children.length > MOST_MESSAGES) log.lastElementChild.remove();
  }
  // Returns the host that an event changes.
  function take(event) {
    if (event.kind === "begin") {
      const host = hostOf(event.host);
      host.open.add(`${event.phase}/${event.step}`);
      host.failed.delete(`${event.phase}/${event.step}`);
      return host;
    }
    if (event.kind === "end") {
      const host = hostOf(event.host), step = `${event.phase}/${event.step}`;
      host.open.delete(step);
      host.failed.delete(step);
      if (["done", "assumed"].includes(event.outcome)) host.done += 1;
      else {
        host.failed.add(step);
        say(`${event.host}: ${event.step}: ${event.outcome}${event.message ? `: ${event.message}` : ""}`, true);
      }
      return host;
    }
    if (event.kind === "problem") say(event.text, true);
    if (event.kind === "start") {
      // What an earlier command began and did not end is no longer running.
      for (const host of hosts.values()) if (host.open.size > 0) { host.open.clear(); draw(host); }
      say(`A command on ${event.controller} resumes the run.`, false);
    }
    return null;
  }
  function draw(host) {
    const [, now, done, failed] = host.row.cells;
    now.replaceChildren(element("bdi", {}, shown(Array.from(host.open).join(", "))));
    done.textContent = count(host.done);
    failed.replaceChildren(...Array.from(host.failed).flatMap((step) => [element("span", { class: "badge bad" }, shown(step)), " "]));
  }
  function sums() {
    const all = Array.from(hosts.values());
    const busy = all.filter((host) => host.open.size > 0).length;
    const done = all.reduce((sum, host) => sum + host.done, 0), failed = all.reduce((sum, host) => sum + host.failed.size, 0);
    part("busy").textContent = count(busy);
    part("hosts").textContent = count(all.length);
    part("done").textContent = count(done);
    part("failed").textContent = count(failed);
    part("failed").closest(".tile").classList.toggle("bad", failed > 0);
    return `${count(busy)} of ${count(all.length)} hosts at work, ${count(done)} steps done${failed > 0 ? `, ${count(failed)} not done` : ""}.`;
  }
  function end(text) {
    ended = true;
    source.close();
    for (const host of hosts.values()) { host.open.clear(); draw(host); }
    sums();
    status.textContent = text;
    // The rest of the page becomes that of the whole run; what was followed stays.
    place.closest("section").setAttribute("data-own", "");
    refresh();
  }

  const source = new EventSource(place.dataset.events);
  source.addEventListener("progress", (message) => {
    const progress = JSON.parse(message.data);
    const changed = new Set();
    for (const event of progress.events) { const host = take(event); if (host) changed.add(host); }
    changed.forEach(draw);
    const text = sums();
    // A screen reader reads the sentence out: not every second.
    const now = Date.now();
    if (now - told >= QUIET) { told = now; status.textContent = text; }
  });
  source.addEventListener("end", (message) => end(`The run has ended: ${shown(JSON.parse(message.data).state)}.`));
  source.addEventListener("replaced", () => end("The journal was replaced."));
  source.addEventListener("error", () => {
    if (ended) return;
    status.textContent = source.readyState === EventSource.CLOSED
      ? "The console refuses to follow the run: open the page again."
      : "The console does not answer. Trying again…";
    told = 0;
  });
})();
