// Perfetto's trace processor behind a socket: `node trace_processor.js FOLDER SOCKET`.
// FOLDER has trace_processor.wasm and its glue, which is written for a worker of a browser: a worker is played here.
"use strict";
const fs = require("node:fs");
const net = require("node:net");
const path = require("node:path");
const vm = require("node:vm");

const [folder, socket] = process.argv.slice(2);
const glue = path.join(folder, "engine_bundle.node.js");
const wasm = fs.readFileSync(path.join(folder, "trace_processor.wasm"));

globalThis.WorkerGlobalScope = Object;
globalThis.self = globalThis;
globalThis.location = { href: "" };
globalThis.XMLHttpRequest = class {
  response = wasm; // the only file that the glue asks for
  open() {}
  send() {}
};
console.log = console.warn = () => {}; // its notices on memory

// The processor is built for 32 bits; newer versions of node would also run one of 64, which is not there.
const source = fs.readFileSync(glue, "utf8").replace("= hasMemory64Support()", "= false");
vm.runInThisContext(source, { filename: glue });

let client = null;
const port = { postMessage: (bytes) => client.write(Buffer.from(bytes)) };
self.onmessage({ data: port });

net
  .createServer((connection) => {
    client = connection;
    connection.on("data", (bytes) => port.onmessage({ data: new Uint8Array(bytes) }));
    connection.on("close", () => process.exit());
  })
  .listen(socket, () => process.stdout.write("ready\n"));
