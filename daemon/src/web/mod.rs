//! The page (`[web]`): pool, donors, apps and events for a browser. It can only be read.
//!
//! - `page.html`: all of it, in one file that asks for nothing from elsewhere. It looks at
//!   `/api/state` every two seconds, and at `/api/curves` when there is something new.
//! - [`state`]: how all stands, made of the status that `annex status` shows.
//! - [`curves`]: how apps did in the last hour. A thread of its own looks every ten seconds.
//!
//! Names of apps and donors are chosen by others. The page writes them as text, never as HTML, and
//! its Content-Security-Policy lets no script and no style run but its own, by their hashes.

mod curves;
mod state;

use crate::control::Control;
use annex_host::events;
use annex_identity::certificate::sha256;
use annex_metrics::http::{Page, Server, Site};
use annex_shared::printable::printable;
use curves::Curves;
use data_encoding::BASE64;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY};
use parking_lot::Mutex;
use serde::Serialize;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

const PAGE: &str = include_str!("page.html");
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";

/// Serves the page at `address`, and begins the curves.
///
/// # Errors
/// A thread can't be started.
pub fn start(address: SocketAddr, control: &Arc<Control>) -> io::Result<Server> {
    let curves: Arc<Mutex<Curves>> = Arc::default();
    let (looked, at) = (Arc::downgrade(control), curves.clone());
    std::thread::Builder::new().name("annex-curves".into()).spawn(move || look(&looked, &at))?;
    Server::start(address, site(Arc::downgrade(control), curves))
}

/// Adds to the curves until annexd is done.
fn look(control: &Weak<Control>, curves: &Mutex<Curves>) {
    while let Some(apps) = control.upgrade().map(|control| control.apps.apps()) {
        curves.lock().add(&apps, events::now_ms(), Instant::now());
        std::thread::sleep(curves::EVERY);
    }
}

fn site(control: Weak<Control>, curves: Arc<Mutex<Curves>>) -> Site {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = printable(host.trim()).into_owned();
    let of_state = curves.clone();
    let take = move || control.upgrade().map_or_else(String::new, |control| shown(&control, &of_state, &host));
    let pages = vec![
        Page::fixed("/", HTML, PAGE),
        Page::taken("/api/state", JSON, take),
        Page::by_query("/api/curves", JSON, move |query| json(&curves.lock().after(after(query))).into()),
    ];
    Site { what: "the page", table: "web", pages, headers: headers(), refuses_names: true }
}

fn shown(control: &Control, curves: &Mutex<Curves>, host: &str) -> String {
    let (status, events) = (control.whole_status(), events::after(0));
    let curves = curves.lock();
    let sources = state::Sources { status: &status, events: &events, curves: &curves, host, now_ms: events::now_ms() };
    json(&state::state(&sources))
}

fn json(value: &impl Serialize) -> String {
    // Numbers, texts and lists only: those can always be written.
    serde_json::to_string(value).unwrap_or_default()
}

/// The time in `after=MILLISECONDS`. Whoever asks for something else gets all there is.
fn after(query: Option<&str>) -> u64 {
    query.and_then(|query| query.strip_prefix("after=")?.parse().ok()).unwrap_or(0)
}

fn headers() -> Vec<(HeaderName, HeaderValue)> {
    let policy = HeaderValue::try_from(policy(PAGE)).expect("hashes are in base64");
    let isolation = |name| (HeaderName::from_static(name), HeaderValue::from_static("same-origin"));
    vec![
        (CONTENT_SECURITY_POLICY, policy),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        isolation("cross-origin-resource-policy"),
        isolation("cross-origin-opener-policy"),
    ]
}

/// Nothing but the script and the style that stand in the page, its icon, and what it asks annexd.
fn policy(page: &str) -> String {
    let hash = |tag| {
        let content = inside(page, tag).unwrap_or_default();
        format!("'sha256-{}'", BASE64.encode(&sha256(content.as_bytes())))
    };
    let (script, style) = (hash("script"), hash("style"));
    format!(
        "default-src 'none'; script-src {script}; style-src {style}; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// What stands between a tag without attributes and its end.
fn inside<'a>(page: &'a str, tag: &str) -> Option<&'a str> {
    let (_, rest) = page.split_once(&format!("<{tag}>"))?;
    Some(rest.split_once(&format!("</{tag}>"))?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_names_the_one_script_and_the_one_style() {
        // printf 'a()' | openssl dgst -sha256 -binary | base64
        let policy = policy("<style></style><script>a()</script>");
        assert!(policy.contains("script-src 'sha256-qVpDBgj7bpq5hMAcGp3AOc79J3Y1Z4HvySTwKrWDoy4='"), "{policy}");
        for tag in ["<script", "<style"] {
            assert_eq!(PAGE.matches(tag).count(), 1, "{tag}");
        }
        assert!(inside(PAGE, "script").is_some_and(|script| script.contains("fetch")));
        assert!(inside(PAGE, "style").is_some());
    }

    /// What others have named must never become HTML, and nothing may come from elsewhere.
    #[test]
    fn the_page_writes_text_only_and_is_whole() {
        for word in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=\"", "onclick=\""]
        {
            assert!(!PAGE.contains(word), "{word}");
        }
        let links = PAGE.matches("://").count();
        assert_eq!(links, PAGE.matches("http://www.w3.org/2000/svg").count(), "something comes from elsewhere");
        assert!(PAGE.lines().count() <= 600, "{} lines", PAGE.lines().count());
    }

    #[test]
    fn a_time_is_taken_from_the_query() {
        assert_eq!((after(Some("after=17")), after(Some("after=x")), after(None)), (17, 0, 0));
    }
}
