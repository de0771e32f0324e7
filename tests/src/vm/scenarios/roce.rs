//! The testbed itself: an RDMA device on each guest, and the verbs of others between them.

use crate::vm::guest::Guest;
use crate::vm::lab::{DEVICE, Lab, address};
use anyhow::Context;

/// perftest reaches a donor over RDMA.
pub fn devices(lab: &mut Lab) -> anyhow::Result<()> {
    lab.up(1)?;
    for program in ["ib_read_lat -s 4096 -n 300", "ib_write_bw -s 65536 -n 300"] {
        println!("{}", perftest(lab.donor(1)?, lab.client()?, &address(1), program)?);
    }
    Ok(())
}

/// The row of numbers that one of perftest's programs ends with, served by one guest and run on the
/// other.
pub(super) fn perftest(server: &Guest, client: &Guest, server_is_at: &str, program: &str) -> anyhow::Result<String> {
    let program = program.replacen(' ', &format!(" -d {DEVICE} -x 1 "), 1);
    server.sh(&format!("systemd-run --quiet --collect -p LimitMEMLOCK=infinity timeout 60 {program}; sleep 2"))?;
    let said = client.sh(&format!("ulimit -l unlimited; timeout 60 {program} {server_is_at}"))?;
    let row = said.lines().rfind(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    row.map(str::to_owned).with_context(|| said.clone())
}
