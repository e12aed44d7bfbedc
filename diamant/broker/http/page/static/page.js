// Live parts, and actions: each is a call of /v1 with JSON, so no other site can make one.
"use strict";

// An EventSource that rests while its tab is hidden (a browser has six connections to a broker in all), and comes again after errors.
class TabSource {
  constructor(url) {
    this.url = url;
    this.listeners = [];
    this.look = () => (document.hidden ? this.pause() : this.open());
    document.addEventListener("visibilitychange", this.look);
    this.look();
  }

  get readyState() {
    return this.isClosed ? EventSource.CLOSED : this.source ? this.source.readyState : EventSource.CONNECTING;
  }

  open() {
    if (this.source || this.isClosed) return;
    this.source = new EventSource(this.url);
    for (const [type, listener] of this.listeners) this.source.addEventListener(type, listener);
    this.source.onopen = (event) => {
      tellConnected(true);
      if (this.onopen) this.onopen(event);
    };
    this.source.onerror = () => {
      tellConnected(false);
      if (this.source && this.source.readyState === EventSource.CLOSED) {
        this.pause();
        this.timer = setTimeout(this.look, 2000);
      }
    };
  }

  pause() {
    clearTimeout(this.timer);
    if (this.source) this.source.close();
    this.source = null;
  }

  close() {
    this.isClosed = true;
    this.pause();
    document.removeEventListener("visibilitychange", this.look);
  }

  addEventListener(type, listener) {
    this.listeners.push([type, listener]);
    if (this.source) this.source.addEventListener(type, listener);
  }

  removeEventListener(type, listener) {
    this.listeners = this.listeners.filter((one) => one[0] !== type || one[1] !== listener);
    if (this.source) this.source.removeEventListener(type, listener);
  }
}

function tellConnected(is) {
  document.getElementById("connection").hidden = is;
}

htmx.createEventSource = (url) => new TabSource(url);

async function call(method, path, fields) {
  const options = { method, headers: { "Content-Type": "application/json" } };
  if (method !== "GET" && method !== "DELETE") options.body = JSON.stringify(fields || {});
  const answer = await fetch(path, options);
  const found = await answer.json();
  if (answer.status === 401) throw new Error("this needs the broker's token: log in at /login");
  if (!answer.ok) throw new Error(found.error || `HTTP status ${answer.status}`);
  return [answer.status, found];
}

function progressText(job) {
  const { stage, done, total, unit, left_s: left } = job.progress || {};
  let text = stage || "In progress";
  if (total) text += `: ${Math.floor((100 * done) / total)} % of ${total.toLocaleString("en")} ${unit}`;
  if (left) text += `, ${Math.ceil(left)} s left`;
  return `${text} …`;
}

async function carryOut(method, path, fields, tell) {
  let [status, found] = await call(method, path, fields);
  while (status === 202 || (found.state === "running" && found.href)) {
    tell(progressText(found));
    [, found] = await call("GET", `/v1/jobs/${encodeURIComponent(found.id)}?wait_ms=500`);
    status = found.state === "running" ? 202 : 200;
    if (found.error) throw new Error(found.error.error || String(found.error));
    if (status === 200) found = found.result;
  }
  return found;
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.dataset.path) return;
  event.preventDefault();
  const outcome = form.querySelector(".outcome");
  const button = form.querySelector("button");
  const tell = (text, isFailed) => {
    outcome.textContent = text;
    outcome.classList.toggle("failed", Boolean(isFailed));
  };
  button.disabled = true;
  try {
    const typed = Object.fromEntries(new FormData(form));
    const fields = { ...JSON.parse(form.dataset.fields || "{}"), ...typed };
    const wait = form.dataset.path.startsWith("/v1/") && !form.dataset.path.startsWith("/v1/clock") ? "?wait_ms=300" : "";
    const found = await carryOut(form.dataset.method, form.dataset.path + wait, fields, tell);
    if (form.classList.contains("login")) return location.reload();
    const shown = document.createElement("pre");
    shown.tabIndex = 0;
    shown.textContent = JSON.stringify(found, null, 2);
    tell("Done.");
    outcome.append(shown);
  } catch (error) {
    tell(error.message, true);
  } finally {
    button.disabled = false;
  }
});
