// node call.js PROGRAM FUNCTION: call a function of a program, or that method of its class Solution, with the JSON list
// on standard input; what it returns goes to descriptor 3 as JSON.
'use strict';
const fs = require('fs');
const vm = require('vm');

const [file, name] = process.argv.slice(2);
const values = JSON.parse(fs.readFileSync(0, 'utf8'));
globalThis.require = require;
globalThis.module = { exports: {} };
globalThis.exports = globalThis.module.exports;
vm.runInThisContext(fs.readFileSync(file, 'utf8'), { filename: 'main.js' });
// Names declared by `const` and `class` are in reach of later scripts only, not of this module.
const found = vm.runInThisContext(
  `typeof ${name} === 'function' ? ${name}
   : typeof Solution === 'function' && typeof Solution.prototype.${name} === 'function'
     ? ((object) => object.${name}.bind(object))(new Solution())
     : globalThis.module.exports.${name}`,
);
if (typeof found !== 'function') throw new ReferenceError(`the program defines no function '${name}'`);
Promise.resolve(found(...values)).then((result) => {
  let body = Buffer.from(JSON.stringify(result === undefined ? null : result));
  while (body.length) body = body.subarray(fs.writeSync(3, body));
  process.exit(0);
});
