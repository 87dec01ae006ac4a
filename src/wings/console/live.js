"use strict";
(() => {
  const main = document.querySelector("main");
  const headline = document.querySelector("#headline");
  const pulse = document.querySelector("#pulse");
  if (!main || !main.dataset.live) return;
  let source = null, pending = null, retry = 0, lost = 0, heard = Date.now();
  const tell = (text) => { if (pulse.textContent !== text) pulse.textContent = text; };
  const isSelected = () => !getSelection().isCollapsed;
  const hear = () => { clearTimeout(lost); heard = Date.now(); tell(pending ? "Paused while text is selected" : "Live"); };
  const close = () => { clearTimeout(retry); clearTimeout(lost); if (source) source.close(); source = null; };
  // What stays the same element for a reader, though it is replaced.
  const name = (element) => element && (element.id || element.getAttribute("href") || element.getAttribute("aria-label")
    || (element.parentElement && element.parentElement.id));
  const draw = (next) => {
    const focused = main.contains(document.activeElement) ? name(document.activeElement) : null;
    const opened = [...main.querySelectorAll("details[open]")].map((details) => details.id);
    const scrolled = [...main.querySelectorAll(".scroll")].map((part) => [part.scrollTop, part.scrollLeft]);
    main.innerHTML = next.main;
    for (const id of opened) { const details = document.getElementById(id); if (details) details.open = true; }
    main.querySelectorAll(".scroll").forEach((part, at) => {
      if (scrolled[at]) [part.scrollTop, part.scrollLeft] = scrolled[at];
    });
    if (focused) for (const element of main.querySelectorAll("a, summary, .scroll")) {
      if (name(element) === focused) { element.focus({ preventScroll: true }); break; }
    }
  };
  const show = (next) => {
    if (headline.textContent !== next.headline) { headline.textContent = next.headline; document.title = next.title; }
    headline.className = next.level;
    // A reader who selects text keeps it, and gets the rest of the update afterwards.
    pending = isSelected() ? next : null;
    if (!pending) draw(next);
    hear();
  };
  const open = () => {
    close();
    heard = Date.now();
    source = new EventSource(main.dataset.live);
    source.onopen = hear;
    source.onmessage = (event) => show(JSON.parse(event.data));
    source.addEventListener("beat", hear);
    // The server ends each stream now and then, and the browser connects again. A refusal is for good.
    source.onerror = () => {
      const fail = () => tell("Connection lost, trying again");
      clearTimeout(lost);
      lost = setTimeout(fail, 5000);
      if (!source || source.readyState !== EventSource.CLOSED) return;
      close();
      fail();
      retry = setTimeout(() => location.reload(), 10000);
    };
  };
  document.addEventListener("selectionchange", () => {
    if (!pending || isSelected()) return;
    draw(pending);
    pending = null;
    hear();
  });
  // The server sends something each 15 seconds: a connection that is silent for longer is none.
  setInterval(() => {
    const silent = Math.round((Date.now() - heard) / 1000);
    if (!source || silent < 40) return;
    tell(`No news for ${silent} s, trying again`);
    if (silent % 40 < 5) { const since = heard; open(); heard = since; }
  }, 5000);
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else if (!source) open(); });
  if (!document.hidden) open();
})();
