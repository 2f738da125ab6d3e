// Bank ROUNDS: a thread pool, a lock, a dictionary and short-lived objects for the collector.
using System;
using System.Collections.Generic;
using System.Threading;

class Bank {
    static readonly Dictionary<int, long> accounts = new Dictionary<int, long>();

    static long Work(long task) {
        var words = new SortedDictionary<string, int>(StringComparer.Ordinal);
        ulong x = (ulong)task * 2654435761UL + 1;
        for (int i = 0; i < 6000; i++) {
            x ^= x << 13; x ^= x >> 7; x ^= x << 17;
            string word = (x % 4001).ToString("x") + new string('a', (int)(x & 7));
            words.TryGetValue(word, out int n);
            words[word] = n + 1;
        }
        long sum = 0;
        foreach (var e in words) foreach (char c in e.Key) sum = sum * 31 + c + e.Value;
        return sum;
    }

    static void Main(string[] args) {
        for (int round = 0; round < int.Parse(args[0]); round++) {
            using (var done = new CountdownEvent(8)) {
                for (int t = 0; t < 8; t++) {
                    int task = t;
                    ThreadPool.QueueUserWorkItem(_ => {
                        long value = Work(round * 8 + task);
                        lock (accounts) {
                            accounts.TryGetValue(task, out long old);
                            accounts[task] = old * 7 + value;
                        }
                        done.Signal();
                    });
                }
                done.Wait();
            }
            long all = 0;
            for (int t = 0; t < 8; t++) all = all * 31 + accounts[t];
            Console.WriteLine($"{round} {all:x}");
        }
    }
}
