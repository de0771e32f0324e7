//! The first bytes of every connection to an agent, and the agent's answer.
//!
//! ```text
//!  preamble                                answer (all but control connections)
//!   0  magic "annex\0\0\0"        8         0  0 = admitted, 1 = refused   1
//!   8  protocol version           2         1  reason (0 if admitted)      1
//!  10  role                       2         2  zeros                       6
//!  12  zeros                      4         8  the connection's number     8
//!  -- all but control: the proof --
//!  16  client id                  8
//!  24  incarnation                8
//!  32  session key               16
//!
//!  -- inside TLS, all but control: the lane's proof --
//!  16  client id                  8        16  the donor's proof, if         32
//!  24  incarnation                8            admitted
//!  32  the lane's number          4
//!  36  zeros                      4
//!  40  the client's proof        32
//! ```
//! Inside TLS no key is sent. Both sides of the control session know a key that its TLS gave them
//! (`annex_identity::exporter`), and each shows the other that it does. The client counts its
//! lanes.
//!
//! All numbers are little-endian. The agent reads the preamble with a read time-out of its own
//! choosing, so that a silent peer holds nothing. A control connection gets no answer here: its
//! first message is a `Hello`.
//!
//! The connection's number names it in a *fence* (see `fabric::tcp`). It is unique within an
//! incarnation and never 0.

use crate::ids::{ClientId, Incarnation, SessionKey};
use crate::wire::{MAGIC, Role, VERSION, is_served};
use std::io::{self, Read, Write};

/// Bytes of a control connection's preamble, and of the part that all preambles share.
pub const PREAMBLE_LEN: usize = 16;
/// Bytes of a proof.
pub const PROOF_LEN: usize = 32;
/// Bytes of a lane's proof in TLS.
pub const LANE_PROOF_LEN: usize = 56;
/// Bytes of what is made with the control session's key (HMAC-SHA256).
pub const MAC_LEN: usize = 32;
/// Bytes of the answer to a preamble, without the donor's proof.
pub const ANSWER_LEN: usize = 16;

/// The first byte of a TLS connection (a record that carries the handshake).
pub const TLS_HANDSHAKE: u8 = 0x16;

/// What a connection is for, and who opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preamble {
    Control,
    Data(Proof),
    Shm(Proof),
    Verbs(Proof),
    SecureData(LaneProof),
    SecureVerbs(LaneProof),
}

/// What any connection but a control one shows to be admitted. The agent handed the key out over
/// the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    pub client: ClientId,
    pub incarnation: Incarnation,
    pub session: SessionKey,
}

/// What a data or RDMA control connection shows inside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneProof {
    pub client: ClientId,
    pub incarnation: Incarnation,
    pub lane: u32,
    pub mac: [u8; MAC_LEN],
}

/// The peer did not send a preamble that this build understands.
#[derive(Debug, thiserror::Error)]
pub enum PreambleError {
    #[error("the connection ended before its preamble was complete: {0}")]
    Io(#[from] io::Error),
    #[error("the peer does not speak annex's protocol: wrong magic")]
    NotAnnex,
    #[error("the peer speaks TLS, and this side does not: configure [tls] on both or on none")]
    Tls,
    #[error("the peer speaks protocol version {theirs}, this build speaks {ours}: upgrade the older one")]
    Version { theirs: u16, ours: u16 },
    #[error("the peer asks for connection role {0}, which this build does not know")]
    Role(u16),
    #[error("the peer set reserved bytes of its preamble")]
    Reserved,
}

/// Why an agent does not admit a connection. `Display` completes "refused the connection: …".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum AdmitError {
    #[error("it knows no session of this client: say hello on a control connection first")]
    UnknownClient = 1,
    #[error("it has been restarted since (another incarnation): say hello again")]
    StaleIncarnation = 2,
    #[error("the session key is not the one it handed out last: say hello again")]
    WrongSession = 3,
    #[error("this client already has as many connections as it allows")]
    TooManyConnections = 4,
    #[error("it is shutting down")]
    Closing = 5,
    #[error("it speaks another protocol version: upgrade the older one")]
    Version = 6,
    #[error("it does not offer this transport")]
    NotOffered = 7,
    #[error("the connection does not belong to the client's control session: say hello again")]
    WrongProof = 8,
}

/// The agent's answer to a preamble could not be taken as a yes.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("the connection ended before the agent answered: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(AdmitError),
    #[error("the agent's answer makes no sense (status {status}, reason {reason})")]
    Malformed { status: u8, reason: u8 },
}

impl Preamble {
    /// Reads and checks one preamble.
    pub fn read_from(from: &mut impl Read) -> Result<Preamble, PreambleError> {
        let mut head = [0; PREAMBLE_LEN];
        // The rest of what is no preamble may never come.
        let (first, rest) = head.split_at_mut(1);
        from.read_exact(first)?;
        if first[0] == TLS_HANDSHAKE {
            return Err(PreambleError::Tls);
        }
        from.read_exact(rest)?;
        if head[..8] != MAGIC {
            return Err(PreambleError::NotAnnex);
        }
        let theirs = u16_at(&head, 8);
        if !is_served(theirs) {
            return Err(PreambleError::Version { theirs, ours: VERSION as u16 });
        }
        if head[12..] != [0; 4] {
            return Err(PreambleError::Reserved);
        }
        match u16_at(&head, 10) {
            r if r == Role::Control as u16 => Ok(Preamble::Control),
            r if r == Role::Data as u16 => Ok(Preamble::Data(Proof::read_from(from)?)),
            r if r == Role::Shm as u16 => Ok(Preamble::Shm(Proof::read_from(from)?)),
            r if r == Role::Verbs as u16 => Ok(Preamble::Verbs(Proof::read_from(from)?)),
            r if r == Role::SecureData as u16 => Ok(Preamble::SecureData(LaneProof::read_from(from)?)),
            r if r == Role::SecureVerbs as u16 => Ok(Preamble::SecureVerbs(LaneProof::read_from(from)?)),
            r => Err(PreambleError::Role(r)),
        }
    }

    /// Sends the preamble as one write.
    pub fn write_to(&self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = [0; PREAMBLE_LEN + LANE_PROOF_LEN];
        let (role, len) = match self {
            Preamble::Control => (Role::Control, 0),
            Preamble::Data(proof) => (Role::Data, proof.encode(&mut bytes[PREAMBLE_LEN..])),
            Preamble::Shm(proof) => (Role::Shm, proof.encode(&mut bytes[PREAMBLE_LEN..])),
            Preamble::Verbs(proof) => (Role::Verbs, proof.encode(&mut bytes[PREAMBLE_LEN..])),
            Preamble::SecureData(proof) => (Role::SecureData, proof.encode(&mut bytes[PREAMBLE_LEN..])),
            Preamble::SecureVerbs(proof) => (Role::SecureVerbs, proof.encode(&mut bytes[PREAMBLE_LEN..])),
        };
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&(VERSION as u16).to_le_bytes());
        bytes[10..12].copy_from_slice(&(role as u16).to_le_bytes());
        to.write_all(&bytes[..PREAMBLE_LEN + len])
    }
}

impl Proof {
    fn read_from(from: &mut impl Read) -> io::Result<Proof> {
        let mut bytes = [0; PROOF_LEN];
        from.read_exact(&mut bytes)?;
        let (client, rest) = bytes.split_at(8);
        let (incarnation, session) = rest.split_at(8);
        Ok(Proof {
            client: ClientId(u64_of(client)),
            incarnation: Incarnation(u64_of(incarnation)),
            session: SessionKey(u128::from(u64_of(&session[..8])) | u128::from(u64_of(&session[8..])) << 64),
        })
    }

    fn encode(&self, to: &mut [u8]) -> usize {
        to[..8].copy_from_slice(&self.client.0.to_le_bytes());
        to[8..16].copy_from_slice(&self.incarnation.0.to_le_bytes());
        to[16..32].copy_from_slice(&self.session.0.to_le_bytes());
        PROOF_LEN
    }
}

impl LaneProof {
    fn read_from(from: &mut impl Read) -> Result<LaneProof, PreambleError> {
        let mut bytes = [0; LANE_PROOF_LEN];
        from.read_exact(&mut bytes)?;
        if bytes[20..24] != [0; 4] {
            return Err(PreambleError::Reserved);
        }
        let mut mac = [0; MAC_LEN];
        mac.copy_from_slice(&bytes[24..]);
        Ok(LaneProof {
            client: ClientId(u64_of(&bytes[..8])),
            incarnation: Incarnation(u64_of(&bytes[8..16])),
            lane: u64_of(&bytes[16..20]) as u32,
            mac,
        })
    }

    fn encode(&self, to: &mut [u8]) -> usize {
        to[..8].copy_from_slice(&self.client.0.to_le_bytes());
        to[8..16].copy_from_slice(&self.incarnation.0.to_le_bytes());
        to[16..20].copy_from_slice(&self.lane.to_le_bytes());
        to[24..LANE_PROOF_LEN].copy_from_slice(&self.mac);
        LANE_PROOF_LEN
    }
}

impl AdmitError {
    const ALL: [AdmitError; 8] = [
        AdmitError::UnknownClient,
        AdmitError::StaleIncarnation,
        AdmitError::WrongSession,
        AdmitError::TooManyConnections,
        AdmitError::Closing,
        AdmitError::Version,
        AdmitError::NotOffered,
        AdmitError::WrongProof,
    ];
}

/// The agent's side of the answer: the connection's number, or why not.
pub fn write_answer(to: &mut impl Write, answer: Result<u64, AdmitError>) -> io::Result<()> {
    let mut bytes = [0; ANSWER_LEN];
    match answer {
        Ok(number) => bytes[8..].copy_from_slice(&number.to_le_bytes()),
        Err(reason) => bytes[..2].copy_from_slice(&[1, reason as u8]),
    }
    to.write_all(&bytes)
}

/// The client's side of the answer: the connection's number.
pub fn read_answer(from: &mut impl Read) -> Result<u64, AnswerError> {
    let mut bytes = [0; ANSWER_LEN];
    from.read_exact(&mut bytes)?;
    let (status, reason) = (bytes[0], bytes[1]);
    let malformed = AnswerError::Malformed { status, reason };
    match status {
        0 if bytes[1..8] == [0; 7] => Ok(u64_of(&bytes[8..])),
        1 => Err(AdmitError::ALL.into_iter().find(|r| *r as u8 == reason).map_or(malformed, AnswerError::Refused)),
        _ => Err(malformed),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u64_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::OLDEST;

    const PROOF: Proof = Proof {
        client: ClientId(0x0102_0304_0506_0708),
        incarnation: Incarnation(0x1112_1314_1516_1718),
        session: SessionKey(0x2122_2324_2526_2728_292a_2b2c_2d2e_2f30),
    };

    const LANE: LaneProof = LaneProof {
        client: ClientId(0x0102_0304_0506_0708),
        incarnation: Incarnation(0x1112_1314_1516_1718),
        lane: 0x2122_2324,
        mac: [0x99; MAC_LEN],
    };

    fn bytes_of(preamble: Preamble) -> Vec<u8> {
        let mut bytes = Vec::new();
        preamble.write_to(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn every_role_reads_back_as_written() {
        let plain = [Preamble::Control, Preamble::Data(PROOF), Preamble::Shm(PROOF), Preamble::Verbs(PROOF)];
        let secure = [Preamble::SecureData(LANE), Preamble::SecureVerbs(LANE)];
        for preamble in plain.into_iter().chain(secure) {
            assert_eq!(Preamble::read_from(&mut &bytes_of(preamble)[..]).unwrap(), preamble);
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let bytes = bytes_of(Preamble::Data(PROOF));
        assert_eq!(bytes.len(), 48);
        assert_eq!(&bytes[..16], b"annex\0\0\0\x04\0\x02\0\0\0\0\0");
        assert_eq!((bytes[16], bytes[24], bytes[32], bytes[47]), (0x08, 0x18, 0x30, 0x21));
        let bytes = bytes_of(Preamble::SecureData(LANE));
        assert_eq!((bytes.len(), bytes[10]), (72, 5));
        assert_eq!((bytes[16], bytes[24], bytes[32], &bytes[36..40]), (0x08, 0x18, 0x24, &[0; 4][..]));
        assert_eq!(bytes[40..], [0x99; MAC_LEN]);
    }

    #[test]
    fn a_stranger_another_version_and_an_unknown_role_are_told_apart() {
        let good = bytes_of(Preamble::Data(PROOF));
        let read_with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Preamble::read_from(&mut &bytes[..]).unwrap_err()
        };
        assert!(matches!(read_with(0, b'G'), PreambleError::NotAnnex));
        assert!(matches!(read_with(0, TLS_HANDSHAKE), PreambleError::Tls));
        assert!(matches!(read_with(8, 9), PreambleError::Version { theirs: 9, .. }));
        assert!(matches!(read_with(8, OLDEST as u8 - 1), PreambleError::Version { .. }));
        assert!(matches!(read_with(10, 77), PreambleError::Role(77)));
        assert!(matches!(read_with(15, 1), PreambleError::Reserved));
        assert!(matches!(Preamble::read_from(&mut &good[..40]).unwrap_err(), PreambleError::Io(_)));
    }

    #[test]
    fn a_client_of_the_oldest_version_that_is_served_is_let_in() {
        let mut bytes = bytes_of(Preamble::Data(PROOF));
        bytes[8] = OLDEST as u8;
        assert!(Preamble::read_from(&mut &bytes[..]).is_ok());
    }

    #[test]
    fn answers_read_back_and_nonsense_is_not_a_yes() {
        let round = |answer| {
            let mut bytes = Vec::new();
            write_answer(&mut bytes, answer).unwrap();
            read_answer(&mut &bytes[..])
        };
        assert_eq!(round(Ok(7)).unwrap(), 7);
        for reason in AdmitError::ALL {
            assert!(matches!(round(Err(reason)), Err(AnswerError::Refused(r)) if r == reason));
        }
        let nonsense = [0, 3, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        assert!(matches!(read_answer(&mut &nonsense[..]), Err(AnswerError::Malformed { .. })));
    }
}
