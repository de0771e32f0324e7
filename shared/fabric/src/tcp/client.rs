//! Opens data connections to one agent, and fences those that have ended.

use super::endpoint::TcpEndpoint;
use super::frame::{ALL_EARLIER, ANSWER_LEN, Answer, REQUEST_LEN, Request, Verb};
use crate::ledger::{Ledger, Link};
use crate::opening::{Purpose, SessionTls, open};
use crate::{Arena, ConnectError, Connector, Endpoint, Transport};
use annex_identity::stream::Stream;
use annex_shared::ids::{ClientId, Incarnation, RemoteAddr, Rkey, SessionKey};
use annex_shared::preamble::Proof;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Operations outstanding at once, unless told otherwise.
const DEPTH: usize = 256;

/// Opens endpoints to one agent over TCP, for one incarnation and session.
#[derive(Debug)]
pub struct TcpConnector {
    addr: SocketAddr,
    proof: Proof,
    tls: Option<Arc<SessionTls>>,
    timeout: Duration,
    depth: usize,
    /// What earlier connectors left behind has ended, too.
    ledger: Arc<Ledger>,
}

impl TcpConnector {
    /// `timeout` holds for connecting and for each operation (5 s is a sound choice).
    pub fn new(
        addr: SocketAddr,
        client: ClientId,
        incarnation: Incarnation,
        session: SessionKey,
        timeout: Duration,
    ) -> Self {
        let proof = Proof { client, incarnation, session };
        let ledger = Arc::new(Ledger::new(vec![ALL_EARLIER]));
        TcpConnector { addr, proof, tls: None, timeout, depth: DEPTH, ledger }
    }

    /// Operations that an endpoint may have outstanding at once.
    pub fn with_depth(mut self, depth: usize) -> Self {
        self.depth = depth.max(1);
        self
    }

    /// Over TLS, if there is one.
    pub fn with_tls(self, tls: Option<Arc<SessionTls>>) -> Self {
        TcpConnector { tls, ..self }
    }

    fn unreachable(&self, source: std::io::Error) -> ConnectError {
        ConnectError::Unreachable { peer: self.addr.to_string(), source }
    }

    fn refused(&self, reason: impl ToString) -> ConnectError {
        ConnectError::Refused { peer: self.addr.to_string(), reason: reason.to_string() }
    }

    /// Asks the agent to end every connection of ours that has ended.
    fn fence(&self, stream: &mut Stream) -> Result<(), ConnectError> {
        let ended = self.ledger.ended();
        for (seq, number) in ended.iter().enumerate() {
            let (seq, addr) = (seq as u64, RemoteAddr(*number));
            let mut bytes = [0; REQUEST_LEN];
            Request { verb: Verb::Fence, len: 0, rkey: Rkey(0), addr, seq, expect: 0, swap: 0 }.encode(&mut bytes);
            stream.write_all(&bytes).map_err(|e| self.unreachable(e))?;
            let mut bytes = [0; ANSWER_LEN];
            stream.until(Instant::now() + self.timeout).read_exact(&mut bytes).map_err(|e| self.unreachable(e))?;
            match Answer::parse(&bytes) {
                Ok(a) if a.verb == Verb::Fence && a.seq == seq && a.len == 0 => a
                    .status
                    .result()
                    .map_err(|_| self.refused("an earlier connection of ours is not over there yet"))?,
                _ => return Err(self.refused("its answer to a fence makes no sense")),
            }
            self.ledger.fenced(*number);
        }
        Ok(())
    }
}

impl Connector for TcpConnector {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn open(&self, arena: &Arc<Arena>) -> Result<Box<dyn Endpoint>, ConnectError> {
        let (mut stream, number) = open(self.addr, Purpose::Data, &self.proof, self.tls.as_deref(), self.timeout)?;
        let link = Link::new(number, self.ledger.clone());
        self.fence(&mut stream)?;
        TcpEndpoint::new(stream, link, arena.clone(), self.depth, self.timeout)
            .map(|endpoint| Box::new(endpoint) as Box<dyn Endpoint>)
            .map_err(|source| ConnectError::Local { transport: Transport::Tcp, peer: self.addr.to_string(), source })
    }
}
