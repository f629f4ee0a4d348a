// Brings a page of the console up to date: its server says that something has changed, and the page asks for
// itself again. What stays the same is not touched, so that focus, selection and scrolling stay where they are.
// The new page comes from this page's own server, with all text escaped as in the page at hand; it is read without
// running anything, and its scripts and styles are not taken over.
const refresh = (() => {
  // Made by scripts, or changed by the reader: not to be compared.
  const OWN_ATTRIBUTES = ["open", "hidden"];
  const isOwn = (node) => node.nodeType === Node.ELEMENT_NODE && node.hasAttribute("data-own");
  const skipOwn = (node) => { while (node && isOwn(node)) node = node.nextSibling; return node; };

  // What a node is, whatever its content; null for those that are compared by their place.
  function keyOf(node) {
    if (node.nodeType !== Node.ELEMENT_NODE) return null;
    if (node.id) return `#${node.id}`;
    if (node.localName !== "tr") return null;
    const link = node.querySelector("a[href]"), heading = node.querySelector("th");
    return link || heading ? `${link ? link.getAttribute("href") : ""} ${heading ? heading.textContent : ""}` : null;
  }
  function update(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    for (const { name } of Array.from(old.attributes)) {
      if (!fresh.hasAttribute(name) && !OWN_ATTRIBUTES.includes(name)) old.removeAttribute(name);
    }
    for (const { name, value } of Array.from(fresh.attributes)) {
      if (old.getAttribute(name) !== value && !OWN_ATTRIBUTES.includes(name)) old.setAttribute(name, value);
    }
    updateChildren(old, fresh);
  }
  function updateChildren(old, fresh) {
    const known = new Map(), wanted = Array.from(fresh.childNodes).filter((node) => !["script", "style"].includes(node.localName));
    for (const node of old.childNodes) if (!isOwn(node) && keyOf(node) !== null && !known.has(keyOf(node))) known.set(keyOf(node), node);
    const stays = new Set(wanted.map(keyOf));
    let at = skipOwn(old.firstChild);
    for (const node of wanted) {
      const key = keyOf(node);
      // What is not on the new page makes room.
      while (at && keyOf(at) !== null && !stays.has(keyOf(at))) {
        const gone = at;
        at = skipOwn(at.nextSibling);
        gone.remove();
      }
      let found = null;
      if (key !== null) {
        found = known.get(key) || null;
        known.delete(key);
      } else if (at && keyOf(at) === null && at.nodeType === node.nodeType && at.nodeName === node.nodeName) found = at;
      if (found === null) {
        const added = document.importNode(node, true);
        if (added.localName === "tr") added.classList.add("added");
        old.insertBefore(added, at);
        continue;
      }
      if (found === at) at = skipOwn(at.nextSibling);
      else old.insertBefore(found, at);
      if (!found.isEqualNode(node)) update(found, node);
    }
    while (at) {
      const gone = at;
      at = skipOwn(at.nextSibling);
      gone.remove();
    }
  }

  const said = element("p", { class: "sr", role: "status", "data-own": true });
  document.body.append(said);
  const countsOf = () => new Map(Array.from(document.querySelectorAll("main table caption"), (caption) => [caption.textContent, caption.parentElement.tBodies[0].rows.length]));

  function take(page) {
    const before = countsOf(), focused = document.activeElement;
    const href = focused && focused.getAttribute("href"), around = focused && focused.closest(".scroll, section, nav");
    for (const selector of ["header.top", "nav.sections", "main", "footer"]) {
      const old = document.querySelector(selector), fresh = page.querySelector(selector);
      if (old && fresh) update(old, fresh);
    }
    if (page.body.dataset.changes) document.body.dataset.changes = page.body.dataset.changes;
    if (page.title !== document.title) document.title = page.title;
    updateFilters();
    // The keyboard stays where it was: on the same link, which may be in another table now, or near it.
    if (focused && focused !== document.body && document.activeElement !== focused) {
      const same = href && Array.from(document.querySelectorAll("main a[href]")).find((link) => link.getAttribute("href") === href);
      const next = focused.isConnected ? focused : same || (around && around.isConnected ? around : document.querySelector("main"));
      if (!next.matches("a, button, input, select, summary, [tabindex]")) next.setAttribute("tabindex", "-1");
      next.focus({ preventScroll: true });
    }
    const changes = [];
    for (const [name, rows] of countsOf()) if (before.get(name) !== rows) changes.push(`${name}: ${rows} ${rows === 1 ? "row" : "rows"}`);
    if (changes.length) said.textContent = `${changes.join(", ")}.`;
  }

  let busy = false, again = false;
  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      do {
        again = false;
        const answer = await fetch(window.location.href);
        if (answer.ok) take(new DOMParser().parseFromString(await answer.text(), "text/html"));
      } while (again);
    } catch {
      // The console has ended, or restarts: the events come again when it does.
    } finally { busy = false; }
  }

  // Nobody looks at a hidden page.
  let source = null;
  function follow() {
    if (!document.body.dataset.changes || document.hidden) return;
    source = new EventSource(document.body.dataset.changes);
    source.addEventListener("changed", refresh);
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && source) { source.close(); source = null; }
    else if (!document.hidden && !source) follow();
  });
  // A page that is kept for the way back would keep its connection.
  window.addEventListener("pagehide", () => { if (source) { source.close(); source = null; } });
  window.addEventListener("pageshow", (event) => { if (event.persisted && !source) follow(); });
  follow();
  return refresh;
})();
