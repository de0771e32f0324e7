//! What to do about a donor that is not up, by the reason that annexd gives for it. One table for
//! `annex status` and `annex doctor`, so that both say the same. Pure.

/// Of a donor whose address leads nowhere.
pub const UNRESOLVED: &str = "correct the address in [[pool.donor]], or the name in DNS or /etc/hosts";
/// Of a donor whose host refuses the connection.
pub const REFUSED: &str =
    "on that host: systemctl status annex-agent, listen in agent.toml, and the firewall for that port";

/// The first row whose words are in the reason counts: the more precise ones stand first.
const OF_DONORS: &[(&str, &str)] = &[
    ("does not accept this host's certificate", "on that host: journalctl -u annex-agent tells what it has against it"),
    (" expired ", "on that host: sign a new certificate (annex ca sign, or your PKI), or set the clock that is wrong"),
    (" is valid only in ", "set the clocks of both hosts"),
    (
        "no certificate in the ca file has issued",
        "put the CA that issued it into the ca file of [tls] here, or on that host those between into the cert file",
    ),
    (" was revoked", "on that host: make a new key and sign a certificate for it, if it may come back"),
    (" has the wrong role", "on that host: sign a certificate with the role donor (annex ca sign, or your PKI)"),
    (
        " is of another cluster than ",
        "correct the address in [[pool.donor]], or sign a certificate of this cluster there",
    ),
    ("this port takes TLS only", "set ca, cert and key in [tls] here, or take [tls] away on that host"),
    ("does its configuration have [tls]", "set ca, cert and key in [tls] on that host, or take [tls] away here"),
    ("what the peer sent is no TLS", "set ca, cert and key in [tls] on that host, or take [tls] away here"),
    ("names no annex host", "on that host: sign a certificate with a URI annex://CLUSTER/donor/NAME"),
    ("certificate", "on that host: sign a new certificate (annex ca sign, or your PKI)"),
    ("can't be resolved", UNRESOLVED),
    ("Connection refused", REFUSED),
    (
        "nobody lends memory at",
        "look whether that host runs and answers (ping); there: systemctl status annex-agent, and the firewall for that port",
    ),
    ("is shutting down", "wait, or on that host: systemctl start annex-agent"),
    ("is being drained", "wait, or on that host: annex-agent drain --cancel"),
    (
        " answer",
        "look whether that host runs and the network to it (ping); there: systemctl status annex-agent, and its load",
    ),
];

/// What to do about a donor that is not up. `None`: the reason tells, or time will.
pub fn of_donor(why: &str) -> Option<&'static str> {
    OF_DONORS.iter().find(|(words, _)| why.contains(words)).map(|(_, remedy)| *remedy)
}

/// Whether waiting alone may mend it: it may not if TLS or a name stands in the way.
pub fn is_of_identity(why: &str) -> bool {
    ["certificate", "TLS", "[tls]"].iter().any(|words| why.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reasons_that_annexd_gives_have_a_remedy() {
        for (why, remedy) in [
            ("nobody lends memory at db7:7411: Connection refused (os error 111) (is annex-agent …?)", "agent.toml"),
            ("nobody lends memory at db7:7411: connection timed out (is annex-agent running there?)", "ping"),
            ("it did not answer within 5s", "ping"),
            ("neither its memory nor its agent answers: writes go on without it until they do", "ping"),
            ("the address db7:7411 can't be resolved: failed to lookup", "/etc/hosts"),
            ("it is shutting down", "systemctl start annex-agent"),
        ] {
            assert!(of_donor(why).is_some_and(|said| said.contains(remedy)), "{why}: {:?}", of_donor(why));
            assert!(!is_of_identity(why), "{why}");
        }
        assert_eq!(of_donor("not reached yet"), None);
    }
}
