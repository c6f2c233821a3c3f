// The live page: a typed prompt is run by the server, which sends tokens, layers, scores and next
// tokens as soon as they exist. A newer prompt takes the place of an older one.

const live = { socket: null, id: 0, number: 0, without: new Set(), prompt: 0, wait: 500, asked: null };
const says = (text) => ($("live-state").textContent = text);

function connect() {
  live.socket = new WebSocket(`ws://${location.host}/ws`);
  live.socket.addEventListener("message", ({ data: text }) => hear(JSON.parse(text)));
  live.socket.addEventListener("open", () => {
    live.wait = 500;
    says("");
    if (live.asked) live.socket.send(live.asked);
  });
  live.socket.addEventListener("close", () => {
    says("not connected; trying again");
    setTimeout(connect, live.wait);
    live.wait = Math.min(2 * live.wait, 10000);
  });
}

function ask() {
  const typed = $("typed").value;
  let wanted = typed;
  if (typed.trim().startsWith("[{")) {
    try {
      wanted = JSON.parse(typed); // Messages of a chat.
    } catch {
      wanted = typed;
    }
  }
  live.id += 1;
  live.started = performance.now();
  live.asked = JSON.stringify({ type: "run", id: live.id, prompt: wanted, without: [...live.without] });
  says("running");
  if (live.socket.readyState === WebSocket.OPEN) live.socket.send(live.asked);
}

function hear(message) {
  if (message.id !== undefined && message.id !== live.id) return;
  const number = data.prompts.length - 1;
  if (message.type === "error") says(message.message);
  if (message.type === "prompt") {
    const prompt = { ...message.prompt, without: [...live.without] };
    prompt.labels = prompt.labels.map(legible);
    if (prompt.without.length) prompt.title += `, without ${prompt.without.join(", ")}`;
    data.prompts.push(prompt);
    for (const id of ["prompt", "prompt-here"])
      $(id).append(make("option", prompt.title, { value: number + 1 }));
    $("prompts-here").hidden = false;
    setPrompt(number + 1);
  }
  if (message.type === "layer") {
    for (const [name, packed] of Object.entries(message.weights)) {
      arrived.set(`w${number}-${name}`, packed);
      const button = buttons.find(({ head }) => head.name === name);
      if (button) draw(button);
    }
    Object.assign(data.prompts[number].sinks, message.sinks);
    says(`layer ${message.layer}`);
  }
  if (message.type === "next") showNext(data.prompts[number], message);
  if (message.type === "scores") {
    data.prompts[number].scores = message.scores;
    arrange();
  }
  if (message.type === "done") {
    live.asked = null;
    says(`${((performance.now() - live.started) / 1000).toFixed(1)} s`);
    if (view.coming && $("view").open) openHead(view.coming.head);
  }
}

function showNext(prompt, { whole, without }) {
  const rows = (tokens) =>
    tokens.map(([text, share]) => {
      const row = make("tr");
      const bar = make("td");
      bar.append(make("meter", "", { value: share, title: share }));
      row.append(make("td").appendChild(make("bdi", text || "(empty)")).parentNode);
      row.append(make("td", share.toFixed(3)), bar);
      return row;
    });
  $("next").hidden = false;
  $("next-other").hidden = !without;
  $("next-whole").replaceChildren(...rows(whole));
  $("next-without").replaceChildren(...(without ? rows(without) : []));
  $("next-caption").textContent = `without ${prompt.without.join(", ")}`;
}

function take(head, out) {
  if (out) live.without.add(head.name);
  else live.without.delete(head.name);
  $("removed").replaceChildren(
    ...[...live.without].map((name) => {
      const chip = make("button", `without ${name}`, { type: "button", title: `put ${name} back` });
      chip.addEventListener("click", () => take({ name }, false));
      return chip;
    }),
  );
  $("take").checked = live.without.has(view.head?.name);
  ask();
}

addEventListener("DOMContentLoaded", () => {
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  $("typed").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
  });
  $("take").addEventListener("change", () => take(view.head, $("take").checked));
  $("typed").value = data.live;
  connect();
});
