// The explorer's page: draws what the engine answers, and asks it again when something
// is chosen. The whole state goes with every message; what cannot be used is shown beside
// its field, and what was good last stays as it was.

const FIELDS = [
  ["operator", "Operator", "conv2d, resnet18:C5, or out[i,j] += a[i,k] * b[k,j]"],
  ["extents", "Extents", "k=64, p=28: what differs"],
  ["dtype", "dtype", "f16, u8s8 … (the intrinsic's, if empty)"],
  ["layout", "Layout", "NCHW, NHWC"],
  ["intrinsic", "Intrinsic", "wmma_m16n16k16_f16_f32"],
  ["rule", "Rule", ""],
  ["commute", "Sources", ""],
  ["machine", "Machine", ""],
];
const ORDERS = [["", "as given"], ["any", "any order"]];
const ROW = 26;
const PAGE = 100;
const MOST_ROWS = 500000; // a browser's page has an end

let instances = 0;

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

function seconds(value) {
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]]) {
    if (value >= size) return `${Number((value / size).toPrecision(4))} ${unit}`;
  }
  return `${Number((value * 1e9).toPrecision(4))} ns`;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** Draw an explorer into `root`. `ask` takes a message and promises the answer, `told` is
 *  called with every state that was good, `wanted` is what to show instead of what the engine
 *  begins with. Returns functions: `show` another state, `end` it. */
export async function explorer(root, ask, told = () => {}, wanted = null) {
  const id = `amos-${++instances}`;
  const choices = await ask({ kind: "choices" });
  let good = choices.state; // the last state that the engine could use
  let view = null;
  let asked = 0;
  let focus = [0, 0];

  const part = {};
  root.classList.add("amos-explorer");
  root.replaceChildren(fields(), board(), listing());
  fill(good);

  // ---- fields

  function fields() {
    const form = make("form", { class: "fields", onsubmit: (event) => event.preventDefault() });
    for (const [name, label, hint] of FIELDS) {
      const field = `${id}-${name}`;
      const list = { operator: choices.operators, intrinsic: choices.intrinsics }[name];
      const same = (values) => values.map((value) => [value, value]);
      const options = {
        rule: same(choices.rules), commute: ORDERS,
        machine: [...same(choices.machines), ["", "none"]],
      }[name];
      let input;
      if (options) {
        input = make("select", { id: field });
        for (const [value, text] of options) input.append(make("option", { value, text }));
      } else {
        input = make("input", {
          id: field, placeholder: hint, spellcheck: "false", autocomplete: "off",
          list: list ? `${field}-list` : null, maxlength: "1000",
        });
      }
      input.setAttribute("aria-describedby", `${field}-error`);
      input.addEventListener("change", () => read());
      input.dataset.field = name;
      part[name] = input;
      part[`${name}-error`] = make("div", { id: `${field}-error`, class: "error", role: "alert" });
      form.append(make("div", { class: `field ${name}` },
        make("label", { for: field, text: label }), input, part[`${name}-error`]));
      if (list) {
        const data = make("datalist", { id: `${field}-list` });
        for (const option of list) data.append(make("option", { value: option }));
        form.append(data);
      }
    }
    part["general-error"] = make("div", { class: "error general", role: "alert" });
    form.append(part["general-error"]);
    return form;
  }

  function fill(state) {
    for (const [name] of FIELDS) {
      part[name].value = name === "commute" ? (state.commute ? "any" : "") : state[name];
    }
  }

  function read() {
    const typed = {};
    for (const [name] of FIELDS) typed[name] = part[name].value.trim();
    typed.commute = typed.commute === "any";
    // Another operator or intrinsic begins with its first mapping.
    const same = ["operator", "layout", "intrinsic"].every((name) => typed[name] === good[name]);
    const order = same && typed.commute ? good.order : null;
    judge({ ...typed, assignment: same ? good.assignment : null, order }, true);
  }

  /** A state from elsewhere: an address, or the notebook's Python. */
  async function show(state) {
    const whole = { ...good, assignment: null, order: null, ...state };
    fill(whole);
    await judge(whole, true);
  }

  function complain(errors) {
    for (const [name] of FIELDS) {
      part[`${name}-error`].textContent = errors[name] ?? "";
      part[name].setAttribute("aria-invalid", String(name in errors));
    }
    part["general-error"].textContent = errors[""] ?? errors.matching ?? errors.order ?? "";
  }

  async function judge(state, fromFields, tell = true) {
    const number = ++asked;
    let answer;
    try {
      answer = await ask({ kind: "judge", state });
    } catch (error) {
      answer = { ok: false, errors: { "": `no answer: ${error.message}` } };
    }
    if (number !== asked) return; // something newer was asked meanwhile
    root.dataset.answered = String(number);
    if (!answer.ok) {
      complain(answer.errors);
      return;
    }
    if (fromFields) complain({});
    else part["general-error"].textContent = "";
    const list = () => JSON.stringify({ ...good, assignment: null, order: null });
    const listed = list();
    good = answer.state;
    view = answer;
    draw();
    if (list() !== listed || !table.ready) table.renew();
    else table.paint();
    if (tell) told(good);
  }

  // ---- verdict, matrices, physical mapping

  function board() {
    part.verdict = make("div", { class: "verdict", role: "status", "aria-live": "polite" });
    part.statement = make("pre", { class: "statement" });
    part.feed = make("select", { id: `${id}-fed`, onchange: () => {
      judge({ ...good, order: view.orders[part.feed.selectedIndex][0] }, false);
    } });
    part.fed = make("div", { class: "fed" },
      make("label", { for: `${id}-fed`, text: "Sources fed in the order" }), part.feed);
    part.matrices = make("div", { class: "matrices" });
    part.physical = make("div", { class: "physical" });
    part.prediction = make("div", { class: "prediction" });
    part.refused = make("div", { class: "refused" });
    part.code = make("pre", { class: "code", tabindex: "0", "aria-label": "Python" });
    part.copy = make("button", { type: "button", class: "copy", text: "Copy Python", onclick: copy });
    part.columns = make("div", { class: "columns" }, part.physical, part.prediction);
    return make("div", { class: "board" }, part.statement, part.fed, part.matrices, part.verdict,
      part.refused, part.columns,
      make("details", { class: "script" }, make("summary", { text: "Python that reproduces this" }),
        part.code), part.copy);
  }

  function draw() {
    const { operator, intrinsic, verdict } = view;
    part.statement.textContent = `${operator.text}\n${intrinsic.text.split("\n").slice(0, 3).join("\n")}`;
    part.fed.hidden = view.orders.length < 2;
    part.feed.replaceChildren(...view.orders.map(([order, text]) =>
      make("option", { text, selected: order.join() === good.order.join() })));
    const group = (s) => good.assignment[s];
    const held = part.matrices.contains(document.activeElement);
    part.matrices.replaceChildren(
      plain("X: tensors × loops", view.x, operator.loops.map((l) => l.name), group),
      grid(),
      plain("Z: operands × dimensions", view.z, intrinsic.steps.map((s) => s.name), (t) => t));
    if (held) cell(...focus)?.focus();
    part.verdict.className = `verdict ${verdict.kind}`;
    const title = { valid: "Valid", wrong: "Not valid", idle: "Idle" }[verdict.kind];
    const other = verdict.accepted_by.filter((rule) => rule !== verdict.rule);
    const accepts = [];
    if (verdict.kind !== "valid" && other.length) accepts.push(`under ${other.join(" and ")}`);
    for (const order of verdict.accepted_in) accepts.push(`with the sources in the order ${order}`);
    part.verdict.replaceChildren(
      make("strong", { text: `${title} under rule ${verdict.rule}` }),
      make("ul", {}, ...verdict.reasons.map((reason) => make("li", { text: reason }))),
      ...accepts.map((how) => make("div", { class: "wider", text: `accepted ${how}` })));
    drawPhysical();
    drawPrediction();
    part.code.textContent = view.code;
  }

  function plain(title, matrix, columns, group) {
    const table = make("table", {}, make("caption", { text: title }),
      make("tr", {}, make("th"), ...columns.map((name) => make("th", { text: name }))));
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
        const one = good.assignment[s] === t;
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

  const cell = (t, s) => part.matrices.querySelector(`td[data-t="${t}"][data-s="${s}"]`);

  function press(at) {
    if (!at?.dataset.t) return;
    const [t, s] = [Number(at.dataset.t), Number(at.dataset.s)];
    move(t, s);
    const assignment = [...good.assignment];
    assignment[s] = assignment[s] === t ? -1 : t;
    judge({ ...good, assignment }, false);
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

  function drawPhysical() {
    const found = view.mapping;
    const refused = found?.refused ?? false;
    part.refused.hidden = !refused;
    part.columns.classList.toggle("no", refused);
    if (refused) {
      part.refused.replaceChildren(
        make("strong", { text: `No mapping under rule ${view.verdict.rule}.` }),
        ` Rule ${found.rule} accepts this matching, and below is what it makes of it.`);
    }
    if (!found) {
      part.physical.replaceChildren(make("h4", { text: "No mapping" }),
        make("p", { text: "No rule accepts this matching: there is nothing to run." }));
      return;
    }
    part.physical.replaceChildren(
      make("h4", { text: refused ? `${found.name}, by rule ${found.rule}` : found.name }),
      make("pre", { text: found.expression }),
      meter("utilization", found.utilization, percent(found.utilization), "g2"),
      make("p", { text: `${found.calls} calls; loops around them: ${found.outer.join(", ") || "none"}` }),
      make("pre", { text: found.physical }));
  }

  function drawPrediction() {
    const said = view.prediction;
    if (!said || said.error) {
      part.prediction.replaceChildren(...(said
        ? [make("h4", { text: "No prediction" }), make("p", { text: said.error })] : []));
      return;
    }
    const most = Math.max(...said.bars.map((bar) => bar.seconds));
    const tints = { compute: "g0", read: "g1", write: "g2", other: "g3" };
    part.prediction.replaceChildren(
      make("h4", { text: `${seconds(said.seconds)} predicted on ${said.machine}` }),
      make("p", { text: `bound by ${said.bound}` }),
      ...said.bars.filter((bar) => bar.seconds > 0).map((bar) =>
        meter(bar.name, bar.seconds / most, seconds(bar.seconds), tints[bar.kind])),
      make("p", { class: "schedule", text: said.schedule }));
  }

  function meter(name, share, text, tint) {
    const bar = make("div", { class: `bar ${tint}` });
    bar.style.width = `${Math.max(0.5, 100 * share)}%`;
    return make("div", { class: "meter" }, make("span", { text: name }),
      make("div", { class: "track" }, bar), make("span", { text }));
  }

  async function copy() {
    let done = true;
    try {
      await navigator.clipboard.writeText(view.code);
    } catch {
      // Where a frame may not use the clipboard, the text is selected for Ctrl-C.
      part.code.closest("details").open = true;
      getSelection().selectAllChildren(part.code);
      done = document.execCommand("copy");
    }
    part.copy.textContent = done ? "Copied" : "Press Ctrl-C";
    setTimeout(() => { part.copy.textContent = "Copy Python"; }, 1500);
  }

  // ---- the list of mappings

  function listing() {
    const again = () => table.renew();
    part.words = make("input", {
      id: `${id}-words`, placeholder: "npq, or i1:pq r1:c", spellcheck: "false", oninput: later(again),
      "aria-describedby": `${id}-filter-error`, maxlength: "200",
    });
    part.least = make("input", {
      id: `${id}-least`, type: "number", min: "0", max: "100", step: "5", value: "0",
      oninput: later(again), "aria-describedby": `${id}-filter-error`,
    });
    part.order = make("select", { id: `${id}-order`, onchange: again });
    for (const [value, text] of [[" ", "as enumerated"], ["utilization down", "fullest first"],
      ["calls ", "fewest calls first"], ["name ", "by name"]]) {
      part.order.append(make("option", { value, text }));
    }
    part["filter-error"] = make("div", { id: `${id}-filter-error`, class: "error", role: "alert" });
    part.count = make("span", { class: "count", role: "status" });
    part.rows = make("div", { class: "rows", role: "rowgroup" });
    part.head = make("div", { class: "row head", role: "row" });
    part.view = make("div", {
      class: "window", tabindex: "0", role: "grid", "aria-label": "Mappings",
      onscroll: () => requestAnimationFrame(table.paint), onkeydown: (event) => table.keys(event),
      onclick: (event) => table.pick(event.target.closest(".row")),
    }, part.head, part.rows);
    return make("div", { class: "listing" }, make("div", { class: "filters" },
      make("label", { for: `${id}-words`, text: "Filter" }), part.words,
      make("label", { for: `${id}-least`, text: "at least %" }), part.least,
      make("label", { for: `${id}-order`, text: "Order" }), part.order, part.count),
    part["filter-error"], part.view);
  }

  function later(action) {
    let timer = 0;
    return () => { clearTimeout(timer); timer = setTimeout(action, 120); };
  }

  // Only the rows in the window exist; the others are asked for when they come into it.
  const table = {
    ready: false, pages: new Map(), left: 0, active: 0, turn: 0,

    message(first) {
      const [order, down] = part.order.value.split(" ");
      return {
        kind: "rows", state: { ...good, assignment: null, order: null }, first, count: PAGE,
        words: part.words.value, least: Number(part.least.value) / 100, order, down: down === "down",
      };
    },

    async renew() {
      this.ready = true;
      const turn = ++this.turn;
      let answer;
      try {
        answer = await ask(this.message(0));
      } catch (error) {
        answer = { ok: false, errors: { filter: `no answer: ${error.message}` } };
      }
      if (turn !== this.turn) return;
      part["filter-error"].textContent = answer.ok ? "" : Object.values(answer.errors).join("; ");
      if (!answer.ok) return;
      this.pages = new Map([[0, answer.rows]]);
      this.left = Math.min(answer.left, MOST_ROWS);
      this.active = 0;
      const more = answer.left > MOST_ROWS ? `, the first ${MOST_ROWS.toLocaleString("en")} shown` : "";
      part.count.textContent = answer.left === answer.total
        ? `${answer.total.toLocaleString("en")} mapping${answer.total === 1 ? "" : "s"}${more}`
        : `${answer.left.toLocaleString("en")} of ${answer.total.toLocaleString("en")}${more}`;
      part.head.replaceChildren(...["mapping", ...view.intrinsic.steps.map((s) => s.name), "calls",
        "utilization"].map((name) => make("span", { role: "columnheader", text: name })));
      part.rows.style.height = `${this.left * ROW}px`;
      part.view.setAttribute("aria-rowcount", this.left);
      part.view.scrollTop = 0;
      this.paint();
    },

    async fetch(page) {
      if (this.pages.has(page)) return;
      this.pages.set(page, null);
      const turn = this.turn;
      try {
        const answer = await ask(this.message(page * PAGE));
        if (turn !== this.turn) return;
        if (answer.ok) this.pages.set(page, answer.rows);
        else this.pages.delete(page);
      } catch {
        this.pages.delete(page);
        return;
      }
      this.paint();
    },

    row(n) { return this.pages.get(Math.floor(n / PAGE))?.[n % PAGE]; },

    paint() {
      const self = table;
      const first = Math.max(0, Math.floor(part.view.scrollTop / ROW) - 4);
      const last = Math.min(self.left, first + Math.ceil(part.view.clientHeight / ROW) + 8);
      const shown = [];
      for (let n = first; n < last; n += 1) {
        const row = self.row(n);
        if (!row) self.fetch(Math.floor(n / PAGE));
        const here = row && good.assignment.join() === row.assignment.join()
          && good.order.join() === row.order.join();
        const line = make("div", {
          class: `row${n === self.active ? " active" : ""}${here ? " here" : ""}`, role: "row",
          "data-n": n, id: `${id}-row-${n}`, "aria-rowindex": n + 1, "aria-selected": String(!!here),
        });
        line.style.transform = `translateY(${n * ROW}px)`;
        const texts = row ? [row.name, ...row.groups.map((g) => g || "–"), row.calls,
          percent(row.utilization)] : ["…"];
        line.append(...texts.map((text) => make("span", { role: "gridcell", text })));
        shown.push(line);
      }
      part.rows.replaceChildren(...shown);
      part.view.setAttribute("aria-activedescendant", `${id}-row-${self.active}`);
    },

    keys(event) {
      const page = Math.max(1, Math.floor(part.view.clientHeight / ROW) - 1);
      const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page,
        Home: -this.left, End: this.left }[event.key];
      if (step) {
        this.active = Math.max(0, Math.min(this.left - 1, this.active + step));
        const top = this.active * ROW;
        if (top < part.view.scrollTop) part.view.scrollTop = top;
        const low = top + 2 * ROW - part.view.clientHeight; // below the head, which stays
        if (low > part.view.scrollTop) part.view.scrollTop = low;
        this.paint();
      } else if (event.key === "Enter" || event.key === " ") this.choose(this.active);
      else return;
      event.preventDefault();
      event.stopPropagation();
    },

    pick(line) {
      if (line?.dataset.n) this.choose(Number(line.dataset.n));
    },

    choose(n) {
      const row = this.row(n);
      if (!row) return;
      this.active = n;
      judge({ ...good, assignment: row.assignment, order: row.order }, false);
    },
  };

  await judge(good, true, !wanted);
  if (wanted) await show(wanted);
  const watch = new ResizeObserver(() => table.paint());
  watch.observe(part.view);
  return { show, end: () => watch.disconnect() };
}
