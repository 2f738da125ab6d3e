// Keeps an open page fresh, asks before actions in a dialog, remembers the theme. Everything works without it, too.
"use strict";

// ---- Theme: set before anything is painted

const kept = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;

function theme() {
  const button = document.getElementById("theme");
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const say = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("theme", next); } catch { /* private window: it lasts as long as the page */ }
    say();
  });
  say();
}

// ---- Change a page into a newer one of the same form; what is alike stays, with its focus and its place

function same(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && (a.id || "") === (b.id || "");
}

function become(old, next) {
  if (old.nodeType !== 1) {
    if (old.nodeValue !== next.nodeValue) old.nodeValue = next.nodeValue;
    return;
  }
  if (old.hasAttribute("data-keep")) return;
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open") && name !== "class") old.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  children(old, next);
}

function children(old, next) {
  const byId = new Map([...old.children].filter((c) => c.id).map((c) => [c.id, c]));
  let place = old.firstChild;
  for (const wanted of [...next.childNodes]) {
    const known = wanted.id ? byId.get(wanted.id) : place && same(place, wanted) ? place : null;
    if (known && same(known, wanted)) {
      const text = known.nodeName === "TR" ? known.textContent : "";
      if (known === place) place = place.nextSibling;
      else old.insertBefore(known, place);
      become(known, wanted);
      if (known.nodeName === "TR") known.classList.toggle("fresh", known.querySelector(".c-state") !== null && changed(text, known));
    } else {
      old.insertBefore(document.importNode(wanted, true), place);
    }
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

function changed(before, row) {
  const state = row.querySelector(".c-state").textContent;
  return !before.includes(state);
}

let loading = null, loaded = 0, took = 0;

async function load(url = location.href) {
  if (loading) loading.abort();
  const mine = (loading = new AbortController()), began = Date.now();
  try {
    const answer = await fetch(url, { signal: mine.signal, headers: { Accept: "text/html" } });
    if (new URL(answer.url).pathname === "/login" && location.pathname !== "/login") return location.reload();
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (mine.signal.aborted) return;
    const focused = document.activeElement;
    children(document.getElementById("main"), page.getElementById("main"));
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true }); // its row was moved
    const time = page.querySelector("footer time");
    if (time) document.querySelector("footer time").textContent = time.textContent;
    ready(document);
    loaded = Date.now();
    took = loaded - began;
  } catch (e) {
    if (e.name !== "AbortError") lost();
  } finally {
    if (loading === mine) loading = null;
  }
}

// ---- News

const SILENCE = 16000, AT_MOST_EVERY = 2000, AT_LEAST_EVERY = 30000, SPOKEN_EVERY = 4000;
const SOON = 150, SHARE = 15; // a page spends at most one part in so many of its time on loading
let source = null, heard = 0, after = "0", due = null, spoken = 0, out = false, since = null;

function lost() {
  const banner = document.getElementById("lost");
  if (!out) since = new Date();
  out = true;
  const text = `Connection lost at ${since.toLocaleTimeString()}: what you see may be old. It is tried again by itself.`;
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = false;
}

function found() {
  heard = Date.now();
  if (!out) return;
  out = false;
  document.getElementById("lost").hidden = true;
  document.getElementById("news").textContent = "Connected again.";
  soon();
}

function soon(wait = Math.max(SOON, loaded + Math.max(AT_MOST_EVERY, SHARE * took) - Date.now())) {
  if (due === null) due = setTimeout(() => { due = null; load(); }, wait);
}

function listen() {
  if (source) source.close();
  heard = Date.now();
  source = new EventSource(`/events?after=${after}`);
  source.addEventListener("open", found);
  source.addEventListener("error", lost);
  source.addEventListener("ping", found);
  source.addEventListener("bye", () => { source.close(); location.reload(); });
  source.addEventListener("moment", (e) => {
    found();
    after = e.lastEventId;
    const news = JSON.parse(e.data), only = document.getElementById("main").dataset.job;
    if (only && news.job !== only) return;
    if (news.text && Date.now() - spoken > SPOKEN_EVERY) {
      spoken = Date.now();
      document.getElementById("news").textContent = news.text;
    }
    soon();
  });
}

function follow() {
  after = document.body.dataset.last;
  if (after === undefined) return;
  if (!document.hidden) listen();
  setInterval(() => {
    if (document.hidden || !source) return;
    if (source.readyState === EventSource.CLOSED || Date.now() - heard > SILENCE) { lost(); listen(); }
  }, 3000);
  setInterval(() => { if (!document.hidden && !out) soon(0); }, AT_LEAST_EVERY);
  // A browser has few connections for one host: pages that nobody sees give theirs back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { if (source) source.close(); }
    else { listen(); soon(0); }
  });
}

// ---- A link from elsewhere comes without the session's cookie, which is for our pages alone: from here it is sent along

async function again() {
  const place = document.querySelector("form[action='/login'] [name=next]");
  if (!place || document.querySelector(".me .who") || document.referrer.startsWith(location.origin)) return;
  const answer = await fetch(place.value, { redirect: "manual", headers: { Accept: "text/html" } });
  if (answer.ok) location.replace(place.value);
}

// ---- What a page needs each time it changed

function ready(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    if (!time.title) time.title = new Date(time.dateTime).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
  }
  if (root.querySelector("[data-soon]")) soon(2000);
}

// ---- Dialogs

async function ask(link) {
  const dialog = document.getElementById("ask");
  const answer = await fetch(link.href, { headers: { Accept: "text/html" } });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const card = page.querySelector("#main #confirm");
  if (!answer.ok || !card || typeof dialog.showModal !== "function") { location.href = link.href; return; }
  dialog.replaceChildren(document.importNode(card, true));
  dialog.setAttribute("aria-label", card.querySelector("h1").textContent);
  dialog.showModal();
  const field = dialog.querySelector("input:not([type=hidden]), select, button");
  if (field) field.focus();
}

document.addEventListener("click", (e) => {
  const link = e.target.closest("a");
  if (!link || e.ctrlKey || e.metaKey || e.shiftKey || e.button) return;
  if (link.hasAttribute("data-ask")) {
    e.preventDefault();
    ask(link).catch(() => { location.href = link.href; });
  } else if (link.hasAttribute("data-close") && link.closest("dialog")) {
    e.preventDefault();
    link.closest("dialog").close();
  }
});

// ---- Keys

document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.nodeName), filter = document.getElementById("q");
  if (e.key === "Escape" && e.target === filter) { filter.blur(); return; }
  if (typing || document.querySelector("dialog[open]")) return;
  if (e.key === "/" && filter) {
    e.preventDefault();
    filter.focus();
    filter.select();
  } else if (e.key === "j" || e.key === "k") {
    const rows = [...document.querySelectorAll("#main tbody th a")], at = rows.indexOf(document.activeElement);
    const next = rows[at < 0 ? 0 : at + (e.key === "j" ? 1 : -1)];
    if (next) next.focus();
  } else if (e.key === "g") {
    location.href = "/";
  }
});

// ---- The filter answers while one types

function filtering() {
  const field = document.getElementById("q");
  if (!field) return;
  let wait = null;
  field.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(() => {
      const asked = new URLSearchParams(new FormData(field.form));
      if (!asked.get("q")) asked.delete("q");
      history.replaceState(null, "", `/${asked.size ? `?${asked}` : ""}`);
      load();
    }, 200);
  });
}

document.addEventListener("DOMContentLoaded", () => {
  theme();
  filtering();
  ready(document);
  follow();
  again().catch(() => { /* then one logs in */ });
});
