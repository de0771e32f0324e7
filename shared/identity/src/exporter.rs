//! How a data connection shows that it belongs to a control session.
//!
//! Both sides of a control session export the same key from its TLS (RFC 8446, section 7.5). The
//! key is never sent. A data connection, which is TLS too, carries an HMAC-SHA256 with that key
//! over what it is for ([`Lane`]) and over its own TLS session ([`Binding`]). So a proof is of no
//! use on another connection, for another lane, to another incarnation of the agent, or to the side
//! that made it. The donor answers with a proof of its own: then the client knows that the same
//! donor is at the other end.

use annex_shared::ids::Incarnation;
use aws_lc_rs::hmac;
use rustls::{ConnectionCommon, Error};
use std::fmt;

const KEY_LABEL: &[u8] = b"EXPORTER-annex-lane-key";
const BINDING_LABEL: &[u8] = b"EXPORTER-annex-lane-binding";
pub const PROOF_BYTES: usize = 32;

pub type Proof = [u8; PROOF_BYTES];

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data connection does not belong to the control session")]
pub struct WrongProof;

/// Who makes a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Donor,
}

/// What tells one TLS session from every other. Both ends see the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Binding([u8; 32]);

impl Binding {
    pub fn of<D>(connection: &ConnectionCommon<D>) -> Result<Binding, Error> {
        connection.export_keying_material([0; 32], BINDING_LABEL, None).map(Binding)
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Binding(..)")
    }
}

/// What a data connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    pub incarnation: Incarnation,
    pub lane: u32,
    pub connection: Binding,
}

/// The key that a control session gives its data connections.
pub struct LaneKey(hmac::Key);

impl LaneKey {
    /// Of a control session whose handshake is over.
    pub fn of<D>(session: &ConnectionCommon<D>) -> Result<LaneKey, Error> {
        let key = session.export_keying_material([0; 32], KEY_LABEL, None)?;
        Ok(LaneKey(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    pub fn proof(&self, side: Side, lane: &Lane) -> Proof {
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(hmac::sign(&self.0, &message(side, lane)).as_ref());
        proof
    }

    /// Takes the same time whatever differs.
    pub fn verify(&self, side: Side, lane: &Lane, proof: &[u8]) -> Result<(), WrongProof> {
        hmac::verify(&self.0, &message(side, lane), proof).map_err(|_| WrongProof)
    }
}

impl fmt::Debug for LaneKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LaneKey(..)")
    }
}

/// Every part has a fixed length, so no two messages are the same bytes.
fn message(side: Side, lane: &Lane) -> [u8; 45] {
    let mut message = [0; 45];
    message[0] = match side {
        Side::Client => 1,
        Side::Donor => 2,
    };
    message[1..9].copy_from_slice(&lane.incarnation.0.to_le_bytes());
    message[9..13].copy_from_slice(&lane.lane.to_le_bytes());
    message[13..].copy_from_slice(&lane.connection.0);
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::tests::Pair;

    fn lane(pair: &Pair) -> Lane {
        Lane { incarnation: Incarnation(7), lane: 3, connection: Binding::of(&pair.client).unwrap() }
    }

    #[test]
    fn a_data_connection_of_the_session_is_let_in_by_both_sides() {
        let (control, data) = (Pair::new(), Pair::new());
        let (client, donor) = (LaneKey::of(&control.client).unwrap(), LaneKey::of(&control.server).unwrap());
        let at_donor = Lane { connection: Binding::of(&data.server).unwrap(), ..lane(&data) };
        assert_eq!(donor.verify(Side::Client, &at_donor, &client.proof(Side::Client, &lane(&data))), Ok(()));
        assert_eq!(client.verify(Side::Donor, &lane(&data), &donor.proof(Side::Donor, &at_donor)), Ok(()));
    }

    #[test]
    fn a_proof_is_good_for_one_session_connection_lane_incarnation_and_side() {
        let (control, other_control, data, other_data) = (Pair::new(), Pair::new(), Pair::new(), Pair::new());
        let key = LaneKey::of(&control.client).unwrap();
        let (lane, other) = (lane(&data), lane(&other_data));
        let proof = key.proof(Side::Client, &lane);
        assert_eq!(key.verify(Side::Client, &lane, &proof), Ok(()));
        let refused = Err(WrongProof);
        assert_eq!(LaneKey::of(&other_control.client).unwrap().verify(Side::Client, &lane, &proof), refused);
        assert_eq!(key.verify(Side::Client, &other, &proof), refused);
        assert_eq!(key.verify(Side::Client, &Lane { lane: 4, ..lane }, &proof), refused);
        assert_eq!(key.verify(Side::Client, &Lane { incarnation: Incarnation(8), ..lane }, &proof), refused);
        assert_eq!(key.verify(Side::Donor, &lane, &proof), refused);
    }

    #[test]
    fn a_proof_that_is_cut_or_changed_is_refused() {
        let control = Pair::new();
        let (key, lane) = (LaneKey::of(&control.client).unwrap(), lane(&control));
        let proof = key.proof(Side::Client, &lane);
        for at in 0..PROOF_BYTES {
            let mut changed = proof;
            changed[at] ^= 0x80;
            assert_eq!(key.verify(Side::Client, &lane, &changed), Err(WrongProof));
            assert_eq!(key.verify(Side::Client, &lane, &proof[..at]), Err(WrongProof));
        }
    }

    #[test]
    fn neither_key_nor_proof_can_be_had_before_the_handshake_is_over() {
        let unfinished = Pair::unfinished();
        assert!(LaneKey::of(&unfinished.client).is_err());
        assert!(Binding::of(&unfinished.server).is_err());
    }

    #[test]
    fn a_key_is_never_printed() {
        assert_eq!(format!("{:?}", LaneKey::of(&Pair::new().client).unwrap()), "LaneKey(..)");
    }
}
