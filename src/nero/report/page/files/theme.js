// Light, dark, or as the system has it. Runs while the head is read, so that no other theme flashes up first.
Nero.theme = (() => {
  "use strict";

  const CHOICES = ["auto", "light", "dark"];
  const KEY = "nero-report-theme";
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let choice = stored();

  function stored() {
    try {
      const found = localStorage.getItem(KEY);
      return CHOICES.includes(found) ? found : "auto";
    } catch {
      return "auto"; // a browser may refuse storage to a file
    }
  }

  function store() {
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // Then the choice holds until the page is closed.
    }
  }

  function apply() {
    document.documentElement.dataset.theme = choice;
    document.dispatchEvent(new Event("themed"));
  }

  function isDark() {
    return choice === "auto" ? system.matches : choice === "dark";
  }

  function label(button) {
    button.textContent = `Theme: ${choice}`;
  }

  function wire(button) {
    label(button);
    button.hidden = false;
    button.addEventListener("click", () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      apply();
      store();
      label(button);
    });
  }

  system.addEventListener("change", apply);
  apply();
  return { wire, isDark };
})();
