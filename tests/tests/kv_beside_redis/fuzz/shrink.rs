//! A failing sequence made shorter, as long as it still fails.

use super::step::{Sent, Step};

/// Tries at most.
const TRIES: usize = 400;

/// The shortest sequence that was found for which this holds still.
pub fn shrink(steps: Vec<Step>, mut fails: impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let (mut shortest, mut left) = (steps, TRIES);
    loop {
        let mut is_shorter = false;
        for shorter in candidates(&shortest) {
            if left == 0 {
                return shortest;
            }
            left -= 1;
            if fails(&shorter) {
                (shortest, is_shorter) = (shorter, true);
                break;
            }
        }
        if !is_shorter {
            return shortest;
        }
    }
}

/// Shorter sequences: those that leave out most come first.
fn candidates(steps: &[Step]) -> Vec<Vec<Step>> {
    let mut all = Vec::new();
    let mut chunk = steps.len() / 2;
    while chunk > 0 {
        for from in (0..steps.len()).step_by(chunk) {
            let mut fewer = steps.to_vec();
            fewer.drain(from..(from + chunk).min(steps.len()));
            all.push(fewer);
        }
        chunk /= 2;
    }
    for (at, step) in steps.iter().enumerate() {
        for simpler in simpler(step) {
            let mut other = steps.to_vec();
            other[at] = simpler;
            all.push(other);
        }
    }
    all.retain(|steps| !steps.is_empty());
    all
}

fn simpler(step: &Step) -> Vec<Step> {
    let mut all = Vec::new();
    if step.sent.len() > 1 {
        for at in 0..step.sent.len() {
            let mut fewer = step.clone();
            fewer.sent.remove(at);
            all.push(fewer);
        }
    }
    for (at, sent) in step.sent.iter().enumerate() {
        let mut with = |other: Sent| {
            let mut simpler = step.clone();
            simpler.sent[at] = other;
            all.push(simpler);
        };
        match sent {
            Sent::Raw(bytes) if bytes.len() > 4 => with(Sent::Raw(bytes[bytes.len() / 2..].to_vec())),
            Sent::Raw(_) => {}
            Sent::Words(words) => {
                for nth in 1..words.len() {
                    let mut fewer = words.clone();
                    fewer.remove(nth);
                    with(Sent::Words(fewer));
                }
                for nth in 1..words.len() {
                    for shorter in [words[nth].len() / 2, words[nth].len().saturating_sub(1)] {
                        if shorter < words[nth].len() {
                            let mut others = words.clone();
                            others[nth].truncate(shorter);
                            with(Sent::Words(others));
                        }
                    }
                }
            }
        }
    }
    all
}

#[test]
fn what_does_not_matter_is_left_out() {
    let step = |words: &[&str]| Step {
        wire: 0,
        sent: vec![Sent::Words(words.iter().map(|word| word.as_bytes().to_vec()).collect())],
    };
    let steps: Vec<Step> = (0..20).map(|n| step(&["SET", "key", if n == 13 { "abcXd" } else { "v" }])).collect();
    let has_x = |steps: &[Step]| steps.iter().any(|step| step.sent.iter().any(|s| s.to_string().contains('X')));
    assert_eq!(shrink(steps, has_x), [step(&["SET", "abcX"])]);
}
