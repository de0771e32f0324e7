//! `annex`: the command people type. A thin client of annexd's local API ([`annex_shared::api`]).
//!
//! - [`annex_cli::command`]: the command line.
//! - [`client`]: HTTP over annexd's Unix socket.
//! - [`failure`]: everything that can go wrong, as the user reads it, and the exit codes.
//! - [`run`]: starts a program under annex by becoming it.
//! - [`attach`], [`detach`]: take and give back running processes, showing progress.
//! - [`mod@events`]: what happened, and what happens.
//! - [`interrupt`]: what SIGINT means while annexd goes on.
//! - [`mod@bench`]: measures this host with the donors it has.
//! - [`listing`]: `apps`, `slabs`, `donors` and `status` as tables; [`table`] draws them.
//! - [`mod@join`]: this host's first certificate; [`host_files`]: where it goes.
//! - [`ca`]: a CA's folder. Neither speaks to annexd.
//! - [`mod@doctor`]: looks for what is wrong, and works without annexd.
//! - [`mod@top`]: the same live, what hurts most first.
//! - [`mod@advise`]: which running programs hold cold memory.
//! - [`output`]: prints what annexd answered.

mod advise;
mod attach;
mod bench;
mod ca;
mod client;
mod detach;
mod doctor;
mod events;
mod failure;
mod host_files;
mod interrupt;
mod join;
mod listing;
mod output;
mod run;
mod table;
mod top;

use annex_cli::command::{self, Cli, Command, DonorsCommand};
use annex_shared::api::{AppInfo, DonorInfo, DonorRequest, LimitRequest, format_bytes};
use annex_shared::donor::DonorSpec;
use annex_shared::printable::printable;
use clap::Parser;
use client::Client;
use failure::Failure;
use hyper::Method;
use output::show;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return command::explain(&error),
    };
    match dispatch(&cli) {
        Ok(code) => code,
        Err(failure) => {
            failure.report(cli.json);
            failure.exit_code(matches!(cli.command, Command::Run(_)))
        }
    }
}

fn dispatch(cli: &Cli) -> Result<ExitCode, Failure> {
    let client = Client::new(&cli.socket)?;
    let done = match &cli.command {
        Command::Run(args) => match run::run(client, args)? {},
        Command::Attach(args) => attach::attach(&client, args, cli.json),
        Command::Detach { app } => detach::detach(&client, app, cli.json),
        Command::Limit { app, local } => {
            let request = LimitRequest { local: *local };
            let app: AppInfo = client.call(Method::PUT, &client::path(&["apps", app, "limit"]), Some(&request))?;
            show(cli.json, &app, |app| listing::allowed(app) + "\n")
        }
        Command::Apps => show(cli.json, &client.apps()?, |apps| listing::apps(apps, listing::width())),
        Command::Status { check } => {
            let status = client.status()?;
            show(cli.json, &status, |status| listing::status(status, listing::width()))?;
            return Ok(ExitCode::from(if *check { status.severity().exit_code() } else { 0 }));
        }
        Command::Top(args) => return top::top(&client, args, &cli.socket, cli.json),
        Command::Doctor(args) => return doctor::doctor(args, &cli.socket, cli.json),
        Command::Events(args) => events::events(&client, args, cli.json),
        Command::Advise(args) => advise::advise(&client, args, cli.json),
        Command::Bench(args) => bench::bench(&client, args, &cli.socket, cli.json),
        Command::BenchPattern(args) => bench::pattern(args),
        Command::Join(args) => join::join(args, cli.json),
        Command::Ca(args) => ca::ca(args, cli.json),
        Command::Kv => show(cli.json, &client.kv()?, |kv| listing::kv(kv, listing::width())),
        Command::Slabs => show(cli.json, &client.slabs()?, |slabs| listing::slabs(slabs)),
        Command::Donors { change: None } => {
            show(cli.json, &client.donors()?, |donors| listing::donors(donors, listing::width()))
        }
        Command::Donors { change: Some(DonorsCommand::Add { donor, name, transport }) } => {
            let DonorSpec { address, name: in_word, transport: and_transport, tcp_fallback, faults } = donor.clone();
            let (name, transport) = (name.clone().or(in_word), transport.or(and_transport));
            let request = DonorRequest { address, name, transport, tcp_fallback, faults };
            let donor: DonorInfo = client.call(Method::POST, &client::path(&["donors"]), Some(&request))?;
            show(cli.json, &donor, |d| {
                format!("added donor {} (annex donors shows when it is up)\n", printable(&d.name))
            })
        }
        Command::Donors { change: Some(DonorsCommand::Remove { donor }) } => {
            let path = client::path(&["donors", donor]);
            let donor: DonorInfo = client.call(Method::DELETE, &path, None::<&()>)?;
            show(cli.json, &donor, |d| {
                let used = format_bytes(d.used);
                match (d.slabs_held, d.used) {
                    (0, 0) => format!("donor {} is removed: nothing of this host's lies there\n", printable(&d.name)),
                    _ => format!(
                        "donor {} is being emptied: {used} go elsewhere (annex donors shows how far)\n",
                        printable(&d.name)
                    ),
                }
            })
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}
