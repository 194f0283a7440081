// Keyboard shortcuts and focus; everything else is htmx and the server.
"use strict";

const field = () => document.querySelector("#ask textarea, #ask input[type=file]");

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "/" && !typing && field()) {
    event.preventDefault();
    field().focus();
    if (field().select) field().select();
  }
  // While an input method composes a word, Enter ends the word (229: Safari says so afterwards).
  const composing = event.isComposing || event.keyCode === 229;
  if (event.key === "Enter" && !event.shiftKey && !composing && event.target.matches("#ask textarea")) {
    event.preventDefault();
    event.target.form.requestSubmit();
  }
  if (event.key === "Escape") {
    document.querySelectorAll("details.edit[open]").forEach((menu) => menu.removeAttribute("open"));
  }
});

// htmx sends these forms. Before it runs, the browser would leave the page and what was typed.
document.addEventListener("submit", (event) => {
  if (event.target.matches("[hx-post]")) event.preventDefault();
});

document.addEventListener("click", (event) => {
  if (event.target.matches(".close")) {
    event.target.closest(".message").remove();
    if (event.detail === 0 && field()) field().focus(); // closed with the keyboard
  }
  document.querySelectorAll("details.edit[open]").forEach((menu) => {
    if (!menu.contains(event.target)) menu.removeAttribute("open");
  });
});

document.addEventListener("change", (event) => {
  // A dropped or chosen image is asked about at once.
  if (event.target.matches("#ask input[type=file]")) event.target.form.requestSubmit();
});

// A class that was added leaves the fields empty for the next one.
document.addEventListener("htmx:afterRequest", ({ detail }) => {
  if (detail.successful && detail.elt.matches("#declare")) detail.elt.reset();
});

// What had the focus may be disabled during a request, or replaced by the answer. The focus then
// goes back to it, or to the first field of its card.
let last = null;
const remember = () => {
  const active = document.activeElement;
  if (!active || active === document.body) return;
  const card = active.closest(".card") || document.querySelector("#search").closest(".card");
  last = { active, home: card.querySelector("textarea, input:not([type=hidden])") };
};
document.addEventListener("htmx:beforeRequest", remember);
document.addEventListener("htmx:beforeSwap", remember);
document.addEventListener("htmx:afterSettle", () => {
  if (!last || document.activeElement !== document.body) return;
  (last.active.isConnected && !last.active.disabled ? last.active : last.home).focus();
});

// What an action leads to takes the place of what the last one led to, wherever that stands.
const clearNotes = () => {
  const notes = "#messages > *, #answer .done, #progress .done, #progress .error";
  document.querySelectorAll(notes).forEach((note) => note.remove());
};
document.addEventListener("htmx:beforeSwap", ({ detail }) => {
  if (["messages", "answer", "progress"].includes(detail.target.id)) clearNotes();
});

// Errors: a message that the page rendered is shown as it is, anything else is wrapped in one.
const errorMessage = (text) => {
  const message = document.createElement("div");
  message.className = "message error";
  message.append(document.createElement("span"), document.createElement("button"));
  message.firstChild.textContent = text;
  message.lastChild.className = "quiet close";
  message.lastChild.ariaLabel = "Close";
  message.lastChild.textContent = "×";
  return message;
};

document.addEventListener("htmx:beforeSwap", ({ detail }) => {
  if (!detail.isError || detail.serverResponse.includes('class="message')) return;
  // Not from the service: a proxy's page is not shown.
  const text = `The service responded with status ${detail.xhr.status}. Try again.`;
  detail.serverResponse = errorMessage(text).outerHTML;
});

document.addEventListener("htmx:sendError", () => {
  const text = "The service can't be reached. Try again.";
  clearNotes();
  document.querySelector("#messages").replaceChildren(errorMessage(text));
});
