// The list of an explorer's mappings: filtered and sorted by the engine. Only the rows in the
// window exist; the others are asked for when they come into it.
import { answered, later, make, percent, seconds } from "./elements.js";

const ROW = 26;
const PAGE = 100;
const MOST_ROWS = 500000; // a browser's page has an end
const SORTS = [[" ", "as enumerated"], ["utilization down", "fullest first"],
  ["seconds ", "fastest first (predicted)"], ["calls ", "fewest calls first"], ["name ", "by name"]];

/** A list whose ids begin with `id`. `ask` takes a message and promises the answer, `choose`
 *  is called with the row of a mapping that was picked. Returns its `node`, and functions:
 *  `update` when the state is another, `end` it. */
export function listing(id, ask, choose) {
  let state = null; // the mapping that is looked at, and the space that it is in
  let steps = [];
  let listed = "";
  let pages = new Map();
  let left = 0;
  let active = 0;
  let turn = 0;
  let predicted = false;

  const words = make("input", {
    id: `${id}-words`, placeholder: "npq, or i1:pq r1:c", spellcheck: "false", oninput: later(renew),
    "aria-describedby": `${id}-filter-error`, maxlength: "200",
  });
  const least = make("input", {
    id: `${id}-least`, type: "number", min: "0", max: "100", step: "5", value: "0",
    oninput: later(renew), "aria-describedby": `${id}-filter-error`,
  });
  const sort = make("select", { id: `${id}-order`, onchange: renew },
    ...SORTS.map(([value, text]) => make("option", { value, text })));
  const error = make("div", { id: `${id}-filter-error`, class: "error", role: "alert" });
  const count = make("span", { class: "count", role: "status" });
  const rows = make("div", { class: "rows", role: "rowgroup" });
  const head = make("div", { class: "row head", role: "row" });
  const view = make("div", {
    class: "window", tabindex: "0", role: "grid", "aria-label": "Mappings",
    onscroll: () => requestAnimationFrame(paint), onkeydown: keys,
    onclick: (event) => pick(event.target.closest(".row")?.dataset.n),
  }, head, rows);
  const node = make("div", { class: "listing" }, make("div", { class: "filters" },
    make("label", { for: words.id, text: "Filter" }), words,
    make("label", { for: least.id, text: "at least %" }), least,
    make("label", { for: sort.id, text: "Order" }), sort, count), error, view);
  const watch = new ResizeObserver(paint);
  watch.observe(view);

  /** Another state, with the names of the intrinsic's dimensions: maybe of another space. */
  function update(wanted, names) {
    [state, steps] = [wanted, names];
    const space = JSON.stringify(all());
    if (space === listed) paint();
    else renew();
    listed = space;
  }

  const all = () => ({ ...state, assignment: null, order: null });

  function message(first) {
    const [order, down] = sort.value.split(" ");
    return {
      kind: "rows", state: all(), first, count: PAGE, words: words.value,
      least: Number(least.value) / 100, order, down: down === "down",
    };
  }

  async function renew() {
    const now = ++turn;
    const answer = await answered(ask, message(0), "filter");
    if (now !== turn) return; // something newer was asked meanwhile
    error.textContent = answer.ok ? "" : Object.values(answer.errors).join("; ");
    if (!answer.ok) return;
    pages = new Map([[0, answer.rows]]);
    left = Math.min(answer.left, MOST_ROWS);
    active = 0;
    const [some, total] = [answer.left.toLocaleString("en"), answer.total.toLocaleString("en")];
    const more = answer.left > MOST_ROWS ? `, the first ${MOST_ROWS.toLocaleString("en")} shown` : "";
    count.textContent = (some === total
      ? `${total} mapping${answer.total === 1 ? "" : "s"}` : `${some} of ${total}`) + more;
    predicted = answer.predicted;
    const last = ["calls", "utilization", ...(predicted ? ["predicted"] : [])];
    head.replaceChildren(...["mapping", ...steps, ...last].map((name) =>
      make("span", { role: "columnheader", text: name })));
    rows.style.height = `${left * ROW}px`;
    view.setAttribute("aria-rowcount", left);
    view.scrollTop = 0;
    paint();
  }

  async function load(page) {
    if (pages.has(page)) return;
    pages.set(page, null);
    const now = turn;
    const answer = await answered(ask, message(page * PAGE), "filter");
    if (now !== turn) return;
    if (answer.ok) {
      pages.set(page, answer.rows);
      paint();
    } else pages.delete(page);
  }

  const time = (value) => (value === null ? "no schedule fits" : seconds(value));
  const row = (n) => pages.get(Math.floor(n / PAGE))?.[n % PAGE];

  function paint() {
    const first = Math.max(0, Math.floor(view.scrollTop / ROW) - 4);
    const last = Math.min(left, first + Math.ceil(view.clientHeight / ROW) + 8);
    const shown = [];
    for (let n = first; n < last; n += 1) {
      if (!row(n)) load(Math.floor(n / PAGE));
      shown.push(line(n, row(n)));
    }
    rows.replaceChildren(...shown);
    view.setAttribute("aria-activedescendant", `${id}-row-${active}`);
  }

  function line(n, found) {
    const here = found && state.assignment.join() === found.assignment.join()
      && state.order.join() === found.order.join();
    const texts = found ? [found.name, ...found.groups.map((group) => group || "–"), found.calls,
      percent(found.utilization), ...(predicted ? [time(found.seconds)] : [])] : ["…"];
    const made = make("div", {
      class: `row${n === active ? " active" : ""}${here ? " here" : ""}`, role: "row",
      "data-n": n, id: `${id}-row-${n}`, "aria-rowindex": n + 1, "aria-selected": String(!!here),
    }, ...texts.map((text) => make("span", { role: "gridcell", text, title: text })));
    made.style.transform = `translateY(${n * ROW}px)`;
    return made;
  }

  function keys(event) {
    const page = Math.max(1, Math.floor(view.clientHeight / ROW) - 1);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page,
      Home: -left, End: left }[event.key];
    if (step) {
      active = Math.max(0, Math.min(left - 1, active + step));
      const top = active * ROW;
      if (top < view.scrollTop) view.scrollTop = top;
      const low = top + 2 * ROW - view.clientHeight; // below the head, which stays
      if (low > view.scrollTop) view.scrollTop = low;
      paint();
    } else if (event.key === "Enter" || event.key === " ") pick(active);
    else return;
    event.preventDefault();
    event.stopPropagation(); // a notebook has shortcuts of its own
  }

  function pick(n) {
    const found = n === undefined ? null : row(Number(n));
    if (!found) return;
    active = Number(n);
    choose(found);
  }

  return { node, update, end: () => watch.disconnect() };
}
