// The controls and pictures of the sections: matrices, arcs, sliders. Text from outside reaches the
// page only through textContent. CSS mixes the colours, so a new theme needs no redrawing.

const $ = (id) => document.getElementById(id);
const make = (tag, text = "", more = {}) => {
  const element = Object.assign(document.createElement(tag), more);
  element.textContent = text;
  return element;
};
const drawn = (tag, more = {}, text = "") => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(more)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
};
const number = (x, digits = 2) => {
  if (x === -Infinity) return "−∞";
  const text = x.toFixed(digits);
  return (Number(text) === 0 ? (0).toFixed(digits) : text).replace("-", "−");
};

// Look of a cell: a weight from 0 to 1, or a score, with a colour for its sign and size.
const LOOKS = {
  plain() {},
  weight(cell, w) {
    cell.classList.add("weight");
    cell.style.setProperty("--w", Math.min(Math.abs(w), 1));
  },
  score(cell, s) {
    const side = s < 0 ? "var(--focus)" : "var(--accent)";
    const share = s === -Infinity ? 0 : Math.min(Math.abs(s) / 4, 1) * 60;
    cell.style.background = `color-mix(in oklab, ${side} ${share}%, var(--card))`;
    cell.classList.toggle("hidden-score", s === -Infinity);
  },
};

// A matrix with words at its sides. Arrow keys go from cell to cell. In an editable matrix + and -
// change a cell, and so does dragging it up or down, from -MOST to MOST: beyond that every visible
// digit of a weight is that of 0 or 1.
const MOST = 20;

function matrix(host, { name, rows, columns = rows, look = "weight", small = false, digits = 2, choose, change }) {
  const table = make("table", "", { className: `matrix${small ? " small" : ""}${change ? " editable" : ""}` });
  table.setAttribute("role", "grid");
  table.setAttribute("aria-label", name);
  table.append(make("caption", name));
  const head = make("tr");
  head.append(make("td", "", { className: "corner" }), ...columns.map((word) => make("th", word, { scope: "col" })));
  if (!small) table.append(head);
  let values = [];
  const cells = rows.map((word, i) => {
    const row = make("tr");
    if (!small) row.append(make("th", word, { scope: "row" }));
    const line = columns.map((_, j) => {
      const cell = make("td", "", { tabIndex: i + j === 0 ? 0 : -1 });
      cell.setAttribute("role", "gridcell");
      cell.dataset.at = `${i},${j}`;
      cell.addEventListener("focus", () => {
        for (const other of cells.flat()) other.tabIndex = -1;
        cell.tabIndex = 0;
        choose?.(i, j);
      });
      cell.addEventListener("keydown", (event) => press(event, i, j));
      if (change) drag(cell, i, j);
      return cell;
    });
    row.append(...line);
    table.append(row);
    return line;
  });
  host.append(table);

  const set = (i, j, value) => change(i, j, Math.min(Math.max(Math.round(10 * value) / 10, -MOST), MOST));

  function press(event, i, j) {
    const step = { "+": 0.1, "=": 0.1, "-": -0.1 }[event.key];
    const to = {
      ArrowUp: [i - 1, j],
      ArrowDown: [i + 1, j],
      ArrowLeft: [i, j - 1],
      ArrowRight: [i, j + 1],
      Home: [i, 0],
      End: [i, columns.length - 1],
    }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (change && step && values[i][j] !== -Infinity) set(i, j, values[i][j] + step);
    else if (to) cells[to[0]]?.[to[1]]?.focus();
    else return;
    event.preventDefault();
  }

  function drag(cell, i, j) {
    let from = null;
    cell.addEventListener("pointerdown", (event) => {
      if (values[i][j] === -Infinity) return;
      from = { y: event.clientY, value: values[i][j] };
      cell.setPointerCapture(event.pointerId);
    });
    cell.addEventListener("pointermove", (event) => {
      if (from) set(i, j, from.value + (from.y - event.clientY) / 40);
    });
    for (const end of ["pointerup", "pointercancel"]) cell.addEventListener(end, () => (from = null));
  }

  return {
    table,
    show(now, chosen = -1) {
      values = now;
      now.forEach((line, i) =>
        line.forEach((value, j) => {
          const cell = cells[i][j];
          LOOKS[look](cell, value);
          if (!small) cell.textContent = number(value, digits);
          const words = `query ${rows[i]}, key ${columns[j]}: ${number(value, 3)}`;
          cell.setAttribute("aria-label", words);
          cell.title = words;
          cell.parentElement.classList.toggle("chosen", i === chosen);
        }),
      );
    },
  };
}

// Arcs from one word to the others, as thick as the weight; on a narrow screen the row scrolls.
function arcs(host, words, name) {
  const [step, tall] = [matchMedia("(max-width: 600px)").matches ? 46 : 64, 110];
  const wide = step * words.length;
  const track = part(host, "track-arcs");
  const picture = drawn("svg", { viewBox: `0 0 ${wide} ${tall + 24}`, class: "arcs", role: "img" });
  picture.style.width = `${wide}px`;
  track.append(picture);
  const place = (i) => step * (i + 0.5);
  return (row, weights) => {
    picture.setAttribute("aria-label", `${name}: from ${words[row]}: ${words.map((w, i) => `${w} ${number(weights[i])}`).join(", ")}`);
    picture.replaceChildren(
      ...weights.map((w, i) => {
        const lift = Math.min(24 + 20 * Math.abs(i - row), tall - 8);
        const path =
          i === row
            ? `M ${place(i) - 6} ${tall} C ${place(i) - 22} ${tall - 34}, ${place(i) + 22} ${tall - 34}, ${place(i) + 6} ${tall}`
            : `M ${place(row)} ${tall} Q ${(place(row) + place(i)) / 2} ${tall - 2 * lift}, ${place(i)} ${tall}`;
        return drawn("path", { d: path, fill: "none", stroke: "var(--focus)", "stroke-width": 9 * w, "stroke-linecap": "round", opacity: 0.75 });
      }),
      ...words.map((word, i) =>
        drawn("text", { x: place(i), y: tall + 17, "text-anchor": "middle", class: i === row ? "here" : "" }, word),
      ),
    );
    const most = weights.indexOf(Math.max(...weights));
    track.scrollLeft = (place(row) + place(most) - track.clientWidth) / 2;
  };
}

// A slider with its value as text next to it.
function slider(host, { name, min, max, step, value, words = (x) => number(x), input }) {
  const label = make("label", "", { className: "slider" });
  const readout = make("output");
  const control = make("input", "", { type: "range", min, max, step, value });
  control.dataset.name = name;
  label.append(make("span", name), control, readout);
  host.append(label);
  const show = () => {
    readout.textContent = words(Number(control.value));
    control.setAttribute("aria-valuetext", readout.textContent);
  };
  control.addEventListener("input", () => {
    show();
    input(Number(control.value));
  });
  show();
  return {
    set(x) {
      control.value = x;
      show();
    },
  };
}

function toggle(host, name, checked, input) {
  const label = make("label");
  const box = make("input", "", { type: "checkbox", checked });
  box.dataset.name = name;
  label.append(box, make("span", name));
  host.append(label);
  box.addEventListener("change", () => input(box.checked));
}

function button(host, name, click) {
  const made = make("button", name, { type: "button" });
  made.addEventListener("click", click);
  host.append(made);
  return made;
}

function choice(host, name, options, input) {
  const label = make("label", `${name} `);
  const select = make("select");
  select.dataset.name = name;
  select.append(...options.map((option, i) => make("option", option, { value: i })));
  label.append(select);
  host.append(label);
  select.addEventListener("change", () => input(Number(select.value)));
}

// An element of a section.
function part(section, className) {
  const made = make("div", "", { className });
  section.append(made);
  return made;
}
