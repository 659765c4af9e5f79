
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const list = document.querySelector(".list ol");
const FILTERS = [
  ["split", "any split", (d) => d.split],
  ["family", "any family", (d) => d.family],
  ["outcome", "right or wrong", (d) => (d.correct ? "right answer" : "wrong answer")],
  ["identified", "any identification", (d) => (d.identified === null ? "nothing named" : d.identified ? "entity right" : "entity wrong")],
];
const chosen = {};
let shown = [];
let open = null;

const words = (name) => String(name).replaceAll("_", " ");
const mark = (right) => (right ? "✓" : "✗");
const chip = (text, right) => element("span", { class: `chip${right === undefined || right === null ? "" : right ? " yes" : " no"}` }, text);

function picture(key, label) {
  const source = DATA.images[key];
  if (!source) return element("span", { class: "missing", title: "no such image" }, key);
  return element("img", { src: source, alt: label ?? key, title: label ?? key, loading: "lazy" });
}

/** What a search looks through: everything that was asked, said and found. */
function haystack(dialogue) {
  dialogue.haystack ??= [dialogue.question, dialogue.answer, ...dialogue.answers, ...dialogue.entities,
    ...dialogue.turns.flatMap((turn) => [turn.text ?? "", ...(turn.parts ?? []).filter((part) => typeof part === "string"),
      ...(turn.candidates ?? []).map((found) => found.name), ...(turn.passages ?? []).map((found) => found.text)])]
    .join("\n").toLowerCase();
  return dialogue.haystack;
}

function refresh() {
  const terms = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  shown = DATA.dialogues.filter((dialogue) =>
    FILTERS.every(([name, , value]) => !chosen[name] || String(value(dialogue)) === chosen[name]) &&
    terms.every((term) => haystack(dialogue).includes(term)));
  document.querySelector(".count").textContent = `${shown.length} of ${DATA.dialogues.length} dialogues`;
  list.replaceChildren(...shown.map(row));
  if (!shown.length) list.append(element("p", { class: "empty" }, "No dialogue fits. Clear a filter or the search."));
  if (!shown.includes(open)) select(shown[0] ?? null);
}

function row(dialogue) {
  const node = element("li", { "aria-selected": dialogue === open, "data-id": dialogue.id },
    picture(dialogue.images[0]),
    element("span", { class: "question" }, dialogue.question),
    element("span", { class: `outcome ${dialogue.correct ? "yes" : "no"}` }, mark(dialogue.correct)));
  node.addEventListener("click", () => select(dialogue));
  return node;
}

function select(dialogue) {
  open = dialogue;
  for (const node of list.children) node.setAttribute("aria-selected", String(node.dataset.id === dialogue?.id));
  document.querySelector(".dialogue").replaceChildren(...(dialogue ? reading(dialogue) : []));
  if (dialogue) history.replaceState(null, "", `#dialogue=${encodeURIComponent(dialogue.id)}`);
}

function reading(dialogue) {
  const images = dialogue.images.map((key, at) => picture(key, `query image ${at + 1}: ${dialogue.entities[at] ?? ""}`));
  const asked = element("div", { class: "asked" }, element("div", { class: "shots" }, ...images),
    element("div", {}, element("h3", {}, dialogue.question),
      element("p", { class: "note" }, `In the image: ${dialogue.entities.join(", ")}. Right: ${dialogue.answers.slice(0, 4).join(" / ")}`)));
  const terms = Object.entries(dialogue.terms).map(([name, value]) => chip(`${words(name)} ${printed(value)}`));
  const chips = element("div", { class: "chips" },
    chip(`answer ${mark(dialogue.correct)} ${dialogue.answer ?? "none"}`, dialogue.correct),
    dialogue.identified === null ? null : chip(`entity ${mark(dialogue.identified)}`, dialogue.identified),
    chip(`reward ${printed(dialogue.reward)}`), ...terms,
    chip(words(dialogue.split)), chip(dialogue.family), chip(`${dialogue.calls} calls`),
    dialogue.truncated ? chip("out of room", false) : null);
  return [asked, chips, ...dialogue.turns.map(turnNode)];
}

function turnNode(turn) {
  const policy = turn.author === "policy";
  const node = element("div", { class: `turn ${turn.author}` });
  const who = element("div", { class: "who" }, policy ? "Policy" : "Environment");
  const decision = turn.decision;
  if (decision) {
    const known = decision.right !== null && decision.right !== undefined;
    who.append(chip(`${words(decision.kind)}${known ? " " + mark(decision.right) : ""}`, decision.right));
  }
  if (turn.forced) who.append(chip("forced"));
  node.append(who);
  if (policy) node.append(element("div", { class: "said" }, ...tagged(turn.text)));
  else node.append(...observed(turn));
  return node;
}

/** Candidates or passages, and what entered the context wherever it says more than they do: a summary. */
function observed(turn) {
  const { candidates = [], passages = [], parts } = turn;
  const found = candidates.length ? [element("div", { class: "candidates" }, ...candidates.map(candidate))] : passages.map(passage);
  const images = parts.some((part) => typeof part !== "string");
  const same = parts.join("") === passages.map((one) => `${one.title}. ${one.text}`).join("\n");
  if (found.length && (images || same)) return found;
  return [...found, element("div", { class: "said" }, ...parts.map((part) => (typeof part === "string" ? part : picture(part.image))))];
}

/** Policy text with its tags set apart, and the reasoning dimmed. */
function tagged(text) {
  let dim = false;
  return text.split(/(<\/?\w+>)/).filter(Boolean).map((piece) => {
    if (/^<\/?\w+>$/.test(piece)) {
      if (/reason|thinking/.test(piece)) dim = piece[1] !== "/";
      return element("span", { class: "tag" }, piece);
    }
    return dim ? element("span", { class: "reason" }, piece) : piece;
  });
}

function candidate(found) {
  return element("figure", { class: `candidate${found.right ? " true" : ""}`, title: found.right ? "the entity in the query image" : "" },
    picture(found.image, found.name), element("div", {}, found.name), element("div", { class: "score" }, found.score.toFixed(3)));
}

function passage(found) {
  return element("div", { class: `passage${found.right ? " true" : ""}`, title: found.right ? "holds the evidence" : "" },
    element("b", {}, found.title), found.text.startsWith(found.title + ". ") ? found.text.slice(found.title.length + 2) : found.text);
}

function addFilters() {
  const form = document.querySelector(".filters");
  for (const [name, any, value] of FILTERS) {
    const words_ = [...new Set(DATA.dialogues.map((dialogue) => value(dialogue)).filter((v) => v !== undefined))].map(String).sort();
    if (words_.length < 2) continue;
    const menu = element("select", { "aria-label": name, id: `filter-${name}` }, element("option", { value: "" }, any),
      ...words_.map((word) => element("option", { value: word }, words(word))));
    menu.addEventListener("change", () => { chosen[name] = menu.value; refresh(); });
    form.append(menu);
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("search").addEventListener("input", refresh);
  list.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const next = shown[shown.indexOf(open) + move];
    if (next) select(next);
    list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  });
}

function start() {
  document.querySelector(".charts").append(...DATA.curves.filter((curve) => Object.values(curve.series).some((s) => s.length)).map(chart));
  if (!DATA.curves.length) byId("learning").remove();
  if (!byId("tables").querySelector("table")) byId("tables").remove();
  if (!DATA.dialogues.length) byId("dialogues").remove();
  if (!byId("facts").querySelector("dl")) byId("facts").remove();
  for (const head of document.querySelectorAll("th")) {
    const at = [...head.parentNode.children].indexOf(head);
    if (head.closest("table").querySelector(`tbody td.number:nth-child(${at + 1})`)) head.classList.add("number");
  }
  for (const section of document.querySelectorAll("section[data-name]"))
    document.querySelector("nav").append(element("a", { href: `#${section.id}` }, section.dataset.name));
  if (!DATA.dialogues.length) return;
  const wanted = new URLSearchParams(location.hash.slice(1)).get("dialogue");
  open = DATA.dialogues.find((dialogue) => dialogue.id === wanted) ?? null;
  addFilters();
  refresh();
  if (open) select(open);
}

start();
