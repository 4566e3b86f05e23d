// The explorer in a notebook: messages go to the kernel.
import { explorer } from "./explorer.js";

export default {
  async render({ model, el }) {
    const waiting = new Map();
    let number = 0;
    const hear = (message) => {
      const done = waiting.get(message.number);
      waiting.delete(message.number);
      done?.(message.answer);
    };
    model.on("msg:custom", hear);
    const ask = (message) => new Promise((resolve) => {
      waiting.set(++number, resolve);
      model.send({ number, message });
    });
    const root = document.createElement("div");
    root.textContent = "Waiting for the kernel …";
    el.append(root);
    // Another view of the widget, or Python, may have chosen something else meanwhile.
    let last = "";
    const told = (state) => {
      last = JSON.stringify(state);
      model.set("state", state);
      model.save_changes();
    };
    const { show, end } = await explorer(root, ask, told, model.get("state"));
    const follow = () => {
      if (JSON.stringify(model.get("state")) !== last) show(model.get("state"));
    };
    model.on("change:state", follow);
    return () => {
      model.off("msg:custom", hear);
      model.off("change:state", follow);
      end();
    };
  },
};
