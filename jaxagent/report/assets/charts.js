"use strict";

const COLOURS = ["#3b7dd8", "#e07b39", "#3a9d6e", "#b0529c", "#8a7a2f", "#d1495b", "#4aa3b5", "#777f88"];
const SIZE = { width: 360, height: 190, left: 40, right: 10, top: 8, bottom: 24 };

/** An element with attributes and children; strings become text nodes, never markup. */
function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function shape(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

/** About `count` round numbers that cover the interval. */
function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const out = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) out.push(at);
  return out;
}

function printed(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000 || size < 0.001) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}

/** Centred running mean: the line that is read; the raw points stay visible behind it. */
function smoothed(points, reach) {
  return points.map(([x], at) => {
    const near = points.slice(Math.max(0, at - reach), at + reach + 1);
    return [x, near.reduce((sum, [, y]) => sum + y, 0) / near.length];
  });
}

function chart(curve) {
  const names = Object.keys(curve.series).filter((name) => curve.series[name].length);
  const all = names.flatMap((name) => curve.series[name]);
  let [low, high] = [Math.min(...all.map((p) => p[1])), Math.max(...all.map((p) => p[1]))];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  const [first, last] = [Math.min(...all.map((p) => p[0])), Math.max(...all.map((p) => p[0]))];
  const wide = SIZE.width - SIZE.left - SIZE.right, tall = SIZE.height - SIZE.top - SIZE.bottom;
  const px = (x) => SIZE.left + (last === first ? wide / 2 : ((x - first) / (last - first)) * wide);
  const py = (y) => SIZE.top + (1 - (y - low) / (high - low)) * tall;
  const svg = shape("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-label": curve.title });
  for (const y of ticks(low, high, 5)) {
    svg.append(shape("line", { class: "grid", x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: py(y), y2: py(y) }));
    svg.append(shape("text", { x: SIZE.left - 6, y: py(y) + 3.5, "text-anchor": "end" }, printed(y)));
  }
  const below = last > first ? ticks(first, last, 5).filter(Number.isInteger) : [first];
  for (const x of below) svg.append(shape("text", { x: px(x), y: SIZE.height - 8, "text-anchor": "middle" }, printed(x)));
  const path = (points) => points.map(([x, y], at) => `${at ? "L" : "M"}${px(x).toFixed(1)},${py(y).toFixed(1)}`).join("");
  names.forEach((name, at) => {
    const points = curve.series[name], stroke = COLOURS[at % COLOURS.length];
    if (points.length === 1) {
      svg.append(shape("circle", { cx: px(points[0][0]), cy: py(points[0][1]), r: 3, fill: stroke }));
      return;
    }
    const reach = Math.floor(points.length / 20);
    if (reach) svg.append(shape("path", { class: "raw", stroke, d: path(points) }));
    svg.append(shape("path", { stroke, d: path(smoothed(points, reach)) }));
  });
  const figure = element("figure", { class: "chart" }, element("figcaption", {}, curve.title), svg);
  if (names.length > 1) figure.append(legend(names));
  if (curve.note) figure.append(element("p", { class: "note" }, curve.note));
  follow(figure, svg, { curve, names, px, first, last, wide });
  return figure;
}

function legend(names) {
  const keys = names.map((name, at) =>
    element("span", {}, element("i", { style: `background:${COLOURS[at % COLOURS.length]}` }), name));
  return element("div", { class: "legend" }, ...keys);
}

/** The value under the pointer, for every series. */
function follow(figure, svg, { curve, names, px, first, last, wide }) {
  const cursor = shape("line", { class: "cursor", y1: SIZE.top, y2: SIZE.height - SIZE.bottom, visibility: "hidden" });
  const tip = element("div", { class: "tip", hidden: "" });
  svg.append(cursor);
  figure.append(tip);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * SIZE.width;
    const wanted = first + ((at - SIZE.left) / wide) * (last - first);
    const nearest = (points) => points.reduce((best, p) => (Math.abs(p[0] - wanted) < Math.abs(best[0] - wanted) ? p : best));
    const points = names.map((name) => nearest(curve.series[name]));
    const x = points[0][0];
    cursor.setAttribute("x1", px(x));
    cursor.setAttribute("x2", px(x));
    cursor.setAttribute("visibility", "visible");
    tip.textContent = [`${curve.x} ${printed(x)}`, ...names.map((name, j) => `${names.length > 1 ? name + "  " : ""}${printed(points[j][1])}`)].join("\n");
    tip.hidden = false;
    const left = (px(x) / SIZE.width) * box.width;
    tip.style.left = `${left > box.width / 2 ? left - tip.offsetWidth : left + 24}px`;
    tip.style.top = "3rem";
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    tip.hidden = true;
  });
}
