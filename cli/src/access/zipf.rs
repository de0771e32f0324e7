//! Gray's generator of Zipf-distributed ranks ("Quickly generating billion-record synthetic
//! databases", SIGMOD '94).

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    items: f64,
    theta: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    pub fn new(items: usize, theta: f64) -> Zipf {
        let zeta: f64 = (1..=items).map(|i| 1.0 / (i as f64).powf(theta)).sum();
        let items = items as f64;
        let zeta2 = 1.0 + 0.5f64.powf(theta);
        let eta = (1.0 - (2.0 / items).powf(1.0 - theta)) / (1.0 - zeta2 / zeta);
        Zipf { items, theta, zeta, alpha: 1.0 / (1.0 - theta), eta }
    }

    /// An item drawn with a roll of the dice. Popular items lie anywhere, the same ones each time.
    pub fn scattered(&self, roll: u64) -> usize {
        // The multiplier is a prime above any number of items here: no two ranks meet.
        self.rank(roll).wrapping_mul(2_654_435_761) % self.items as usize
    }

    fn rank(&self, roll: u64) -> usize {
        let u = (roll >> 11) as f64 / (1u64 << 53) as f64;
        let z = u * self.zeta;
        if z < 1.0 {
            0
        } else if z < 1.0 + 0.5f64.powf(self.theta) {
            1
        } else {
            let rank = self.items * (self.eta * u - self.eta + 1.0).powf(self.alpha);
            (rank as usize).min(self.items as usize - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::dice::Dice;

    #[test]
    fn zipf_prefers_the_first_ranks_as_much_as_it_should() {
        let zipf = Zipf::new(1 << 16, 0.99);
        let mut dice = Dice::new(1);
        let (rolls, mut first, mut first_tenth) = (200_000, 0, 0);
        for _ in 0..rolls {
            let rank = zipf.rank(dice.roll());
            first += u32::from(rank == 0);
            first_tenth += u32::from(rank < (1 << 16) / 10);
        }
        let expected = f64::from(rolls) / zipf.zeta;
        assert!((f64::from(first) - expected).abs() < expected * 0.1, "{first} of {expected}");
        assert!((0.75..0.85).contains(&(f64::from(first_tenth) / f64::from(rolls))), "{first_tenth}");
    }

    #[test]
    fn scattered_ranks_do_not_meet() {
        let zipf = Zipf::new(1000, 0.99);
        let mut dice = Dice::new(1);
        let drawn: std::collections::BTreeSet<_> = (0..100_000).map(|_| zipf.scattered(dice.roll())).collect();
        assert!(drawn.len() > 950, "{} of 1000", drawn.len());
        assert!(drawn.iter().all(|item| *item < 1000));
    }
}
