//! `annex ca`: makes a CA, hands out tokens, signs, lists, revokes. All of it is in
//! [`annex_identity::ca`]; here it is read from a command line and shown.

use crate::command::{CaArgs, CaCommand};
use crate::failure::Failure;
use crate::host_files::HostFiles;
use crate::output::show;
use crate::table::{Column, draw};
use annex_identity::ca::registry::{Issued, Registry, TokenRecord};
use annex_identity::ca::{Ca, CaError, Signed, to_pem};
use annex_identity::files;
use annex_identity::join::ask::Joined;
use annex_identity::key::Key;
use annex_identity::names::Role;
use annex_identity::verify::span;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateSigningRequestDer, UnixTime};
use serde::Serialize;
use std::path::{Path, PathBuf};

pub fn ca(args: &CaArgs, json: bool) -> Result<(), Failure> {
    let now = UnixTime::now();
    match &args.command {
        CaCommand::Init { cluster } => {
            let ca = Ca::init(&args.dir, cluster.clone(), now)?;
            let made = Made { cluster: ca.cluster().to_string(), dir: args.dir.clone() };
            show(json, &made, |made| {
                let dir = made.dir.display();
                format!(
                    "made a CA for cluster {} in {dir}\n\
                     whoever has {dir}/ca-key.pem can be any host: keep a copy where nobody else reads it\n",
                    made.cluster
                )
            })
        }
        CaCommand::Token { role, name, valid, addresses } => {
            let ca = Ca::open(&args.dir)?;
            let token = ca.token(*role, name.clone(), valid.0, addresses.clone(), now)?;
            show(json, &Handed { token: token.reveal() }, |handed| format!("{}\n", handed.token))
        }
        CaCommand::Issue { role, name, files } => {
            let (ca, files) = (Ca::open(&args.dir)?, HostFiles::of(files)?);
            files.prepare()?;
            let key = Key::generate().map_err(CaError::Key)?;
            let Signed { name, certificate, ca: issuer } =
                ca.sign(*role, name.clone(), &key.request().map_err(CaError::Key)?, now)?;
            let joined = Joined { name, certificate, ca: issuer };
            files.save(&joined, &key).map_err(|why| Failure::Unsaved { host: joined.name.clone(), why })?;
            // An agent beside the CA signs for it, and renews its own certificate there.
            let dir = std::path::absolute(&args.dir).unwrap_or_else(|_| args.dir.clone());
            let dir = (*role == Role::Donor).then_some(dir.as_path());
            show(json, &files.made(&joined, None, dir)?, |made| made.text())
        }
        CaCommand::Sign { csr, role, name } => {
            let request = read_request(csr)?;
            let signed = Ca::open(&args.dir)?.sign(*role, name.clone(), &request, now)?;
            show(json, &Certificate::of(&signed), |signed| signed.certificate.clone())
        }
        CaCommand::List => {
            let registry = Ca::open(&args.dir)?.registry()?;
            show(json, &Listing::of(&registry, now), |listing| listing.draw(now))
        }
        CaCommand::Revoke { name, role } => {
            let ca = Ca::open(&args.dir)?;
            let certificates = ca.revoke(name, *role, now)?;
            let revoked = Revoked { certificates, list: ca.revocation_list() };
            show(json, &revoked, |revoked| {
                format!(
                    "revoked {} certificates of {name}\nthe hosts need the new {}\n",
                    revoked.certificates,
                    revoked.list.display()
                )
            })
        }
    }
}

#[derive(Serialize)]
struct Made {
    cluster: String,
    dir: PathBuf,
}

#[derive(Serialize)]
struct Handed {
    token: String,
}

#[derive(Serialize)]
struct Certificate {
    name: String,
    /// In PEM, as `ca`.
    certificate: String,
    ca: String,
}

impl Certificate {
    fn of(signed: &Signed) -> Certificate {
        Certificate { name: signed.name.to_string(), certificate: to_pem(&signed.certificate), ca: to_pem(&signed.ca) }
    }
}

#[derive(Serialize)]
struct Revoked {
    certificates: usize,
    list: PathBuf,
}

/// The certificates in the order in which they were issued, and the tokens that can be used.
#[derive(Serialize)]
struct Listing<'a> {
    certificates: &'a [Issued],
    tokens: Vec<Open<'a>>,
}

/// A token, without what finds it in the registry.
#[derive(Serialize)]
struct Open<'a> {
    role: Role,
    host: &'a str,
    expires: u64,
}

impl<'a> Listing<'a> {
    fn of(registry: &'a Registry, now: UnixTime) -> Listing<'a> {
        let is_open = |token: &&TokenRecord| token.used.is_none() && now.as_secs() <= token.expires;
        let open =
            |token: &'a TokenRecord| Open { role: token.role, host: token.host.as_str(), expires: token.expires };
        Listing { certificates: &registry.issued, tokens: registry.tokens.iter().filter(is_open).map(open).collect() }
    }

    fn draw(&self, now: UnixTime) -> String {
        let now = now.as_secs();
        let left = |until: u64| match until.checked_sub(now) {
            Some(left) => format!("in {}", span(left)),
            None => format!("{} ago", span(now - until)),
        };
        let certificates = self.certificates.iter().map(|certificate| {
            let state = match (certificate.revoked, now > certificate.expires) {
                (Some(_), _) => "revoked",
                (None, true) => "expired",
                (None, false) => "good",
            };
            let key = certificate.key.to_string();
            vec![
                certificate.host.to_string(),
                certificate.role.to_string(),
                state.into(),
                left(certificate.expires),
                key[..16].into(),
            ]
        });
        let tokens = self.tokens.iter().map(|token| {
            vec![token.host.into(), token.role.to_string(), "token".into(), left(token.expires), String::new()]
        });
        let columns = ["NAME", "ROLE", "STATE", "EXPIRES", "KEY"].map(Column::Text);
        draw(&columns, certificates.chain(tokens), None)
    }
}

fn read_request(path: &Path) -> Result<Vec<u8>, Failure> {
    let bad = |why: String| Failure::Csr { path: path.to_owned(), why };
    let pem = files::read(path).map_err(|e| Failure::Ca(e.into()))?;
    let request = CertificateSigningRequestDer::from_pem_slice(&pem);
    Ok(request.map_err(|e| bad(format!("it is no CSR in PEM: {e}")))?.as_ref().to_vec())
}
