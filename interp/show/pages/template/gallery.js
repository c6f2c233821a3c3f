"use strict";
// All heads at a glance: unpacking, colours, thumbnails, order and filter. Text from outside
// reaches the page only through textContent.

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const STEPS = 255; // A weight is a whole number of steps of 1/255.
const THUMB = 64; // Pixels of a thumbnail, at most.
const RAMPS = {
  light: ["#f8fbff", "#bdd8f0", "#6cabdb", "#2873b8", "#082f6b"],
  dark: ["#121a22", "#12406a", "#1f77b8", "#74bdec", "#f0f8ff"],
};

const make = (tag, text = "", more = {}) => {
  const element = Object.assign(document.createElement(tag), more);
  element.textContent = text;
  return element;
};
// A score as text; ~ marks one that may be on either side of its threshold.
const near = (head, kind) => head.borderline.includes(kind ?? head.kind);
const fixed = (head, kind) => {
  const score = scoreFor(head, kind);
  return score === null ? "" : (near(head, kind) ? "~" : "") + score.toFixed(2);
};
// The score on a prompt that was typed, if it can be measured there.
const scoreHere = (head, kind) => {
  const score = data.prompts[state.prompt].scores?.[head.name]?.[kind ?? head.kind];
  return score === undefined ? "" : score.toFixed(2);
};
const weightText = (step) => (step ? (step / STEPS).toFixed(3) : "less than 0.002");

// A character that no font has is drawn as a box, the same for all: its number says more.
const missing = (() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 24, height: 24 });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.font = '16px system-ui, "DejaVu Sans", sans-serif';
  const drawn = (character) => {
    context.clearRect(0, 0, 24, 24);
    context.fillText(character, 2, 18);
    return context.getImageData(0, 0, 24, 24).data.join();
  };
  const box = drawn("\u{10FFFD}"); // For private use: in no font.
  const known = new Map();
  return (character) => {
    if (character < "\u0250") return false;
    if (!known.has(character)) known.set(character, drawn(character) === box);
    return known.get(character);
  };
})();
const number = (character) =>
  `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
const legible = (label) =>
  [...label].map((character) => (missing(character) ? number(character) : character)).join("");

// Weights, key by key and there query by query: the lower triangle where no query looks ahead.

const arrived = new Map(); // Of a live page: weights that its server sent.

async function inflate(id) {
  const packed = arrived.get(id) ?? $(id)?.textContent;
  if (packed === undefined) return null; // Not there yet.
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(packed)
    : Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const weightsOf = (prompt, head) => inflate(`w${prompt}-${head.name}`);
const keysOf = (prompt) => prompt.keys ?? prompt; // The keys' text, usually the same.
const visible = (prompt, query, key) => !prompt.causal || key <= query;
function cell(prompt, query, key) {
  const n = prompt.labels.length;
  return prompt.causal ? key * n - (key * (key - 1)) / 2 + query - key : key * n + query;
}

// Colours, from light to dark or from dark to light, always from 0 to 1.

let colours;
function setColours() {
  const stops = RAMPS[document.documentElement.dataset.theme];
  const parts = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  const root = $("scale").value === "root";
  colours = Array.from({ length: STEPS + 1 }, (_, step) => {
    const place = (root ? Math.sqrt(step / STEPS) : step / STEPS) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    return parts[low].map((from, i) => from + (parts[low + 1][i] - from) * (place - low));
  });
}

// Draws weights, one pixel a cell; where a query would look ahead nothing is drawn.
function paint(canvas, prompt, down, across, at) {
  canvas.width = across;
  canvas.height = down;
  const context = canvas.getContext("2d");
  const image = context.createImageData(across, down);
  for (let query = 0; query < down; query++) {
    for (let key = 0; key < across && visible(prompt, query, key); key++) {
      image.data.set(colours[at(query, key)], 4 * (query * across + key));
      image.data[4 * (query * across + key) + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}

async function drawThumbnail(button) {
  const { head } = button;
  const number = state.prompt;
  const prompt = data.prompts[number];
  const weights = await weightsOf(number, head);
  button.classList.toggle("waiting", !weights);
  if (!weights) return;
  const [n, keys] = [prompt.labels.length, keysOf(prompt).labels.length];
  const block = Math.ceil(Math.max(n, keys) / THUMB);
  const [down, across] = [Math.ceil(n / block), Math.ceil(keys / block)];
  const largest = new Uint8Array(down * across);
  for (let key = 0, i = 0; key < keys; key++) {
    const column = Math.floor(key / block);
    for (let query = prompt.causal ? key : 0; query < n; query++, i++) {
      const at = Math.floor(query / block) * across + column;
      if (weights[i] > largest[at]) largest[at] = weights[i];
    }
  }
  if (number === state.prompt) {
    const canvas = button.firstChild;
    paint(canvas, prompt, down, across, (query, key) => largest[query * across + key]);
    if ($("outline").checked) outlineSmall(canvas, head, prompt, block);
  }
}

// The targets of a head's label on its small picture, enlarged so that lines fit between cells.
function outlineSmall(canvas, head, prompt, block) {
  const [small, size] = [make("canvas"), Math.ceil((4 * THUMB) / canvas.width)];
  Object.assign(small, { width: canvas.width, height: canvas.height });
  small.getContext("2d").drawImage(canvas, 0, 0);
  Object.assign(canvas, { width: small.width * size, height: small.height * size });
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  context.lineWidth = 4;
  drawTargets(context, targetsOf(head, prompt), { n: small.width, block, left: 0, top: 0, size });
}

const state = { prompt: 0, label: null, order: data.values ? "value" : "label" };

const undrawn = new Set();

function draw(button) {
  seen.unobserve(button);
  undrawn.delete(button);
  return drawThumbnail(button);
}

// Pictures on the screen are drawn first.
const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) if (isIntersecting) draw(target);
  },
  { rootMargin: "400px" },
);

// The others are drawn when the browser is idle: a print would not wait for their weights.
const whenIdle = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
let drawing = false;
async function drawRest() {
  const [next] = undrawn;
  drawing = next !== undefined;
  if (!drawing) return;
  await draw(next);
  whenIdle(drawRest);
}

function redraw() {
  for (const button of buttons) {
    seen.unobserve(button);
    seen.observe(button);
    undrawn.add(button);
  }
  if (!drawing) whenIdle(drawRest);
  drawing = true;
  for (const ramp of document.querySelectorAll(".ramp")) {
    const context = ramp.getContext("2d");
    for (let x = 0; x < 180; x++) {
      context.fillStyle = `rgb(${colours[Math.round((x / 179) * STEPS)].join(" ")})`;
      context.fillRect(x, 0, 1, 1);
    }
  }
  $("scale-words").textContent =
    "attention weight from query (down) to key (across), the same scale in every picture" +
    ($("scale").value === "root" ? "; colour by the square root of the weight" : "");
}

// The value of a head on a colour: orange above 0, purple below, white at 0.
function valueOf({ value }) {
  const digits = Math.min(4, Math.max(2, 1 - Math.floor(Math.log10(data.values.largest))));
  const element = make("u", (value < 0 ? "" : "+") + value.toFixed(digits));
  const colour = value < 0 ? "129, 112, 200" : "240, 145, 40";
  element.style.background = `rgba(${colour}, ${Math.abs(value) / data.values.largest})`;
  return element;
}

// One button per head, made once; order and filter only move them.

const buttons = data.heads.map((head) => {
  const button = make("button", "", { className: "head", type: "button", head, tabIndex: -1 });
  const words = make("span");
  words.append(make("b", head.name), make("i"));
  button.append(make("canvas"), words, make("em"));
  if (head.value !== null) button.append(valueOf(head));
  button.dataset.head = head.name;
  button.addEventListener("click", () => openHead(head));
  return button;
});

const scoreFor = (head, kind) => (kind ? (head.scores[kind] ?? null) : head.score);
const larger = (a, b) => Math.abs(b.head.value ?? 0) - Math.abs(a.head.value ?? 0);
const strongest = (kind) => (a, b) =>
  (scoreFor(b.head, kind) ?? -1) - (scoreFor(a.head, kind) ?? -1);

function arrange() {
  const wanted = $("find").value.trim().toUpperCase();
  const left = buttons.filter(
    ({ head }) =>
      (!state.label || head.labels.includes(state.label.word)) &&
      (!wanted || head.name === wanted || head.name.startsWith(`${wanted}H`)),
  );
  const kind = data.kinds.some(({ kind }) => kind === state.order) ? state.order : null;
  let groups;
  if (state.order === "label" && state.label) {
    groups = [[state.label.word, left.toSorted(strongest(state.label.kind)), state.label.kind]];
  } else if (state.order === "label") {
    groups = data.groups.map((word) => [
      word,
      left.filter(({ head }) => head.label === word).toSorted(strongest(null)),
      null,
    ]);
  } else {
    const order = state.order === "value" ? larger : kind && strongest(kind);
    groups = [["", order ? left.toSorted(order) : left, kind]];
  }
  const sections = groups
    .filter(([, members]) => members.length)
    .map(([word, members, kind]) => {
      const section = make("section");
      if (word) {
        const title = make("h2", `${word} `);
        const looks = data.looks[word] ? `: ${data.looks[word]}` : "";
        title.append(make("small", `${members.length}${looks}`));
        section.append(title);
      }
      const grid = make("div", "", { className: "grid" });
      for (const button of members) {
        const { head } = button;
        const [score, here] = [fixed(head, kind), scoreHere(head, kind)];
        button.querySelector("i").textContent = score;
        button.querySelector("em").textContent = here && `here ${here}`;
        button.title = head.labels.join(", ");
        const value = button.querySelector("u")?.textContent ?? "";
        const numbers = `${score && `, score ${score}`}${here && `, on this prompt ${here}`}${value && `, value ${value}`}`;
        button.setAttribute("aria-label", `${head.name}, ${button.title}${numbers}`);
      }
      grid.append(...members);
      section.append(grid);
      return section;
    });
  $("heads").replaceChildren(...sections);
  $("count").textContent = `${left.length} of ${buttons.length} heads`;
  $("none").hidden = left.length > 0;
  const first = $("heads").querySelector(".head");
  if (first) first.tabIndex = 0;
}

// One stop of the Tab key for all heads; arrows go from head to head.
$("heads").addEventListener("keydown", (event) => {
  const shown = [...$("heads").querySelectorAll(".head")];
  const here = shown.indexOf(document.activeElement);
  if (here < 0) return;
  const top = shown[here].getBoundingClientRect();
  const next = {
    ArrowRight: () => here + 1,
    ArrowLeft: () => here - 1,
    Home: () => 0,
    End: () => shown.length - 1,
    ArrowDown: () => beside(1),
    ArrowUp: () => beside(-1),
  }[event.key];
  if (!next) return;
  event.preventDefault();
  shown[next()]?.focus();

  // The nearest head of the next row in that direction.
  function beside(way) {
    let best = -1;
    let row = null;
    for (let i = here + way; i >= 0 && i < shown.length; i += way) {
      const box = shown[i].getBoundingClientRect();
      if (Math.abs(box.top - top.top) < 4) continue;
      row ??= box.top;
      if (Math.abs(box.top - row) >= 4) break;
      const nearer = (j) => Math.abs(shown[j].getBoundingClientRect().left - top.left);
      if (best < 0 || nearer(i) < nearer(best)) best = i;
    }
    return best;
  }
});
$("heads").addEventListener("focusin", (event) => {
  for (const button of $("heads").querySelectorAll(".head[tabindex='0']")) button.tabIndex = -1;
  event.target.tabIndex = 0;
});

function setTheme() {
  const chosen = $("theme").value;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen === "auto" ? (dark ? "dark" : "light") : chosen;
  setColours();
  redraw();
  redrawHead();
}

// Special tokens and the chat template's own, as classes and in words.
const marksOf = (text, i) => ["special", "template"].filter((mark) => text[mark].includes(i));
const WORDS = { special: "special token", template: "chat template" };
const tokensOf = (text) =>
  text.labels.map((label, i) => {
    const marks = marksOf(text, i);
    const words = [`position ${i}`, `id ${text.ids[i]}`, ...marks.map((mark) => WORDS[mark])];
    return make("bdi", label, { title: words.join(", "), className: marks.join(" ") });
  });

function setPrompt(number) {
  state.prompt = number;
  for (const id of ["prompt", "prompt-here"]) $(id).value = number;
  const prompt = data.prompts[number];
  document.documentElement.classList.toggle("whole", !prompt.causal);
  for (const mark of ["special", "template"]) {
    const some = prompt[mark].length + keysOf(prompt)[mark].length > 0;
    document.documentElement.classList.toggle(`with-${mark}`, some);
  }
  $("tokens").replaceChildren(...tokensOf(prompt));
  $("key-tokens").replaceChildren(...(prompt.keys ? tokensOf(prompt.keys) : []));
  redraw();
  if (prompt.scores) arrange();
  if (view.coming) openHead(view.coming.head);
}

function setLabel(label) {
  state.label = label;
  for (const chip of $("filters").children) {
    chip.setAttribute("aria-pressed", chip.label === label);
  }
  arrange();
}

function start() {
  document.documentElement.dataset.theme = "light";
  $("about").textContent = data.about;
  for (const prompt of data.prompts) {
    prompt.labels = prompt.labels.map(legible);
    if (prompt.keys) prompt.keys.labels = prompt.keys.labels.map(legible);
  }
  for (const id of ["prompt", "prompt-here"]) {
    $(id).append(...data.prompts.map(({ title }, i) => make("option", title, { value: i })));
    $(id).addEventListener("change", () => setPrompt(Number($(id).value)));
  }
  $("prompts-here").hidden = data.prompts.length < 2;
  const orders = data.kinds.map(({ kind, word }) => make("option", `${word} score`, { value: kind }));
  $("order").append(
    make("option", "by label, strongest first", { value: "label" }),
    make("option", "by layer and head", { value: "layer" }),
    ...orders,
  );
  if (data.values) {
    $("order").prepend(make("option", data.values.word, { value: "value" }));
    $("order").value = "value";
  }
  const all = { word: `all ${buttons.length}`, count: null };
  for (const label of [all, ...data.labels]) {
    const text = label.count === null ? label.word : `${label.word} ${label.count}`;
    const chip = make("button", text, { type: "button", label: label === all ? null : label });
    if (label !== all) chip.dataset.label = label.word;
    chip.addEventListener("click", () => setLabel(chip.label));
    $("filters").append(chip);
  }
  $("notes").append(...data.notes.map((note) => make("p", note)));
  $("order").addEventListener("change", () => {
    state.order = $("order").value;
    arrange();
  });
  $("find").addEventListener("input", arrange);
  $("theme").addEventListener("change", setTheme);
  $("outline").addEventListener("change", redraw);
  $("scale").addEventListener("change", setTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", setTheme);
  $("main").hidden = false;
  setLabel(null);
  setTheme();
  setPrompt(0);
  if (data.alone) {
    document.documentElement.classList.add("alone");
    $("view").after($("notes"));
    $("notes").open = false;
  }
  const wanted = data.alone ?? location.hash.slice(1);
  const named = data.heads.find(({ name }) => name === wanted);
  if (named) openHead(named);
}

if (typeof DecompressionStream === "undefined") $("old").hidden = false;
else addEventListener("DOMContentLoaded", start);
