// One head in full: the picture with its tokens, the cell under the pointer, the keyboard.

const view = { head: null, prompt: 0, weights: null, query: 0, key: 0, held: false, asked: false, size: 1, left: 0, top: 0 };
view.coming = null; // The last requested head: it opens once its weights are unpacked.
const prompt = () => data.prompts[view.prompt];
const at = (query, key) => view.weights[cell(prompt(), query, key)];
const lastKey = (query) => (prompt().causal ? query : keysOf(prompt()).labels.length - 1);
const firstQuery = (key) => (prompt().causal ? key : 0);
const shade = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

async function openHead(head) {
  const coming = (view.coming = { head, prompt: state.prompt });
  const weights = await weightsOf(coming.prompt, head);
  if (view.coming !== coming || !weights) return;
  Object.assign(view, { ...coming, weights, held: false });
  const last = prompt().labels.length - 1;
  Object.assign(view, { query: last, key: strongestKey(last) });
  $("name").textContent = head.name;
  $("labels").textContent = head.labels.join(", ");
  $("scored").textContent = data.scored;
  const scores = data.kinds.map(({ kind, word }) => [word, head.scores[kind] ?? null, kind]);
  $("scores").replaceChildren(
    ...scores.flatMap(([word, score, kind]) => [
      make("dt", word),
      make(
        "dd",
        (score === null ? "not measured" : score.toFixed(3) + (near(head, kind) ? ", borderline" : "")) +
          (scoreHere(head, kind) && `; on this prompt ${scoreHere(head, kind)}`),
      ),
    ]),
  );
  $("examples").replaceChildren(...(head.examples ? fillExamples(head.examples) : []));
  const looks = data.looks[head.label];
  $("marking").hidden = !(head.kind && head.kind in prompt().targets);
  $("marking").querySelector("span").textContent = `outline the targets${looks ? ` (${looks})` : ""}`;
  $("taking").hidden = data.live === null;
  if (data.live !== null) $("take").checked = live.without.has(head.name);
  $("frame").replaceChildren();
  const two = Boolean(prompt().keys);
  // CircuitsVis shows only a text's attention to itself.
  $("circuitsvis-open").hidden = !data.circuitsvis || two;
  $("circuitsvis-open").setAttribute("aria-expanded", false);
  $("circuitsvis-open").textContent =
    "show in CircuitsVis" + (last >= 256 ? ` (slow: ${last + 1} tokens)` : "");
  for (const id of ["of-queries", "queries", "of-keys"]) $(id).hidden = !two;
  fillStrip($("queries"), two ? prompt() : null, (i) => point(i, strongestKey(i), true));
  fillStrip($("strip"), keysOf(prompt()), two ? (i) => point(view.query, i, true) : choose);
  // A single head is not a dialog, and must not take a notebook's focus.
  if (data.alone) $("view").open = true;
  else {
    const choosing = document.activeElement === $("prompt-here");
    if (!$("view").open) $("view").showModal();
    if (!choosing) $("map").focus();
  }
  redrawHead();
  remember(`#${head.name}`);
}

// What the head does on ordinary text, from a scan that measured it; tokens are in their context.
function fillExamples({ unexplained, engagement }) {
  const place = ({ before, token, after, position }) => {
    const text = make("bdi", "", { title: `position ${position}` });
    text.append("…", before, make("mark", token), after, "…");
    return text;
  };
  const line = (first, { query, key, weight }) => {
    const item = make("li", first);
    item.append(place(query), ` attends ${weight.toFixed(2)} to `, place(key));
    return item;
  };
  const list = (title, items) => {
    const part = make("details", "", { open: Boolean(data.alone) });
    part.append(make("summary", title), make("ol"));
    part.lastChild.append(...items);
    return part;
  };
  return [
    list(
      "Ordinary text: the most attention that no kind explains",
      unexplained.map((pair) => line("", pair)),
    ),
    list(
      "Ordinary text: share of attention that is not on sinks, by tenths of the queries",
      engagement.map((tenth) => line(`${tenth.engaged.toFixed(3)}: `, tenth)),
    ),
  ];
}

function fillStrip(strip, text, chosen) {
  const tokens = text ? tokensOf(text) : [];
  tokens.forEach((token, i) => token.addEventListener("click", () => chosen(i)));
  strip.replaceChildren(...tokens);
}

function strongestKey(query) {
  let best = 0;
  for (let key = 1; key <= lastKey(query); key++) if (at(query, key) > at(query, best)) best = key;
  return best;
}

// A token of the strip becomes the query or, if chosen so, the key.
function choose(i) {
  if ($("role").value === "query") point(i, strongestKey(i), true);
  else point(Math.max(firstQuery(i), view.query), i, true);
}

function point(query, key, held = view.held) {
  Object.assign(view, { query, key, held });
  const step = at(query, key);
  const token = ({ labels, ids }, i) => [`${i} `, make("bdi", labels[i], { title: `id ${ids[i]}` })];
  const readout = $("readout");
  const places = [...token(prompt(), query), " → key ", ...token(keysOf(prompt()), key)];
  readout.replaceChildren("query ", ...places, ": ");
  readout.append(make("b", weightText(step)), held ? " (held)" : "");
  Object.assign(readout.dataset, { query, key, value: step / STEPS });
  drawCross();
  const byQuery = $("role").value === "query";
  const two = Boolean(prompt().keys);
  // Of two texts, one is shaded; in the other the query or key is marked.
  if (two) shadeStrip($(byQuery ? "queries" : "strip"), byQuery ? query : key, () => null);
  const [strip, here] = [two && !byQuery ? "queries" : "strip", byQuery ? query : key];
  shadeStrip($(strip), two ? -1 : here, (i) => {
    const place = byQuery ? [query, i] : [i, key];
    return visible(prompt(), ...place) ? at(...place) / STEPS : undefined;
  });
}

// Shades tokens by weight: undefined is not visible to the query, null has no shade.
function shadeStrip(strip, here, weightOf) {
  const light = document.documentElement.dataset.theme === "light";
  [...strip.children].forEach((element, i) => {
    const weight = weightOf(i) ?? 0;
    const colour = $("scale").value === "root" ? Math.sqrt(weight) : weight;
    element.style.background = `rgba(${shade("--strip")}, ${colour})`;
    element.style.color = colour > 0.5 ? (light ? "#ffffff" : "#0f1419") : "";
    element.style.opacity = weightOf(i) === undefined ? 0.45 : 1;
    element.classList.toggle("here", i === here);
  });
}

function redrawHead() {
  if (!view.head || !$("view").open) return;
  const [n, keys] = [prompt().labels.length, keysOf(prompt()).labels.length];
  const narrow = innerWidth < 600;
  view.left = view.top = narrow ? 44 : 92;
  const room = Math.min($("view").clientWidth - 40 - view.left, innerHeight * (data.alone ? 0.65 : 0.8) - view.top, 900);
  view.size = Math.max(1, Math.min(28, Math.floor(room / Math.max(n, keys)))) * Number($("zoom").value);
  // Lines would hide thin cells, unless the reader switches them on.
  if (!view.asked) $("mark").checked = view.size >= 3;
  const [across, down] = [keys * view.size, n * view.size];
  const [width, height] = [view.left + across + 2, view.top + down + 2];
  for (const id of ["map", "cross"]) {
    const canvas = $(id);
    canvas.width = Math.ceil(width * devicePixelRatio);
    canvas.height = Math.ceil(height * devicePixelRatio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.getContext("2d").scale(devicePixelRatio, devicePixelRatio);
  }
  $("map").setAttribute(
    "aria-label",
    `Attention of ${view.head.name}, ${n} queries down and ${keys} keys across`,
  );
  const context = $("map").getContext("2d");
  const small = make("canvas");
  paint(small, prompt(), n, keys, at);
  context.fillStyle = shade("--hidden");
  context.fillRect(view.left, view.top, across, down);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, view.left, view.top, across, down);
  shadeTemplate(context);
  drawNames(context);
  if (!$("marking").hidden && $("mark").checked) {
    context.lineWidth = Math.min(1.5, Math.max(0.5, view.size / 6));
    drawTargets(context, targetsOf(view.head, prompt()), { n, block: 1, ...view });
  }
  point(view.query, view.key);
}

// The margins of the chat template's queries and keys.
function shadeTemplate(context) {
  const { left, top, size } = view;
  context.fillStyle = shade("--hidden");
  for (const i of prompt().template) context.fillRect(0, top + i * size, left, size);
  for (const i of keysOf(prompt()).template) context.fillRect(left + i * size, 0, size, top);
}

// As many token names along both sides as fit.
function drawNames(context) {
  const step = Math.max(1, Math.ceil(12 / view.size));
  const most = view.left < 60 ? 4 : 10;
  const font = Math.max(9, Math.min(12, view.size * step - 2));
  context.font = `${font}px system-ui, "DejaVu Sans", sans-serif`;
  context.textBaseline = "middle";
  const each = (text, draw) => {
    for (let i = 0; i < text.labels.length; i += step) {
      const letters = [...text.labels[i]];
      const cut = letters.length > most;
      const [mark] = marksOf(text, i);
      context.fillStyle = shade(mark ? `--${mark}` : "--ink");
      draw(cut ? `${letters.slice(0, most - 1).join("")}…` : letters.join(""), (i + 0.5) * view.size);
    }
  };
  context.textAlign = "right";
  each(prompt(), (name, middle) => {
    context.fillText(name, view.left - 5, view.top + middle, view.left - 8);
  });
  context.textAlign = "left";
  each(keysOf(prompt()), (name, middle) => {
    context.save();
    context.translate(view.left + middle, view.top - 5);
    context.rotate(-Math.PI / 2);
    context.fillText(name, 0, 0, view.top - 8);
    context.restore();
  });
  context.fillStyle = shade("--quiet");
  context.textAlign = "right";
  context.fillText("key →", view.left - 5, view.top - 22, view.left - 8);
  context.fillText("query ↓", view.left - 5, view.top - 8, view.left - 8);
}

// The keys that each query should look at; of a sink also the other columns where it rests.
function targetsOf(head, { causal, targets, sinks }) {
  const resting = sinks[head.name] ?? [];
  const other = (query) => (key) => (causal ? key < query : key !== query);
  return (targets[head.kind] ?? []).map((keys, query) =>
    keys.length ? [...new Set([...keys, ...resting.filter(other(query))])] : [],
  );
}

// Lines between targets and all else: they surround areas and cover no cell. A cell of the picture,
// which has n in a row, is a block of the pattern.
function drawTargets(context, keysOfQueries, { n, block, left, top, size }) {
  const targets = new Set();
  const at = (query, key) => Math.floor(query / block) * n + Math.floor(key / block);
  keysOfQueries.forEach((keys, query) => {
    for (const key of keys) targets.add(at(query, key));
  });
  context.strokeStyle = shade("--accent");
  context.beginPath();
  for (const place of targets) {
    const [query, key] = [Math.floor(place / n), place % n];
    const x = left + key * size;
    const y = top + query * size;
    const line = (x1, y1, x2, y2) => (context.moveTo(x1, y1), context.lineTo(x2, y2));
    if (!targets.has(place - n)) line(x, y, x + size, y);
    if (!targets.has(place + n)) line(x, y + size, x + size, y + size);
    if (key === 0 || !targets.has(place - 1)) line(x, y, x, y + size);
    if (key === n - 1 || !targets.has(place + 1)) line(x + size, y, x + size, y + size);
  }
  context.stroke();
}

function drawCross() {
  const context = $("cross").getContext("2d");
  const { left, top, size, query, key } = view;
  context.clearRect(0, 0, $("cross").width, $("cross").height);
  context.strokeStyle = shade("--focus");
  context.lineWidth = 1;
  const [x, y] = [left + key * size, top + query * size];
  context.beginPath();
  context.moveTo(left, y + size / 2);
  context.lineTo(x, y + size / 2);
  context.moveTo(x + size / 2, top);
  context.lineTo(x + size / 2, y);
  context.stroke();
  context.lineWidth = 2;
  context.strokeRect(x - 1, y - 1, size + 2, size + 2);
}

function cellUnder(event) {
  const box = $("map").getBoundingClientRect();
  const key = Math.floor((event.clientX - box.left - view.left) / view.size);
  const query = Math.floor((event.clientY - box.top - view.top) / view.size);
  const within = query >= 0 && query < prompt().labels.length && key >= 0;
  return within && key <= lastKey(query) ? [query, key] : null;
}

$("map").addEventListener("pointermove", (event) => {
  const place = cellUnder(event);
  if (place && !view.held) point(...place);
});
$("map").addEventListener("click", (event) => {
  const place = cellUnder(event);
  if (!place) return;
  const again = view.held && view.query === place[0] && view.key === place[1];
  point(...place, !again);
});
$("map").addEventListener("keydown", (event) => {
  const n = prompt().labels.length;
  const { query, key } = view;
  const place = {
    ArrowLeft: () => [query, Math.max(0, key - 1)],
    ArrowRight: () => [query, Math.min(lastKey(query), key + 1)],
    ArrowUp: () => [Math.max(firstQuery(key), query - 1), key],
    ArrowDown: () => [Math.min(n - 1, query + 1), key],
    Home: () => [query, 0],
    End: () => [query, lastKey(query)],
  }[event.key];
  if (!place) return;
  event.preventDefault();
  point(...place(), true);
});

// From head to head in the order of the page, from the last requested one.
function step(way) {
  const shown = [...$("heads").querySelectorAll(".head")].map(({ head }) => head);
  const here = shown.indexOf(view.coming.head);
  const next = shown[here + way];
  if (next) openHead(next);
}

$("view").addEventListener("keydown", (event) => {
  const way = { PageDown: 1, PageUp: -1 }[event.key];
  if (!way) return;
  event.preventDefault();
  step(way);
});
$("view").addEventListener("close", () => {
  view.coming = null;
  $("frame").replaceChildren();
  remember("#");
  buttons.find(({ head }) => head === view.head)?.focus();
});
$("earlier").addEventListener("click", () => step(-1));
$("later").addEventListener("click", () => step(1));
$("close").addEventListener("click", () => $("view").close());
$("mark").addEventListener("change", () => {
  view.asked = true;
  redrawHead();
});
$("zoom").addEventListener("change", redrawHead);
$("role").addEventListener("change", () => point(view.query, view.key));
addEventListener("resize", redrawHead);

// The same head in CircuitsVis, in a frame; labels keep their blanks visible.
$("circuitsvis-open").addEventListener("click", async () => {
  const open = $("circuitsvis-open").getAttribute("aria-expanded") === "true";
  $("circuitsvis-open").setAttribute("aria-expanded", !open);
  $("frame").replaceChildren();
  if (open) return;
  const script = new TextDecoder().decode(await inflate("circuitsvis"));
  const frame = make("iframe", "", { title: `${view.head.name} in CircuitsVis ${data.circuitsvis}` });
  frame.setAttribute("sandbox", "allow-scripts");
  frame.srcdoc = `<!doctype html><meta charset="utf-8"><body style="margin: 0 28px 0 16px"><div id="view"></div><script>${script}<\/script>`;
  const { labels } = prompt();
  const attention = labels.map((_, query) =>
    labels.map((_, key) => (key <= lastKey(query) ? at(query, key) / STEPS : 0)),
  );
  const maskUpperTri = prompt().causal;
  const message = { tokens: labels, attention, minValue: 0, maxValue: 1, maskUpperTri };
  frame.addEventListener("load", () => frame.contentWindow.postMessage(message, "*"));
  $("frame").append(frame);
  frame.scrollIntoView({ block: "nearest" });
});

function remember(hash) {
  try {
    history.replaceState(null, "", hash);
  } catch {
    // A notebook's frame has no address.
  }
}
