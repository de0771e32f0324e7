//! By which key the data connections of each client show that they belong to its control session,
//! where that has TLS.
//!
//! A key is entered at the client's hello and leaves with the client's claim: like its session key,
//! it outlives the control connection. Whoever is in here also has a standing: its certificate may
//! have run out meanwhile.

use super::Caller;
use annex_identity::certificate::KeyId;
use annex_identity::exporter::{Binding, Lane, Side};
use annex_identity::stream::Session;
use annex_identity::verify::Standings;
use annex_shared::ids::{ClientId, SessionKey};
use annex_shared::preamble::{AdmitError, LaneProof, Proof};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;

#[derive(Debug, Default)]
pub struct LaneKeys(Mutex<HashMap<ClientId, Entry>>);

struct Entry {
    control: Session,
    /// What the welcome said: the lease book knows the session by it.
    session: SessionKey,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({})", self.control.peer.name)
    }
}

impl LaneKeys {
    /// A client said hello on this control session.
    pub fn enter(&self, client: ClientId, session: SessionKey, control: Session) {
        self.lock().insert(client, Entry { control, session });
    }

    /// A client's claim is over.
    pub fn leave(&self, client: ClientId) {
        self.lock().remove(&client);
    }

    /// Whether a connection belongs to the control session of the client that it names. What is
    /// given is what a plain connection would have shown, and is to be checked likewise.
    pub fn verify(&self, shown: &LaneProof, connection: Binding) -> Result<Caller, AdmitError> {
        let LaneProof { client, incarnation, lane, mac } = *shown;
        let entries = self.lock();
        let Entry { control, session } = entries.get(&client).ok_or(AdmitError::UnknownClient)?;
        let lane = Lane { incarnation, lane, connection };
        control.key.verify(Side::Client, &lane, &mac).map_err(|_| AdmitError::WrongProof)?;
        let proof = Proof { client, incarnation, session: *session };
        Ok(Caller { proof, answer: Some(control.key.proof(Side::Donor, &lane)) })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClientId, Entry>> {
        self.0.lock()
    }
}

impl Standings for LaneKeys {
    fn holds(&self, key: &KeyId) -> bool {
        self.lock().values().any(|entry| entry.control.peer.key == *key)
    }
}
