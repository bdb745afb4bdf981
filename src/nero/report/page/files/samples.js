// What generators draw, side by side, at an epoch that one slider chooses for all of them.
Nero.samples = (() => {
  "use strict";

  const { html, runLink } = Nero.dom;
  const STEP = 500; // milliseconds that a picture is shown while they play
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

  // The metric is that of the picture, not that of the end of training.
  function show({ sample, image, shown }, epoch) {
    const picture = pictureAt(sample, epoch);
    image.src = picture.src;
    image.alt = describe(sample, picture.epoch);
    shown.textContent = [`epoch ${picture.epoch}`, picture.value].filter(Boolean).join(": ");
  }

  // A button that steps through the epochs, from the first one where the last is shown.
  function player(slider, count, choose) {
    const button = html("button", { type: "button", class: "play", "aria-pressed": "false" }, "Play");
    let timer = null;

    function stop() {
      clearInterval(timer);
      timer = null;
      button.setAttribute("aria-pressed", "false");
      button.textContent = "Play";
    }

    function step() {
      if (!slider.isConnected || slider.valueAsNumber >= count - 1) return stop();
      slider.value = slider.valueAsNumber + 1;
      choose();
    }

    button.addEventListener("click", () => {
      if (timer !== null) return stop();
      if (slider.valueAsNumber >= count - 1) slider.value = 0;
      choose();
      timer = setInterval(step, STEP);
      button.setAttribute("aria-pressed", "true");
      button.textContent = "Stop";
    });
    return button;
  }

  // `key` of the epoch in the address, if it is kept there.
  function viewer(samples, linked = true, key = "") {
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

    const play = player(slider, epochs.length, choose);
    slider.addEventListener("input", () => {
      choose();
      if (key) Nero.state.set(key, slider.valueAsNumber === epochs.length - 1 ? "" : epochs[slider.valueAsNumber]);
    });
    const kept = key ? epochs.indexOf(Number(Nero.state.get(key))) : -1;
    slider.value = kept < 0 ? epochs.length - 1 : kept;
    if (epochs.length) choose();
    const control = html("div", { class: "epoch-control" }, html("label", { for: id }, "Epoch"), slider, output, play);
    return [control, html("div", { class: "strip-grid" }, strips.map(({ element }) => element))];
  }

  function build(samples) {
    for (const section of document.querySelectorAll("[data-samples]")) {
      if (samples?.length) section.querySelector(".strips").append(...viewer(samples, true, "epoch"));
    }
  }

  return { build, viewer };
})();
