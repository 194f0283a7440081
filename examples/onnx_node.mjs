// Ask a model that `klda export` wrote, in JavaScript.
//
// npm install onnxruntime-node @huggingface/tokenizers
// node onnx_node.mjs FOLDER "where is my card?" ...
import { readFileSync } from "node:fs";
import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-node";

const [folder, ...texts] = process.argv.slice(2);
const tokenizer = new Tokenizer(JSON.parse(readFileSync(`${folder}/tokenizer.json`)), {});
const { max_tokens } = JSON.parse(readFileSync(`${folder}/klda.json`));
const session = await ort.InferenceSession.create(`${folder}/model.onnx`);

for (const text of texts) {
  let { ids } = tokenizer.encode(text.trim());
  if (ids.length > max_tokens) ids = [...ids.slice(0, max_tokens - 1), ids.at(-1)];
  const tensor = (values) =>
    new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, ids.length]);
  const answer = await session.run({
    input_ids: tensor(ids),
    attention_mask: tensor(ids.map(() => 1)),
  });
  const known = answer.known ? Boolean(answer.known.data[0]) : true;
  const chance = Math.max(...answer.probabilities.data);
  console.log([text, answer.label.data[0], chance.toFixed(6), known ? "known" : "unknown"].join("\t"));
}
