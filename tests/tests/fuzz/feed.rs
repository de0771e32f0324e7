//! Feeding: inputs made of valid ones, and what a decoder takes for them.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Counts what this thread has allocated, and the most it had at a time.
struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that ends frees without being counted.
    let _ = NOW.try_with(|now| {
        now.set(now.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(now.get())));
    });
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most that `run` had allocated at a time, beyond what there was before.
fn memory_of(run: impl FnOnce()) -> usize {
    let before = NOW.get();
    MOST.set(before);
    run();
    (MOST.get() - before).max(0) as usize
}

fn seconds() -> Duration {
    let text = std::env::var("ANNEX_FUZZ_SECONDS").unwrap_or_else(|_| "2".into());
    Duration::from_secs(text.parse().expect("ANNEX_FUZZ_SECONDS is a number"))
}

/// Changes an input: bytes, numbers, pieces.
fn mutate(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut StdRng) {
    for _ in 0..random.random_range(0..6) {
        let at = random.random_range(0..=input.len());
        let end = random.random_range(at..=input.len());
        match random.random_range(0..7) {
            0 if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
            1 if at < input.len() => input[at] = *b"\r\n*$+-:09\0\"'".choose(random).expect("some"),
            2 => drop(input.drain(at..end)),
            3 => {
                let piece = input[at..end.min(at + 200)].to_vec();
                input.splice(at..at, piece);
            }
            4 => {
                let other = others.choose(random).expect("some");
                input.splice(at..at, other.iter().copied());
            }
            5 => {
                let number = [0i64, -1, 1, 63, 64, 65536, 1 << 31, (1 << 31) - 1, 512 << 20, i64::MAX, i64::MIN];
                let number = number.choose(random).expect("some").to_string();
                input.splice(at..end.min(at + 20), number.into_bytes());
            }
            _ => input.truncate(at),
        }
    }
    input.truncate(1 << 17);
}

/// Feeds a decoder for the set time; `bound` is the memory it may take for so many bytes.
pub fn feed(corpus: &[Vec<u8>], decode: fn(&[u8]), bound: fn(usize) -> usize) {
    let until = Instant::now() + seconds();
    let mut seed = rand::random::<u64>();
    let mut fed = 0u64;
    let mut kept: Vec<Vec<u8>> = corpus.to_vec();
    while Instant::now() < until {
        let mut random = StdRng::seed_from_u64(seed);
        let mut input = kept.choose(&mut random).expect("some").clone();
        mutate(&mut input, corpus, &mut random);
        let shown = std::panic::catch_unwind(|| memory_of(|| decode(&input)));
        let memory = shown.unwrap_or_else(|_| panic!("seed {seed}: {:?}", input.escape_ascii().to_string()));
        assert!(memory <= bound(input.len()), "seed {seed}: {memory} bytes for {} that came in", input.len());
        // What was made goes on to be changed, so that inputs wander away from the valid ones.
        if kept.len() < 2000 {
            kept.push(input);
        } else {
            let at = random.random_range(corpus.len()..kept.len());
            kept[at] = input;
        }
        seed = seed.wrapping_add(1);
        fed += 1;
    }
    println!("{fed} inputs");
    assert!(fed > 1000, "{fed} inputs are too few");
}
