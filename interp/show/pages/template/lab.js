// Starts every section that the page has data for, and the theme.

const data = JSON.parse($("data").textContent);
const told = {};
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
  if (data[name]) told[name] = build(data[name], section);
  else {
    section.remove();
    document.querySelector(`nav a[href="#${name}"]`).remove();
  }
}

// What each section is at: what goes in and what comes out, in full precision.
window.lab = {
  state: () => Object.fromEntries(Object.entries(told).map(([name, tell]) => [name, tell()])),
};
