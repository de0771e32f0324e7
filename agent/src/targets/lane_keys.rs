//! By which key the data connections of each client show that they belong to its control session,
//! where that has TLS.
//!
//! A key is entered at the client's hello and leaves with the client's claim: like its session key,
//! it outlives the control connection. Whoever is in here also has a standing: its certificate may
//! have run out meanwhile. So has a client of the agent before whose leases go on, from the start.

use super::Caller;
use annex_identity::certificate::KeyId;
use annex_identity::exporter::{Binding, Lane, Side};
use annex_identity::stream::Session;
use annex_identity::verify::Standings;
use annex_shared::ids::{ClientId, SessionKey};
use annex_shared::preamble::{AdmitError, LaneProof, Proof};
use parking_lot::Mutex;
use std::collections::HashMap;

#[derive(Debug, Default)]
pub struct LaneKeys(Mutex<HashMap<ClientId, Entry>>);

enum Entry {
    /// Its leases go on from the agent before; it has not said hello to this one.
    Expected(KeyId),
    /// With what the welcome said: the lease book knows the session by it.
    Welcome(Box<Session>, SessionKey),
}

impl Entry {
    fn key(&self) -> &KeyId {
        match self {
            Entry::Expected(key) => key,
            Entry::Welcome(control, _) => &control.peer.key,
        }
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({})", self.key())
    }
}

impl LaneKeys {
    /// A client said hello on this control session.
    pub fn enter(&self, client: ClientId, session: SessionKey, control: Session) {
        self.0.lock().insert(client, Entry::Welcome(Box::new(control), session));
    }

    /// A client with this key may come back to its leases.
    pub fn expect(&self, client: ClientId, key: KeyId) {
        self.0.lock().insert(client, Entry::Expected(key));
    }

    /// A client's claim is over.
    pub fn leave(&self, client: ClientId) {
        self.0.lock().remove(&client);
    }

    /// Whether the client's session is one with TLS.
    pub fn is_secure(&self, client: ClientId) -> bool {
        matches!(self.0.lock().get(&client), Some(Entry::Welcome(..)))
    }

    /// Whether a connection belongs to the control session of the client that it names. What is
    /// given is what a plain connection would have shown, and is to be checked likewise.
    pub fn verify(&self, shown: &LaneProof, connection: Binding) -> Result<Caller, AdmitError> {
        let LaneProof { client, incarnation, lane, mac } = *shown;
        let entries = self.0.lock();
        let Some(Entry::Welcome(control, session)) = entries.get(&client) else {
            return Err(AdmitError::UnknownClient);
        };
        let lane = Lane { incarnation, lane, connection };
        control.key.verify(Side::Client, &lane, &mac).map_err(|_| AdmitError::WrongProof)?;
        let proof = Proof { client, incarnation, session: *session };
        Ok(Caller { proof, answer: Some(control.key.proof(Side::Donor, &lane)) })
    }
}

impl Standings for LaneKeys {
    fn holds(&self, key: &KeyId) -> bool {
        self.0.lock().values().any(|entry| entry.key() == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_whose_leases_go_on_has_a_standing_before_its_hello() {
        let (keys, client, key) = (LaneKeys::default(), ClientId(1), KeyId::from([1; 32]));
        keys.expect(client, key);
        assert!(keys.holds(&key) && !keys.holds(&[2; 32].into()));
        keys.leave(client);
        assert!(!keys.holds(&key));
    }
}
