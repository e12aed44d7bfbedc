// Live parts and actions. Each action is a call of /v1 with JSON, which no other site can make.
"use strict";

// An EventSource that pauses while its tab is hidden (a browser has six connections to a broker in total), and retries after errors.
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
    this.notice = "";
    for (const [type, listener] of this.listeners) this.listen(type, listener);
    this.source.addEventListener("notice", (event) => {
      this.notice = event.data;
      tell(this.notice);
    });
    this.source.onopen = (event) => {
      if (this.onopen) this.onopen(event);
    };
    this.source.onerror = () => {
      tell(this.notice || "The broker is not responding. Retrying …");
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

  // A part has arrived: the broker answers, and the page is live.
  listen(type, listener) {
    this.source.addEventListener(type, (event) => {
      this.notice = "";
      tell("");
      listener(event);
    });
  }

  addEventListener(type, listener) {
    this.listeners.push([type, listener]);
    if (this.source) this.listen(type, listener);
  }

  removeEventListener(type, listener) {
    this.listeners = this.listeners.filter((one) => one[0] !== type || one[1] !== listener);
  }
}

// A sentence as nodes, in which commands are marked.
const COMMAND = /(?<![^\s(])`([^`]+)`/;
const marked = (sentence) =>
  sentence.split(COMMAND).map((part, index) => (index % 2 ? Object.assign(document.createElement("code"), { textContent: part }) : part));

let told = "";
function tell(text) {
  const place = document.getElementById("connection");
  place.hidden = !text;
  if (told !== text) place.replaceChildren(...marked(text));
  told = text;
}

document.documentElement.classList.add("js");

htmx.createEventSource = (url) => new TabSource(url);

// JSON copied verbatim from a file: JavaScript would round large integers, and a signature covers all digits.
class Verbatim {
  constructor(text) {
    this.text = text;
  }
}

function bodyOf(fields) {
  const verbatim = ({ text }) => JSON.parse(text) && text;
  const json = (value) => (value instanceof Verbatim ? verbatim(value) : JSON.stringify(value));
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

function durationText(seconds) {
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  let rest = seconds;
  const parts = units.map(([unit, size]) => [Math.floor(rest / size), unit, (rest %= size)]).filter(([count]) => count);
  return parts.slice(0, 2).map(([count, unit]) => `${count}${unit}`).join(" ") || "0s";
}

function progressText(job) {
  const { stage, done, total, unit, left_s: left } = job.progress || {};
  let text = stage || "In progress";
  if (total) text += `: ${Math.floor((100 * done) / total)} % of ${total.toLocaleString("en")} ${unit}`;
  if (left) text += `, ${durationText(Math.ceil(left))} left`;
  return `${text} …`;
}

const JOBS = /^\/v1\/(compact|segments|erase|redact|verify|person\/forget|clock\/(advance|set))$/;

async function carryOut(method, path, fields, tell) {
  let [status, found] = await call(method, path, fields);
  while (status === 202 || (found.state === "running" && found.href)) {
    tell(progressText(found), false, found.can_be_ended ? found.id : "");
    [, found] = await call("GET", `/v1/jobs/${encodeURIComponent(found.id)}?wait_ms=500`);
    status = found.state === "running" ? 202 : 200;
    if (found.error) throw new Error(found.error.error || String(found.error));
    if (status === 200) found = found.result;
  }
  return found;
}

// Cancels a job, if it can be cancelled.
function cancelButton(jobId) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = "Cancel";
  button.onclick = () => {
    button.disabled = true;
    call("DELETE", `/v1/jobs/${encodeURIComponent(jobId)}`).catch(() => {});
  };
  return button;
}

// The values typed into a form, in the API's form.
async function typedIn(form) {
  const found = {};
  for (const field of form.elements) {
    if (!field.name || "own" in field.dataset) continue;
    if (field.type === "checkbox") {
      if (field.checked) found[field.name] = true;
    } else if (field.type === "file") {
      const text = field.files.length && (await field.files[0].text());
      if (field.files.length) found[field.name] = "text" in field.dataset ? text : new Verbatim(text);
    } else if (field.multiple) {
      found[field.name] = [...field.selectedOptions].map((option) => option.value);
    } else if (field.value !== "" && "json" in field.dataset) {
      found[field.name] = new Verbatim(field.value);
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

// Part of a page, made and escaped by the broker.
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

// States of certificates in words, similar to the headings of the certificates' pages.
const STATES = {
  "key-gone": "everything stored under the key is gone",
  "values-gone": "all values are gone, a deletion mark stays for consumers",
  "records-gone": "all records that matched are gone",
  "fields-blanked": "the named fields of all records that matched are as requested",
  "forgotten": "everything that was found is gone",
  "nothing-matched": "nothing was found, and nothing was removed",
  "not-certified": "not certified; the certificate says why",
};

// What stays of a person, if a request has done what was asked.
function stayText({ state, certificate }) {
  const rows = ((certificate || {}).topics || []).filter((one) => one.records && /^(keep|blank)$/.test(one.do));
  if (!rows.length || state === "not-certified") return "";
  const [records, topics] = [rows.reduce((sum, one) => sum + one.records, 0), new Set(rows.map((one) => one.topic)).size];
  const marks = state === "values-gone" ? " Deletion marks stay for consumers." : "";
  return `Done. ${records.toLocaleString("en")} ${records === 1 ? "record stays" : "records stay"} in ${topics} ${topics === 1 ? "topic" : "topics"}; the preview says why and until when.${marks}`;
}

// A summary of a response, in a sentence or two.
function summary(found) {
  if (stayText(found)) return stayText(found);
  if (found.outcome) return `${found.summary}.`;
  if (Number.isInteger(found.offset) && "partition" in found) return `Written: partition ${found.partition}, offset ${found.offset.toLocaleString("en")}.`;
  if (Array.isArray(found.offsets)) return found.offsets.map((one) => `${one.partition}: ${one.before === null ? "nothing" : one.before.toLocaleString("en")} → ${one.after.toLocaleString("en")}`).join(", ");
  if (Array.isArray(found.rolled)) return `Closed ${found.rolled.length} active ${found.rolled.length === 1 ? "segment" : "segments"}.`;
  if ("is_changed" in found) return found.is_changed ? "Changed." : "Nothing was changed.";
  if (Array.isArray(found.partitions) && found.partitions.some((one) => one.segments)) return "Counted.";
  if (found.is_clean === undefined || !Array.isArray(found.partitions)) return `Done${found.state ? `: ${STATES[found.state] || found.state}` : ""}.`;
  const sum = (name) => found.partitions.reduce((total, one) => total + (one[name] || 0), 0);
  const removed = Object.entries(found.removed || {}).filter(([, count]) => count);
  const what = removed.map(([reason, count]) => `${count.toLocaleString("en")} ${reason.replaceAll("_", " ")}`).join(", ");
  const bytes = `${sum("bytes_before").toLocaleString("en")} bytes before, ${sum("bytes_after").toLocaleString("en")} after`;
  const held = found.held_text ? `Held back: ${found.held_text}. ` : "";
  return `${held}${what ? `Removed ${what}` : held ? "Nothing could be removed" : "There was nothing to remove"}; ${bytes}.`;
}

function certificateLinks(found) {
  const id = found && (found.id || (found.certificate && found.certificate.id));
  if (!found || !found.certificate || !id) return [];
  return [["Certificate", `/v1/certificates/${id}/page`, ""], ["Download (JSON)", `/v1/certificates/${id}`, `${id}.json`]].map(
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
  // Beside the form if the response has forms, since forms cannot be nested.
  const outcome = form.querySelector(".outcome") || form.nextElementSibling;
  const button = form.querySelector("button");
  const tell = (text, isFailed, jobId) => {
    outcome.classList.toggle("failed", Boolean(isFailed));
    if (!jobId) return outcome.replaceChildren(...marked(text));
    if (!outcome.querySelector("button")) outcome.replaceChildren(document.createElement("span"), " ", cancelButton(jobId));
    outcome.firstChild.textContent = text;
  };
  button.disabled = true;
  try {
    const fields = { ...JSON.parse(form.dataset.fields || "{}"), ...(await typedIn(form)) };
    if (form.dataset.answer === "html") {
      outcome.innerHTML = await html(form.dataset.path, fields);
      return;
    }
    const wait = JOBS.test(form.dataset.path) ? "?wait_ms=300" : "";
    const found = await carryOut(form.dataset.method, form.dataset.path + wait, fields, tell);
    if (form.classList.contains("login")) return location.reload();
    const shown = document.createElement("pre");
    shown.tabIndex = 0;
    const { certificate, ...rest } = found; // the certificate is linked; its integers would be rounded here
    shown.textContent = JSON.stringify(rest, null, 2);
    const all = document.createElement("details");
    const name = document.createElement("summary");
    name.textContent = "Full response";
    all.append(name, shown);
    tell(summary(found));
    outcome.append(...certificateLinks(found), all);
    if ("reload" in form.dataset && found.is_changed !== false) setTimeout(() => location.reload(), 1500);
  } catch (error) {
    tell(error.message, true);
  } finally {
    button.disabled = false;
    htmx.trigger(document.body, "jobended");
  }
});

// -- commands to copy ---------------------------------------------------------------------------------------------------

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const shown = button.parentElement.querySelector("pre");
  try {
    await navigator.clipboard.writeText(shown.textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  } catch {
    getSelection().selectAllChildren(shown); // for Ctrl-C: the browser does not let pages of this address copy
  }
});

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const inPython = (value) => (value === true ? "True" : JSON.stringify(value));

// A form's commands follow its typed values.
async function showCommands(form) {
  const fields = await typedIn(form);
  const list = Object.entries(fields);
  const set = (name, text) => (form.querySelector(`[data-as="${name}"]`).textContent = text);
  if ("positional" in form.dataset) {
    const values = list.map(([, value]) => value);
    set("shell", `diamant ${form.dataset.shell} ${values.map((value) => quoted(String(value))).join(" ")}`);
    set("python", `${form.dataset.python}(${values.map(inPython).join(", ")})`);
  } else {
    set("shell", `diamant ${form.dataset.shell} ${list.map(([name, value]) => `${name}=${/^[\w.-]+$/.test(value) ? value : quoted(String(value))}`).join(" ")}`);
    set("python", `${form.dataset.python}(${list.map(([name, value]) => `${name}=${inPython(value)}`).join(", ")})`);
  }
  set("curl", `curl ${location.origin}${form.dataset.path} -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(fields))}`);
}

// Previews use the page's own paths. The shown calls of the API, one per topic, return the same.
const LOOKS = {
  explain({ topics, key = { text: "KEY" } }) {
    const [form, text] = Object.entries(key)[0];
    return (topics && topics.length ? topics : ["TOPIC"]).map((topic) => ({
      path: "/v1/explain",
      fields: { topic, key },
      shell: `diamant explain ${topic} --key${form === "text" ? "" : `-${form}`} ${quoted(text)}`,
      python: `diamant.Admin().explain(${inPython(topic)}, key=${form === "text" ? inPython(text) : JSON.stringify(key)})`,
    }));
  },
  produce({ topic, partition, key, value, tombstone, headers }) {
    const fields = Object.fromEntries(Object.entries({ topic, key, value, tombstone, partition }).filter(([, one]) => one !== undefined));
    let given = {};
    try {
      given = headers ? JSON.parse(headers.text) : {};
      if (headers) fields.headers = given;
    } catch {} // while it is typed
    const option = (name, one) => Object.entries(one)[0][0] === "text" ? ` --${name} ${quoted(one.text)}` : ` --${name}-${Object.entries(one)[0][0]} ${Object.entries(one)[0][1]}`;
    const options = `${partition === undefined ? "" : ` --partition ${partition}`}${key ? option("key", key) : ""}${Object.entries(given).map(([name, one]) => ` --header ${quoted(`${name}=${one}`)}`).join("")}`;
    const text = value ? ("text" in value ? value.text : Object.values(value)[0]) : "";
    const input = tombstone || !value ? "echo" : "text" in value ? `echo ${quoted(text)}` : "hex" in value ? `echo ${text} | xxd -r -p` : `echo ${text} | base64 -d`;
    const bytes = (one) => ("text" in one ? inPython(one.text) : "hex" in one ? `bytes.fromhex("${one.hex}")` : `base64.b64decode("${one.base64}")`);
    return [{
      path: "/v1/produce",
      fields,
      shell: `${input} | diamant produce ${topic}${options}${tombstone ? " --null" : ""}`,
      python: `broker.produce(${inPython(topic)}, ${tombstone ? "None" : value ? bytes(value) : '""'}${key ? `, key=${bytes(key)}` : ""}${partition === undefined ? "" : `, partition=${partition}`}${headers ? `, headers=${JSON.stringify(given)}` : ""})`,
    }];
  },
  offsets({ path, topic, partition, to, validate_only: isTried }) {
    const fields = { topic, ...(partition === undefined ? {} : { partition }), to: to || "start", ...(isTried ? { validate_only: true } : {}) };
    const group = decodeURIComponent(path.split("/")[3]);
    return [{
      path,
      fields,
      shell: `diamant group reset ${quoted(group)} --topic ${topic}${partition === undefined ? "" : `:${partition}`} --to ${quoted(fields.to)}${isTried ? " --dry-run" : ""}`,
      python: `diamant.Admin().reset_offsets(${inPython(group)}, ${inPython(topic)}, ${inPython(fields.to)}${partition === undefined ? "" : `, ${partition}`}${isTried ? ", validate_only=True" : ""})`,
    }];
  },
  find({ topic, partition, ...wanted }) {
    const [[kind, value]] = Object.entries(wanted);
    const text = typeof value === "object" ? value.text : value;
    const place = partition === undefined ? {} : { partition };
    return [{
      path: "/v1/find",
      fields: { topic, ...place, ...wanted },
      shell: `diamant find ${topic}${partition === undefined ? "" : ` --partition ${partition}`} --${kind} ${quoted(text)}`,
      python: `list(diamant.Admin().find(${inPython(topic)}${partition === undefined ? "" : `, ${partition}`}, ${kind}=${inPython(text)}))`,
    }];
  },
};

async function showLook(form) {
  const isSearch = form.classList.contains("find");
  const typed = isSearch ? searched(form) : { ...JSON.parse(form.dataset.fields || "{}"), ...(await typedIn(form)) };
  if (form.dataset.path === "/forget/where" && !typed.where) typed.where = "DESCRIPTION";
  const { path = "" } = form.dataset;
  const look = { "/forget/key": LOOKS.explain, "/v1/produce": LOOKS.produce }[path] || (path.endsWith("/offsets") ? LOOKS.offsets : LOOKS.find);
  const calls = look(look === LOOKS.offsets ? { path, ...typed } : typed);
  const set = (name, text) => (form.querySelector(`[data-as="${name}"]`).textContent = calls.map(text).join("\n"));
  set("shell", (one) => one.shell);
  set("python", (one) => one.python);
  set("curl", (one) => `curl ${location.origin}${one.path} -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(one.fields))}`);
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-python], form[data-look]");
  if (form) ("look" in form.dataset ? showLook : showCommands)(form);
});

// -- strips -------------------------------------------------------------------------------------------------------------

// The segment that has the focus says its figures below the strip; the arrow keys move along the strip.
document.addEventListener("focusin", (event) => {
  const segment = event.target.closest(".bar g");
  document.querySelectorAll(".told").forEach((one) => (one.textContent = ""));
  const place = segment && segment.closest(".strip").querySelector(".told");
  if (place) place.textContent = segment.getAttribute("aria-label");
});

document.addEventListener("keydown", (event) => {
  const segment = event.target.closest && event.target.closest(".bar g");
  const next = segment && { ArrowRight: segment.nextElementSibling, ArrowLeft: segment.previousElementSibling }[event.key];
  if (!next || next.tagName !== "g") return;
  event.preventDefault();
  next.focus();
});

// -- the search ---------------------------------------------------------------------------------------------------------

// Text without control characters and without changes of the writing direction.
const plain = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`);

function textOf(one, field, shown) {
  const data = one[field], decoded = one[`${field}_json`];
  if (data === null) return "null";
  const text = plain(decoded !== undefined ? JSON.stringify(decoded) : "text" in data ? data.text : `base64 ${data.base64}`);
  return text.length > shown ? `${text.slice(0, shown)} …` : text;
}

function foundRow(topic, one) {
  const row = document.createElement("tr");
  const link = document.createElement("a");
  link.href = `/topics/${encodeURIComponent(topic)}/${one.partition}?offset=${one.offset}`;
  link.textContent = `${one.partition}: ${one.offset.toLocaleString("en")}`;
  const time = one.timestamp >= 0 ? new Date(one.timestamp).toISOString().replace("T", " ").slice(0, 19) : "no timestamp";
  const cells = [link, time, textOf(one, "key", 80), one.value === null ? "null: a tombstone" : textOf(one, "value", 160)];
  cells.forEach((cell, index) => {
    const place = row.insertCell();
    place.append(cell);
    place.dataset.label = ["Partition: offset", "Timestamp", "Key", "Value"][index];
    if (index > 1) place.className = "wrap mono";
  });
  return row;
}

async function* linesOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines.filter(Boolean).map((line) => JSON.parse(line));
  }
}

const MAX_ROWS = 1000;

// The fields of a search.
function searched(form) {
  const { topic, partition } = form.dataset;
  const what = form.elements.what.value || "TEXT";
  const kind = form.elements.by.value;
  const place = form.elements.one && form.elements.one.checked ? { partition: Number(partition) } : {};
  return { topic, ...place, [kind]: kind === "key" ? { text: what } : what };
}

async function search(form, signal) {
  const place = document.getElementById("found");
  const [status, rows] = [place.querySelector(".tell"), place.querySelector("tbody")];
  const { topic } = form.dataset;
  const scope = "partition" in searched(form) ? `partition ${form.dataset.partition}` : form.dataset.partitions === "1" ? "the partition" : `all ${form.dataset.partitions} partitions`;
  place.hidden = false;
  document.getElementById("records").hidden = true;
  document.querySelectorAll("main > .pages").forEach((one) => (one.hidden = true));
  rows.replaceChildren();
  place.querySelector(".scroll").hidden = false;
  status.textContent = "Searching …";
  const fields = { ...searched(form), limit: MAX_ROWS };
  let count = 0;
  try {
    const answer = await fetch("/v1/find", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields), signal });
    if (!answer.ok) throw new Error(answer.status === 401 ? "this needs the broker's token: log in at /login" : (await answer.json()).error);
    for await (const one of linesOf(answer)) {
      if (one.error) throw new Error(one.error);
      if ("offset" in one) {
        rows.append(foundRow(topic, one));
        count += 1;
      } else if (one.is_done) {
        const problems = one.problems.length ? ` Not everything could be read: ${one.problems.join("; ")}` : "";
        const found = one.is_cut ? `The newest ${count.toLocaleString("en")} matches` : count ? `${count.toLocaleString("en")} found` : "Nothing found";
        status.replaceChildren(...marked(`${found} in ${scope}.${problems}`));
        place.querySelector(".scroll").hidden = !count;
      } else {
        status.textContent = `Searching: ${Math.floor((100 * one.read_bytes) / Math.max(1, one.total_bytes))} % read, ${count.toLocaleString("en")} found …`;
      }
    }
  } catch (error) {
    status.replaceChildren(...marked(signal.aborted ? `Cancelled. ${count.toLocaleString("en")} found so far.` : error.message));
  }
}

document.addEventListener("click", (event) => {
  if (!event.target.closest("[data-close]")) return;
  document.getElementById("found").hidden = true;
  document.getElementById("records").hidden = false;
  document.querySelectorAll("main > .pages").forEach((one) => (one.hidden = false));
});

// From the records of a topic to those of one of its partitions.
document.addEventListener("submit", (event) => {
  const { go } = event.target.dataset;
  if (!go) return;
  event.preventDefault();
  const { partition, offset } = event.target.elements;
  location.assign(`${go}${partition.value}${offset.value ? `?offset=${offset.value}` : ""}`);
});

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.classList.contains("find")) return;
  event.preventDefault();
  const stop = new AbortController();
  const [button, cancel] = [form.querySelector("button"), form.querySelector("[data-cancel]")];
  cancel.onclick = () => stop.abort();
  button.disabled = true;
  cancel.hidden = false;
  await search(form, stop.signal);
  button.disabled = false;
  cancel.hidden = true;
});
