// The controls above the list of runs: free text, also over settings, and a choice of task, optimiser and status.
// They are kept in the address.
Nero.runFilters = (() => {
  "use strict";

  const { html } = Nero.dom;
  const CHOICES = { task: "Task", optim: "Optimiser", status: "Status" };

  function haystack(run) {
    const { id, task_name: task, optim, lr, seed, status, data, metric, device, settings } = run;
    const keys = Object.entries(settings).map(([key, value]) => `${key}=${value}`);
    return [id, task, optim, lr, `seed ${seed}`, status, data, metric, device, ...keys].join("\n").toLowerCase();
  }

  function valuesOf(runs, field) {
    return [...new Set(runs.map((run) => run[field]))].filter((value) => value !== null && value !== undefined).sort();
  }

  function choice(runs, field) {
    const chosen = Nero.state.get(field);
    const name = (value) => (field === "task" ? runs.find(({ task }) => task === value).task_name : String(value));
    const option = (value) => html("option", { value, selected: String(value) === chosen }, name(value));
    const options = valuesOf(runs, field).map(option);
    return html("select", { "data-filter": field }, html("option", { value: "" }, "all"), options);
  }

  function labelled(text, control) {
    return html("label", {}, html("span", {}, text), control);
  }

  function matcher(words, chosen, texts) {
    const wanted = Object.entries(chosen).filter(([, value]) => value !== "");
    return (run) =>
      wanted.every(([field, value]) => String(run[field]) === value) &&
      words.every((word) => texts.get(run).includes(word));
  }

  // `changed` is called with a test for runs.
  function build(runs, changed) {
    const texts = new Map(runs.map((run) => [run, haystack(run)]));
    const hint = { placeholder: "id, metric, precision=bf16, depth=5 …", spellcheck: "false" };
    const search = html("input", { type: "search", "data-filter": "text", value: Nero.state.get("find") ?? "", ...hint });
    const selects = Object.fromEntries(Object.keys(CHOICES).map((field) => [field, choice(runs, field)]));

    function apply() {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const chosen = Object.fromEntries(Object.entries(selects).map(([field, select]) => [field, select.value]));
      Nero.state.set("find", search.value.trim());
      for (const [field, value] of Object.entries(chosen)) Nero.state.set(field, value);
      changed(matcher(words, chosen, texts));
    }

    const controls = Object.entries(CHOICES).map(([field, text]) => labelled(text, selects[field]));
    apply();
    return html("div", { class: "filters", role: "search", input: apply }, labelled("Find", search), controls);
  }

  return { build };
})();
