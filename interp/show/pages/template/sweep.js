// A sweep: a card per kind with curves and a map of layers, and a table of onsets. It uses the
// helpers of lab_widgets.js. Text from outside reaches the page only through textContent.

const data = JSON.parse($("data").textContent);
const system = matchMedia("(prefers-color-scheme: dark)");
const [LEFT, WIDE, TALL, EDGE] = [30, 300, 120, 6];
const now = { model: 0, head: -1 };

// Steps on a linear scale, or on a logarithmic one if they span more than a factor of 300.
const every = data.models.flatMap((model) => model.steps);
const [first, last] = [every.reduce((a, b) => Math.min(a, b)), every.reduce((a, b) => Math.max(a, b))];
const least = every.reduce((a, b) => (b > 0 ? Math.min(a, b) : a), Infinity);
const share = (step) => {
  if (last === first) return 0.5;
  if (last / least <= 300) return (step - first) / (last - first);
  return step <= 0 ? 0 : 0.08 + (0.92 * Math.log(step / least)) / Math.log(last / least);
};
const x = (step) => LEFT + share(step) * (WIDE - LEFT - EDGE);
const y = (score) => EDGE + (1 - score / 1000) * (TALL - 2 * EDGE);

// The head of the highest score at a checkpoint, of all or of one layer; -1 without one.
function strongest(model, kind, at, layer = -1) {
  const scores = model.kinds[kind]?.[0] ?? [];
  let best = -1;
  scores.forEach((line, head) => {
    if (line[at] === null || (layer >= 0 && model.layer[head] !== layer)) return;
    if (best < 0 || line[at] > scores[best][at]) best = head;
  });
  return best;
}
const tops = (model, kind) =>
  model.steps.map((_, at) => model.kinds[kind]?.[0][strongest(model, kind, at)]?.[at] ?? null);

function line(model, values, name) {
  const points = model.steps.map((step, at) => [x(step), values[at]]).filter(([, value]) => value !== null);
  if (points.length === 1) points.push([points[0][0] + 3, points[0][1]]);
  return drawn("path", { class: name, d: points.map(([across, value], i) => `${i ? "L" : "M"}${across.toFixed(1)} ${y(value).toFixed(1)}`).join("") });
}
function area(model, low, high, name) {
  const ends = model.steps.map((step, at) => [step, low[at], high[at]]).filter((one) => one[1] !== null && one[2] !== null);
  const there = ends.map(([step, , value]) => `${x(step).toFixed(1)} ${y(value).toFixed(1)}`);
  const back = ends.map(([step, value]) => `${x(step).toFixed(1)} ${y(value).toFixed(1)}`).reverse();
  return drawn("path", { class: name, d: there.length ? `M${[...there, ...back].join("L")}Z` : "" });
}

const cards = data.kinds.map(({ kind, word }) => {
  const card = make("section", "", { className: "card" });
  const picture = drawn("svg", { viewBox: `0 0 ${WIDE} ${TALL + 14}`, role: "img" });
  const map = make("canvas");
  map.setAttribute("role", "img");
  const cell = (event) => {
    const [box, model] = [map.getBoundingClientRect(), data.models[now.model]];
    const at = Math.floor(((event.clientX - box.x) / box.width) * map.width);
    const layer = Math.floor(((event.clientY - box.y) / box.height) * map.height);
    return { model, at, layer, head: strongest(model, kind, at, layer) };
  };
  map.addEventListener("pointermove", (event) => {
    const { model, at, layer, head } = cell(event);
    if (head < 0) return;
    const score = number(model.kinds[kind][0][head][at] / 1000, 3);
    map.title = `step ${model.steps[at]}, layer ${layer}: ${model.heads[head]} ${score}`;
  });
  map.addEventListener("click", (event) => choose({ head: cell(event).head }));
  card.append(make("h2", word), picture, map);
  $("cards").append(card);

  const curves = data.models.map((model, at) => {
    const curve = line(model, tops(model, kind), "model");
    curve.append(drawn("title", {}, model.name));
    curve.addEventListener("click", () => choose({ model: at, head: -1 }));
    return curve;
  });
  return () => {
    const model = data.models[now.model];
    const own = (model.kinds[kind] ?? []).map((lines) => lines[now.head]);
    const parts = [0, 0.5, 1].flatMap((score) => [
      drawn("path", { class: "rule", d: `M${LEFT} ${y(1000 * score)}H${WIDE - EDGE}` }),
      drawn("text", { x: LEFT - 4, y: y(1000 * score) + 3, "text-anchor": "end" }, `${score}`),
    ]);
    parts.push(drawn("text", { x: LEFT, y: TALL + 10 }, `step ${first}`));
    if (last > first) parts.push(drawn("text", { x: WIDE - EDGE, y: TALL + 10, "text-anchor": "end" }, `${last}`));
    curves.forEach((curve, at) => curve.setAttribute("class", at === now.model ? "model chosen" : "model"));
    if (own[0]) parts.push(area(model, own[3].map((value) => value && 0), own[3], "null"));
    parts.push(...curves.filter((_, at) => at !== now.model), curves[now.model]);
    if (own[0]) parts.push(area(model, own[1], own[2], "band"), line(model, own[0], "head-line"));
    picture.replaceChildren(...parts);
    picture.setAttribute("aria-label", `${word}: the strongest head of ${model.name} ends at ${number((tops(model, kind).at(-1) ?? 0) / 1000)}`);

    Object.assign(map, { width: model.steps.length, height: Math.max(...model.layer) + 1 });
    map.style.height = `${Math.min(12 * map.height, 160)}px`;
    map.setAttribute("aria-label", `${word} by layer and checkpoint in ${model.name}`);
    const ink = map.getContext("2d");
    model.steps.forEach((_, at) => {
      for (let layer = 0; layer < map.height; layer++) {
        const head = strongest(model, kind, at, layer);
        ink.fillStyle = `rgb(8 47 107 / ${head < 0 ? 0 : model.kinds[kind][0][head][at] / 1000})`;
        ink.fillRect(at, layer, 1, 1);
      }
    });
  };
});

function table() {
  const model = data.models[now.model];
  const rows = model.onsets.filter(([, kind]) => !$("kind").value || kind === $("kind").value);
  $("onsets").replaceChildren(
    ...rows.map(([name, kind, after, onset, labelled]) => {
      const row = make("tr");
      const pick = make("button", name, { type: "button" });
      pick.addEventListener("click", () => choose({ head: model.heads.indexOf(name) }));
      const word = data.kinds.find((one) => one.kind === kind).word;
      const cells = [pick, word, onset, after ?? "-", labelled ?? "-"].map((content) => {
        const td = make("td");
        td.append(content);
        return td;
      });
      row.append(...cells);
      return row;
    }),
  );
}

function choose(change) {
  Object.assign(now, change);
  const model = data.models[now.model];
  $("model").value = now.model;
  $("head").replaceChildren(make("option", "none", { value: -1 }), ...model.heads.map((name, value) => make("option", name, { value })));
  $("head").value = now.head;
  $("whose").textContent = model.name;
  const labels = now.head < 0 ? "" : `${model.heads[now.head]} of ${model.name}: ${model.labels[now.head]}`;
  $("readout").textContent = labels || "Choose a head to see its own curve.";
  for (const draw of cards) draw();
  table();
}

function setTheme() {
  const chosen = $("theme").value;
  document.documentElement.dataset.theme = chosen === "auto" ? (system.matches ? "dark" : "light") : chosen;
}
$("theme").addEventListener("change", setTheme);
system.addEventListener("change", setTheme);
setTheme();
$("model").append(...data.models.map((model, value) => make("option", model.name, { value })));
$("kind").append(make("option", "all", { value: "" }), ...data.kinds.map(({ kind, word }) => make("option", word, { value: kind })));
$("model").addEventListener("change", () => choose({ model: Number($("model").value), head: -1 }));
$("head").addEventListener("change", () => choose({ head: Number($("head").value) }));
$("kind").addEventListener("change", table);
document.querySelector("main").append(...data.notes.map((note) => make("p", note, { className: "quiet" })));
choose({});
