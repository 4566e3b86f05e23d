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

explorer(document.getElementById("explorer"), ask).catch((error) => {
  document.getElementById("explorer").textContent = `The explorer could not start: ${error.message}`;
});
