// One panel's plot, drawn by plotly once it comes into sight.
Nero.Chart = (() => {
  "use strict";

  const { html } = Nero.dom;
  const { significant, measured } = Nero.numbers;
  const HELP = "Arrow keys read values, plus and minus zoom, 0 shows the whole.";
  const CONFIG = { displayModeBar: false, displaylogo: false, responsive: true, doubleClick: false };
  const EARLY = { rootMargin: "500px 0px" }; // drawn before they are seen
  const EXPORT = { width: 800, height: 520, scale: 2 };
  const all = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) target.chart.start();
  }, EARLY);

  class Chart {
    // `name` is the key of the zoom in the address and the name of exported files.
    constructor(panel, name = "") {
      this.whole = panel;
      this.name = name;
      this.hidden = new Set(); // groups
      this.cursor = null; // the x that is read, if one is
      this.view = null; // the zoomed ranges, if any, as plotly has them
      this.drawn = false;
      this.restore();
      this.build();
      Nero.keys.wire(this);
      all.add(this);
      this.plot.chart = this;
      watcher.observe(this.plot);
    }

    build() {
      const { title, ylabel, xlabel } = this.whole;
      this.live = html("p", { class: "unseen readout", "aria-live": "polite" });
      const save = (format) => html("button", { type: "button", class: "small", click: () => this.save(format) }, format.toUpperCase());
      const again = () => {
        this.reset();
        this.plot.focus();
      };
      this.resetButton = html("button", { type: "button", class: "small reset", hidden: !this.view, click: again }, "Reset zoom");
      const label = `${title ? `${title}: ` : ""}${ylabel} by ${xlabel}. ${HELP}`;
      const focus = { tabindex: "0", role: "application", "aria-roledescription": "chart", "aria-label": label };
      this.plot = html("div", { class: "plot", ...focus });
      const tools = html("span", { class: "chart-tools" }, this.resetButton, save("png"), save("svg"));
      const head = html("div", { class: "chart-head" }, html("p", { class: "ylabel" }, ylabel), tools);
      this.element = html("div", { class: "chart" }, head, this.plot, this.live);
    }

    get panel() {
      return Nero.state.get("x") === "time" ? Nero.chartPanel.overTime(this.whole) : this.whole;
    }

    get shown() {
      return this.panel.series.filter(({ group }) => !this.hidden.has(group));
    }

    // The part of the x axis in sight, in its own unit.
    get xrange() {
      const range = [...this.plot.layout.xaxis.range];
      return this.panel.xscale === "log" ? range.map((power) => 10 ** power) : range;
    }

    async start() {
      watcher.unobserve(this.plot);
      if (this.drawn) return;
      this.plotly = await Nero.packed.plotly();
      if (this.drawn) return;
      this.drawn = true;
      await this.draw();
      this.plot.on("plotly_relayout", (change) => this.follow(change));
      this.plot.on("plotly_doubleclick", () => this.reset());
    }

    async draw() {
      if (!this.drawn) return;
      const { panel, view, hidden, plot } = this;
      const dark = Nero.theme.isDark();
      const { traces, layout } = Nero.chartPanel;
      await this.plotly.react(plot, traces(panel, hidden, dark), layout(panel, view, dark), CONFIG);
      plot.dataset.view = [...plot.layout.xaxis.range, ...plot.layout.yaxis.range].map((end) => significant(end, 6)).join(" ");
      plot.dataset.zoomed = view !== null;
      plot.dataset.x = panel.timed ? "time" : "step";
      this.resetButton.hidden = view === null;
    }

    follow(change) {
      if (!("xaxis.range[0]" in change) && !("yaxis.range[0]" in change)) return;
      const { xaxis, yaxis } = this.plot.layout;
      this.show({ x: [...xaxis.range], y: [...yaxis.range] });
    }

    show(view) {
      this.view = view;
      this.keep();
      return this.draw();
    }

    // Along x, never beyond the whole.
    zoom([low, high]) {
      const log = this.panel.xscale === "log";
      const ends = Nero.chartPanel.layout(this.panel, null, false).xaxis.range;
      const wanted = (log ? [Math.log10(low), Math.log10(high)] : [low, high]).map((end) => Nero.numbers.clamp(end, ...ends));
      if (wanted[0] <= ends[0] && wanted[1] >= ends[1]) return this.reset();
      this.live.textContent = `${this.panel.xlabel} ${significant(low)} to ${significant(high)}`;
      return this.show({ x: wanted, y: [...this.plot.layout.yaxis.range] });
    }

    reset() {
      if (this.view !== null) this.show(null);
    }

    hide(groups) {
      this.hidden = groups;
      this.draw();
    }

    // The zoom is kept in the address.
    keep() {
      if (!this.name) return;
      const { view } = this;
      Nero.state.set(`zoom-${this.name}`, view && [...view.x, ...view.y].map((end) => significant(end, 5)).join(","));
    }

    restore() {
      const ends = this.name ? Nero.state.list(`zoom-${this.name}`).map(Number) : [];
      if (ends.length === 4 && ends.every(Number.isFinite)) this.view = { x: ends.slice(0, 2), y: ends.slice(2) };
    }

    // Show the values at x, as hovering does, and say them.
    read(x) {
      if (x === undefined) return;
      this.cursor = x;
      const curves = this.plot.data.map((trace, curveNumber) => ({ trace, curveNumber })).filter(({ trace }) => trace.meta?.series);
      const points = curves
        .map(({ trace, curveNumber }) => ({ curveNumber, pointNumber: trace.x.indexOf(x) }))
        .filter(({ pointNumber }) => pointNumber >= 0);
      if (points.length) this.plotly.Fx.hover(this.plot, points);
      this.plot.dataset.cursor = x;
      const values = this.shown.map(({ label, x: places, mean }) => [label, mean[places.indexOf(x)]]);
      const parts = values.filter(([, value]) => value !== undefined).map(([label, value]) => `${label}: ${measured(value)}`);
      this.live.textContent = `${this.panel.xlabel} ${significant(x, 6)}. ${parts.join("; ") || "no values"}`;
    }

    leave() {
      this.cursor = null;
      delete this.plot.dataset.cursor;
      if (this.drawn) this.plotly.Fx.unhover(this.plot);
    }

    // As a file that stands alone: with title, legend and the axis's label, on white.
    async save(format) {
      const plotly = (this.plotly ??= await Nero.packed.plotly());
      const { panel, view, hidden } = this;
      const { traces, layout, escaped } = Nero.chartPanel;
      const data = traces(panel, hidden, false);
      const whole = layout(panel, view, false);
      const named = { text: escaped(panel.title), font: { size: 14 }, x: 0, xref: "paper" };
      Object.assign(whole, { showlegend: true, title: named, margin: { l: 70, r: 10, t: 40, b: 50 } });
      whole.legend = { orientation: "h", y: -0.16, font: { size: 11 } };
      whole.yaxis.title = { text: escaped(panel.ylabel), standoff: 8 };
      await plotly.downloadImage({ data, layout: whole }, { format, filename: this.name || "nero", ...EXPORT });
    }
  }

  function redraw() {
    for (const chart of all) {
      if (chart.plot.isConnected) chart.draw();
      else if (chart.drawn) all.delete(chart);
    }
  }

  document.addEventListener("themed", redraw);
  Nero.state.follow("x", () => {
    for (const chart of all) if (Nero.chartPanel.isTimed(chart.whole)) chart.view = null;
    redraw();
  });

  return Chart;
})();
