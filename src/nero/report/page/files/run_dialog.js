// The dialog of one run, which the address's hash opens: #run=ID.
Nero.runDialog = (() => {
  "use strict";

  const { html } = Nero.dom;
  const PREFIX = "#run=";
  let dialog = null;
  let samples = [];
  let before = ""; // the hash to go back to
  let asked = null; // the run that the hash names

  function idInHash() {
    if (!location.hash.startsWith(PREFIX)) return null;
    const text = location.hash.slice(PREFIX.length);
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  }

  function setHash(hash) {
    history.replaceState(null, "", `${location.pathname}${location.search}${hash}`);
  }

  async function copy(said) {
    try {
      await navigator.clipboard.writeText(location.href);
      said.textContent = "Link copied";
    } catch {
      const words = { readonly: true, "aria-label": "Link to this run", value: location.href };
      const field = html("input", { class: "link", ...words });
      said.replaceChildren(field);
      field.select();
    }
  }

  function head(id) {
    const said = html("span", { class: "said", role: "status" });
    const link = html("button", { type: "button", class: "copy", click: () => copy(said) }, "Copy link");
    const close = html("button", { type: "button", class: "close", click: () => dialog.close() }, "Close");
    const title = html("h2", { id: "run-title", tabindex: "-1", autofocus: true }, id);
    return html("div", { class: "dialog-head" }, title, html("div", { class: "tools" }, said, link, close));
  }

  function unknown(id) {
    return [html("p", { class: "unknown" }, `There is no run “${id}” in this report.`)];
  }

  function content(run, store) {
    const { results, text, starts, part } = Nero.runFacts;
    const own = samples.filter((sample) => sample.run === run.id);
    return [
      results(run, store),
      Nero.overlay.metricsOf(run),
      text("Traceback", run.traceback),
      own.length ? part("Samples", ...Nero.samples.viewer(own, false)) : null,
      text("Config", run.config),
      starts(run.provenance),
    ].filter(Boolean);
  }

  async function found(id) {
    try {
      const { byId, store } = await Nero.packed.runs();
      return byId.has(id) ? content(byId.get(id), store) : unknown(id);
    } catch (error) {
      return [html("p", { class: "unknown" }, `The runs cannot be read: ${error.message}`)];
    }
  }

  async function open(id) {
    asked = id;
    const body = html("div", { class: "dialog-body" }, html("p", {}, "Unpacking the runs …"));
    dialog.replaceChildren(head(id), body);
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    const parts = await found(id);
    if (asked === id) body.replaceChildren(...parts); // else another one was asked for meanwhile
  }

  function follow() {
    const id = idInHash();
    if (id !== null) open(id);
    else {
      before = location.hash;
      asked = null;
      if (dialog.open) dialog.close();
    }
  }

  function closed() {
    asked = null;
    dialog.replaceChildren();
    if (idInHash() !== null) setHash(before);
  }

  function build(allSamples) {
    samples = allSamples ?? [];
    dialog = html("dialog", { id: "run-dialog", "aria-labelledby": "run-title", close: closed });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close(); // the backdrop: what is inside fills the dialog
    });
    document.body.append(dialog);
    window.addEventListener("hashchange", follow);
    follow();
  }

  return { build };
})();
