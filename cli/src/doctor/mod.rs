//! `annex doctor`: finds what is wrong before a user has to.
//!
//! It looks at this host, asks annexd, reads annexd's configuration, and connects to each donor.
//! None of these needs the others: where annexd is down, all else is checked all the same. Nothing
//! is changed.
//!
//! - [`annexd`]: whether annexd answers, and what it says.
//! - [`config`]: its configuration file; [`lints`]: what in it will disappoint.
//! - [`donors`]: whether each donor can be reached, and what annexd says of it.
//! - [`bundle`]: all of it in one file; [`secrets`]: what stays out of that.

mod annexd;
mod bundle;
mod config;
mod donors;
mod lints;
mod secrets;

use crate::failure::Failure;
use crate::output::show;
use annex_cli::command::DoctorArgs;
use annex_doctor::{Host, Report, Role, Subject, checks, rdma, report, tls, userfaultfd};
use rustls::pki_types::UnixTime;
use std::path::Path;
use std::process::ExitCode;

pub fn doctor(args: &DoctorArgs, socket: &Path, json: bool) -> Result<ExitCode, Failure> {
    let host = Host::at(&args.root);
    let answer = annexd::ask(socket);
    let status = answer.as_ref().ok().map(|said| &said.status);
    let subject = Subject { role: Role::Client, pid: status.map(|status| status.pid) };
    let kernel = (args.root == Path::new("/")).then(userfaultfd::ask);
    let has_rdma = rdma::ports(&host).iter().any(rdma::Port::is_active);
    let file = config::read(args.config.as_deref());
    let known = status.map_or(&[][..], |status| &status.donors);
    let donors = donors::merge(file.donors(), known);

    let mut found = Report::default();
    found.add("host", checks(&host, &subject, kernel.as_ref()));
    found.add("annexd", annexd::checks(&answer, socket));
    found.add("configuration", file.check());
    if let Some(config) = file.config() {
        found.add("configuration", lints::lints(config, known.len(), has_rdma));
        found.add("configuration", rdma::configured(&host, &config.pool.verbs.clone().into()));
        let tls = config.tls.clone().into();
        found.add("configuration", tls::certificate(&tls, annex_identity::names::Role::Client, UnixTime::now()));
    }
    let reached = donors::reach(&donors);
    let surroundings = donors::Surroundings { annexd_answers: status.is_some(), has_rdma };
    let judged = donors.iter().zip(&reached).map(|(donor, reached)| donors::judge(donor, reached, surroundings));
    found.add("donors", judged);

    show(json, &found, |found| found.text(report::is_coloured()))?;
    if let Some(path) = &args.bundle {
        let contents = bundle::Contents { report: &found, answer: &answer, file: &file, host: &host };
        let bytes = bundle::write(path, &contents.text())?;
        eprintln!("annex: wrote {bytes} bytes to {}: read it before you send it", path.display());
    }
    Ok(ExitCode::from(found.exit_code()))
}
