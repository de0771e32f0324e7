//! A configuration without its secrets.

use toml::{Table, Value};

const LEFT_OUT: &str = "(left out)";
/// A key that has one of these words in its name holds a secret.
const SECRET: &[&str] = &["password", "passphrase", "secret", "token", "key", "credential", "auth"];

/// The configuration as it is understood. Comments go, since a password may stand in one.
///
/// # Errors
/// The text is no TOML: then nothing of it can be told from a secret.
pub fn left_out(text: &str) -> Result<String, toml::de::Error> {
    let mut table: Table = toml::from_str(text)?;
    clean(&mut table);
    Ok(table.to_string())
}

fn clean(table: &mut Table) {
    for (key, value) in table.iter_mut() {
        if is_secret(key) {
            *value = Value::String(LEFT_OUT.to_owned());
        } else {
            clean_value(value);
        }
    }
}

fn clean_value(value: &mut Value) {
    match value {
        Value::Table(table) => clean(table),
        Value::Array(items) => items.iter_mut().for_each(clean_value),
        // `scheme://user:password@host`
        Value::String(text) if text.contains("://") && text.contains('@') => *text = LEFT_OUT.to_owned(),
        _ => {}
    }
}

/// A file's path is none.
fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    !key.ends_with("_file") && SECRET.iter().any(|word| key.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_left_out_however_they_are_written() {
        for text in [
            "[kv]\npassword = 'hunter2'",
            "kv.password = \"hunter2\"",
            "kv = { password = 'hunter2' }",
            "[kv]\n\"password\" = '''\nhunter2'''",
            "# password = 'hunter2'\n[kv]\nenabled = true",
            "[[pool.donor]]\naddress = 'a:1'\njoin_token = ['hunter2']",
            "[tls]\nKEY = 'hunter2'",
            "etcd = 'https://root:hunter2@etcd:2379'",
        ] {
            let safe = left_out(text).unwrap();
            assert!(!safe.contains("hunter2"), "{safe}");
        }
    }

    #[test]
    fn all_else_stays() {
        let safe = left_out("[kv]\npassword_file = '/etc/annex/p'\nlisten = ['127.0.0.1:1']\n[pool]\nreplicas = 2\n");
        let safe = safe.unwrap();
        assert!(
            safe.contains("/etc/annex/p") && safe.contains("replicas = 2") && safe.contains("127.0.0.1:1"),
            "{safe}"
        );
    }

    #[test]
    fn what_is_no_toml_is_not_repeated() {
        assert!(left_out("password = hunter2").is_err());
    }
}
