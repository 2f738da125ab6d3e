// sieve ROUNDS: threads with channels, a reader-writer lock, an atomic counter and vectors that grow and go.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc, RwLock};
use std::thread;

fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51afd7ed558ccd);
    x ^ (x >> 29)
}

fn work(task: u64) -> u64 {
    let mut tree = BTreeMap::new();
    let mut x = task + 1;
    for i in 0..60_000u64 {
        x = mix(x.wrapping_add(i));
        *tree.entry(x % 50_021).or_insert(0u64) += x;
    }
    tree.iter().fold(task, |h, (k, v)| mix(h ^ k.wrapping_mul(31) ^ v))
}

fn main() {
    let rounds: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let board = Arc::new(RwLock::new(vec![0u64; 16]));
    for round in 0..rounds {
        let (to, from) = mpsc::channel();
        let threads: Vec<_> = (0..4u64)
            .map(|w| {
                let (to, count, board) = (to.clone(), count.clone(), board.clone());
                thread::spawn(move || {
                    for t in (w..16).step_by(4) {
                        let before = board.read().unwrap()[t as usize];
                        to.send((t, work(before ^ (round * 16 + t)))).unwrap();
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        drop(to);
        let mut found: Vec<_> = from.iter().collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        found.sort();
        for (t, value) in found {
            board.write().unwrap()[t as usize] = value;
        }
        if round % 10 == 9 {
            println!("{} {:016x}", round, board.read().unwrap().iter().fold(0, |h, v| mix(h ^ v)));
        }
    }
    println!("{}", count.load(Ordering::SeqCst));
}
