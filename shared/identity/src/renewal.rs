//! When a certificate is renewed, and what is said before it expires. Pure: the time and the random
//! number are parameters.
//!
//! A host renews at two thirds of its certificate's life, a little earlier or later than its
//! neighbours. A renewal keeps the key. If it fails, the host tries on. From the last quarter of
//! the life on it is said, which for 90 days is three weeks ahead.

use crate::certificate::Validity;
use crate::verify::span;
use rustls::pki_types::UnixTime;

/// Hosts that joined together don't renew together: they are spread over this part of the life.
const SPREAD: u64 = 15;
/// Of the life, between two tries; but within these bounds, in seconds.
const RETRY: u64 = 200;
const SOONEST: u64 = 60;
const LATEST: u64 = 6 * 60 * 60;

/// When the certificate is to be renewed. `random` is drawn once for each certificate.
pub fn due(validity: Validity, random: u64) -> UnixTime {
    let life = validity.life();
    let spread = life / SPREAD;
    // Centred, from half the spread before two thirds to half of it after.
    let offset = u128::from(random) * u128::from(spread) / u128::from(u64::MAX);
    let at = validity.not_before.as_secs() + life / 3 * 2 - spread / 2 + u64::try_from(offset).unwrap_or(0);
    crate::certificate::unix(at)
}

/// When to try again after a renewal that failed.
pub fn again(validity: Validity, now: UnixTime, random: u64) -> UnixTime {
    let pause = (validity.life() / RETRY).clamp(SOONEST, LATEST);
    crate::certificate::unix(now.as_secs() + pause / 2 + random % (pause / 2 + 1))
}

/// How a certificate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    Good,
    /// Seconds until it expires.
    Expires(u64),
    /// Seconds since it expired.
    Expired(u64),
    /// Seconds until it is valid.
    NotYet(u64),
}

impl Outlook {
    pub fn of(validity: Validity, now: UnixTime) -> Outlook {
        let (now, last) = (now.as_secs(), validity.not_after.as_secs());
        if now > last {
            return Outlook::Expired(now - last);
        }
        if now < validity.not_before.as_secs() {
            return Outlook::NotYet(validity.not_before.as_secs() - now);
        }
        let left = last - now;
        if left <= validity.life() / 4 { Outlook::Expires(left) } else { Outlook::Good }
    }

    /// What status, doctor and the log say, if anything is to be said.
    pub fn warning(self) -> Option<String> {
        match self {
            Outlook::Good => None,
            Outlook::Expires(left) => Some(format!("the certificate expires in {}", span(left))),
            Outlook::Expired(ago) => Some(format!(
                "the certificate expired {} ago: peers admit this host only while it has leases with them",
                span(ago)
            )),
            Outlook::NotYet(left) => Some(format!("the certificate is valid only in {}: check the clock", span(left))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::unix;
    use crate::testing::{DAY, NOW};

    fn validity() -> Validity {
        Validity { not_before: unix(NOW), not_after: unix(NOW + 90 * DAY) }
    }

    #[test]
    fn renewals_are_spread_around_two_thirds_of_the_life() {
        let day = |random| (due(validity(), random).as_secs() - NOW) / DAY;
        assert_eq!([0, u64::MAX / 2, u64::MAX].map(day), [57, 59, 63]);
        let short = Validity { not_before: unix(NOW), not_after: unix(NOW + 1) };
        assert!(due(short, u64::MAX).as_secs() <= NOW + 1);
        let none = Validity { not_before: unix(NOW), not_after: unix(NOW) };
        assert_eq!(due(none, 7), unix(NOW));
    }

    #[test]
    fn a_renewal_that_fails_is_tried_often_enough_and_not_too_often() {
        let pause = |days: u64, random| {
            let validity = Validity { not_before: unix(NOW), not_after: unix(NOW + days * DAY) };
            again(validity, unix(NOW), random).as_secs() - NOW
        };
        for random in [0, 1, u64::MAX] {
            assert!((3 * 3600..=6 * 3600).contains(&pause(90, random)));
            assert!((30..=600).contains(&pause(1, random)));
        }
    }

    /// A CA that is away for 80 of the 90 days: the host has tried all the time, and renews as soon
    /// as the CA is back.
    #[test]
    fn a_ca_that_is_away_for_eighty_days_ends_no_certificate() {
        let is_back = NOW + 80 * DAY;
        let (mut now, mut tries) = (due(validity(), 1 << 63), 0_u32);
        while now.as_secs() < is_back {
            now = again(validity(), now, u64::from(tries) * 7919);
            tries += 1;
        }
        assert!(now.as_secs() < is_back + 6 * 3600 && validity().holds(now));
        assert!((60..=200).contains(&tries), "{tries}");
    }

    #[test]
    fn it_is_said_weeks_before_a_certificate_expires() {
        let say = |at: u64| Outlook::of(validity(), unix(at)).warning();
        assert_eq!(say(NOW), None);
        assert_eq!(say(NOW + 67 * DAY), None);
        assert_eq!(say(NOW + 68 * DAY).unwrap(), "the certificate expires in 22 days");
        assert_eq!(say(NOW + 77 * DAY).unwrap(), "the certificate expires in 13 days");
        assert!(say(NOW + 93 * DAY).unwrap().starts_with("the certificate expired 3 days ago"));
        assert!(say(NOW - 3 * DAY).unwrap().starts_with("the certificate is valid only in 3 days"));
    }
}
