//! `annex join`: this host's first certificate, from the agent beside the CA. The protocol and what
//! is verified are in [`annex_identity::join`]. annexd is not asked.

use crate::failure::Failure;
use crate::host_files::HostFiles;
use crate::output::show;
use annex_cli::command::JoinArgs;
use annex_identity::ca::CaError;
use annex_identity::join::ask::{self, JoinError, Joined};
use annex_identity::key::Key;
use annex_identity::token::{Address, Token};
use rustls::time_provider::DefaultTimeProvider;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

/// Of a connection, and of all that is said on it.
const LIMIT: Duration = Duration::from_secs(10);
/// A token and some blanks.
const LONGEST_TOKEN: u64 = 16 << 10;

pub fn join(args: &JoinArgs, json: bool) -> Result<(), Failure> {
    let token = read_token(&args.token)?;
    let files = HostFiles::of(&args.files)?;
    files.prepare()?;
    let key = Key::generate().map_err(CaError::Key)?;
    let addresses = if args.addresses.is_empty() { token.addresses() } else { &args.addresses };
    let (joined, at) = ask_each(addresses, &token, &key)?;
    files.save(&joined, &key).map_err(|why| Failure::Unsaved { host: joined.name.clone(), why })?;
    show(json, &files.made(&joined, Some(at), None)?, |made| made.text())
}

fn read_token(word: &str) -> Result<Token, Failure> {
    let mut text = word.to_owned();
    if word == "-" {
        text.clear();
        std::io::stdin().take(LONGEST_TOKEN).read_to_string(&mut text).map_err(Failure::Input)?;
    }
    Ok(text.parse()?)
}

/// The first answer that counts, and who gave it. The same key is shown to all: whoever has signed
/// for it signs again, should the answer have been lost.
fn ask_each<'a>(addresses: &'a [Address], token: &Token, key: &Key) -> Result<(Joined, &'a Address), Failure> {
    let mut failures = Vec::new();
    for address in addresses {
        match ask_at(address, token, key) {
            Ok(joined) => return Ok((joined, address)),
            Err(why @ (JoinError::Refused(_) | JoinError::Key(_))) => {
                return Err(Failure::Join { at: address.clone(), why });
            }
            Err(why) => failures.push((address.clone(), why)),
        }
    }
    let one = (failures.len() == 1).then(|| failures.pop()).flatten();
    Err(one.map_or_else(|| Failure::JoinNowhere(failures), |(at, why)| Failure::Join { at, why }))
}

fn ask_at(address: &Address, token: &Token, key: &Key) -> Result<Joined, JoinError> {
    let once = || ask::join(ask::dial(address, LIMIT)?, token, key, Arc::new(DefaultTimeProvider), LIMIT);
    match once() {
        Err(JoinError::Lost(_)) => once(),
        other => other,
    }
}
