// Sections of one head: soft lookup, scores by hand, turned weights, masks. Each gets its initial
// data and its element, and returns a function that returns its current numbers.

const SECTIONS = {};

SECTIONS.lookup = (data, section) => {
  const now = { angle: data.angle, temperature: data.temperature };
  const controls = part(section, "controls");
  const turn = slider(controls, {
    name: "query direction", min: -180, max: 180, step: 1, value: now.angle,
    words: (x) => `${number(x, 0)}°`,
    input: (x) => { now.angle = x; draw(); },
  });
  slider(controls, {
    name: "temperature", min: -2, max: 1, step: 0.02, value: Math.log10(now.temperature),
    words: (x) => number(10 ** x, 3),
    input: (x) => { now.temperature = 10 ** x; draw(); },
  });
  const both = part(section, "both");
  const circle = drawn("svg", { viewBox: "-130 -130 260 260", class: "plane", role: "img" });
  circle.setAttribute("aria-label", "Six keys on a circle, each in the colour of its value; the query is an arrow");
  const arrow = drawn("line", { x1: 0, y1: 0, stroke: "var(--ink)", "stroke-width": 4, "stroke-linecap": "round" });
  const dots = data.keys.map(([x, y], i) =>
    drawn("circle", { cx: 100 * x, cy: -100 * y, stroke: "var(--ink)", fill: `rgb(${data.values[i].join(" ")})` }),
  );
  circle.append(drawn("circle", { r: 100, fill: "none", stroke: "var(--line)" }), arrow, ...dots);
  both.append(circle);
  const point = (event) => {
    const box = circle.getBoundingClientRect();
    const [x, y] = [event.clientX - box.x - box.width / 2, box.y + box.height / 2 - event.clientY];
    now.angle = Math.round((Math.atan2(y, x) * 180) / Math.PI);
    turn.set(now.angle);
    draw();
  };
  circle.addEventListener("pointerdown", (event) => {
    circle.setPointerCapture(event.pointerId);
    point(event);
  });
  circle.addEventListener("pointermove", (event) => event.buttons && point(event));
  const side = part(both, "side");
  const bars = data.names.map((name, i) => {
    const row = part(side, "bar-row");
    const fill = make("i");
    fill.style.background = `rgb(${data.values[i].join(" ")})`;
    const readout = make("output");
    const track = make("span", "", { className: "track" });
    track.append(fill);
    row.append(make("span", name), track, readout);
    return { fill, readout };
  });
  const result = part(side, "result");
  const swatch = make("i", "", { className: "blend" });
  const readout = make("output");
  result.append(swatch, readout);

  let state;
  function draw() {
    const angle = (now.angle * Math.PI) / 180;
    const query = [Math.cos(angle), Math.sin(angle)];
    const weights = softmax(scoresOf([query], data.keys, 1 / now.temperature))[0];
    const out = matmul([weights], data.values)[0];
    state = { ...now, query, keys: data.keys, values: data.values, weights, out };
    arrow.setAttribute("x2", 84 * query[0]);
    arrow.setAttribute("y2", -84 * query[1]);
    weights.forEach((w, i) => {
      dots[i].setAttribute("r", 6 + 18 * Math.sqrt(w));
      bars[i].fill.style.width = `${100 * w}%`;
      bars[i].readout.textContent = number(w, 3);
    });
    swatch.style.background = `rgb(${out.join(" ")})`;
    readout.textContent = `output: red ${number(out[0], 0)}, green ${number(out[1], 0)}, blue ${number(out[2], 0)}`;
  }
  draw();
  return () => state;
};

SECTIONS.scores = (data, section) => {
  const now = { causal: false, row: 0 };
  let example, scores, views, state;
  const controls = part(section, "controls");
  choice(controls, "Example", data.examples.map(({ name }) => name), begin);
  toggle(controls, "causal mask", false, (on) => { now.causal = on; draw(); });
  button(controls, "add 1 to the selected row", () => {
    scores[now.row] = scores[now.row].map((s) => s + 1);
    draw();
  });
  button(controls, "reset", () => begin(data.examples.indexOf(example)));
  const both = part(section, "both matrices");
  const readout = make("p", "", { className: "readout" });
  readout.setAttribute("role", "status");
  const picture = part(section, "picture");
  section.append(readout);

  function begin(index) {
    example = data.examples[index];
    scores = example.scores.map((row) => [...row]);
    now.row = 0;
    both.replaceChildren();
    picture.replaceChildren();
    const choose = (i) => { now.row = i; draw(); };
    const { words } = example;
    const change = (i, j, value) => {
      scores[i][j] = value;
      now.row = i;
      draw();
    };
    const outs = example.values[0].map((_, i) => `v${i + 1}`);
    views = {
      scores: matrix(both, { name: "scores S: drag a cell", rows: words, look: "score", choose, change }),
      pattern: matrix(both, { name: "weights A = softmax(S)", rows: words, choose }),
      out: matrix(both, { name: "output A V", rows: words, columns: outs, look: "plain", choose }),
      arcs: arcs(picture, words, "attention"),
    };
    draw();
  }

  function draw() {
    const { words, values } = example;
    const mask = now.causal ? causal(words.length) : null;
    const hidden = hide(scores, mask);
    const pattern = softmax(hidden);
    const out = matmul(pattern, values);
    state = { causal: now.causal, row: now.row, scores, hidden, values, pattern, out };
    views.scores.show(hidden, now.row);
    views.pattern.show(pattern, now.row);
    views.out.show(out, now.row);
    views.arcs(now.row, pattern[now.row]);
    const line = pattern[now.row];
    const most = line.indexOf(Math.max(...line));
    const sum = line.reduce((total, w) => total + w, 0);
    readout.textContent = `${words[now.row]} attends most to ${words[most]}: ${number(line[most], 4)}. Its row sums to ${number(sum, 4)}.`;
  }
  begin(0);
  return () => state;
};

SECTIONS.turned = (data, section) => {
  const start = { query_angle: data.query_angle, key_angle: data.key_angle, gain: data.gain };
  const now = { ...start, row: 5, causal: false };
  const controls = part(section, "controls");
  const degrees = (x) => `${number(x, 1)}°`;
  const sliders = {
    query_angle: slider(controls, {
      name: "rotation of W_Q", min: -180, max: 180, step: 0.5, value: now.query_angle, words: degrees,
      input: (x) => { now.query_angle = x; draw(); },
    }),
    key_angle: slider(controls, {
      name: "rotation of W_K", min: -180, max: 180, step: 0.5, value: now.key_angle, words: degrees,
      input: (x) => { now.key_angle = x; draw(); },
    }),
    gain: slider(controls, {
      name: "gain", min: 0, max: 120, step: 1, value: now.gain, words: (x) => number(x, 0),
      input: (x) => { now.gain = x; draw(); },
    }),
  };
  const buttons = part(section, "controls");
  const to = (values) => () => {
    Object.assign(now, values);
    for (const [name, one] of Object.entries(sliders)) one.set(now[name]);
    draw();
  };
  button(buttons, "one step back", to({ query_angle: data.step, key_angle: 0, gain: 100 }));
  button(buttons, "same rotation", to({ query_angle: 60, key_angle: 60 }));
  button(buttons, "reset", to(start));
  toggle(buttons, "causal mask", false, (on) => { now.causal = on; draw(); });
  const both = part(section, "both");
  const plane = drawn("svg", { viewBox: "-150 -140 300 280", class: "plane", role: "img" });
  plane.setAttribute("aria-label", "Queries and keys as points in the plane");
  both.append(plane);
  const side = part(both, "side");
  const choose = (i) => { now.row = i; draw(); };
  const pattern = matrix(side, { name: "weights A", rows: data.words, choose });
  const legend = make("p", "", { className: "quiet" });
  legend.textContent = "Each word's key (filled) and query (open); only directions are drawn, not lengths. Lines go from the selected query to its keys, as thick as the weight.";
  side.append(legend);

  let state;
  function draw() {
    const W_Q = turning(now.query_angle, now.gain);
    const W_K = turning(now.key_angle, now.gain);
    const [q, k] = [matmul(data.x, W_Q), matmul(data.x, W_K)];
    const scores = hide(scoresOf(q, k), now.causal ? causal(data.x.length) : null);
    const A = softmax(scores);
    state = { ...now, x: data.x, W_Q, W_K, scores, pattern: A, out: matmul(A, data.x) };
    pattern.show(A, now.row);
    // Only directions: the gain shows in the sharpness of A.
    const queries = matmul(data.x, turning(now.query_angle, Math.SQRT1_2));
    const keys = matmul(data.x, turning(now.key_angle, Math.SQRT1_2));
    const at = ([x, y], far) => [far * x, -far * y];
    const lines = keys.map((key, j) => {
      const [[x1, y1], [x2, y2]] = [at(queries[now.row], 84), at(key, 100)];
      return drawn("line", { x1, y1, x2, y2, stroke: "var(--focus)", "stroke-width": 7 * A[now.row][j], "stroke-linecap": "round", opacity: 0.7 });
    });
    const marks = data.words.flatMap((word, i) => {
      const [[qx, qy], [kx, ky], [tx, ty]] = [at(queries[i], 84), at(keys[i], 100), at(keys[i], 112)];
      const chosen = i === now.row;
      return [
        drawn("circle", { cx: kx, cy: ky, r: 6, fill: "var(--full)" }),
        drawn("circle", { cx: qx, cy: qy, r: chosen ? 8 : 5, fill: "var(--card)", stroke: chosen ? "var(--accent)" : "var(--full)", "stroke-width": chosen ? 4 : 2 }),
        drawn("text", { x: tx, y: ty + 4, "text-anchor": tx > 30 ? "start" : tx < -30 ? "end" : "middle" }, word),
      ];
    });
    plane.replaceChildren(drawn("circle", { r: 100, fill: "none", stroke: "var(--line)" }), ...lines, ...marks);
  }
  draw();
  return () => state;
};

SECTIONS.masks = (data, section) => {
  const n = data.words.length;
  const now = { causal: true, window: n, padding: 0 };
  const controls = part(section, "controls");
  toggle(controls, "causal", true, (on) => { now.causal = on; draw(); });
  slider(controls, {
    name: "window", min: 1, max: n, step: 1, value: n,
    words: (x) => (x === n ? "no limit" : `${x} nearest`),
    input: (x) => { now.window = x; draw(); },
  });
  slider(controls, {
    name: "padding at start", min: 0, max: n - 1, step: 1, value: 0, words: (x) => `${x}`,
    input: (x) => { now.padding = x; draw(); },
  });
  const both = part(section, "both matrices");
  const scores = matrix(both, { name: "scores S, −∞ where hidden", rows: data.words, look: "score", digits: 1 });
  const pattern = matrix(both, { name: "weights A, rows sum to 1 (empty rows to 0)", rows: data.words });
  const readout = make("p", "", { className: "readout" });
  readout.setAttribute("role", "status");
  section.append(readout);

  let state;
  function draw() {
    const mask = allowed(
      n,
      (query, key) =>
        (!now.causal || key <= query) && Math.abs(query - key) < now.window && key >= now.padding,
    );
    const hidden = hide(data.scores, mask);
    const A = softmax(hidden);
    state = { ...now, scores: data.scores, mask, hidden, pattern: A };
    scores.show(hidden);
    pattern.show(A);
    const seen = mask.flat().filter(Boolean).length;
    const empty = mask.filter((row) => !row.includes(true)).length;
    readout.textContent =
      `${seen} of ${n * n} pairs are allowed` +
      (empty ? `; ${empty} ${empty === 1 ? "query has" : "queries have"} no key, and a row of zeros.` : ".");
  }
  draw();
  return () => state;
};
