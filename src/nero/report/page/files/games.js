// The agents' games: still until the reader plays them, so that nothing moves unasked.
Nero.games = (() => {
  "use strict";

  const { html, runLink } = Nero.dom;

  function strip(game) {
    const alt = `A game of the agent trained by ${game.name}`;
    const image = html("img", { src: game.still, alt, width: game.width, height: game.height });
    const button = html("button", { type: "button", class: "play", "aria-pressed": "false" }, "Play");
    button.addEventListener("click", () => {
      const playing = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", playing);
      button.textContent = playing ? "Stop" : "Play";
      image.src = playing ? game.src : game.still;
    });
    const caption = html("figcaption", {}, html("strong", {}, runLink(game.run, game.name)), ` ${game.detail}, ${game.length} s `, button);
    return html("figure", { class: "strip game" }, caption, image);
  }

  function build(games) {
    for (const section of document.querySelectorAll("[data-games]")) {
      section.querySelector(".strips").append(html("div", { class: "strip-grid" }, games.map(strip)));
    }
  }

  return { build };
})();
