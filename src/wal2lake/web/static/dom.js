// Elements from data. Text is always a text node, so no name of a table can become markup.
//
//   h("a", {href: "#/tables"}, "Tables")    a new element
//   morph(old, new)                         changes an element in place to be like a new one
//
// A view makes its elements anew with each reading; morph keeps what is the same, so that focus,
// selection and scrolling stay. Siblings with data-key are moved, not rewritten. An element with
// data-keep belongs to somebody else (a chart) and is left alone.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

/** Change what `parent` holds to `children`; keep the focus. */
export function show(parent, ...children) {
  const wanted = parent.cloneNode(false);
  append(wanted, children);
  const focused = document.activeElement;
  morphChildren(parent, wanted);
  if (focused && focused !== document.activeElement && focused.isConnected) {
    focused.focus({ preventScroll: true });
  }
}

function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.hasAttribute("data-keep")) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  // What a person types is theirs while they type; a select follows its options.
  if (old instanceof HTMLInputElement) {
    if (old !== document.activeElement) old.value = fresh.value;
    return;
  }
  morphChildren(old, fresh);
  if (old instanceof HTMLSelectElement && old !== document.activeElement) {
    old.value = fresh.value;
  }
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);

function morphChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.childNodes) {
    const key = keyOf(child);
    if (key !== null) keyed.set(key, child);
  }
  let place = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = keyOf(child);
    let match = null;
    if (key !== null) {
      match = keyed.get(key) ?? null;
      if (match && match.nodeName !== child.nodeName) match = null;
      keyed.delete(key);
      if (match && match !== place) old.insertBefore(match, place);
    } else if (place && keyOf(place) === null && place.nodeName === child.nodeName) {
      match = place;
    }
    if (match) {
      morph(match, child);
      place = match.nextSibling;
    } else {
      old.insertBefore(child, place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

// ---- signs ------------------------------------------------------------------

const SIGNS = {
  ok: ["M3.5 8.5 6.5 11.5 12.5 4.5"],
  warning: ["M8 2 14.5 13.5H1.5Z", "M8 6.500V9.5", "M8 11.500V11.6"],
  error: ["M5.2 1.500H10.800L14.5 5.200V10.800L10.8 14.500H5.200L1.5 10.800V5.200Z", "M8 4.500V8.5", "M8 11V11.1"],
  copy: ["M6 5.500H13.500V14H6Z", "M10 5.500V2H2.500V10.500H6"],
  up: ["M4 10 8 6 12 10"],
  down: ["M4 6 8 10 12 6"],
  light: ["M8 5A3 3 0 1 1 8 11 3 3 0 0 1 8 5Z", "M8 1V2.500M8 13.500V15M1 8H2.500M13.5 8H15M3 3 4 4M12 12 13 13M13 3 12 4M4 12 3 13"],
  dark: ["M13.5 9.500A6 6 0 0 1 6.5 2.5 6 6 0 1 0 13.5 9.500Z"],
  auto: ["M8 2A6 6 0 1 1 8 14 6 6 0 0 1 8 2Z", "M8 2V14", "M8 5.5 11 4M8 9 13.5 6.500M8 12.5 13.5 9.5"],
};

/** A small sign beside a word; it says nothing to a screen reader. */
export function sign(name) {
  return s(
    "svg",
    { class: `sign ${name}`, viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
    SIGNS[name].map((d) => s("path", { d })),
  );
}
