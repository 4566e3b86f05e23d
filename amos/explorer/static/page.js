// The explorer on a page of its own, served by `amos serve`.
import { explorer } from "./explorer.js";

async function ask(message) {
  const answer = await fetch("ask", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(message),
  });
  return answer.json();
}

// What is chosen stands in the address, so that it can be kept, sent and gone back to.
function address(state) {
  const said = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (Array.isArray(value)) said.set(name, value.join(","));
    else if (value !== null && value !== false) said.set(name, String(value));
  }
  return `#${said}`;
}

// Texts as they are: what is no state is refused by the engine, by field.
function addressed() {
  const found = {};
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    if (name === "commute") found[name] = text === "true";
    else if (name === "assignment" || name === "order") found[name] = text.split(",").map(Number);
    else found[name] = text;
  }
  return Object.keys(found).length ? found : null;
}

const root = document.getElementById("explorer");
const told = (state) => history.replaceState(null, "", address(state));
explorer(root, ask, told, addressed()).then(({ show }) => {
  addEventListener("hashchange", () => show(addressed() ?? {}));
}).catch((error) => {
  root.textContent = `The explorer could not start: ${error.message}`;
});
