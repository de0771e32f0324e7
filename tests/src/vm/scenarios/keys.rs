//! The KV API over real verbs.

use crate::vm::inside::Redis;
use crate::vm::lab::{Lab, Settings};
use crate::vm::load;
use annex_shared::api::DonorState;
use annex_shared::transport::Transport;
use anyhow::ensure;
use std::time::Duration;

/// Nothing but RDMA will do, and a donor without power is given up soon.
const VERBS: Settings =
    Settings { of_donors: "transport = \"verbs\"", lost_after: super::donors::LOST_AFTER, kv: true };
const VALUES: Redis = Redis { megabytes: 2, store: true, verify: 1, times: 1, kv: true };
/// The values are stored so often while the donor goes.
const TIMES: u8 = 20;

/// Values that are stored and verified again and again while a donor's power goes: none is lost,
/// and none is one that was there before.
pub fn over_verbs(lab: &mut Lab) -> anyhow::Result<()> {
    lab.start(3, &VERBS)?;
    let stored = load::values(lab.client()?, &VALUES)?;
    let status = lab.status()?;
    ensure!(super::verbs::over(&status, Transport::Verbs) == 3, "{:?}", status.donors);

    load::begin_values(lab.client()?, &Redis { times: TIMES, ..VALUES })?;
    std::thread::sleep(Duration::from_secs(1));
    ensure!(load::Load::running(lab.client()?, "values").is_running()?, "all was stored before the donor went");
    lab.power_off(2)?;
    let overwritten = load::Load::running(lab.client()?, "values").verdict()?;
    lab.wait_status("the loss of the donor without power to be noticed", |s| {
        s.donors.iter().any(|d| d.name == "donor2" && d.state != DonorState::Up)
    })?;
    let verified = load::values(lab.client()?, &Redis { store: false, times: TIMES, ..VALUES })?;
    ensure!(verified.verified == stored.verified, "{stored:?}, {verified:?}");
    println!("{stored:?}, then {overwritten:?} while donor2 went, then {verified:?}");
    Ok(())
}
