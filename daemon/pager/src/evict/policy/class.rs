//! What is known of a local page, in the four bits that its record has for the policy: why it came,
//! and how long ago.

/// Why a page is local.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was never evicted, as far as is known.
    New,
    /// It came back with others, in a stream: nobody knows whether it was asked for.
    Streamed,
    /// It was asked for, after it had been out for long, not so long, or a moment.
    AfterLong,
    AfterSome,
    AfterMoment,
}

/// Since when it is local.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// It has stayed, and the hand has not passed it since.
    Settled,
    /// The hand has passed it.
    Old,
    /// Whether it stays has yet to be decided.
    Young,
}

pub const CLASSES: usize = 15;
const AGES: u8 = 3;

/// What of it a local page's policy bits hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class(u8);

impl Class {
    /// A page of which nothing is known: its bits are 0.
    pub const UNKNOWN: Class = Class::of(Origin::New, Age::Settled);

    pub const fn of(origin: Origin, age: Age) -> Class {
        let origin = match origin {
            Origin::New => 0,
            Origin::Streamed => 1,
            Origin::AfterLong => 2,
            Origin::AfterSome => 3,
            Origin::AfterMoment => 4,
        };
        let age = match age {
            Age::Settled => 0,
            Age::Old => 1,
            Age::Young => 2,
        };
        Class(origin * AGES + age)
    }

    /// From a page's policy bits.
    pub fn from_bits(bits: u8) -> Class {
        if usize::from(bits) < CLASSES { Class(bits) } else { Class::UNKNOWN }
    }

    pub fn bits(self) -> u8 {
        self.0
    }

    pub fn all() -> impl Iterator<Item = Class> {
        (0..CLASSES as u8).map(Class)
    }

    pub(super) fn index(self) -> usize {
        self.0.into()
    }

    pub fn is_young(self) -> bool {
        self.0 % AGES == 2
    }

    /// The same origin, with nothing to be decided.
    pub fn settled(self) -> Class {
        Class(self.0 / AGES * AGES)
    }

    /// The hand has passed.
    pub fn aged(self) -> Class {
        if self.is_young() { self.settled() } else { Class(self.0 / AGES * AGES + 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_survive_in_four_bits() {
        for class in Class::all() {
            assert_eq!(Class::from_bits(class.bits()), class);
            assert!(class.bits() < 16 && !class.settled().is_young() && !class.aged().is_young());
        }
        assert_eq!(Class::from_bits(15), Class::UNKNOWN);
        assert_eq!(Class::of(Origin::Streamed, Age::Young).aged(), Class::of(Origin::Streamed, Age::Settled));
        assert_eq!(Class::of(Origin::Streamed, Age::Settled).aged(), Class::of(Origin::Streamed, Age::Old));
    }
}
