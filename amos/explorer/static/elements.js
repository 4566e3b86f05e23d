// What the parts of the explorer's page have in common.

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export function seconds(value) {
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]]) {
    if (value >= size) return `${Number((value / size).toPrecision(4))} ${unit}`;
  }
  return `${Number((value * 1e9).toPrecision(4))} ns`;
}

export const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** An answer to a message; where none comes, that is what is wrong with `field`. */
export async function answered(ask, message, field) {
  try {
    return await ask(message);
  } catch (error) {
    return { ok: false, errors: { [field]: `no answer: ${error.message}` } };
  }
}

/** The action, once there was rest for a moment. */
export function later(action) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(action, 120); };
}
