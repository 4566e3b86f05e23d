// X, Y and Z of Algorithm 1 side by side. The cells of Y, the matching matrix, can be clicked,
// or reached with the arrow keys.
import { make } from "./elements.js";

/** The three matrices. `choose` is called with the assignment that a click asks for. Returns
 *  their `node`, and `draw`, which takes an answer of the engine. */
export function matrices(choose) {
  const node = make("div", { class: "matrices" });
  let view = null;
  let focus = [0, 0];

  function draw(answer) {
    view = answer;
    const { operator, intrinsic } = view;
    const held = node.contains(document.activeElement);
    node.replaceChildren(
      plain("X: tensors × loops", view.x, operator.loops, (s) => view.state.assignment[s]),
      grid(),
      plain("Z: operands × dimensions", view.z, intrinsic.steps, (t) => t));
    if (held) cell(...focus)?.focus();
  }

  function plain(title, matrix, columns, group) {
    const table = make("table", {}, make("caption", { text: title }),
      make("tr", {}, make("th"), ...columns.map(({ name }) => make("th", { text: name }))));
    matrix.rows.forEach((name, r) => {
      const cells = matrix.values[r].map((value, c) => {
        const t = value ? group(c) : -1;
        return make("td", { text: String(value), class: t >= 0 ? `on g${t % 8}` : "" });
      });
      table.append(make("tr", {}, make("th", { text: name }), ...cells));
    });
    return table;
  }

  function grid() {
    const { loops } = view.operator;
    const { steps } = view.intrinsic;
    const wrong = new Set(view.verdict.cells.map(([t, s]) => `${t} ${s}`));
    focus = [Math.min(focus[0], steps.length - 1), Math.min(focus[1], loops.length - 1)];
    const table = make("table", {
      role: "grid", class: "matching", onclick: (event) => press(event.target.closest("td")),
      onkeydown: keys, "aria-label": "Matching matrix: dimensions by loops",
    }, make("caption", { text: "Y: dimensions × loops (click, or arrow keys and space)" }));
    table.append(make("tr", { role: "row" }, make("th"), ...loops.map((loop) =>
      make("th", { role: "columnheader", text: loop.name, title: `${loop.kind}, ${loop.extent}` }))));
    steps.forEach((step, t) => {
      const idle = view.verdict.rows.includes(step.name);
      const row = make("tr", { role: "row", class: idle ? "idle" : "" }, make("th", {
        role: "rowheader", text: step.name, title: `${step.kind}, ${step.extent}`,
      }));
      loops.forEach((loop, s) => {
        const one = view.state.assignment[s] === t;
        const bad = wrong.has(`${step.name} ${loop.name}`);
        row.append(make("td", {
          role: "gridcell", "data-t": t, "data-s": s, text: one ? "1" : "0",
          class: `${one ? `on g${t % 8}` : ""} ${bad ? "bad" : ""}`, "aria-selected": String(one),
          tabindex: t === focus[0] && s === focus[1] ? "0" : "-1",
          "aria-label": `${loop.name} to ${step.name}${bad ? ", at fault" : ""}`,
        }));
      });
      table.append(row);
    });
    return table;
  }

  const cell = (t, s) => node.querySelector(`td[data-t="${t}"][data-s="${s}"]`);

  function press(at) {
    if (!at?.dataset.t) return;
    const [t, s] = [Number(at.dataset.t), Number(at.dataset.s)];
    move(t, s);
    const assignment = [...view.state.assignment];
    assignment[s] = assignment[s] === t ? -1 : t;
    choose(assignment);
  }

  function move(t, s) {
    cell(...focus)?.setAttribute("tabindex", "-1");
    focus = [t, s];
    const at = cell(t, s);
    at?.setAttribute("tabindex", "0");
    at?.focus();
  }

  function keys(event) {
    const at = event.target.closest("td");
    if (at) focus = [Number(at.dataset.t), Number(at.dataset.s)]; // however it got the focus
    const [t, s] = focus;
    const [rows, columns] = [view.intrinsic.steps.length, view.operator.loops.length];
    const to = {
      ArrowUp: [t - 1, s], ArrowDown: [t + 1, s], ArrowLeft: [t, s - 1], ArrowRight: [t, s + 1],
      Home: [t, 0], End: [t, columns - 1],
    }[event.key];
    if (to) {
      move(Math.max(0, Math.min(rows - 1, to[0])), Math.max(0, Math.min(columns - 1, to[1])));
    } else if (event.key === " " || event.key === "Enter") press(cell(t, s));
    else return;
    event.preventDefault();
    event.stopPropagation(); // a notebook has shortcuts of its own
  }

  return { node, draw };
}
