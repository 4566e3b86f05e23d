// The explorer's page: draws what the engine answers, and asks it again when something
// is chosen. The whole state goes with every message; what cannot be used is shown beside
// its field, and what was good last stays as it was.
import { answered, make, percent, seconds } from "./elements.js";
import { listing } from "./listing.js";
import { legend } from "./legend.js";
import { matrices } from "./matrices.js";

const FIELDS = [
  ["operator", "Operator", "conv2d, or out[i,j] += a[i,k] * b[k,j]",
    "a name of the library, a layer as resnet18:C5, or one line of math"],
  ["extents", "Extents", "k=64, p=28", "what differs from the operator's own"],
  ["dtype", "dtype", "f16, u8s8", "the intrinsic's, if empty"],
  ["layout", "Layout", "NHWC", "NCHW, NHWC …: of an operator of the library"],
  ["intrinsic", "Intrinsic", "all of this machine", "a name; all of the machine, if empty"],
  ["rule", "Rule", ""],
  ["commute", "Sources", ""],
  ["machine", "Machine", ""],
  ["sizes", "Sizes", "extents.i2=8, memory.acc.capacity=32k",
    "what differs from the descriptions, as paths of amos sweep; the sliders write it"],
];
const ORDERS = [["false", "as given"], ["true", "any order"]];

let instances = 0;

/** Draw an explorer into `root`. `ask` takes a message and promises the answer, `told` is
 *  called with every state that was good, `wanted` is what to show instead of what the engine
 *  begins with. Returns functions: `show` another state, `end` it. */
export async function explorer(root, ask, told = () => {}, wanted = null) {
  const id = `amos-${++instances}`;
  const choices = await ask({ kind: "choices" });
  let good = choices.state; // the last state that the engine could use
  let view = null;
  let asked = 0;

  const part = {};
  const matching = matrices((assignment) => judge({ ...good, assignment }, false));
  const list = listing(id, ask, ({ assignment, order }) =>
    judge({ ...good, assignment, order }, false));
  root.classList.add("amos-explorer");
  part.chooser = make("div", { class: "chooser" });
  part.sliders = make("div", { class: "sliders" });
  root.replaceChildren(fields(), part.sliders, part.chooser, board(), list.node);
  fill(good);

  // ---- fields

  function fields() {
    const form = make("form", { class: "fields", onsubmit: (event) => event.preventDefault() });
    for (const [name, label, hint, more] of FIELDS) {
      const field = `${id}-${name}`;
      const known = { operator: choices.operators, intrinsic: choices.intrinsics }[name];
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
          list: known ? `${field}-list` : null, maxlength: "1000", title: more ?? hint,
        });
      }
      input.setAttribute("aria-describedby", `${field}-error`);
      input.addEventListener("change", () => read());
      input.dataset.field = name;
      part[name] = input;
      part[`${name}-error`] = make("div", { id: `${field}-error`, class: "error", role: "alert" });
      form.append(make("div", { class: `field ${name}` },
        make("label", { for: field, text: label }), input, part[`${name}-error`]));
      if (known) {
        const data = make("datalist", { id: `${field}-list` });
        for (const option of known) data.append(make("option", { value: option }));
        form.append(data);
      }
    }
    part["general-error"] = make("div", { class: "error general", role: "alert" });
    form.append(part["general-error"]);
    return form;
  }

  function fill(state) {
    for (const [name] of FIELDS) part[name].value = String(state[name]);
  }

  function read() {
    const typed = {};
    for (const [name] of FIELDS) typed[name] = part[name].value.trim();
    typed.commute = typed.commute === "true";
    // Sizes are those of one intrinsic.
    if (typed.intrinsic !== good.intrinsic) part.sizes.value = typed.sizes = "";
    // Another operator or intrinsic begins with its first mapping.
    const same = ["operator", "layout", "intrinsic"].every((name) => typed[name] === good[name]);
    const order = same && typed.commute ? good.order : null;
    if (!typed.intrinsic) choose({ ...typed, assignment: null, order: null });
    else judge({ ...typed, assignment: same ? good.assignment : null, order }, true);
  }

  /** A slider for each extent of the instruction and each of its buffers. */
  function drawSliders() {
    part.sliders.replaceChildren(...view.sizes.map(({ path, base, value, values }) => {
      const text = make("output", { text: String(value) });
      const slider = make("input", {
        type: "range", min: "0", max: String(values.length - 1), value: String(values.indexOf(value)),
        "aria-label": path,
        oninput: () => { text.textContent = String(values[slider.value]); },
        onchange: () => resize(path, values[slider.value], base),
      });
      return make("label", {}, make("span", { text: path }), slider, text);
    }));
  }

  function resize(path, value, base) {
    const said = new Map(good.sizes.split(",").map((each) => each.trim()).filter(Boolean)
      .map((each) => each.split("=")));
    if (value === base) said.delete(path);
    else said.set(path, value);
    part.sizes.value = [...said].map((each) => each.join("=")).join(", ");
    read();
  }

  /** The instructions of the machine, to be picked from. What was good last stays below. */
  async function choose(state) {
    const number = ++asked;
    const answer = await answered(ask, { kind: "instructions", state }, "");
    if (number !== asked) return;
    root.dataset.answered = String(number);
    root.classList.add("stale");
    complain(answer.ok ? {} : answer.errors);
    if (!answer.ok) return;
    const pick = (name) => { part.intrinsic.value = name; read(); };
    const cells = (row) => [String(row.mappings), percent(row.utilization),
      row.seconds === null ? row.reason || "–" : seconds(row.seconds)];
    const heads = [`Instructions of ${answer.machine}`, "mappings", "utilization", "predicted"];
    part.chooser.replaceChildren(make("table", {},
      make("tr", {}, ...heads.map((text) => make("th", { scope: "col", text }))),
      ...answer.rows.map((row) => make("tr", {},
        make("td", {}, make("button", { type: "button", text: row.name, onclick: () => pick(row.name) })),
        ...cells(row).map((text) => make("td", { text }))))),
      ...answer.others.map((text) => make("p", { text })));
  }

  /** A state from elsewhere: an address, or the notebook's Python. */
  async function show(state) {
    const whole = { ...good, assignment: null, order: null, ...state };
    fill(whole);
    await (whole.intrinsic ? judge(whole, true) : choose(whole));
  }

  function complain(errors) {
    for (const [name] of FIELDS) {
      part[`${name}-error`].textContent = errors[name] ?? "";
      part[name].setAttribute("aria-invalid", String(name in errors));
    }
    const general = errors[""] ?? errors.matching ?? errors.order ?? "";
    const old = Object.keys(errors).length ? "Below is still what was good last." : "";
    part["general-error"].textContent = [general, old].filter(Boolean).join(" ");
  }

  async function judge(state, fromFields, tell = true) {
    const number = ++asked;
    const answer = await answered(ask, { kind: "judge", state }, "");
    if (number !== asked) return; // something newer was asked meanwhile
    root.dataset.answered = String(number);
    root.classList.toggle("stale", !answer.ok);
    if (!answer.ok) {
      complain(answer.errors);
      return;
    }
    if (fromFields) complain({});
    else part["general-error"].textContent = "";
    part.chooser.replaceChildren();
    good = answer.state;
    view = answer;
    draw();
    list.update(good, view.intrinsic.steps.map((step) => step.name));
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
    part.physical = make("div", { class: "physical" });
    part.prediction = make("div", { class: "prediction" });
    part.refused = make("div", { class: "refused" });
    part.code = make("pre", { class: "code", tabindex: "0", "aria-label": "Python" });
    part.copy = make("button", { type: "button", class: "copy", text: "Copy Python", onclick: copy });
    part.columns = make("div", { class: "columns" }, part.physical, part.prediction);
    return make("div", { class: "board" }, part.statement, part.fed, matching.node, legend(), part.verdict,
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
    drawSliders();
    matching.draw(view);
    part.verdict.className = `verdict ${verdict.kind}`;
    const title = { valid: "Valid", wrong: "Not valid", idle: "Idle" }[verdict.kind];
    const other = verdict.accepted_by.filter((rule) => rule !== verdict.rule);
    const accepts = [];
    if (verdict.kind !== "valid" && other.length) accepts.push(`under ${other.join(" and ")}`);
    for (const order of verdict.accepted_in) accepts.push(`with the sources in the order ${order}`);
    part.verdict.replaceChildren(
      make("strong", { text: `${title} under rule ${verdict.rule}` }),
      make("ul", {}, ...verdict.reasons.map((reason) => make("li", { text: reason }))),
      ...accepts.map((how) => make("div", { class: "wider", text: `accepted ${how}` })),
      ...nearest(verdict));
    drawPhysical();
    drawPrediction();
    part.code.textContent = view.code;
  }

  /** The right matchings nearby, to be clicked. */
  function nearest(verdict) {
    if (!verdict.nearest.length) return [];
    return [make("div", { class: "nearest" }, "nearest: ", ...verdict.nearest.map((near) =>
      make("button", { type: "button", text: near.name, onclick: () =>
        judge({ ...good, assignment: near.assignment }, false) })))];
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

  await judge(good, true, !wanted);
  if (wanted) await show(wanted);
  return { show, end: list.end };
}
