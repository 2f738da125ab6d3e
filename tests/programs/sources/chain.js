// chain.js STEPS: timers, promises, a worker thread, garbage and zlib; prints a chain of hashes.
const crypto = require('crypto'), fs = require('fs'), zlib = require('zlib');
const { Worker, isMainThread, parentPort } = require('worker_threads');
if (!isMainThread) {
  parentPort.on('message', (text) => {
    let h = text;
    for (let i = 0; i < 4000; i++) h = crypto.createHash('sha256').update(h).digest('hex');
    parentPort.postMessage(h);
  });
} else {
  const steps = Number(process.argv[2]), worker = new Worker(__filename), cache = new Map();
  const ask = (text) => new Promise((done) => { worker.once('message', done); worker.postMessage(text); });
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
  (async () => {
    let h = 'begin';
    for (let i = 0; i < steps; i++) {
      h = await ask(h);
      cache.set(h, Buffer.alloc(20000, h));
      if (cache.size > 500) cache.delete(cache.keys().next().value);
      const packed = zlib.gzipSync([...cache.values()][i % cache.size]).length;
      fs.appendFileSync('steps.txt', `${i} ${packed} ${h}\n`);
      if (i % 20 === 0) { console.log(i, h); await sleep(20); }
    }
    console.log('end', h);
    await worker.terminate();
  })();
}
