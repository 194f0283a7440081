// Keyboard and small comforts; everything else is htmx and the server.
"use strict";

const field = () => document.querySelector("#ask textarea, #ask input[type=file]");

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "/" && !typing && field()) {
    event.preventDefault();
    field().focus();
    if (field().select) field().select();
  }
  if (event.key === "Enter" && !event.shiftKey && event.target.matches("#ask textarea")) {
    event.preventDefault();
    event.target.form.requestSubmit();
  }
  if (event.key === "Escape") {
    document.querySelectorAll("details.edit[open]").forEach((menu) => menu.removeAttribute("open"));
  }
});

document.addEventListener("click", (event) => {
  if (event.target.matches(".close")) event.target.closest(".message").remove();
  document.querySelectorAll("details.edit[open]").forEach((menu) => {
    if (!menu.contains(event.target)) menu.removeAttribute("open");
  });
});

document.addEventListener("change", (event) => {
  // A dropped or chosen image is asked about at once.
  if (event.target.matches("#ask input[type=file]")) event.target.form.requestSubmit();
});

document.addEventListener("htmx:sendError", () => {
  document.querySelector("#messages").textContent = "The service can't be reached. Try again.";
});
