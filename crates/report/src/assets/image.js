// The explorer of an image's files: a treemap, the same as a list, and a search over all paths.
(() => {
  const place = document.getElementById("explorer");
  const { names, parents, sizes, layers, types } = data.files;
  if (!place || names.length < 2) return;
  const MOST_CELLS = 400, MOST_ROWS = 100, MOST_FOUND = 100;
  const WIDTH = Math.max(320, Math.round(place.parentElement.clientWidth - 40));
  const HEIGHT = Math.round(Math.min(560, Math.max(360, WIDTH / 2)));
  const length = names.length;

  // Children as linked lists, which are cheaper than a hundred thousand arrays.
  const first = new Int32Array(length).fill(-1), next = new Int32Array(length).fill(-1);
  for (let file = length - 1; file > 0; file -= 1) {
    next[file] = first[parents[file]];
    first[parents[file]] = file;
  }
  const kindOf = (layer) => (layer < 0 ? "other" : data.layers[layer] ? data.layers[layer][1] : "other");
  const classOf = (kind) => (["rootfs", "registry", "addons"].includes(kind) ? `k-${kind}` : "k-other");

  // Sizes below each directory, of the files that `wanted` accepts.
  function sums(wanted) {
    const totals = new Float64Array(length);
    for (let file = length - 1; file >= 0; file -= 1) {
      if (wanted === null || wanted(file)) totals[file] += sizes[file];
      if (file > 0) totals[parents[file]] += totals[file];
    }
    return totals;
  }
  const views = new Map();
  function totalsOf(scope) {
    if (!views.has(scope.key)) views.set(scope.key, sums(scope.wanted));
    return views.get(scope.key);
  }
  const everything = { key: "all", label: "/", wanted: null };
  const ofLayer = (layer) => ({ layer, key: `layer ${layer}`, label: `Layer ${data.layers[layer][0]} (${data.layers[layer][1]})`, wanted: (file) => layers[file] === layer });
  const ofKind = (kind) => ({ key: `kind ${kind}`, label: kind, wanted: (file) => kindOf(layers[file]) === kind });

  // Sizes of whole layers and kinds, for the views that list them.
  const ofLayers = new Float64Array(data.layers.length);
  for (let file = 0; file < length; file += 1) if (layers[file] >= 0) ofLayers[layers[file]] += sizes[file];
  const ofGroup = (group) => (grouping === "layer" ? ofLayers[group.layer] : ofLayers.reduce((sum, size, layer) => (kindOf(layer) === group.label ? sum + size : sum), 0));

  let grouping = "directory", scope = everything, at = 0;

  function groups() {
    if (grouping === "layer") return data.layers.map((_, layer) => ofLayer(layer));
    return Array.from(new Set(data.layers.map((layer) => layer[1]))).map(ofKind);
  }
  // What the current place contains, largest first.
  function content() {
    const items = [];
    if (scope === null) {
      for (const group of groups()) {
        const layer = grouping === "layer" ? group.layer : -1;
        const kind = grouping === "layer" ? kindOf(layer) : group.label;
        items.push({ label: group.label, size: ofGroup(group), kind, layer, open: () => go(group, 0) });
      }
    } else {
      const totals = totalsOf(scope);
      for (let file = first[at]; file >= 0; file = next[file]) {
        if (totals[file] === 0 && scope.wanted !== null) continue;
        const folder = types[file] === "d";
        const opens = folder && first[file] >= 0;
        items.push({ label: names[file] + (folder ? "/" : ""), size: totals[file], kind: kindOf(layerOf(file, totals)), layer: layers[file], file, open: opens ? () => go(scope, file) : null });
      }
      const left = at === 0 ? 0 : sizes[at];
      if (left > 0) items.push({ label: "(files that are not listed)", size: left, kind: "other", layer: -1, open: null });
    }
    return items.sort((a, b) => b.size - a.size);
  }
  // The layer that has most of a directory: that of its largest file on the way down.
  function layerOf(file, totals) {
    let here = file;
    for (let depth = 0; depth < 64 && first[here] >= 0; depth += 1) {
      let best = first[here];
      for (let child = best; child >= 0; child = next[child]) if (totals[child] > totals[best]) best = child;
      here = best;
    }
    return layers[here];
  }

  function pathTo(file) {
    const path = [];
    for (let here = file; here !== 0; here = parents[here]) path.unshift(here);
    return path;
  }
  function go(to, file) {
    scope = to;
    at = file;
    draw();
    crumbs.querySelector("[aria-current]").focus({ preventScroll: true });
  }

  // Squarified treemap (Bruls, Huizing, van Wijk 2000).
  function squarify(items, x, y, width, height) {
    const placed = [];
    let rest = items.reduce((sum, item) => sum + item.size, 0);
    let start = 0;
    while (start < items.length && rest > 0 && width > 0 && height > 0) {
      const short = Math.min(width, height), scale = (width * height) / rest;
      let end = start, sum = 0, worst = Infinity;
      while (end < items.length) {
        const more = sum + items[end].size * scale;
        const largest = items[start].size * scale, smallest = items[end].size * scale;
        const ratio = Math.max((short * short * largest) / (more * more), (more * more) / (short * short * smallest));
        if (ratio > worst) break;
        worst = ratio; sum = more; end += 1;
      }
      const thick = sum / short;
      let along = 0;
      for (const item of items.slice(start, end)) {
        const side = (item.size * scale) / thick;
        placed.push(width >= height ? { item, x, y: y + along, width: thick, height: side } : { item, x: x + along, y, width: side, height: thick });
        along += side;
        rest -= item.size;
      }
      if (width >= height) { x += thick; width -= thick; } else { y += thick; height -= thick; }
      start = end;
    }
    return placed;
  }

  const map = svg("svg", { class: "map", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  const crumbs = element("ol", { class: "crumbs" });
  const list = element("tbody");
  const heading = element("caption");
  const status = element("p", { class: "status", role: "status" });
  const table = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Content of the directory, or what the search found" },
    element("table", {}, heading,
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Name"), element("th", { scope: "col", class: "number" }, "Size"), element("th", { scope: "col", class: "number" }, "Share"), element("th", { scope: "col" }, "Layer"))), list));

  function cell({ item, x, y, width, height }, index) {
    const group = svg("g", item.open ? { class: "opens", onclick: item.open } : {});
    group.append(svg("title", {}, `${shown(item.label)}: ${human(item.size)}`));
    group.append(svg("rect", { class: `${classOf(item.kind)} shade-${index % 3}`, x: x.toFixed(1), y: y.toFixed(1), width: width.toFixed(1), height: height.toFixed(1) }));
    if (width > 46 && height > 20) {
      const room = Math.floor((width - 12) / 7.6);
      const label = shown(item.label);
      group.append(svg("text", { x: (x + 6).toFixed(1), y: (y + 17).toFixed(1) }, label.length > room ? `${label.slice(0, Math.max(room - 1, 1))}…` : label));
      if (height > 38 && width > 62) group.append(svg("text", { class: "size", x: (x + 6).toFixed(1), y: (y + 33).toFixed(1) }, human(item.size)));
    }
    return group;
  }
  // In the console, a file has a page of its own.
  const filesAt = document.body.dataset.files;
  function named(label, file) {
    const text = element("code", {}, element("bdi", {}, shown(label)));
    if (filesAt === undefined || file === undefined || types[file] === "x") return text;
    return element("a", { href: filesAt + pathTo(file).map((part) => encodeURIComponent(names[part])).join("/") }, text);
  }
  function row(label, open, size, whole, layer, file) {
    const name = open ? element("button", { class: "plain", type: "button", onclick: open }, shown(label)) : named(label, file);
    return element("tr", {}, element("th", { scope: "row" }, name), element("td", { class: "number" }, human(size)),
      element("td", { class: "number" }, whole > 0 ? `${((100 * size) / whole).toFixed(1)} %` : ""),
      element("td", {}, layer >= 0 && data.layers[layer] ? element("span", { class: `badge ${classOf(data.layers[layer][1])}` }, `${layer + 1} ${shown(data.layers[layer][1])}`) : ""));
  }
  function draw() {
    const items = content();
    const whole = items.reduce((sum, item) => sum + item.size, 0);
    const cells = items.filter((item) => item.size > 0);
    let drawn = cells.slice(0, MOST_CELLS);
    const rest = cells.slice(MOST_CELLS).reduce((sum, item) => sum + item.size, 0);
    if (rest > 0) drawn = drawn.concat([{ label: `${count(cells.length - MOST_CELLS)} more`, size: rest, kind: "other", open: null }]);
    map.replaceChildren(...squarify(drawn, 0, 0, WIDTH, HEIGHT).map(cell));
    const path = scope === null || at === 0 ? [] : pathTo(at);
    const here = scope === null ? (grouping === "layer" ? "All layers" : "All kinds") : path.length ? names[at] : scope.label;
    const title = `${shown(here)}: ${human(whole)} in ${count(items.length)} entries`;
    map.setAttribute("aria-label", `Treemap of ${title}. The table below lists the same.`);
    heading.textContent = items.length > MOST_ROWS ? `${title}; the largest ${MOST_ROWS} are listed` : title;
    const steps = [];
    if (grouping !== "directory") steps.push([grouping === "layer" ? "All layers" : "All kinds", () => go(null, 0)]);
    if (scope !== null) {
      steps.push([scope.label, () => go(scope, 0)]);
      for (const file of path) steps.push([names[file], () => go(scope, file)]);
    }
    crumbs.replaceChildren(...steps.map(([label, open], index) => element("li", {}, element("button", { class: "plain", type: "button", onclick: open, "aria-current": index + 1 === steps.length ? "location" : undefined }, shown(label, 60)))));
    list.replaceChildren(...items.slice(0, MOST_ROWS).map((item) => row(item.label, item.open, item.size, whole, item.layer, item.file)));
    status.textContent = "";
  }

  // Lower-case paths, made in pieces while nothing else happens, and at the first search at the latest.
  const paths = [""];
  function prepare(until) {
    // Deep trees of long names would take more memory than they are worth.
    for (let file = paths.length; file < until; file += 1) {
      const path = `${paths[parents[file]]}/${names[file].toLowerCase()}`;
      paths.push(path.length > 4096 ? path.slice(-4096) : path);
    }
  }
  function ahead() {
    prepare(Math.min(length, paths.length + 5000));
    if (paths.length < length) setTimeout(ahead, 20);
  }
  function search(wanted) {
    if (!wanted) { map.removeAttribute("hidden"); crumbs.hidden = false; draw(); return; }
    prepare(length);
    const found = [];
    let all = 0, bytes = 0;
    for (let file = 1; file < length; file += 1) {
      if (!paths[file].includes(wanted)) continue;
      all += 1;
      if (types[file] === "f") bytes += sizes[file];
      if (found.length < MOST_FOUND) found.push(file);
    }
    map.setAttribute("hidden", "");
    crumbs.hidden = true;
    const totals = totalsOf(everything);
    list.replaceChildren(...found.map((file) => {
      const path = `/${pathTo(file).map((part) => names[part]).join("/")}${types[file] === "d" ? "/" : ""}`;
      const folder = types[file] === "d" ? file : parents[file];
      return row(path, () => { field.value = ""; grouping = "directory"; choice.value = grouping; search(""); go(everything, folder); }, totals[file], totals[0], layers[file]);
    }));
    status.textContent = `${count(all)} found, files of ${human(bytes)}${all > MOST_FOUND ? `; the first ${MOST_FOUND} are listed` : ""}`;
    heading.textContent = "Found";
  }
  const field = element("input", { type: "search", autocomplete: "off", spellcheck: "false", placeholder: "part of a path", oninput: () => search(field.value.toLowerCase()) });
  const choice = element("select", { onchange: () => { grouping = choice.value; field.value = ""; search(""); go(grouping === "directory" ? everything : null, 0); } },
    element("option", { value: "directory" }, "Directory"), element("option", { value: "layer" }, "Layer"), element("option", { value: "kind" }, "Kind"));
  place.append(
    element("div", { class: "controls" }, element("label", {}, "Group by", choice), element("label", {}, "Search all files", field)),
    status, crumbs, map, element("h3", {}, "Content"), table);
  place.hidden = false;
  draw();
  setTimeout(ahead, 100);
})();
