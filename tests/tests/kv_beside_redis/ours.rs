//! Our KV API, emptied before each sequence of commands.

use super::Step;
use super::redis::run;
use annex_tests::kv::wire::Wire;
use annex_tests::testbed::{Donor, Testbed};

pub struct Ours {
    wire: Wire,
    bed: Testbed,
}

impl Ours {
    pub fn start(resp3: bool) -> Ours {
        let bed = Testbed::builder().donor(Donor::shm()).donor(Donor::shm()).kv(",cache=64K,debug=true").start();
        let mut wire = Wire::unix(&bed.kv_socket()).expect("the KV API listens");
        if resp3 {
            wire.ask(&["HELLO", "3"]).expect("an answer");
        }
        Ours { wire, bed }
    }

    pub fn socket(&self) -> std::path::PathBuf {
        self.bed.kv_socket()
    }

    /// Two more connections.
    pub fn wires(&self) -> [Wire; 2] {
        [(); 2].map(|()| Wire::unix(&self.bed.kv_socket()).expect("the KV API listens"))
    }

    /// The reply to each command.
    pub fn run(&mut self, steps: &[Step]) -> Vec<Vec<u8>> {
        run(&mut self.wire, steps)
    }
}
