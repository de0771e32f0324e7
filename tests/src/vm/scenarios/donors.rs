//! Donors that fail: one whose power goes, one whose wire is cut.

use crate::vm::lab::{Lab, Settings};
use crate::vm::load::Load;
use anyhow::ensure;

/// Faults that are to be served between one disturbance and the next.
const FAULTS: u64 = 200;

/// A donor that is gone is to be noticed. Emulated machines that share two CPUs are silent for
/// seconds without being gone, all of them together.
pub(super) const LOST_AFTER: &str = "15s";

/// With two copies of each page on three donors, a donor that goes without a word costs nothing:
/// its pages are read from the other copy and made anew on the third.
pub fn lost(lab: &mut Lab) -> anyhow::Result<()> {
    lab.start(3, &Settings { lost_after: LOST_AFTER, ..Settings::default() })?;
    let stress = Load::stress(lab.client()?, 12)?.name();
    lab.wait_faults(stress, 2 * FAULTS)?;
    lab.wait_whole()?;

    lab.cut(1);
    lab.wait_status("the loss of the donor that is cut off to be noticed", |s| !is_up(s, "donor1"))?;
    lab.wait_faults(stress, FAULTS)?;
    lab.wait_whole()?;
    lab.mend(1);
    lab.wait_status("the donor to be back", |s| is_up(s, "donor1"))?;
    lab.wait_whole()?;

    lab.power_off(2)?;
    lab.wait_status("the loss of the donor without power to be noticed", |s| !is_up(s, "donor2"))?;
    lab.wait_faults(stress, FAULTS)?;
    let whole = lab.wait_whole()?;
    ensure!(whole.pool.repaired > 0, "nothing was made anew: {whole:?}");
    println!("{:?}", Load::running(lab.client()?, stress).end()?);
    Ok(())
}

fn is_up(status: &annex_shared::api::Status, donor: &str) -> bool {
    status.donors.iter().any(|d| d.name == donor && d.state == annex_shared::api::DonorState::Up)
}
