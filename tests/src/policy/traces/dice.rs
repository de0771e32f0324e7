//! Chance that is the same every time.

/// `SplitMix64`.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.roll()) * end as u128) >> 64) as usize
    }

    pub fn is_in(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

/// Scatters numbers.
pub fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// Numbers below some end, of which the nth likeliest is wanted in proportion to `1 / n^0.99`.
pub struct Zipf {
    upto: Vec<f64>,
}

impl Zipf {
    pub fn new(end: usize) -> Zipf {
        let mut sum = 0.0;
        let upto = (1..=end)
            .map(|n| {
                sum += (n as f64).powf(-0.99);
                sum
            })
            .collect();
        Zipf { upto }
    }

    /// Its place among the likeliest: 0 is the likeliest.
    pub fn rank(&self, dice: &mut Dice) -> usize {
        let at = (dice.roll() >> 11) as f64 / (1u64 << 53) as f64 * self.upto[self.upto.len() - 1];
        self.upto.partition_point(|upto| *upto <= at).min(self.upto.len() - 1)
    }

    /// The same, with the likely ones anywhere.
    pub fn scattered(&self, dice: &mut Dice) -> usize {
        (mix(self.rank(dice) as u64) % self.upto.len() as u64) as usize
    }
}
