// What the reader has chosen, kept in the address's query so that a link shows the same: ?hide=SGD,Adam&x=time.
// The fragment has the place on the page or the open run.
Nero.state = (() => {
  "use strict";

  const followers = new Map(); // by key

  function read() {
    return new URLSearchParams(location.search);
  }

  function get(key) {
    return read().get(key);
  }

  // An empty value removes the key.
  function set(key, value) {
    const words = read();
    if (value) words.set(key, value);
    else words.delete(key);
    const query = words.toString().replaceAll("%2C", ",").replaceAll("%3D", "=");
    history.replaceState(null, "", `${location.pathname}${query ? `?${query}` : ""}${location.hash}`);
    for (const follow of followers.get(key) ?? []) follow(value);
  }

  function list(key) {
    return (get(key) ?? "").split(",").filter(Boolean).map(decodeURIComponent);
  }

  function setList(key, values) {
    set(key, values.map((value) => encodeURIComponent(value)).join(","));
  }

  function follow(key, changed) {
    followers.set(key, [...(followers.get(key) ?? []), changed]);
  }

  return { get, set, list, setList, follow };
})();
