// Sections of several heads: mixed by switches, the two-layer circuit, cost, the zoo.

SECTIONS.mixed = (data, section) => {
  const modes = [
    { name: "one V for all heads: the one-hot word", brings: data.heads.map(() => 1) },
    ...["previous token", "sink"].map((only) => ({
      name: `only the ${only} head adds its word`,
      brings: data.heads.map((head) => Number(head === only)),
    })),
  ];
  const now = { gates: data.heads.map((_, i) => Number(i === 0)), mode: 0, row: 5 };
  const { x, words } = data;
  const values = x.map((row) => row.slice(data.first_word));
  const mask = causal(words.length);
  const patterns = data.heads.map((_, h) =>
    softmax(hide(scoresOf(matmul(x, data.W_Q[h]), matmul(x, data.W_K[h])), mask)),
  );
  const boxes = part(section, "both heads");
  data.heads.forEach((head, h) => {
    const box = part(boxes, "card");
    matrix(box, { name: head, rows: words, small: true }).show(patterns[h]);
    slider(box, {
      name: "switch", min: 0, max: 1, step: 0.05, value: now.gates[h],
      input: (g) => { now.gates[h] = g; draw(); },
    });
  });
  const controls = part(section, "controls");
  choice(controls, "Values", modes.map(({ name }) => name), (mode) => { now.mode = mode; draw(); });
  const both = part(section, "both matrices");
  const choose = (i) => { now.row = i; draw(); };
  const mixed = matrix(both, { name: "mixed pattern, sum of g A", rows: words, choose });
  const output = matrix(both, { name: "output, weight of each word: sum of g A V", rows: words, choose });
  const readout = make("p", "", { className: "readout" });
  readout.setAttribute("role", "status");
  section.append(readout);

  let state;
  function draw() {
    const { brings } = modes[now.mode];
    const zero = times(patterns[0], 0);
    const sum = patterns.map((A, h) => times(A, now.gates[h])).reduce(plus, zero);
    const out = patterns
      .map((A, h) => times(matmul(A, values), now.gates[h] * brings[h]))
      .reduce(plus, times(values, 0));
    const by_pattern = matmul(sum, values);
    state = { gates: now.gates, brings, patterns, mixed: sum, out, by_pattern };
    mixed.show(sum, now.row);
    output.show(out, now.row);
    const apart = Math.max(...out.flatMap((row, i) => row.map((v, j) => Math.abs(v - by_pattern[i][j]))));
    readout.textContent =
      apart < 1e-9
        ? "The mixed pattern times V equals the output: one pattern determines it."
        : `The mixed pattern times V differs from the output by up to ${number(apart)}: no single pattern determines the output.`;
  }
  draw();
  return () => state;
};

SECTIONS.circuit = (data, section) => {
  // The start of the repeat.
  const now = { at: data.words.lastIndexOf(data.words[1]), on: true };
  const last = data.words.length - 1;
  const controls = part(section, "controls");
  const go = (to) => { now.at = Math.min(Math.max(to, 0), last); place.set(now.at); draw(); };
  button(controls, "previous token", () => go(now.at - 1));
  button(controls, "next token", () => go(now.at + 1));
  const place = slider(controls, {
    name: "token", min: 0, max: last, step: 1, value: now.at, words: (i) => `${i}: ${data.words[i]}`,
    input: go,
  });
  toggle(controls, `previous-token head ${data.previous}`, true, (on) => { now.on = on; draw(); });
  const titles = [];
  const pictures = [data.previous, data.induction].map((head) => {
    const box = part(section, "picture");
    titles.push(make("h3"));
    box.append(titles.at(-1));
    return arcs(box, data.words, head);
  });
  const stream = part(section, "stream");
  const table = make("table");
  stream.append(make("p", "Contents of the residual stream at the selected token, read in the circuit's own directions:", { className: "quiet" }));
  const lines = [
    ["token", "embedding"],
    ["before", `${data.previous} wrote`],
    ["copied", `${data.induction} wrote`],
    ["next", "predicted next token"],
  ].map(([key, words]) => {
    const row = make("tr");
    const cell = make("td");
    row.append(make("th", words, { scope: "row" }), cell);
    table.append(row);
    return { key, cell };
  });
  stream.append(table);
  const readout = make("p", "", { className: "readout" });
  readout.setAttribute("role", "status");
  section.append(readout);

  let state;
  const strongest = (row) => {
    const most = Math.max(...row);
    return most < 0.3 ? "no word" : `${data.vocabulary[row.indexOf(most)]} (${number(most)})`;
  };
  function draw() {
    const { at } = now;
    const run = now.on ? data.with_head : data.without_head;
    state = { at, on: now.on, previous: run.previous[at], induction: run.induction[at], next: run.next[at] };
    titles[0].textContent = `Layer 0, ${data.previous}: ${now.on ? "attends to the previous token and writes it into the stream" : "off; an idle head attends to the first token"}`;
    titles[1].textContent = `Layer 1, ${data.induction}: searches the output of layer 0 for the current token${now.on ? "" : ", which is empty"}`;
    pictures[0](at, run.previous[at]);
    pictures[1](at, run.induction[at]);
    for (const { key, cell } of lines) cell.textContent = strongest(run[key][at]);
    const next = run.next[at];
    const guess = next.indexOf(Math.max(...next));
    const truth = data.words[at + 1];
    const prediction = next[guess] < 0.3
      ? "has no prediction: every word has a probability below 0.3."
      : `predicts “${data.vocabulary[guess]}” with probability ${number(next[guess], 3)}.`;
    readout.textContent = `At “${data.words[at]}” (${at}) the model ${prediction}${truth === undefined ? "" : ` The next token is “${truth}”.`}`;
  }
  draw();
  return () => state;
};

SECTIONS.cost = (data, section) => {
  const powers = (low, high) => Array.from({ length: high - low + 1 }, (_, i) => 2 ** (low + i));
  const ranges = {
    n: ["n, tokens", powers(6, 20)],
    d: ["d, width", powers(7, 14)],
    heads: ["query heads", powers(0, 6)],
    kv_heads: ["key-value heads", powers(0, 6)],
    layers: ["layers", [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96]],
    window: ["window, keys", powers(4, 20)],
    tile: ["tile side", powers(4, 10)],
  };
  const now = { ...data };
  const controls = part(section, "controls");
  const sliders = {};
  for (const [key, [name, steps]] of Object.entries(ranges)) {
    sliders[key] = slider(controls, {
      name, min: 0, max: steps.length - 1, step: 1, value: steps.indexOf(now[key]),
      words: (i) => steps[i].toLocaleString("en"),
      input: (i) => {
        now[key] = steps[i];
        // Query heads share keys evenly, so they are at least as many as key-value heads.
        if (key === "heads" && now.kv_heads > now.heads) now.kv_heads = now.heads;
        if (key === "kv_heads" && now.heads < now.kv_heads) now.heads = now.kv_heads;
        for (const other of ["heads", "kv_heads"]) sliders[other].set(ranges[other][1].indexOf(now[other]));
        draw();
      },
    });
  }
  const readout = make("p", "", { className: "readout" });
  readout.setAttribute("role", "status");
  const table = make("table", "", { className: "costs" });
  section.append(readout, table);
  const scaled = (x, base, units) => {
    const power = Math.min(x < 1 ? 0 : Math.floor(Math.log(x) / Math.log(base) + 1e-9), units.length - 1);
    return `${(x / base ** power).toPrecision(4).replace(/\.?0+$/, "")} ${units[power]}`;
  };
  const operations = (x) => scaled(x, 1000, ["", "thousand", "million", "billion", "trillion", "thousand trillion"]);
  const bytes = (x) => scaled(x, 1024, ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"]);
  const rows = [
    ["projections", "projections per layer, 4 n d² (1 + kv heads / heads), operations", operations],
    ["pairs", "pairs per layer, 4 n² d, operations", operations],
    ["window_pairs", "pairs per layer within the window, 4 n w d, operations", operations],
    ["score_bytes", "all scores of a layer, float32", bytes],
    ["tile_bytes", "one tile of scores, one head, float32", bytes],
    ["cache_bytes", "cache of keys and values, all layers, 16 bits", bytes],
    ["window_cache_bytes", "cache of the window only", bytes],
    ["reach", "reach of the windows, layers (w − 1), at most n − 1", (x) => `${x.toLocaleString("en")} tokens`],
  ].map(([key, name, words]) => {
    const row = make("tr");
    const cell = make("td");
    row.append(make("th", name, { scope: "row" }), cell);
    table.append(row);
    return { key, cell, words };
  });

  let state;
  function draw() {
    const cost = costOf(now);
    state = { ...now, cost };
    for (const { key, cell, words } of rows) cell.textContent = words(cost[key]);
    const ratio = cost.pairs / cost.projections;
    readout.textContent = `Pairs cost ${ratio.toPrecision(3)} times as much as projections. With a key-value head for each query head, the cache would be ${now.heads / now.kv_heads} times as large.`;
  }
  draw();
  return () => state;
};

SECTIONS.zoo = (data, section) => {
  section.append(make("p", data.about, { className: "quiet" }));
  const readout = make("p", "Point at a pattern, or move in it with the arrow keys, to read a weight.", { className: "readout" });
  readout.setAttribute("role", "status");
  section.append(readout);
  const kinds = part(section, "zoo");
  const n = data.words.length;
  for (const kind of data.kinds) {
    const box = part(kinds, "card");
    box.append(make("h3", kind.name), make("p", kind.looks, { className: "quiet" }));
    const pair = part(box, "pair");
    for (const [name, pattern] of [["ideal", kind.ideal], [kind.head, kind.pattern]]) {
      const figure = make("figure");
      const canvas = make("canvas", "", { width: n, height: n, tabIndex: 0, className: "ink" });
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `${kind.name}, ${name}: rows are queries, columns keys`);
      const image = canvas.getContext("2d").createImageData(n, n);
      pattern.forEach((row, i) => row.forEach((w, j) => image.data.set([8, 47, 107, Math.round(255 * w)], 4 * (i * n + j))));
      canvas.getContext("2d").putImageData(image, 0, 0);
      const read = (query, key) => {
        readout.textContent = `${kind.name}, ${name}: query ${query} ${data.words[query]} to key ${key} ${data.words[key]}: ${key > query ? "hidden" : number(pattern[query][key], 3)}`;
      };
      const here = [n - 1, 0];
      canvas.addEventListener("pointermove", (event) => {
        const box = canvas.getBoundingClientRect();
        const cell = (x, size) => Math.min(Math.max(Math.floor((x / size) * n), 0), n - 1);
        read(cell(event.clientY - box.y, box.height), cell(event.clientX - box.x, box.width));
      });
      canvas.addEventListener("keydown", (event) => {
        const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
        if (!step) return;
        event.preventDefault();
        for (const i of [0, 1]) here[i] = Math.min(Math.max(here[i] + step[i], 0), n - 1);
        read(...here);
      });
      const caption = kind.head === name ? `${name}, score ${number(kind.score)}` : name;
      figure.append(canvas, make("figcaption", caption));
      pair.append(figure);
    }
  }
  return () => ({ kinds: data.kinds });
};
