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

// JSON as it is in a file: JavaScript would round its large integers, and a signature is over all digits.
class Verbatim {
  constructor(text) {
    JSON.parse(text);
    this.text = text;
  }
}

function bodyOf(fields) {
  const json = (value) => (value instanceof Verbatim ? value.text : JSON.stringify(value));
  return `{${Object.entries(fields || {}).map(([name, value]) => `${JSON.stringify(name)}: ${json(value)}`).join(", ")}}`;
}

async function call(method, path, fields) {
  const options = { method, headers: { "Content-Type": "application/json" } };
  if (method !== "GET" && method !== "DELETE") options.body = bodyOf(fields);
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

// What was typed into a form, as the API has it.
async function typedIn(form) {
  const found = {};
  for (const field of form.elements) {
    if (!field.name || "own" in field.dataset) continue;
    if (field.type === "checkbox") {
      if (field.checked) found[field.name] = true;
    } else if (field.type === "file") {
      if (field.files.length) found[field.name] = new Verbatim(await field.files[0].text());
    } else if (field.multiple) {
      found[field.name] = [...field.selectedOptions].map((option) => option.value);
    } else if (field.value !== "") {
      found[field.name] = "number" in field.dataset ? Number(field.value) : field.value;
    }
  }
  for (const choice of form.querySelectorAll("[data-form-of]")) {
    const name = choice.dataset.formOf;
    if (name in found) found[name] = { [choice.value]: found[name] };
  }
  return found;
}

// A part of the page that the broker has made: it has escaped what is in it.
async function html(path, fields) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: bodyOf(fields),
  });
  if (answer.headers.get("Content-Type").startsWith("application/json")) throw new Error((await answer.json()).error);
  if (answer.status === 401) throw new Error("this needs the broker's token: log in at /login");
  return answer.text();
}

function certificateLinks(found) {
  const id = found && (found.id || (found.certificate && found.certificate.id));
  if (!found || !found.certificate || !id) return [];
  return [["Certificate", `/v1/certificates/${id}/page`, ""], ["As a file", `/v1/certificates/${id}`, `${id}.json`]].map(
    ([text, href, download]) => {
      const link = document.createElement("a");
      link.textContent = text;
      link.href = href;
      if (download) link.download = download;
      const line = document.createElement("p");
      line.append(link);
      return line;
    },
  );
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.dataset.path) return;
  event.preventDefault();
  // Beside it if the answer has forms, which a form cannot hold.
  const outcome = form.querySelector(".outcome") || form.nextElementSibling;
  const button = form.querySelector("button");
  const tell = (text, isFailed) => {
    outcome.textContent = text;
    outcome.classList.toggle("failed", Boolean(isFailed));
  };
  button.disabled = true;
  try {
    const fields = { ...JSON.parse(form.dataset.fields || "{}"), ...(await typedIn(form)) };
    if (form.dataset.answer === "html") {
      outcome.innerHTML = await html(form.dataset.path, fields);
      return;
    }
    const wait = form.dataset.path.startsWith("/v1/") && !form.dataset.path.startsWith("/v1/clock") ? "?wait_ms=300" : "";
    const found = await carryOut(form.dataset.method, form.dataset.path + wait, fields, tell);
    if (form.classList.contains("login")) return location.reload();
    const shown = document.createElement("pre");
    shown.tabIndex = 0;
    const { certificate, ...rest } = found; // it is linked; here its integers would be rounded
    shown.textContent = JSON.stringify(rest, null, 2);
    tell(found.state ? `Done: ${found.state}.` : "Done.");
    outcome.append(...certificateLinks(found), shown);
  } catch (error) {
    tell(error.message, true);
  } finally {
    button.disabled = false;
  }
});
