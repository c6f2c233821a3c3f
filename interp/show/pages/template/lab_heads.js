// Sections of many heads: mixed by switches, the circuit of two layers, cost, the zoo.

SECTIONS.mixed = (data, section) => {
  const modes = [
    { name: "one V for all heads: the word", brings: data.heads.map(() => 1) },
    ...["previous token", "sink"].map((only) => ({
      name: `only the ${only} head brings its word`,
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
  const mixed = matrix(both, { name: "mixed pattern, the sum of g A", rows: words, choose });
  const output = matrix(both, { name: "output: which words come, the sum of g A V", rows: words, choose });
  const said = make("p", "", { className: "readout" });
  said.setAttribute("role", "status");
  section.append(said);

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
    said.textContent =
      apart < 1e-9
        ? "The mixed pattern times V is the output: one pattern says it all."
        : `The mixed pattern times V differs from the output by up to ${number(apart)}: no one pattern says what comes out.`;
  }
  draw();
  return () => state;
};

SECTIONS.circuit = (data, section) => {
  // Where the sentence begins again.
  const now = { at: data.words.lastIndexOf(data.words[1]), on: true };
  const last = data.words.length - 1;
  const controls = part(section, "controls");
  const go = (to) => { now.at = Math.min(Math.max(to, 0), last); place.set(now.at); draw(); };
  button(controls, "token before", () => go(now.at - 1));
  button(controls, "token after", () => go(now.at + 1));
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
  stream.append(make("p", "What the residual stream holds at the chosen token, read in the circuit's own directions:", { className: "quiet" }));
  const lines = [
    ["token", "embedding"],
    ["before", `${data.previous} wrote`],
    ["said", `${data.induction} wrote`],
    ["next", "the model says next"],
  ].map(([key, words]) => {
    const row = make("tr");
    const cell = make("td");
    row.append(make("th", words, { scope: "row" }), cell);
    table.append(row);
    return { key, cell };
  });
  stream.append(table);
  const said = make("p", "", { className: "readout" });
  said.setAttribute("role", "status");
  section.append(said);

  let state;
  const strongest = (row) => {
    const most = Math.max(...row);
    return most < 0.3 ? "no word" : `${data.vocabulary[row.indexOf(most)]} (${number(most)})`;
  };
  function draw() {
    const { at } = now;
    const run = now.on ? data.with_head : data.without_head;
    state = { at, on: now.on, previous: run.previous[at], induction: run.induction[at], next: run.next[at] };
    titles[0].textContent = `Layer 0, ${data.previous}: ${now.on ? "looks at the token before, and writes it beside the token" : "taken out; an idle head rests on the first token"}`;
    titles[1].textContent = `Layer 1, ${data.induction}: looks for its own token in what layer 0 wrote${now.on ? "" : ", which is nothing"}`;
    pictures[0](at, run.previous[at]);
    pictures[1](at, run.induction[at]);
    for (const { key, cell } of lines) cell.textContent = strongest(run[key][at]);
    const next = run.next[at];
    const guess = next.indexOf(Math.max(...next));
    const truth = data.words[at + 1];
    const heard = next[guess] < 0.3
      ? "has nothing to say: no word stands out."
      : `says “${data.vocabulary[guess]}”, with probability ${number(next[guess], 3)}.`;
    said.textContent = `At “${data.words[at]}” (${at}) the model ${heard}${truth === undefined ? "" : ` What follows is “${truth}”.`}`;
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
    tile: ["side of a tile", powers(4, 10)],
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
        // Heads share keys evenly, so there are never more key-value heads than query heads.
        if (key === "heads" && now.kv_heads > now.heads) now.kv_heads = now.heads;
        if (key === "kv_heads" && now.heads < now.kv_heads) now.heads = now.kv_heads;
        for (const other of ["heads", "kv_heads"]) sliders[other].set(ranges[other][1].indexOf(now[other]));
        draw();
      },
    });
  }
  const said = make("p", "", { className: "readout" });
  said.setAttribute("role", "status");
  const table = make("table", "", { className: "costs" });
  section.append(said, table);
  const scaled = (x, base, units) => {
    const power = Math.min(x < 1 ? 0 : Math.floor(Math.log(x) / Math.log(base) + 1e-9), units.length - 1);
    return `${(x / base ** power).toPrecision(4).replace(/\.?0+$/, "")} ${units[power]}`;
  };
  const operations = (x) => scaled(x, 1000, ["", "thousand", "million", "billion", "trillion", "thousand trillion"]);
  const bytes = (x) => scaled(x, 1024, ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"]);
  const rows = [
    ["projections", "projections of a layer, operations", operations],
    ["pairs", "pairs of a layer, 4 n² d, operations", operations],
    ["window_pairs", "pairs within the window, 4 n w d, operations", operations],
    ["score_bytes", "all scores of a layer, float32", bytes],
    ["tile_bytes", "one tile of scores instead", bytes],
    ["cache_bytes", "keys and values kept, all layers, 16 bits", bytes],
    ["window_cache_bytes", "the same of the window alone", bytes],
    ["reach", "how far back the windows reach, layers (w − 1), n − 1 at most", (x) => `${x.toLocaleString("en")} tokens`],
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
    said.textContent = `Pairs cost ${ratio.toPrecision(3)} times what the projections cost. A cache with one key-value head for each query head would be ${now.heads / now.kv_heads} times as large.`;
  }
  draw();
  return () => state;
};

SECTIONS.zoo = (data, section) => {
  section.append(make("p", data.about, { className: "quiet" }));
  const said = make("p", "Point at a picture, or move in it with the arrow keys.", { className: "readout" });
  said.setAttribute("role", "status");
  section.append(said);
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
      canvas.setAttribute("aria-label", `${kind.name}, ${name}: queries down, keys across`);
      const image = canvas.getContext("2d").createImageData(n, n);
      pattern.forEach((row, i) => row.forEach((w, j) => image.data.set([8, 47, 107, Math.round(255 * w)], 4 * (i * n + j))));
      canvas.getContext("2d").putImageData(image, 0, 0);
      const read = (query, key) => {
        said.textContent = `${kind.name}, ${name}: query ${query} ${data.words[query]} to key ${key} ${data.words[key]}: ${key > query ? "out of sight" : number(pattern[query][key], 3)}`;
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
