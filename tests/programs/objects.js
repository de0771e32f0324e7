// Objects, strings and typed arrays that the garbage collector moves about; every one is checked. Argument: MiB to use.
'use strict';
const mib = Number(process.argv[2] || 128);
const word = (i, generation) => (Math.imul(i, 0x9e3779b1) ^ Math.imul(generation + 1, 0x85ebca6b)) >>> 0;
const make = (i, generation) => ({
  i,
  generation,
  name: `object ${i} of generation ${generation} ` + 'x'.repeat(i % 64),
  words: Uint32Array.from({ length: 64 }, (_, k) => word(i + k, generation)),
});
function check(object, i, generation) {
  const whole = object.i === i && object.generation === generation
    && object.name === `object ${i} of generation ${generation} ` + 'x'.repeat(i % 64)
    && object.words.every((w, k) => w === word(i + k, generation));
  if (!whole) throw new Error(`object ${i} is wrong: ${JSON.stringify(object).slice(0, 200)}`);
}
const count = mib * 1400;
const objects = new Map();
const generations = new Uint8Array(count);
for (let i = 0; i < count; i++) objects.set(i, make(i, 0));
let checked = 0;
for (let round = 1; round <= 3; round++) {
  for (let i = round; i < count; i += 3 + round) {
    check(objects.get(i), i, generations[i]);
    generations[i] = round;
    objects.set(i, make(i, round));
    checked++;
  }
  if (global.gc) global.gc();
}
for (let i = 0; i < count; i++) {
  check(objects.get(i), i, generations[i]);
  checked++;
}
console.log(`checked ${checked}`);
