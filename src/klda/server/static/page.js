// Keys, focus, messages and what follows other tabs; everything else is htmx and the server.
"use strict";

const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
const field = () => $("#ask textarea, #ask input[type=file]");
const isTyping = (node) => node.matches("input:not([type=checkbox],[type=radio],[type=range],[type=file]), textarea, select");

// ---------------------------------------------------------------- keys

// Arrow keys move among the options of a picker, and among the rows of a table.
const move = (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const picker = event.target.closest(".picker, .combo");
  const table = event.target.closest("[data-roving]");
  if (!step || (!picker && !table) || event.target.matches("textarea, select")) return;
  const stops = picker
    ? $$("input:not([type=hidden]), .options button", picker)
    : $$(`[data-column="${event.target.dataset.column}"]`, table);
  const next = stops[stops.indexOf(event.target) + step];
  event.preventDefault();
  if (!next) return;
  if (table && !picker) {
    event.target.tabIndex = -1;
    next.tabIndex = 0;
  }
  next.focus();
};

// The first class in the list is what a typed name means; the list may still be on its way.
let chosen = null;
const chooseFirst = (input) => {
  const list = $("#picked .options", input.form);
  chosen = list?.dataset.for === input.value ? null : input;
  if (!chosen) $("button", list)?.click();
};
document.addEventListener("htmx:afterSwap", ({ detail }) => {
  if (chosen && detail.target.id === "picked") chooseFirst(chosen);
});

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  // While an input method composes a word, Enter ends the word (229: Safari says so afterwards).
  const composing = event.isComposing || event.keyCode === 229;
  const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
  move(event);
  if (key === "Enter" && !event.shiftKey && !composing) {
    if (target.matches("#ask textarea")) {
      event.preventDefault();
      target.form.requestSubmit();
    } else if (target.matches(".picker input, .combo input")) {
      event.preventDefault();
      if (target.value.trim()) chooseFirst(target);
    }
  }
  if (key === "Escape" && target.matches(".picker *") && $("#answer .primary")) {
    $("#answer .picker").open = false;
    $("#answer .primary").focus();
  }
  if (isTyping(target) || !plain || event.defaultPrevented) return;
  const control = target.closest("button, a, summary");
  const inInbox = !control || (control.closest("#inbox") && (key !== "Enter" || control.dataset.inboxKey === "Enter"));
  const sorting = $("#inbox") && inInbox && $(`[data-inbox-key="${CSS.escape(key.length > 1 ? key : key.toLowerCase())}"]`);
  if (sorting && !$("#drawer[open]")) {
    event.preventDefault();
    if (!event.repeat) sorting.click();
    return;
  }
  if (key === "/" && field()) {
    event.preventDefault();
    field().focus();
    if (field().select) field().select();
  } else if ($(`#answer [open] [data-key="${CSS.escape(key)}"]`)) {
    $(`#answer [open] [data-key="${CSS.escape(key)}"]`).click();
  } else if (target.closest(".likeliest") && key.length === 1 && key !== " ") {
    $("#label").focus(); // a name is typed
  } else if (target.closest("#answer") && key.length === 1 && key !== " " && field().select) {
    field().focus(); // who types on has another question
    field().select();
  }
});

// htmx sends these forms. Before it runs, the browser would leave the page and what was typed.
document.addEventListener("submit", (event) => {
  if (event.target.matches("[hx-post]")) event.preventDefault();
});

document.addEventListener("click", ({ target, detail }) => {
  if (target.matches(".close")) {
    target.closest(".message, dialog").tagName === "DIALOG" ? target.closest("dialog").close() : target.closest(".message").remove();
    if (detail === 0 && field()) field().focus(); // closed with the keyboard
  }
  if (target.matches("[data-copy]")) {
    navigator.clipboard.writeText($(target.dataset.copy).textContent);
    target.textContent = "Copied";
  }
});

const nameFiles = (input) => {
  const said = $("strong", input.parentElement);
  said.dataset.empty ??= said.textContent;
  said.textContent = input.files.length > 1 ? `${input.files.length} files` : input.files[0]?.name ?? said.dataset.empty;
};
document.addEventListener("change", ({ target }) => {
  if (target.matches(".drop input:not(#ask *)")) nameFiles(target);
  // Where there is nothing else to fill in, a dropped or chosen file is sent at once.
  if (target.matches("#ask input[type=file], [data-at-once] input[type=file]")) target.form.requestSubmit();
});
for (const [name, over] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
  document.addEventListener(name, ({ target }) => target.closest?.(".drop")?.classList.toggle("over", over));
}

// ---------------------------------------------------------------- questions asked last

const MOST_RECENT = 20;
const recent = {
  load: () => JSON.parse(sessionStorage.getItem("recent") ?? "[]"),
  add(text, answer, state) {
    const kept = recent.load().filter((one) => one.text !== text);
    sessionStorage.setItem("recent", JSON.stringify([{ text, answer, state }, ...kept].slice(0, MOST_RECENT)));
  },
  show() {
    const section = $("#recent");
    if (!section) return;
    const items = recent.load().map(({ text, answer, state }) => {
      const item = $("template", section).content.cloneNode(true);
      $(".text", item).textContent = text;
      $(".chip", item).textContent = answer;
      if (state) $(".chip", item).classList.add(state);
      $("button", item).addEventListener("click", () => askAgain(text));
      return item;
    });
    section.hidden = !items.length;
    $("ol", section).replaceChildren(...items);
  },
};
const askAgain = (text) => {
  field().value = text;
  $("#ask").requestSubmit();
};
document.addEventListener("click", ({ target }) => {
  if (target.id === "forget-recent") {
    sessionStorage.removeItem("recent");
    recent.show();
  } else if (target.id === "hide-steps") {
    localStorage.setItem("steps", "hidden");
    $("#checklist").remove();
  }
});

// ---------------------------------------------------------------- focus

let asked = ""; // what the answer is for
document.addEventListener("htmx:beforeRequest", ({ detail }) => {
  if (detail.elt.id === "ask") asked = field().value;
});
const afterAnswer = (answer) => {
  const box = $(".answer", answer);
  if (!box || !field()) return;
  if (field().select && asked) {
    const { name, state } = box.dataset;
    recent.add(asked, state === "new" ? "new to me" : name + (state === "not_sure" ? "?" : ""), state);
    recent.show();
    sessionStorage.setItem("asked", asked);
  }
  if (field().value !== asked) return; // the next question is being typed
  const first = $(".primary, .picker[open] input:not([type=hidden])", box);
  if (first && !("settled" in box.dataset)) first.focus();
  else {
    field().focus();
    if (field().select) field().select();
  }
};
document.addEventListener("htmx:afterSwap", ({ detail }) => {
  if (detail.target.id === "answer") afterAnswer(detail.target);
  const active = document.activeElement;
  if (detail.target.id !== "inbox" || (active !== document.body && !detail.target.contains(active))) return;
  const next = detail.requestConfig.elt.matches(".group") && $("#inbox .group input[name=label]"); // the next group
  const first = next || $("#inbox .proposed, #inbox .picker[open] input:not([type=hidden])");
  first?.focus({ preventScroll: true });
  first?.closest("form").scrollIntoView({ block: "nearest" }); // with its text
});
document.addEventListener("click", (event) => {
  const picker = event.target.closest("summary.button")?.parentElement;
  if (!picker || picker.open) return;
  event.preventDefault(); // the browser would open it a moment later, and miss what is typed
  picker.open = true;
  ($(".likeliest button", picker) ?? $("input:not([type=hidden])", picker)).focus();
});
// What was undone was the answer's lesson: ask again.
document.addEventListener("undone", () => {
  if ($("#answer .answer") && field().value === asked) $("#ask").requestSubmit();
});

// What had the focus may be replaced. The focus then goes to the same thing, or near it.
let last = null;
document.addEventListener("htmx:beforeSwap", () => {
  const active = document.activeElement;
  if (active && active !== document.body) last = { active, id: active.id, home: active.closest("form, section, dialog") };
});
document.addEventListener("htmx:afterSettle", () => {
  if (!last || document.activeElement !== document.body) return;
  const same = last.active.isConnected ? last.active : last.id && $(`#${CSS.escape(last.id)}`);
  const near = last.home?.isConnected && $("button, input:not([type=hidden]), a", last.home);
  (same && !same.disabled ? same : near || field() || $("#main")).focus();
});

// ---------------------------------------------------------------- messages, waiting, offline

const message = (text, kind = "error") => {
  const box = document.createElement("div");
  box.className = `message ${kind}`;
  box.append(document.createElement("span"), document.createElement("button"));
  box.firstChild.textContent = text;
  Object.assign(box.lastChild, { type: "button", className: "quiet close", ariaLabel: "Close", textContent: "×" });
  return box;
};

const isAction = (elt) => !elt.matches("#header, #checklist, [hx-trigger]");
const clearProblems = (elt) => {
  if (!$("#messages").contains(elt)) $("#messages").replaceChildren(); // its Undo was pressed
  $$(".problem").forEach((one) => one.replaceChildren());
  $$("[aria-invalid]").forEach((one) => one.removeAttribute("aria-invalid"));
};

let waiting = [];
const stopWaiting = () => {
  waiting.forEach(clearTimeout);
  waiting = [];
  document.body.classList.remove("waiting");
  $("#messages .still")?.remove();
};
document.addEventListener("htmx:beforeRequest", ({ detail }) => {
  if (!isAction(detail.elt)) return;
  clearProblems(detail.elt);
  stopWaiting();
  waiting = [
    setTimeout(() => document.body.classList.add("waiting"), 400),
    setTimeout(() => $("#messages").replaceChildren(message("Still working…", "still")), 5000),
  ];
});
document.addEventListener("htmx:afterRequest", ({ detail }) => {
  if (isAction(detail.elt)) stopWaiting();
  if (detail.successful && detail.elt.matches("[data-reset]")) detail.elt.reset();
  const sent = detail.elt.matches("[data-at-once]") && $("input[type=file]", detail.elt);
  if (sent) {
    sent.value = ""; // the same file, mended, can be chosen again
    nameFiles(sent);
  }
});

// What asks how far something is asks again, whatever became of a request.
const isPoll = (elt) => elt.matches("[hx-trigger$=', again']");
const isTypingIn = (target) => {
  const active = document.activeElement;
  return target.contains(active) && isTyping(active) && Boolean(active.value || $(".options", active.form));
};
const askAgainLater = (elt) => setTimeout(() => elt.isConnected && htmx.trigger(elt, "again"), 2000);
const isOver = ({ status }) => status >= 400 && status < 500 && status !== 429; // what it asks for is gone
document.addEventListener("htmx:afterRequest", ({ detail }) => {
  if (!detail.successful && isPoll(detail.elt) && !isOver(detail.xhr)) askAgainLater(detail.elt);
});
document.addEventListener("htmx:beforeSwap", (event) => {
  const { detail } = event;
  const { elt } = detail.requestConfig;
  if (!isPoll(elt)) return;
  const failed = detail.isError && !isOver(detail.xhr);
  if (!failed && !isTypingIn(detail.target)) return;
  detail.shouldSwap = false;
  event.stopImmediatePropagation();
  if (!failed) askAgainLater(elt); // nobody is to lose what is half typed
});

// An error stands beside the form that it comes from. What the page did not render is not shown.
document.addEventListener("htmx:beforeSwap", ({ detail }) => {
  if (!detail.isError) return;
  const parsed = new DOMParser().parseFromString(detail.serverResponse, "text/html");
  const said = $(".message > span", parsed)?.textContent;
  const text = said ?? `The service responded with status ${detail.xhr.status}. Try again.`;
  const form = detail.requestConfig.elt.closest("form");
  const place = form && $(".problem", form);
  detail.shouldSwap = false;
  if (place) {
    place.textContent = text;
    const wrong = $("input:not([type=hidden],[type=file],[type=checkbox]), textarea", form);
    if (wrong && wrong.offsetParent) {
      wrong.setAttribute("aria-invalid", "true");
      wrong.focus();
    }
  } else $("#messages").replaceChildren(message(text));
});

let retry = null;
const isThere = async () => Boolean(await fetch("/v1/health", { cache: "no-store" }).catch(() => null));
const offline = () => {
  if (retry || !$("#offline")) return;
  $("#offline").hidden = false;
  retry = setInterval(async () => {
    if (!(await isThere())) return;
    clearInterval(retry);
    retry = null;
    $("#offline").hidden = true;
    htmx.trigger(document.body, "model-changed");
    listen();
  }, 2000);
};
document.addEventListener("htmx:sendError", offline);

// ---------------------------------------------------------------- other tabs

let events = null;
const listen = () => {
  events?.close();
  events = null;
  if (document.hidden || !$("#header")) return; // a browser has few connections to share
  events = new EventSource("/page/events");
  events.addEventListener("change", ({ data }) => {
    const main = $("#main");
    const version = String(JSON.parse(data).version);
    if (main.dataset.version === version) return;
    main.dataset.version = version;
    htmx.trigger(document.body, "model-changed");
  });
  events.addEventListener("error", async () => {
    if (events?.readyState !== EventSource.CLOSED && (await isThere())) return; // it tries again
    if (await isThere()) setTimeout(listen, 10_000);
    else offline();
  });
};
document.addEventListener("visibilitychange", listen);
document.addEventListener("htmx:afterOnLoad", ({ detail }) => {
  const version = detail.xhr.getResponseHeader("X-Model-Version");
  if (version && $("#main")) $("#main").dataset.version = version;
});

document.addEventListener("DOMContentLoaded", () => {
  if (localStorage.getItem("steps")) $("#checklist")?.remove();
  recent.show();
  listen();
  nameAgain();
});
// A reload shows the last answer again.
window.addEventListener("load", () => {
  const before = sessionStorage.getItem("asked");
  if (before && $("#ask textarea") && performance.getEntriesByType("navigation")[0]?.type === "reload") askAgain(before);
});

// ---------------------------------------------------------------- drawer, API

document.addEventListener("htmx:afterSwap", ({ detail }) => {
  const drawer = $("#drawer");
  if (detail.target !== drawer || drawer.open) return;
  drawer.showModal();
});
document.addEventListener("finished", () => $("#drawer")?.close());
document.addEventListener("click", ({ target }) => {
  if (target.id === "drawer") target.close(); // beside it
});

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches(".try-call")) return;
  event.preventDefault();
  const values = Object.fromEntries(new FormData(form));
  const { body } = values;
  delete values.body;
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
  const key = $("#api-key")?.value;
  const shown = $("pre", form);
  shown.hidden = false;
  shown.textContent = "…";
  const response = await fetch(`${form.dataset.path}?${query}`, {
    method: form.dataset.method,
    body,
    headers: { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) },
  }).catch(() => null);
  if (!response) return offline();
  const text = await response.text();
  try {
    shown.textContent = `${response.status}\n${JSON.stringify(JSON.parse(text), null, 2)}`;
  } catch {
    shown.textContent = `${response.status}\n${text}`;
  }
});

// ---------------------------------------------------------------- the map

const map = { zoom: 1, x: 0, y: 0, names: 1, drag: null };
const box = () => {
  const [, , width, height] = ($("#picture").dataset.full ??= $("#picture").getAttribute("viewBox")).split(" ").map(Number);
  return { width, height };
};
const scale = () => {
  const shown = $("#picture").getBoundingClientRect();
  return Math.min(shown.width / box().width, shown.height / box().height);
};
const drawMap = async () => {
  const picture = $("#picture");
  const { width, height } = box();
  const [w, h] = [width / map.zoom, height / map.zoom];
  map.x = Math.min(Math.max(map.x, 0), width - w);
  map.y = Math.min(Math.max(map.y, 0), height - h);
  picture.setAttribute("viewBox", `${map.x} ${map.y} ${w} ${h}`);
  picture.classList.toggle("near", map.zoom > 1);
  $$("circle", picture).forEach((dot) => dot.setAttribute("r", dot.dataset.radius / map.zoom ** 0.7));
  const level = 2 ** Math.floor(Math.log2(map.zoom) + 0.01);
  if (level === map.names) return;
  map.names = level;
  const answer = await fetch(`/page/map/names?zoom=${level}&width=${Math.round(box().width * scale())}`).catch(() => null);
  if (!answer?.ok || level !== map.names) return;
  const parsed = new DOMParser().parseFromString(`<svg>${await answer.text()}</svg>`, "text/html");
  $("#names").replaceWith(document.importNode($("#names", parsed), true));
};
const zoomTo = (zoom, atX = 0.5, atY = 0.5) => {
  const { width, height } = box();
  const next = Math.min(Math.max(zoom, 1), 16);
  map.x += (width / map.zoom - width / next) * atX;
  map.y += (height / map.zoom - height / next) * atY;
  map.zoom = next;
  drawMap();
};
document.addEventListener("click", ({ target }) => {
  if (!target.dataset?.zoom) return;
  zoomTo(Number(target.dataset.zoom) ? map.zoom * target.dataset.zoom : 1);
});
document.addEventListener("wheel", (event) => {
  const picture = event.target.closest?.("#picture");
  if (!picture || (map.zoom === 1 && event.deltaY > 0)) return; // all is shown: the page scrolls
  event.preventDefault();
  const { left, top, width, height } = picture.getBoundingClientRect();
  zoomTo(map.zoom * 2 ** (-event.deltaY / 300), (event.clientX - left) / width, (event.clientY - top) / height);
}, { passive: false });
document.addEventListener("pointerdown", (event) => {
  if (event.target.closest?.("#picture")) map.drag = { x: event.clientX, y: event.clientY };
});
document.addEventListener("pointermove", (event) => {
  if (!map.drag || map.zoom === 1) return;
  map.x -= (event.clientX - map.drag.x) / map.zoom / scale();
  map.y -= (event.clientY - map.drag.y) / map.zoom / scale();
  map.drag = { x: event.clientX, y: event.clientY };
  drawMap();
});
document.addEventListener("pointerup", () => (map.drag = null));
// The map is new, and stays where it was; on a small screen, its names need more room.
const nameAgain = () => {
  if (!$("#picture") || (map.zoom === 1 && scale() >= 1)) return;
  map.names = 0;
  drawMap();
};
document.addEventListener("htmx:afterSettle", ({ detail }) => {
  if (detail.elt.id === "map") nameAgain();
});
