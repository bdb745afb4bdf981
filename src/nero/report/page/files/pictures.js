// Figures without an interactive form, unpacked when the part of the page with them is opened.
Nero.pictures = (() => {
  "use strict";

  const { html } = Nero.dom;

  async function fill(places) {
    const pictures = await Nero.packed.pictures();
    for (const place of places) {
      const { svg, title } = pictures[place.dataset.picture];
      const source = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
      place.replaceChildren(html("img", { src: source, alt: title, loading: "lazy" }));
    }
  }

  function build() {
    const places = [...document.querySelectorAll("[data-picture]")];
    const fold = places[0]?.closest("details");
    if (fold) fold.addEventListener("toggle", () => fold.open && fill(places), { once: true });
  }

  return { build };
})();
