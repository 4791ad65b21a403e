// Print the first results of queries as JSON: node search_site.mjs WORKER INDEX QUERY...
// The worker is that of the search of the site, with its tokenizer, boosts and grouping by page.
import { readFileSync } from "node:fs"

const [worker, index, ...queries] = process.argv.slice(2)
const { config, docs } = JSON.parse(readFileSync(index, "utf8"))
const answers = []
let receive
globalThis.self = globalThis
globalThis.addEventListener = (type, listener) => { receive = listener }
globalThis.postMessage = answer => answers.push(answer)
;(0, eval)(readFileSync(worker, "utf8"))

const send = async (type, data) => {
  const count = answers.length
  await receive({ data: { type, data } })
  while (answers.length === count) await new Promise(resolve => setTimeout(resolve, 1))
  return answers.at(-1).data
}

const SETUP = 0, QUERY = 2
await send(SETUP, { config, docs, options: { suggest: false } })
const results = {}
for (const query of queries) {
  const { items } = await send(QUERY, query)
  results[query] = items.map(sections => sections[0].location)
}
console.log(JSON.stringify(results))
