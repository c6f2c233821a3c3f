// Sets the theme and builds every section that has data.

const data = JSON.parse($("data").textContent);
const states = {};
const system = matchMedia("(prefers-color-scheme: dark)");
function setTheme() {
  const chosen = $("theme").value;
  document.documentElement.dataset.theme = chosen === "auto" ? (system.matches ? "dark" : "light") : chosen;
}
$("theme").addEventListener("change", setTheme);
system.addEventListener("change", setTheme);
setTheme();
$("main").hidden = false;
for (const [name, build] of Object.entries(SECTIONS)) {
  const section = $(name);
  if (data[name]) states[name] = build(data[name], section);
  else {
    section.remove();
    document.querySelector(`nav a[href="#${name}"]`).remove();
  }
}

// The current inputs and outputs of each section, in full precision, for tests.
window.lab = {
  state: () => Object.fromEntries(Object.entries(states).map(([name, state]) => [name, state()])),
};
