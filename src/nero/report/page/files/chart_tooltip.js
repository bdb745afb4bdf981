// The values under the crosshair, as a small table beside it and as a sentence for those who do not see it.
Nero.tooltip = (() => {
  "use strict";

  const { html, unbroken } = Nero.dom;
  const { significant, measured, range, clamp } = Nero.numbers;
  const APART = 14; // pixels from the crosshair
  const NARROW = 480; // pixels of a plot, below which the tooltip goes under it: beside, it would hide the curves
  const EDGE = 6;

  function name(value, x) {
    return value.x === x ? value.series.label : `${value.series.label} (at ${significant(value.x)})`;
  }

  function row(value, x, nearest) {
    const swatch = html("span", { class: "swatch", "data-dash": value.series.dash });
    Nero.colours.ink(swatch, value.series.colour, value.series.whose === "authors");
    return html(
      "tr",
      { class: value === nearest ? "nearest" : null, "data-group": value.series.group },
      html("td", {}, swatch, html("span", { class: "label" }, unbroken(name(value, x)))),
      html("td", { class: "mean" }, measured(value.mean)),
      html("td", { class: "range" }, value.ranged && value.low !== value.high ? range(value.low, value.high) : ""),
    );
  }

  function table(panel, x, values, nearest) {
    const rows = values.map((value) => row(value, x, nearest));
    const caption = html("caption", {}, `${panel.xlabel} ${significant(x, 6)}`);
    return html("table", {}, caption, html("tbody", {}, rows));
  }

  function markList(marks) {
    return html("ul", {}, marks.map(({ label }) => html("li", {}, unbroken(label))));
  }

  function sentence(panel, x, values) {
    const parts = values.map((value) => {
      const spread = value.ranged && value.low !== value.high ? ` (${range(value.low, value.high)})` : "";
      return `${name(value, x)}: ${measured(value.mean)}${spread}`;
    });
    return `${panel.xlabel} ${significant(x, 6)}. ${parts.join("; ") || "no values"}`;
  }

  // At the end of the plot that fewer of the curves' dots are at.
  function top(tooltip, plot, frame) {
    const middle = (frame.top + frame.bottom) / 2;
    const dots = [...plot.querySelectorAll(".dot")].map((dot) => dot.cy.baseVal.value);
    const low = dots.filter((height) => height > middle).length;
    return low * 2 >= dots.length ? frame.top : Math.max(frame.top, frame.bottom - tooltip.offsetHeight);
  }

  function place(tooltip, plot, frame, x) {
    tooltip.classList.toggle("below", frame.width < NARROW);
    tooltip.style.left = tooltip.style.top = "";
    if (frame.width < NARROW) return;
    const box = plot.getBoundingClientRect();
    const wide = tooltip.offsetWidth;
    const [least, most] = [EDGE - box.left, document.documentElement.clientWidth - EDGE - box.left - wide];
    const right = x + APART;
    tooltip.style.left = `${clamp(right <= most ? right : x - APART - wide, least, Math.max(least, most))}px`;
    tooltip.style.top = `${top(tooltip, plot, frame)}px`;
  }

  function show(chart, content, x) {
    chart.tooltip.replaceChildren(content);
    chart.tooltip.hidden = false;
    place(chart.tooltip, chart.plot, chart.frame, x);
  }

  function hide(chart) {
    chart.tooltip.hidden = true;
    chart.tooltip.replaceChildren();
  }

  return { table, markList, sentence, show, hide };
})();
