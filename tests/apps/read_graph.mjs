// Reads a .dot or .mmd file with the library that it is for: node read_graph.mjs NODE_MODULES FILE
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [modules, file] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(`${modules}/${path}`));
const text = readFileSync(file, "utf-8");
if (file.endsWith(".dot")) {
  const { Graphviz } = await load("@hpcc-js/wasm-graphviz/dist/index.js");
  const graph = JSON.parse((await Graphviz.load()).layout(text, "json", "dot"));
  const nodes = (graph.objects ?? []).filter((each) => !each.name.startsWith("cluster_"));
  console.log(JSON.stringify({ boxes: nodes.length, edges: (graph.edges ?? []).length }));
} else {
  const { JSDOM } = (await load("jsdom/lib/api.js")).default;
  const { window } = new JSDOM("");
  Object.assign(globalThis, { window, document: window.document });
  const mermaid = (await load("mermaid/dist/mermaid.core.mjs")).default;
  await mermaid.parse(text); // a mistake is an exception
  const diagram = await mermaid.mermaidAPI.getDiagramFromText(text);
  const db = diagram.db;
  console.log(JSON.stringify({ boxes: [...db.getVertices().keys()].length, edges: db.getEdges().length }));
}
