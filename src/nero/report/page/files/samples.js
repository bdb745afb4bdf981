// What generators draw, side by side, at an epoch that one slider chooses for all of them.
Nero.samples = (() => {
  "use strict";

  const { html, runLink } = Nero.dom;
  let made = 0;

  function epochsOf(samples) {
    const all = samples.flatMap(({ pictures }) => pictures.map(({ epoch }) => epoch));
    return [...new Set(all)].sort((one, other) => one - other);
  }

  // The last picture up to that epoch; before the first one, the first.
  function pictureAt({ pictures }, epoch) {
    return pictures.filter((picture) => picture.epoch <= epoch).at(-1) ?? pictures[0];
  }

  function describe({ name, rows, columns }, epoch) {
    return `${name} at epoch ${epoch}: ${rows} samples of each of ${columns.join(", ")}`;
  }

  function strip(sample, linked) {
    const image = html("img", { width: sample.side * sample.columns.length, height: sample.side * sample.rows });
    const shown = html("span", { class: "epoch" });
    const names = sample.columns.map((name) => html("span", {}, name));
    const columns = html("div", { class: "columns", "aria-hidden": "true" }, names);
    const name = linked && sample.run ? runLink(sample.run, sample.name) : sample.name;
    const caption = html("figcaption", {}, html("strong", {}, name), ` ${sample.detail} `, shown);
    return { sample, image, shown, element: html("figure", { class: "strip" }, caption, columns, image) };
  }

  function show({ sample, image, shown }, epoch) {
    const picture = pictureAt(sample, epoch);
    image.src = picture.src;
    image.alt = describe(sample, picture.epoch);
    shown.textContent = picture.epoch === epoch ? "" : `(epoch ${picture.epoch})`;
  }

  function viewer(samples, linked = true) {
    const filled = samples.filter(({ pictures }) => pictures.length);
    const strips = filled.map((sample) => strip(sample, linked));
    const epochs = epochsOf(filled);
    const id = `epoch-${++made}`;
    const output = html("output", { for: id });
    const slider = html("input", { type: "range", id, class: "epoch-slider", min: 0, max: epochs.length - 1, step: 1 });

    function choose() {
      const epoch = epochs[slider.valueAsNumber];
      output.textContent = epoch;
      slider.setAttribute("aria-valuetext", `epoch ${epoch}`);
      strips.forEach((one) => show(one, epoch));
    }

    slider.addEventListener("input", choose);
    slider.value = epochs.length - 1;
    if (epochs.length) choose();
    const control = html("div", { class: "epoch-control" }, html("label", { for: id }, "Epoch"), slider, output);
    return [control, html("div", { class: "strip-grid" }, strips.map(({ element }) => element))];
  }

  function build(samples) {
    for (const section of document.querySelectorAll("[data-samples]")) {
      if (samples?.length) section.querySelector(".strips").append(...viewer(samples));
    }
  }

  return { build, viewer };
})();
