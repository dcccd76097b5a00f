// The claim tree of an epoch in OpenZeppelin's package: the file is, byte for byte, what the package writes for these
// payouts; it loads and validates; and every payee's proof verifies under the root, but not for another amount.
//
// usage: claims.mjs ROOT run.claims.json payouts.csv proofs.ndjson
// Prints the number of proofs that were verified.

import { readFileSync } from "node:fs";
import { StandardMerkleTree } from "@openzeppelin/merkle-tree";

const [root, file, csv, proofs] = process.argv.slice(2);
const need = (holds, what) => {
  if (!holds) throw new Error(what);
};
const text = readFileSync(file, "utf8");
const types = ["address", "uint256"];
const rows = readFileSync(csv, "utf8").trim().split("\n").slice(1).map((line) => line.split(",").slice(1));
const made = StandardMerkleTree.of(rows, types);
need(made.root === root, "the package computes another root");
need(JSON.stringify(made.dump()) === text, "the package writes another file");
const tree = StandardMerkleTree.load(JSON.parse(text));
tree.validate();
need(tree.root === root, "the file has another root");

let verified = 0;
for (const line of readFileSync(proofs, "utf8").trim().split("\n")) {
  const { address, amount, proof } = JSON.parse(line);
  need(rows[verified].join() === `${address},${amount}`, "the proofs are of other payouts");
  need(StandardMerkleTree.verify(root, types, [address, amount], proof), `the proof of ${address} does not hold`);
  need(!StandardMerkleTree.verify(root, types, [address, `${amount}0`], proof), "a proof holds for another amount");
  verified += 1;
}
need(verified === rows.length, "payees without a proof");
console.log(verified);
