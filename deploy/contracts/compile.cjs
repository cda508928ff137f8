// Compiles a contract with the compiler of tests/node (npm solc, at the version of its package.json), and prints it:
//     node deploy/contracts/compile.cjs deploy/contracts/CovaultBatch.sol > deploy/contracts/CovaultBatch.json
const fs = require('node:fs');
const path = require('node:path');
const solc = require(path.join(__dirname, '../../tests/node/node_modules/solc'));

const settings = {
  optimizer: { enabled: true, runs: 200 },
  evmVersion: 'paris',
  metadata: { bytecodeHash: 'none', appendCBOR: false },
  outputSelection: { '*': { '*': ['abi', 'evm.bytecode.object', 'evm.deployedBytecode.object'] } },
};
const file = process.argv[2];
const source = fs.readFileSync(file, 'utf8');
const input = { language: 'Solidity', sources: { [file]: { content: source } }, settings };
const output = JSON.parse(solc.compile(JSON.stringify(input)));
const problems = output.errors ?? [];
if (problems.length > 0) {
  console.error(problems.map((problem) => problem.formattedMessage).join('\n'));
  process.exit(1);
}
const contracts = {};
for (const [name, { abi, evm }] of Object.entries(output.contracts[file])) {
  contracts[name] = { abi, init: `0x${evm.bytecode.object}`, runtime: `0x${evm.deployedBytecode.object}` };
}
const { optimizer, evmVersion, metadata } = settings;
const compiled = {
  compiler: solc.version(),
  command: `node deploy/contracts/compile.cjs ${file}`,
  settings: { optimizer, evmVersion, metadata },
  contracts,
};
console.log(JSON.stringify(compiled, null, 2));
