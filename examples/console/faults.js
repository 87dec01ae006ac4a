// Returns what a reader with other eyes, or without a mouse, would miss on a page: texts with too little contrast (WCAG 1.4.3), controls without a
// name or a label, headings that skip a level, tables without headers, ids that come twice, and a page wider than its screen.
(() => {
  const faults = [], name = (element) => `${element.tagName.toLowerCase()} "${element.textContent.trim().slice(0, 40)}"`;
  const rgba = (color) => color.match(/[\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = color.map((part) => part / 255).map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const color = rgba(getComputedStyle(element).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
      if (color[3] > 0) faults.push(`${name(element)} has a ground that lets another one through`);
    }
    return [255, 255, 255];
  };
  let texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const element = text.parentElement, style = getComputedStyle(element);
    if (!text.data.trim() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName) || style.display === "none") continue;
    texts += 1;
    const [one, other] = [light(rgba(style.color)), light(ground(element))].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    const isLarge = parseFloat(style.fontSize) >= 24 || parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700;
    if (contrast < (isLarge ? 3 : 4.5)) faults.push(`${name(element)} has a contrast of ${contrast.toFixed(2)}`);
  }
  if (texts < 5) faults.push(`only ${texts} texts were found`);
  for (const control of document.querySelectorAll("a, button, summary")) if (!control.textContent.trim()) faults.push("a control has no name");
  for (const field of document.querySelectorAll("textarea, select, input:not([type=hidden])")) if (!field.labels.length) faults.push("a field has no label");
  for (const shape of document.querySelectorAll("svg")) if (!shape.getAttribute("aria-label")) faults.push("a chart has no words");
  for (const table of document.querySelectorAll("table")) if (!table.caption || !table.querySelector("th[scope=col]")) faults.push("a table has no caption or headers");
  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) faults.push(`${name(heading)} skips a level`);
    level = next;
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  if (new Set(ids).size < ids.length) faults.push("an id comes twice");
  if (document.querySelectorAll("h1").length !== 1 || !document.title || !document.documentElement.lang) faults.push("the page has no title, language or first heading");
  // Without the bar by which it scrolls.
  const { scrollWidth: wide, clientWidth: room } = document.documentElement;
  if (wide > room) faults.push(`the page is ${wide} pixels wide, and has room for ${room}`);
  return faults;
})()
