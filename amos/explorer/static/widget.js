// The explorer in a notebook: messages go to the kernel. Follows explorer.js in one module.

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
    el.append(root);
    const end = await explorer(root, ask, (state) => {
      model.set("state", state);
      model.save_changes();
    });
    return () => {
      model.off("msg:custom", hear);
      end();
    };
  },
};
