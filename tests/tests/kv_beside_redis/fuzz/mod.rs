//! Random sessions beside a real Redis: commands of all kinds with odd arguments, over several
//! connections, with transactions, expiries, both protocols, lines of text and requests that are
//! none. Every reply must be the same, and so must what is there in the end.
//!
//! - `grammar` makes a sequence up from a seed; `step` is how a sequence is written down.
//! - `peer` sends it to a server and gathers the answers; `judge` compares them; `reasons` lists
//!   the differences that are meant.
//! - `shrink` makes a failing sequence short. What comes out is printed as `cases.txt` has it:
//!   every finding becomes a case there.
//!
//! `ANNEX_FUZZ_SECONDS` sets for how long, and `ANNEX_FUZZ_SEED` with which sequence it begins: a
//! failure names the seed. Without it the same sequences are run each time; `make kv-fuzz` runs an
//! hour of new ones.

mod grammar;
mod judge;
mod peer;
mod reasons;
mod shrink;
mod step;

use super::ours::Ours;
use super::redis::Redis;
use peer::{Answer, Peer};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use step::Step;

/// A sequence that failed is repeated so often. What tells the time may differ once, if the host
/// was busy just then.
const REPEATS: usize = 3;

/// Bytes of a reply that a failure repeats.
const SHOWN: usize = 1000;
/// What takes longer than this is told.
const SLOW: Duration = Duration::from_secs(5);

struct Both {
    redis: Peer,
    ours: Peer,
}

enum Outcome {
    Same,
    /// It went no further, since they differ for this reason.
    Meant(&'static str),
    Different(String),
}

impl Both {
    fn new(redis: &Redis, ours: &Ours) -> Both {
        Both {
            redis: Peer::new(&redis.socket(), &["PING"]),
            // It waits for every lock.
            ours: Peer::new(&ours.socket(), &["DEBUG", "SLEEP", "0"]),
        }
    }

    fn run(&mut self, steps: &[Step]) -> Outcome {
        self.redis.begin();
        self.ours.begin();
        for (nth, step) in steps.iter().enumerate() {
            let began = Instant::now();
            self.redis.send(step);
            let theirs = self.redis.answer(step);
            self.ours.send(step);
            let ours = self.ours.answer_like(step, &theirs);
            if began.elapsed() > SLOW {
                println!("{:.1?} for {step:.200}, after\n{}", began.elapsed(), step::show(&steps[..nth]));
            }
            if judge::are_alike(step, &theirs, &ours) {
                continue;
            }
            return match reasons::of(&steps[..=nth], &theirs, &ours) {
                Some(reason) => Outcome::Meant(reason.why),
                None => Outcome::Different(format!("{step}\nredis: {}\nours:  {}\n", show(&theirs), show(&ours))),
            };
        }
        let (theirs, ours) = (self.redis.content(), self.ours.content());
        let differs = |(a, b): &(&Vec<u8>, &Vec<u8>)| !judge::are_the_same_content(a, b);
        let pairs = || theirs.iter().zip(&ours);
        match pairs().find(differs) {
            None if theirs.len() == ours.len() => Outcome::Same,
            found => {
                let (theirs, ours) =
                    found.map_or_else(|| (theirs.concat(), ours.concat()), |(a, b)| (a.clone(), b.clone()));
                let answer = |bytes| show(&Answer { replies: vec![bytes], ..Answer::default() });
                let text = format!("what is there in the end\nredis: {}\nours:  {}\n", answer(theirs), answer(ours));
                match reasons::of(steps, &Answer::default(), &Answer::default()) {
                    Some(reason) => Outcome::Meant(reason.why),
                    None => Outcome::Different(text),
                }
            }
        }
    }

    fn difference(&mut self, steps: &[Step]) -> Option<String> {
        match self.run(steps) {
            Outcome::Different(text) => Some(text),
            _ => None,
        }
    }

    /// The difference, if it comes each time.
    fn lasting_difference(&mut self, steps: &[Step]) -> Option<String> {
        (0..REPEATS).map(|_| self.difference(steps)).collect::<Option<Vec<String>>>()?.pop()
    }
}

fn show(answer: &Answer) -> String {
    let shown =
        |reply: &Vec<u8>| format!("\"{}\" ({} bytes)", reply[..reply.len().min(SHOWN)].escape_ascii(), reply.len());
    let replies: Vec<String> = answer.replies.iter().map(shown).collect();
    format!("{}{}", replies.join(" "), if answer.is_closed { " and closes" } else { "" })
}

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn random_sessions_are_as_beside_redis() {
    let Some(redis) = Redis::start("fuzz", false) else { return };
    let ours = Ours::start(false);
    let mut both = Both::new(&redis, &ours);
    let time = Duration::from_secs(setting("ANNEX_FUZZ_SECONDS").unwrap_or(10));
    let first = setting("ANNEX_FUZZ_SEED").unwrap_or(1u64);
    let (began, mut sequences, mut steps, mut once) = (Instant::now(), 0u64, 0, 0u64);
    let mut meant: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in (0..).map(|nth| first.wrapping_add(nth)) {
        if sequences > 0 && began.elapsed() > time {
            break;
        }
        let sequence = grammar::sequence(seed);
        match both.run(&sequence) {
            Outcome::Same => {}
            Outcome::Meant(why) => *meant.entry(why).or_default() += 1,
            Outcome::Different(_) if both.lasting_difference(&sequence).is_none() => once += 1,
            Outcome::Different(_) => {
                let shortest = shrink::shrink(sequence, |steps| both.difference(steps).is_some());
                let text = both.difference(&shortest).unwrap_or_default();
                panic!("seed {seed}, after {sequences} sequences:\n{}differs in {text}", step::show(&shortest));
            }
        }
        sequences += 1;
        steps += sequence.len();
    }
    println!(
        "{sequences} sequences, {steps} steps in {:.0?} from seed {first} on; differed once: {once}",
        began.elapsed()
    );
    meant.iter().for_each(|(why, times)| println!("{times} ended early: {why}"));
    // If it came and went that often, it would not be the host's doing.
    assert!(once <= 1 + sequences / 1000, "{once} of {sequences} sequences differed once and not again");
}

/// What the fuzzer and others found. A line that begins with `#` names the case that follows, up to
/// the next empty line.
#[test]
fn what_once_differed_is_as_beside_redis() {
    let Some(redis) = Redis::start("cases", false) else { return };
    let ours = Ours::start(false);
    let mut both = Both::new(&redis, &ours);
    let mut wrong = Vec::new();
    for case in include_str!("cases.txt").split("\n\n") {
        let (titles, lines): (Vec<&str>, Vec<&str>) = case.lines().partition(|line| line.starts_with('#'));
        let steps: Vec<Step> = lines.into_iter().map(step::parse).collect();
        if let Some(text) = both.difference(&steps) {
            wrong.push(format!("{}\n{}differs in {text}", titles.join("\n"), step::show(&steps)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
