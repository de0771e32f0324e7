//! A machine that has never heard of RDMA.

use crate::vm::lab::{Lab, Settings};
use crate::vm::load::Load;
use anyhow::ensure;

/// Without libibverbs and without kernel modules for RDMA, both programs start, say what they use,
/// and page.
pub fn without_libibverbs(lab: &mut Lab) -> anyhow::Result<()> {
    lab.up(2)?;
    for guest in [lab.client()?, lab.donor(1)?, lab.donor(2)?] {
        guest.sh("rdma link delete rxe0
                  modprobe -r rdma_rxe rdma_ucm ib_umad
                  dpkg --purge --force-depends perftest ibverbs-utils rdma-core ibverbs-providers librdmacm1 libibumad3 libibverbs1
                  ldconfig; ! ldconfig -p | grep -E 'ibverbs|rdmacm|libmlx5'")?;
    }
    lab.start(2, &Settings::default())?;
    let load = Load::stress(lab.client()?, 12)?;
    lab.wait_faults("load", 250)?;
    let status = lab.status()?;
    for donor in &status.donors {
        println!("{}: {:?}: {}", donor.name, donor.transport, donor.why);
        ensure!(donor.why.contains("tcp") && !donor.why.is_empty(), "what is used is not said: {donor:?}");
    }
    println!("{:?}", load.end()?);
    // These guests are of no use to others.
    lab.power_off_all();
    Ok(())
}
