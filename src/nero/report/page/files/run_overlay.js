// Curves of runs: every metric of one run in its dialog, and one metric of several chosen runs.
Nero.overlay = (() => {
  "use strict";

  const { html } = Nero.dom;
  const { isNumber, measured } = Nero.numbers;
  const COLOURS = ["#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#332288", "#553311", "#808080"];
  const STEEP = 20; // highest to lowest value, from which a log scale shows more
  const MARGIN = 0.05;
  let chosen = []; // ids
  let follow = () => {};

  function limits(values, kind) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const to = kind === "log" ? Math.log : (value) => value;
    const from = kind === "log" ? Math.exp : (value) => value;
    const room = (to(high) - to(low)) * MARGIN || Math.abs(to(high) || 1) * MARGIN;
    return [from(to(low) - room), from(to(high) + room)];
  }

  function seriesOf(run, key, colour, label) {
    const { x, y, seconds } = run.metrics[key];
    return { label, group: label, colour, dash: "solid", whose: "ours", x, mean: y, seconds, runs: [run.id] };
  }

  function nameOf(run, key) {
    return key === run.metric_key ? run.metric : key;
  }

  function panel(runs, key, label) {
    const having = runs.filter(({ metrics }) => metrics[key]?.y.some(isNumber));
    if (!having.length) return null;
    const series = having.map((run, place) => seriesOf(run, key, COLOURS[place % COLOURS.length], label(run)));
    const values = series.flatMap(({ mean }) => mean.filter(isNumber));
    const kind = Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > STEEP ? "log" : "linear";
    const last = Math.max(...series.map(({ x }) => x.at(-1)));
    const axes = { xlabel: "epoch", ylabel: nameOf(having[0], key), xscale: "linear", yscale: kind };
    return { title: "", ...axes, xlim: [0, Math.max(1, last)], ylim: limits(values, kind), series };
  }

  function keysOf(runs) {
    const all = [...new Set(runs.flatMap(({ metrics }) => Object.keys(metrics)))].sort();
    const main = runs.map(({ metric_key: key }) => key).filter((key) => all.includes(key));
    return [...new Set([...main, ...all])];
  }

  // A chart of the metric that a menu chooses; `key` of the choice in the address, if it is kept there.
  function charts(runs, label, key = "") {
    const keys = keysOf(runs);
    if (!keys.length) return null;
    const kept = key ? Nero.state.get(key) : null;
    const options = keys.map((name) => html("option", { value: name, selected: name === kept }, nameOf(runs[0], name)));
    const menu = html("select", { class: "metric" }, options);
    const place = html("div", { class: "metric-chart" });

    function draw() {
      const shown = panel(runs, menu.value, label);
      if (key) Nero.state.set(key, menu.value === keys[0] ? "" : menu.value);
      if (!shown) return place.replaceChildren(html("p", { class: "empty" }, "It has no finite value."));
      const chart = new Nero.Chart(shown, key ? "runs" : "");
      place.replaceChildren(chart.element, ...(runs.length > 1 ? [Nero.key.build(chart)] : []));
    }

    menu.addEventListener("change", draw);
    draw();
    const controls = html("div", { class: "chart-controls" }, html("label", {}, "Metric ", menu), Nero.figures.timeSwitch());
    return html("div", { class: "metrics" }, controls, place);
  }

  // The last value of every metric.
  function finals(run) {
    const rows = Object.entries(run.metrics).map(([key, { x, y }]) =>
      html("div", {}, html("dt", {}, nameOf(run, key)), html("dd", {}, `${measured(y.at(-1))} (epoch ${x.at(-1)})`)),
    );
    return html("details", {}, html("summary", {}, "Last value of every metric"), html("dl", { class: "facts" }, rows));
  }

  function metricsOf(run) {
    const shown = charts([run], ({ id }) => id);
    return shown && html("div", {}, shown, finals(run));
  }

  // Chosen runs

  function isChosen(id) {
    return chosen.includes(id);
  }

  function choose(id, wanted) {
    chosen = wanted ? [...new Set([...chosen, id])] : chosen.filter((other) => other !== id);
    Nero.state.setList("runs", chosen);
    follow();
  }

  function show(place, byId) {
    const runs = chosen.map((id) => byId.get(id)).filter(Boolean);
    if (!runs.length) return place.replaceChildren();
    const clear = html("button", { type: "button", class: "clear", click: () => clearAll(place) }, "Clear");
    const title = `${runs.length} chosen run${runs.length > 1 ? "s" : ""}`;
    const head = html("div", { class: "overlay-head" }, html("h3", {}, title), clear);
    place.replaceChildren(head, charts(runs, ({ id }) => id, "metric") ?? html("p", {}, "They have no metrics."));
  }

  function clearAll(place) {
    chosen = [];
    Nero.state.set("runs", "");
    for (const box of place.parentElement.querySelectorAll("input.choose")) box.checked = false;
    follow();
  }

  function build(place, byId) {
    chosen = Nero.state.list("runs").filter((id) => byId.has(id));
    follow = () => show(place, byId);
    follow();
  }

  return { build, choose, isChosen, metricsOf };
})();
