//! One figure over another, in the rounds that have both.

use serde::Serialize;

/// A figure of one round over another's, by rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    pub median: f64,
    pub least: f64,
    pub most: f64,
    pub rounds: usize,
}

impl Ratio {
    /// `None` of no rounds.
    pub fn of(numbers: Vec<f64>) -> Option<Ratio> {
        let numbers: Vec<f64> = numbers.into_iter().filter(|n| n.is_finite()).collect();
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let rounds = numbers.len();
        (rounds > 0).then(|| Ratio { median: middle(numbers), least, most, rounds })
    }
}

/// The middle one of some numbers.
pub(crate) fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}
